//! The world of a simulation: links whose ops end as a seed says, and the peer's memory behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crowfly_route::hop::Route;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path};

use super::{Dice, PART, STEP};
use crate::fabric::descriptor::RegionDescriptor;
use crate::fabric::nics::Nearness;
use crate::fabric::provider::{
    FlightId, Limits, Link, Op, OpId, Posted, RailId, Refusal, Release, Verb,
};
use crate::fabric::rail::{NicLoad, Rail};
use crate::fabric::region::RegionCore;

/// How long the peer may take to say what came by a closed link, in steps: longer than another link takes to carry
/// the same bytes, so that those that are late find them there.
const ANSWER: u64 = 80;
/// How long an op may take, in steps.
const OP: u64 = 10;

/// What is to become of an op, and when.
pub(super) enum Fate {
    Done,
    BreaksRail,
    Refused,
    Hangs,
}

#[derive(Default)]
pub(super) struct Remote {
    pub bytes: Vec<u8>,
    /// Values counted, by transfer, and how often.
    pub told: BTreeMap<u64, (u32, u64)>,
    /// Bytes that transfers had delivered when their value was first counted.
    pub at_telling: BTreeMap<u64, Vec<u8>>,
    /// Transfers whose value came with their number: a second one is told from it.
    numbered: BTreeSet<u64>,
    /// Ops whose value came, by rail.
    came: BTreeMap<RailId, BTreeSet<OpId>>,
    /// Parts of the memory that somebody was told of as written: they may hold something else by now.
    pub given: BTreeSet<usize>,
}

/// An op whose link was closed and whose packets are still on their way.
struct Straggler {
    rail: RailId,
    op: Op,
    numbered: bool,
    at: Duration,
}

pub(super) struct Links {
    seed: u64,
    pub dice: Dice,
    /// How many of 400 ops break their rail.
    storm: u64,
    pub held: BTreeMap<(RailId, OpId), (Op, Duration, Fate)>,
    pub closed: BTreeSet<RailId>,
    /// Rails that came back so far.
    pub returned: u32,
    /// Places of rails that broke, and when they come back.
    pub away: Vec<(u16, RailId, Duration)>,
    /// Rails that were closed, and when the peer says what came by them.
    pub answers: Vec<(RailId, Duration)>,
    /// Ops whose value left without a number, or with bytes, and which the engine has not heard of.
    pub doubtful: BTreeSet<(RailId, OpId)>,
    /// Doubts that were decided: values that had not come, and those that had.
    pub decided: [u64; 2],
    pub now: Duration,
    pub remote: Remote,
    /// Rails whose values go with the numbers of their transfers.
    numbered: BTreeSet<RailId>,
    /// Rails by which the two ends can talk as well.
    speakers: BTreeSet<RailId>,
    /// Whether the scheduler does something about packets that are late.
    fenced: bool,
    stragglers: Vec<Straggler>,
    /// How many came after their link was closed.
    pub came_late: u64,
}

impl Links {
    pub(super) fn new(seed: u64, len: usize) -> Self {
        let mut dice = Dice(seed);
        Self {
            seed,
            storm: [4, 40, 120][dice.roll(3) as usize],
            dice,
            held: BTreeMap::new(),
            closed: BTreeSet::new(),
            returned: 0,
            away: Vec::new(),
            answers: Vec::new(),
            doubtful: BTreeSet::new(),
            decided: [0; 2],
            now: Duration::ZERO,
            remote: Remote {
                bytes: vec![0xaa; len],
                ..Remote::default()
            },
            numbered: BTreeSet::new(),
            speakers: BTreeSet::new(),
            fenced: false,
            stragglers: Vec::new(),
            came_late: 0,
        }
    }

    /// Whether values that go by a rail have the numbers of their transfers.
    pub(super) fn is_numbered(&self, rail: RailId) -> bool {
        self.numbered.contains(&rail)
    }

    /// Whether the peer can be asked things by some rail.
    pub(super) fn speaks(&self) -> bool {
        self.speakers.difference(&self.closed).next().is_some()
    }

    /// From now on packets may be late.
    pub(super) fn fenced(&mut self) {
        self.fenced = true;
    }

    /// Holds that nothing is written to memory that somebody was told of.
    fn writes(&self, op: &Op) {
        let mut parts = op.segments.iter().map(|run| run.remote as usize / PART);
        let given = self.fenced
            && op.verb == Verb::Write
            && parts.any(|part| self.remote.given.contains(&part));
        assert!(
            !given,
            "seed {}: written to after it was given away",
            self.seed
        );
    }

    /// Moves an op's bytes, as its device would.
    pub(super) fn carry_out(&mut self, rail: RailId, op: &Op, numbered: bool) {
        self.writes(op);
        carry_out(&mut self.remote, rail, op, numbered);
    }

    /// Packets come by links that are closed here and not yet at the other end.
    pub(super) fn stragglers_come(&mut self) {
        let now = self.now;
        let due: Vec<_> = self.stragglers.extract_if(.., |s| s.at <= now).collect();
        for late in due {
            self.carry_out(late.rail, &late.op, late.numbered);
            self.came_late += 1;
        }
    }

    /// Answers of the peer that are due, if it can be asked; now and then it cannot tell.
    pub(super) fn due_answers(&mut self, asked: bool) -> Vec<(RailId, Option<Vec<u8>>)> {
        if !asked {
            return Vec::new();
        }
        let now = self.now;
        let due: Vec<_> = self.answers.extract_if(.., |(_, at)| *at <= now).collect();
        let mut answers = Vec::new();
        for (rail, _) in due {
            // The other end is closed as well.
            self.stragglers.retain(|late| late.rail != rail);
            // What tells repeated values apart has always kept its account.
            let knows = self.numbered.contains(&rail) || self.dice.roll(10) != 0;
            answers.push((rail, knows.then(|| self.remote.tally(rail))));
        }
        answers
    }
}

impl Remote {
    fn tally(&self, rail: RailId) -> Vec<u8> {
        let came = self.came.get(&rail).into_iter().flatten();
        came.flat_map(|op| op.0.to_le_bytes()).collect()
    }
}

struct SimLink {
    id: RailId,
    limits: Limits,
    /// Whether it answers a cancellation late, as a device does.
    slow_release: bool,
    /// How long its packets can be late, if that is known.
    lingers: Option<Duration>,
    takes_word: bool,
    world: Arc<Mutex<Links>>,
}

impl Link for SimLink {
    fn path(&self) -> Path {
        Path::Verbs
    }

    fn nic(&self) -> &str {
        "sim"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn reaches(
        &self,
        _: Option<&RegionCore>,
        _: Option<&RegionDescriptor>,
    ) -> Result<(), Vec<Obstacle>> {
        Ok(())
    }

    fn route(&self, _: Verb, from: Place, to: Place) -> Route {
        Route {
            name: "simulated".into(),
            from,
            to,
            hops: Vec::new(),
        }
    }

    fn post(&self, op: Op) -> Result<Posted, Refusal> {
        let mut world = self.world.lock().expect("no panic");
        assert!(!world.closed.contains(&self.id), "posted to a closed link");
        let mine = world
            .held
            .keys()
            .filter(|(rail, _)| *rail == self.id)
            .count();
        assert!(mine < self.limits.ops, "more ops than the link takes");
        assert!(op.bytes() <= u64::from(self.limits.op_bytes));
        assert!(op.segments.len() <= self.limits.segments);
        if world.dice.roll(20) == 0 && mine > 0 {
            return Err(Refusal::Full(op));
        }
        if world.dice.roll(10) == 0 {
            world.carry_out(self.id, &op, self.limits.imm_once);
            return Ok(Posted::Done);
        }
        if op.imm.is_some() && (!self.limits.imm_once || !op.segments.is_empty()) {
            world.doubtful.insert((self.id, op.id));
        }
        let due = world.now + STEP * world.dice.roll(OP) as u32;
        let fate = match world.dice.roll(400) {
            0 | 1 => Fate::Refused,
            2..=5 => Fate::Hangs,
            roll if roll < 6 + world.storm => Fate::BreaksRail,
            _ => Fate::Done,
        };
        world.held.insert((self.id, op.id), (op, due, fate));
        Ok(Posted::InFlight)
    }

    fn cancel(&self, op: OpId) -> Release {
        if self.slow_release {
            return Release::Later;
        }
        self.world
            .lock()
            .expect("no panic")
            .held
            .remove(&(self.id, op));
        Release::Now
    }

    fn cpu(&self) -> CpuSeconds {
        CpuSeconds::default()
    }

    fn close(&self) {
        let mut world = self.world.lock().expect("no panic");
        if !world.closed.insert(self.id) {
            return;
        }
        let held = world.held.extract_if(.., |(rail, _), _| *rail == self.id);
        let held: Vec<_> = held.collect();
        for (_, (op, ..)) in held {
            if op.verb == Verb::Read {
                continue;
            }
            // What it had in flight may have arrived, without anybody having been told, or be about to.
            let numbered = self.limits.imm_once;
            match world.dice.roll(8) {
                0 => world.carry_out(self.id, &op, numbered),
                1..=6 if world.fenced && self.lingers != Some(Duration::ZERO) => {
                    let at = STEP * world.dice.roll(ANSWER) as u32;
                    let at = world.now + self.lingers.map_or(at, |most| at.min(most));
                    let rail = self.id;
                    world.stragglers.push(Straggler {
                        rail,
                        op,
                        numbered,
                        at,
                    });
                }
                _ => {}
            }
        }
        let answer = world.now + STEP * world.dice.roll(ANSWER) as u32;
        world.answers.push((self.id, answer));
    }

    fn lingers(&self) -> Option<Duration> {
        self.lingers
    }

    fn takes_word(&self) -> bool {
        self.takes_word
    }

    fn say(&self, _: Vec<u8>) {
        panic!("the simulation says it by itself");
    }

    fn is_in_doubt(&self, op: OpId) -> bool {
        let world = self.world.lock().expect("no panic");
        world.doubtful.contains(&(self.id, op))
    }

    fn landed(&self, op: OpId, tally: &[u8]) -> Option<bool> {
        let mut came = tally.chunks(size_of::<u64>());
        let landed = came.any(|known| known == op.0.to_le_bytes());
        let mut world = self.world.lock().expect("no panic");
        world.decided[usize::from(landed)] += 1;
        Some(landed)
    }
}

fn carry_out(remote: &mut Remote, rail: RailId, op: &Op, numbered: bool) {
    if let Some(local) = &op.local {
        for segment in &op.segments {
            let (start, len) = (segment.local as usize, segment.len as usize);
            let span = local.region.span(start..start + len).expect("inside");
            let there = segment.remote as usize;
            match op.verb {
                Verb::Write => {
                    span.get(&mut remote.bytes[there..there + len])
                        .expect("host memory");
                }
                Verb::Read => {
                    // Only inside the gates, as every link must.
                    let inside = (local.region.gate.enter(), local.flight.enter());
                    if let (Some(_), Some(_)) = inside {
                        span.put(&remote.bytes[there..there + len])
                            .expect("host memory");
                    }
                }
            }
        }
    }
    let Some((imm, FlightId(flight))) = op.imm else {
        return;
    };
    match numbered {
        true if !remote.numbered.insert(flight) => return,
        _ => {
            remote.came.entry(rail).or_default().insert(op.id);
        }
    }
    remote.told.entry(flight).or_insert((imm.0, 0)).1 += 1;
    remote.given.insert(imm.0 as usize / PART);
    let bytes = remote.bytes.clone();
    remote.at_telling.entry(flight).or_insert(bytes);
}

/// A rail by a new link, with limits of its own.
pub(super) fn rail(
    slot: u16,
    id: RailId,
    dice: &mut Dice,
    load: &Arc<NicLoad>,
    world: &Arc<Mutex<Links>>,
) -> Rail {
    let link = SimLink {
        id,
        limits: Limits {
            op_bytes: 1 << (8 + dice.roll(8)),
            segments: 1 + dice.roll(4) as usize,
            ops: 1 + dice.roll(6) as usize,
            bytes: 1 << (10 + dice.roll(8)),
            imm_once: dice.roll(2) == 0,
        },
        slow_release: dice.roll(2) == 0,
        lingers: match dice.roll(4) {
            0 => Some(Duration::ZERO),
            1 => Some(STEP * dice.roll(ANSWER) as u32),
            _ => None,
        },
        takes_word: dice.roll(2) == 0,
        world: Arc::clone(world),
    };
    if link.limits.imm_once {
        world.lock().expect("no panic").numbered.insert(id);
    }
    if link.takes_word {
        world.lock().expect("no panic").speakers.insert(id);
    }
    Rail {
        slot,
        path: Path::Verbs,
        nic: format!("sim{slot}"),
        weight: 1.0 + dice.roll(3) as f64,
        nearness: Arc::new(Nearness::default()),
        load: Arc::clone(load),
        link: Arc::new(link),
    }
}
