//! The end that measures: one path to the other end, and the samples taken by it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{CpuSeconds, Path, Receipt};
use crowfly_route::units::Bytes;

use super::host::Held;
use super::protocol::{Answer, Ask, VERSION, hear, say};
use super::{BenchError, Latency, MAX_ROUND_TRIPS, MAX_SIZE, PATIENCE, Sample, Task};
use crate::fabric::provider::Provider;
use crate::fabric::{
    Access, Delivery, Fabric, FabricError, Imm, ImmCounter, Options, Peer, RailReport, Region,
    RegionDescriptor, Settings, Transfer, Whom,
};

/// Transfers under way at one time, each way.
const AHEAD: usize = 2;
/// Small transfers under way at one time amount to this many bytes together, or to [`MOST_AHEAD`].
const AHEAD_BYTES: u64 = 4 << 20;
const MOST_AHEAD: usize = 32;
/// Transfers and round trips before the clock starts: the first ones find memory that is not mapped
/// and windows that are not open yet.
const WARM_UP: u32 = 3;
/// A latency sample has at least this many round trips, however slow they are.
const LEAST_ROUND_TRIPS: u32 = 10;

/// How often it is looked whether the peer of a ping is still there.
const GLANCE: Duration = Duration::from_millis(50);

/// One path to the other end.
#[derive(Debug)]
pub struct Line {
    path: Path,
    peer: Peer,
    region: Region,
    theirs: RegionDescriptor,
    imm: Imm,
    /// Bytes of the largest transfer; the regions have twice as many.
    most: u64,
    fabric: Fabric,
}

impl Line {
    /// Connects to a [`Host`](super::Host) by one path only, for transfers of up to `most` bytes from
    /// and into host memory.
    ///
    /// # Errors
    /// As [`Line::between`].
    pub fn open(
        path: Path,
        whom: impl Into<Whom>,
        settings: &Settings,
        most: u64,
    ) -> Result<Self, BenchError> {
        Self::between(path, whom, settings, most, &Held::Host)
    }

    /// The same from and into memory of this kind.
    ///
    /// # Errors
    /// [`FabricError::Refused`] with the obstacles when the two ends do not have this path or it does
    /// not reach their memories, and whatever else keeps them apart.
    pub fn between(
        path: Path,
        whom: impl Into<Whom>,
        settings: &Settings,
        most: u64,
        ours: &Held,
    ) -> Result<Self, BenchError> {
        let whom = whom.into();
        if most > MAX_SIZE {
            return Err(BenchError::TooLarge { asked: Bytes(most) });
        }
        let options = Options::within(PATIENCE);
        let fabric = Fabric::new(only(path, settings, ours))?;
        let peer = fabric.connect(&whom, options)?;
        if !peer.rails().iter().any(|rail| rail.path == path) {
            return Err(FabricError::Refused {
                peer: whom.address,
                policy: policy(path),
                obstacles: peer.obstacles().to_vec(),
            }
            .into());
        }
        let bytes = 2 * most.max(1);
        let mappable = path != Path::Cma;
        let region = fabric.register(ours.memory(bytes, mappable)?, Access::READ_WRITE)?;
        let open = Ask::Open {
            version: VERSION,
            bytes,
            mappable,
            descriptor: region.descriptor().to_bytes().map_err(FabricError::from)?,
        };
        say(&peer, &open, options)?;
        let (theirs, imm) = match hear(&peer, options)? {
            Answer::Opened { descriptor, imm } => {
                let theirs =
                    RegionDescriptor::from_bytes(&descriptor).map_err(FabricError::from)?;
                (theirs, Imm(imm))
            }
            other => return Err(unexpected("lend memory", other)),
        };
        let line = Self {
            path,
            peer,
            region,
            theirs,
            imm,
            most,
            fabric,
        };
        if !line.is_of_host_memory() {
            // Whether a path reaches memory of GPUs shows only when it is tried.
            let receipt = line.start(true, 0, 1)?.wait()?.into_receipt();
            if on_path(path, &receipt).is_err() {
                // Another path took the byte; the receipt says what stood in this one's way.
                return Err(FabricError::Refused {
                    peer: whom.address,
                    policy: Policy::Prefer,
                    obstacles: receipt.obstacles,
                }
                .into());
            }
        }
        Ok(line)
    }

    /// Whether both ends have their bytes in host memory.
    pub fn is_of_host_memory(&self) -> bool {
        let both = [self.region.place(), self.theirs.place()];
        both.iter().all(|place| matches!(place, Place::Host(_)))
    }

    /// What a transfer of the line is asked to be. By way of GPUs' memory a path may pass host memory,
    /// which the receipts tell.
    fn options(&self) -> Options {
        let options = Options::within(PATIENCE);
        match self.is_of_host_memory() {
            true => options,
            false => options.by(Policy::Prefer),
        }
    }

    /// The path.
    pub const fn path(&self) -> Path {
        self.path
    }

    /// What went by each rail so far, warming up included.
    pub fn rails(&self) -> Vec<RailReport> {
        let mut rails = self.peer.rails();
        rails.retain(|rail| rail.path == self.path);
        rails
    }

    /// Takes one sample, which lasts about `time`.
    ///
    /// # Errors
    /// When a transfer fails or takes another path.
    pub fn sample(&self, task: Task, size: u64, time: Duration) -> Result<Sample, BenchError> {
        if size > self.most {
            return Err(BenchError::TooLarge { asked: Bytes(size) });
        }
        match task {
            Task::PingPong => self.round_trips(size, time),
            Task::Write | Task::Read | Task::Both => self.stream(task, size, time),
        }
    }

    fn usage_there(&self) -> Result<CpuSeconds, BenchError> {
        let options = Options::within(PATIENCE);
        say(&self.peer, &Ask::Usage, options)?;
        match hear(&self.peer, options)? {
            Answer::Used(cpu) => Ok(cpu),
            other => Err(unexpected("tell its CPU time", other)),
        }
    }

    fn start(&self, write: bool, slot: u64, size: u64) -> Result<Transfer, BenchError> {
        let start = slot * self.most;
        let here = self.region.slice(range(start, size))?;
        let there = self.theirs.slice(start..start + size)?;
        let options = self.options();
        Ok(if write {
            self.peer.write(&here, &there, options)
        } else {
            self.peer.read(&here, &there, options)
        })
    }

    fn settle(&self, delivery: Delivery) -> Result<Receipt, BenchError> {
        on_path(self.path, &delivery.receipt)?;
        Ok(delivery.into_receipt())
    }

    fn stream(&self, task: Task, size: u64, time: Duration) -> Result<Sample, BenchError> {
        let each = if task == Task::Both { 2 } else { 1 };
        let ahead = usize::try_from(AHEAD_BYTES / size.max(1)).unwrap_or(MOST_AHEAD);
        let ahead = ahead.clamp(AHEAD, MOST_AHEAD) * each;
        let direction = |turn: u64| match task {
            Task::Read => false,
            Task::Both => turn.is_multiple_of(2),
            Task::Write | Task::PingPong => true,
        };
        for turn in 0..u64::from(WARM_UP) {
            let transfer = self.start(direction(turn), turn % 2, size)?;
            self.settle(transfer.wait()?)?;
        }
        let (here, there) = (usage::this_process(), self.usage_there()?);
        let began = Instant::now();
        let (mut transfers, mut moved) = (0, 0);
        let mut running = VecDeque::new();
        let mut last: Option<Receipt> = None;
        let mut settle = |transfer: Transfer| -> Result<(), BenchError> {
            let receipt = self.settle(transfer.wait()?)?;
            transfers += 1;
            moved += receipt.requested.0;
            last = Some(receipt);
            Ok(())
        };
        let mut turn = 0;
        loop {
            let slot = turn % 2;
            running.push_back(self.start(direction(turn), slot, size)?);
            turn += 1;
            if running.len() >= ahead
                && let Some(transfer) = running.pop_front()
            {
                settle(transfer)?;
            }
            // A sample of both directions has as many transfers of each.
            if began.elapsed() >= time && turn.is_multiple_of(each as u64) {
                break;
            }
        }
        for transfer in running {
            settle(transfer)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu_here = since(here, usage::this_process());
        let cpu_there = since(there, self.usage_there()?);
        let receipt = last.ok_or_else(|| BenchError::Protocol {
            what: "no transfer ended".into(),
        })?;
        Ok(Sample {
            path: self.path,
            task,
            size: Bytes(size),
            transfers,
            moved: Bytes(moved),
            seconds,
            cpu_here,
            cpu_there,
            latency: None,
            receipt,
        })
    }

    fn round_trips(&self, size: u64, time: Duration) -> Result<Sample, BenchError> {
        let (first, _) = self.pings(size, WARM_UP)?;
        let guess = median(&first).max(1e-7);
        let times = (time.as_secs_f64() / guess) as u32;
        let times = times.clamp(LEAST_ROUND_TRIPS, MAX_ROUND_TRIPS);
        let (here, there) = (usage::this_process(), self.usage_there()?);
        let began = Instant::now();
        let (trips, receipt) = self.pings(size, times)?;
        let seconds = began.elapsed().as_secs_f64();
        let cpu_here = since(here, usage::this_process());
        let cpu_there = since(there, self.usage_there()?);
        Ok(Sample {
            path: self.path,
            task: Task::PingPong,
            size: Bytes(size),
            transfers: 2 * u64::from(times),
            moved: Bytes(2 * u64::from(times) * size),
            seconds,
            cpu_here,
            cpu_there,
            latency: Some(latency(trips)),
            receipt,
        })
    }

    /// So many round trips: the seconds that each took.
    fn pings(&self, size: u64, times: u32) -> Result<(Vec<f64>, Receipt), BenchError> {
        let options = Options::within(PATIENCE);
        say(&self.peer, &Ask::Echo { bytes: size, times }, options)?;
        match hear(&self.peer, options)? {
            Answer::Listening => {}
            other => return Err(unexpected("answer pings", other)),
        }
        let (here, there) = (
            self.region.slice(range(0, size))?,
            self.theirs.slice(0..size)?,
        );
        let counter = self.fabric.counter(self.imm);
        let mut trips = Vec::with_capacity(times as usize);
        let mut last = None;
        for _ in 0..times {
            let began = Instant::now();
            let ping = self.peer.write_imm(&here, &there, self.imm, self.options());
            let receipt = self.settle(ping.wait()?)?;
            self.answered(&counter)?;
            trips.push(began.elapsed().as_secs_f64());
            counter.take(1);
            last = Some(receipt);
        }
        let receipt = last.ok_or_else(|| BenchError::Protocol {
            what: "no ping was sent".into(),
        })?;
        Ok((trips, receipt))
    }
}

impl Line {
    /// Waits for the answer to a ping, which a peer that is lost does not give.
    fn answered(&self, counter: &ImmCounter) -> Result<(), BenchError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match counter.wait(1, GLANCE) {
                Err(FabricError::Deadline { .. }) if Instant::now() < until => {}
                other => return Ok(other?),
            }
            if let Some(why) = self.peer.lost() {
                let peer = self.peer.incarnation();
                return Err(FabricError::PeerLost { peer, why }.into());
            }
        }
    }
}

/// A part of a region, as its own process counts.
fn range(start: u64, len: u64) -> std::ops::Range<usize> {
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    place(start)..place(start + len)
}

/// Whether every byte went the way that is measured.
fn on_path(wanted: Path, receipt: &Receipt) -> Result<(), BenchError> {
    match receipt.shares.iter().find(|share| share.path != wanted) {
        None => Ok(()),
        Some(share) => Err(BenchError::Detour {
            wanted,
            taken: share.path,
            bytes: share.bytes,
        }),
    }
}

const fn policy(path: Path) -> Policy {
    match path {
        Path::Tcp => Policy::Socket,
        _ => Policy::Require,
    }
}

/// Settings by which no other path can be taken.
fn only(path: Path, settings: &Settings, ours: &Held) -> Settings {
    let same = |provider: &&Arc<dyn Provider>| provider.path() == path;
    let policy = match ours {
        Held::Host => policy(path),
        Held::Gpu(_) => Policy::Prefer,
    };
    Settings {
        shm: matches!(path, Path::Shm | Path::Cma),
        providers: settings.providers.iter().filter(same).cloned().collect(),
        policy,
        ..settings.clone()
    }
}

fn unexpected(what: &'static str, answer: Answer) -> BenchError {
    match answer {
        Answer::Refused { why } => BenchError::There { what, why },
        other => BenchError::Protocol {
            what: format!("it was to {what} and said {other:?}"),
        },
    }
}

fn since(before: CpuSeconds, after: CpuSeconds) -> CpuSeconds {
    CpuSeconds {
        user: (after.user - before.user).max(0.0),
        system: (after.system - before.system).max(0.0),
    }
}

/// The value below which `share` of sorted values lie.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (share * last as f64).round() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(0.0)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// Half of each round trip.
fn latency(mut trips: Vec<f64>) -> Latency {
    trips.sort_by(f64::total_cmp);
    Latency {
        least: quantile(&trips, 0.0) / 2.0,
        median: quantile(&trips, 0.5) / 2.0,
        p99: quantile(&trips, 0.99) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_half_of_the_round_trips_least_middle_and_near_worst() {
        let trips: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        let expected = Latency {
            least: 0.5,
            median: 25.5,
            p99: 50.0,
        };
        assert_eq!(latency(trips), expected);
        assert_eq!(latency(Vec::new()).median, 0.0);
    }
}
