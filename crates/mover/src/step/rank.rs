//! One rank of a run.

use std::time::{Duration, Instant};

use crowfly_route::place::Place;
use crowfly_route::units::Bytes;
use serde_json::Value;

use super::batches::Batches;
use super::error::RunError;
use super::model::Model;
use super::moment::{Lost, Moment, Restored, Saved, Stepped, Times};
use super::order::{KEPT, Order};
use crate::checkpoint::select::RankSlice;
use crate::ckpt::{
    self, Archive, Pending, RestoreOptions, Retention, SLAB, Saver, SaverSettings, State,
};
use crate::collective::{CallOptions, CollectiveError, Element, Group, Reduction};
use crate::engine::Engine;
use crate::memory::fill_up;
use crate::request::{Destination, Request};
use crate::transfer::Loaded;

/// A run in which ranks are lost more often than this is given up.
pub const MAX_LOSSES: u32 = 8;
/// The values beside the tensors of a checkpoint.
const STEP: &str = "step";
const CURSOR: &str = "cursor";
const SEED: &str = "seed";
/// What rank 0 says when there is no complete checkpoint.
const NO_STEP: u64 = u64::MAX;

/// Those that a rank works with.
pub trait Crew {
    /// Forms the group: the first, or, given the one that lost ranks, the next.
    ///
    /// # Errors
    /// When it cannot be formed.
    fn muster(&mut self, before: Option<Group>) -> Result<Group, RunError>;

    /// How often ranks were lost before this one came: 0, unless it takes the place of a lost one.
    fn losses_before(&self) -> u32;

    /// Hears what happens.
    ///
    /// # Errors
    /// When there is nobody left to be told, which ends the run.
    fn tell(&mut self, moment: Moment) -> Result<(), RunError>;

    /// Comes before the computation of a step, which may take as long as it likes: until
    /// [`Crew::before_exchange`] the rank calls on nobody and hears nothing.
    fn before_computation(&mut self, _step: u64) {}

    /// Comes between the computation and the exchange of a step.
    fn before_exchange(&mut self, step: u64);
}

/// What a rank has when it is through.
pub struct Ended {
    /// The group, for a last word.
    pub group: Group,
    /// A checksum of its state: tensors, step, position in the data.
    pub digest: u64,
}

/// Does a run as one rank.
///
/// # Errors
/// [`RunError`]; ranks that are lost are none as long as the run can go on.
pub fn train(
    order: &Order,
    destination: Destination,
    crew: &mut dyn Crew,
) -> Result<Ended, RunError> {
    order.check()?;
    let began = Instant::now();
    let losses = crew.losses_before();
    let group = crew.muster(None)?;
    // Only now: one of them may have made the data before it came.
    let batches = Batches::open(&order.data, order.batch)?;
    let mut rank = Rank {
        order,
        destination,
        crew,
        began,
        batches,
        engine: Engine::default(),
        model: Model::new(order.parameters, order.layers, order.seed)?,
        group: Some(group),
        saving: None,
        losses,
        met: false,
        since: began,
        called: began,
    };
    loop {
        match rank.go_on() {
            Ok(()) => break,
            Err(RunError::Collective(error)) if is_loss(&error) => rank.recover(&error)?,
            Err(error) => return Err(error),
        }
    }
    let digest = rank.model.digest();
    let seconds = began.elapsed().as_secs_f64();
    let ended = Moment::Ended {
        seconds,
        digest: format!("{digest:016x}"),
    };
    rank.crew.tell(ended)?;
    let group = rank.group.take().ok_or(RunError::Abandoned)?;
    Ok(Ended { group, digest })
}

const fn is_loss(error: &CollectiveError) -> bool {
    matches!(error, CollectiveError::RanksLost(_))
}

/// A saver, and what it is at.
struct Saving {
    saver: Saver,
    pending: Option<(Pending, f64)>,
}

struct Rank<'a> {
    order: &'a Order,
    destination: Destination,
    crew: &'a mut dyn Crew,
    began: Instant,
    batches: Batches,
    engine: Engine,
    model: Model,
    group: Option<Group>,
    saving: Option<Saving>,
    /// How often ranks were lost, which all agree on.
    losses: u32,
    /// Whether this group has agreed on what it goes on from.
    met: bool,
    /// When the group before this one failed, or the run began.
    since: Instant,
    /// When the others were last called upon.
    called: Instant,
}

impl Rank<'_> {
    fn within(&self) -> CallOptions {
        CallOptions::within(Duration::from_secs_f64(self.order.deadline))
    }

    fn group(&mut self) -> Result<&mut Group, RunError> {
        self.group.as_mut().ok_or(RunError::Abandoned)
    }

    fn go_on(&mut self) -> Result<(), RunError> {
        if !self.met {
            self.meet()?;
            self.met = true;
        }
        self.finish()
    }

    /// Has a new group agree on what it goes on from.
    fn meet(&mut self) -> Result<(), RunError> {
        self.called = Instant::now();
        let within = self.within();
        let mut losses = i64::from(self.losses).to_le_bytes();
        let group = self.group.as_mut().ok_or(RunError::Abandoned)?;
        group.all_reduce(&mut losses, Element::I64, Reduction::Max, within)?;
        let formed = Moment::Formed {
            ranks: group.size(),
            hosts: group.hosts().len(),
            seconds: self.since.elapsed().as_secs_f64(),
        };
        self.losses = u32::try_from(i64::from_le_bytes(losses)).unwrap_or(u32::MAX);
        self.saving = match (self.order.every, &self.group) {
            (Some(_), Some(group)) => Some(self.saver(group)?),
            _ => None,
        };
        self.crew.tell(formed)?;
        match self.losses {
            0 => Ok(()),
            _ => self.restore(),
        }
    }

    fn saver(&self, group: &Group) -> Result<Saving, RunError> {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let slice = RankSlice::new(number(group.rank()), number(group.size()));
        let slice = slice.map_err(|error| CollectiveError::Forming(error.to_string()))?;
        let part = self.order.checkpoint_bytes().0 / group.size().max(1) as u64;
        let settings = SaverSettings {
            // Twice a rank's even share: layers do not always come out even.
            staging: Bytes((2 * part).max(2 * SLAB)),
            patience: Duration::from_secs_f64(self.order.deadline),
            // Those who saved with a rank that is gone are at another attempt.
            session: format!("step-{}-of-{}", self.losses, group.size()),
            retention: Some(Retention {
                keep: KEPT,
                keep_every: None,
            }),
            engine: self.engine.clone(),
            ..SaverSettings::default()
        };
        Ok(Saving {
            saver: Saver::new(&self.order.checkpoints, slice, settings)?,
            pending: None,
        })
    }

    fn finish(&mut self) -> Result<(), RunError> {
        while self.model.step < self.order.steps {
            self.step()?;
        }
        self.settle()?;
        self.called = Instant::now();
        let within = self.within();
        self.group()?.barrier(within)?;
        Ok(())
    }

    fn step(&mut self) -> Result<(), RunError> {
        let mut times = Times::default();
        let began = Instant::now();
        let (ranks, me) = {
            let group = self.group()?;
            (group.size() as u64, group.rank() as u64)
        };
        let (mut loaded, batch) = self.read(self.model.cursor + me, &mut times)?;
        self.crew.before_computation(self.model.step + 1);
        let clock = Instant::now();
        let bytes = match (&batch, loaded.regions.as_slice()) {
            (Some(batch), _) => batch.as_slice(),
            (None, [region]) => region.as_slice().unwrap_or_default(),
            (None, _) => &[],
        };
        let computed = self.model.compute(bytes, self.order.work);
        times.compute = clock.elapsed().as_secs_f64();
        loaded.regions.clear();
        self.crew.before_exchange(self.model.step + 1);
        let clock = Instant::now();
        self.called = clock;
        let within = self.within();
        let group = self.group.as_mut().ok_or(RunError::Abandoned)?;
        let gradients = self.model.gradients();
        let exchanged = group.all_reduce(gradients, Element::Bf16, Reduction::Mean, within)?;
        times.exchange = clock.elapsed().as_secs_f64();
        let clock = Instant::now();
        self.model.update();
        self.model.cursor += ranks;
        times.update = clock.elapsed().as_secs_f64();
        let due = self
            .order
            .every
            .is_some_and(|every| self.model.step.is_multiple_of(every));
        if due {
            let clock = Instant::now();
            self.save()?;
            times.stall = clock.elapsed().as_secs_f64();
        }
        times.total = began.elapsed().as_secs_f64();
        let stepped = Stepped {
            step: self.model.step,
            ended: self.began.elapsed().as_secs_f64(),
            times,
            read: loaded.receipt.into(),
            exchanged: exchanged.into(),
            passes: computed.passes,
            flops: computed.flops,
        };
        self.crew.tell(Moment::Stepped(Box::new(stepped)))?;
        if self.saving.as_ref().is_some_and(Saving::is_over) {
            self.settle()?;
        }
        Ok(())
    }

    /// Reads a batch; with its bytes where the stand-in can use them, unless the one region has them.
    fn read(&self, number: u64, times: &mut Times) -> Result<(Loaded, Option<Vec<u8>>), RunError> {
        let clock = Instant::now();
        let pieces = self.batches.pieces(number);
        let from = pieces.first().map_or(Place::Host(None), |piece| {
            Place::File(piece.source.path().display().to_string())
        });
        let request = Request {
            destination: self.destination.clone(),
            ..Request::to_host(from, pieces)
        };
        let loaded = self.engine.load(request)?.wait()?;
        times.read = clock.elapsed().as_secs_f64();
        if let [region] = loaded.regions.as_slice()
            && region.as_slice().is_some()
        {
            return Ok((loaded, None));
        }
        let clock = Instant::now();
        let mut batch = Vec::new();
        for region in &loaded.regions {
            let at = batch.len();
            fill_up(&mut batch, at + region.len())?;
            let into = batch.get_mut(at..).unwrap_or_default();
            region
                .read_at(0, into)
                .map_err(|source| RunError::Unreadable {
                    place: region.place().to_string(),
                    source,
                })?;
        }
        times.fetch = clock.elapsed().as_secs_f64();
        Ok((loaded, Some(batch)))
    }

    /// Begins to save the state; waits for an earlier save that is not over.
    fn save(&mut self) -> Result<(), RunError> {
        let clock = Instant::now();
        self.settle()?;
        let step = self.model.step;
        let objects = [
            (STEP, step),
            (CURSOR, self.model.cursor),
            (SEED, self.order.seed),
        ];
        let objects = objects.map(|(name, value)| (name.to_owned(), Value::from(value)));
        let state = State {
            tensors: self.model.tensors(),
            objects: objects.into_iter().collect(),
        };
        let Some(saving) = &mut self.saving else {
            return Ok(());
        };
        let pending = saving.saver.save_async(step, &state)?;
        saving.pending = Some((pending, clock.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Waits for a save that is under way, and tells what became of it. One that failed is told and
    /// not more: the checkpoints before it are still there.
    fn settle(&mut self) -> Result<(), RunError> {
        let pending = self
            .saving
            .as_mut()
            .and_then(|saving| saving.pending.take());
        let Some((pending, stall)) = pending else {
            return Ok(());
        };
        let step = pending.step();
        let moment = match pending.wait() {
            Ok(receipt) => Moment::Saved(Box::new(Saved::of(receipt, stall))),
            Err(error) => Moment::NotSaved {
                step,
                code: error.code().to_owned(),
                what: error.to_string(),
            },
        };
        self.crew.tell(moment)
    }

    /// After a loss: tells of it, and has a new group formed.
    fn recover(&mut self, error: &CollectiveError) -> Result<(), RunError> {
        self.since = Instant::now();
        let heard_after = (self.since - self.called).as_secs_f64();
        self.losses += 1;
        if self.losses > MAX_LOSSES {
            let losses = self.losses;
            return Err(RunError::TooManyLosses { losses });
        }
        let ranks = match error {
            CollectiveError::RanksLost(lost) => lost.iter().map(|lost| lost.rank).collect(),
            _ => Vec::new(),
        };
        // What the others of the old group were saving ends before anybody looks for the latest step, and soon:
        // those who were not saving wait meanwhile.
        let saving = self
            .saving
            .as_ref()
            .and_then(|saving| saving.pending.as_ref());
        if let Some((pending, _)) = saving {
            pending.hurry();
        }
        self.settle()?;
        self.saving = None;
        self.crew.tell(Moment::Lost(Lost {
            step: self.model.step + 1,
            code: error.code().to_owned(),
            what: error.to_string(),
            ranks,
            heard_after,
        }))?;
        let before = self.group.take();
        self.group = Some(self.crew.muster(before)?);
        self.met = false;
        Ok(())
    }

    /// The state of the latest complete checkpoint, the same at all ranks.
    fn restore(&mut self) -> Result<(), RunError> {
        self.called = Instant::now();
        let within = self.within();
        let checkpoints = self.order.checkpoints.clone();
        let group = self.group()?;
        group.barrier(within)?;
        let mut word = NO_STEP.to_le_bytes();
        if group.rank() == 0 && checkpoints.is_dir() {
            word = ckpt::latest(&checkpoints)?.unwrap_or(NO_STEP).to_le_bytes();
        }
        group.broadcast(&mut word, 0, Element::I64, within)?;
        let ranks = group.size();
        let clock = Instant::now();
        let step = u64::from_le_bytes(word);
        let read = match step {
            NO_STEP => {
                let order = self.order;
                self.model = Model::new(order.parameters, order.layers, order.seed)?;
                None
            }
            step => self.read_back(step)?,
        };
        let restored = Restored {
            step: self.model.step,
            ranks,
            seconds: self.since.elapsed().as_secs_f64(),
            read_seconds: clock.elapsed().as_secs_f64(),
            read: read.map(Into::into),
        };
        self.crew.tell(Moment::Restored(Box::new(restored)))?;
        // A rank that is faster would save over what another is still reading.
        self.group()?.barrier(within)?;
        Ok(())
    }

    fn read_back(
        &mut self,
        step: u64,
    ) -> Result<Option<crowfly_route::receipt::Receipt>, RunError> {
        let archive = Archive::open_step(&self.order.checkpoints, step)?;
        let ours = |what: String| RunError::NotOurs {
            path: archive.path().to_owned(),
            what,
        };
        let number = |name: &str| {
            let value = archive.objects().get(name).and_then(Value::as_u64);
            value.ok_or_else(|| ours(format!("it has no number `{name}`")))
        };
        let (step, cursor, seed) = (number(STEP)?, number(CURSOR)?, number(SEED)?);
        if seed != self.order.seed {
            return Err(ours(format!("its seed is {seed}")));
        }
        let reading = archive.restore(
            &self.engine,
            &archive.everything(),
            RestoreOptions::default(),
        )?;
        let restoration = reading.wait()?;
        let mut restored = 0;
        for tensor in &restoration.tensors {
            let bytes = tensor.bytes.as_slice().unwrap_or_default();
            match self.model.tensor_mut(&tensor.name) {
                Some(into) if into.len() == bytes.len() => into.copy_from_slice(bytes),
                _ => return Err(ours(format!("its tensor {} does not fit", tensor.name))),
            }
            restored += 1;
        }
        if restored != self.model.tensors().len() {
            return Err(ours(format!("it has {restored} tensors")));
        }
        (self.model.step, self.model.cursor) = (step, cursor);
        Ok(restoration.receipt)
    }
}

impl Saving {
    fn is_over(&self) -> bool {
        let pending = self.pending.as_ref();
        pending.is_some_and(|(pending, _)| pending.is_finished())
    }
}
