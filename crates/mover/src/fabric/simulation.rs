//! The production scheduler over simulated links: a seed decides when ops end and how, which rails
//! break and which come back, what is cancelled, and what hangs for ever. Time is virtual, so thousands of seeds run in
//! seconds.
//!
//! Each run of the tests goes through [`SEEDS`], or as many as `CROWFLY_SIM_SEEDS` says: 10,000 in a
//! nightly one (`just simulate`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crowfly_route::hop::{Class, Route};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{CpuSeconds, Path};

use super::descriptor::RegionDescriptor;
use super::error::FabricError;
use super::flight::Order;
use super::gate::Gate;
use super::identity::{Capability, Incarnation};
use super::memory::Buffer;
use super::nics::Nearness;
use super::provider::{
    FlightId, Imm, Limits, Link, Op, OpError, OpId, Posted, RailId, Refusal, Release, Run, Verb,
};
use super::rail::{NicLoad, Rail};
use super::region::{Access, RegionCore, Registrations};
use super::scheduler::Scheduler;
use super::transfer::{Canceller, Outcome, Slot, Transfer};

/// Seeds when nobody says how many.
const SEEDS: u64 = 400;
/// How long a rail may end nothing.
const SILENCE: Duration = Duration::from_millis(400);
/// How long a rail that broke is away at the most, in steps.
const AWAY: u64 = 60;
const LEN: usize = 1 << 16;
const STEP: Duration = Duration::from_millis(10);
/// How much later than its deadline a read may end: a link that does not let go is closed after
/// one second.
const LATEST: Duration = Duration::from_millis(1_100);

/// A small generator of its own, so that a seed means the same for ever.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }
}

/// What is to become of an op, and when.
enum Fate {
    Done,
    BreaksRail,
    Refused,
    Hangs,
}

#[derive(Default)]
struct Remote {
    bytes: Vec<u8>,
    /// Values counted, by transfer; each only once.
    told: BTreeMap<u64, u32>,
    /// Bytes that transfers had delivered when their value was counted.
    at_telling: BTreeMap<u64, Vec<u8>>,
}

struct Links {
    dice: Dice,
    held: BTreeMap<(RailId, OpId), (Op, Duration, Fate)>,
    closed: BTreeSet<RailId>,
    /// Places of rails that broke, and when they come back.
    away: Vec<(u16, RailId, Duration)>,
    now: Duration,
    remote: Remote,
}

struct SimLink {
    id: RailId,
    limits: Limits,
    /// Whether it answers a cancellation late, as a device does.
    slow_release: bool,
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
            carry_out(&mut world.remote, &op);
            return Ok(Posted::Done);
        }
        let due = world.now + STEP * world.dice.roll(20) as u32;
        let fate = match world.dice.roll(400) {
            0..=3 => Fate::BreaksRail,
            4 | 5 => Fate::Refused,
            6..=9 => Fate::Hangs,
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
        world.closed.insert(self.id);
        world.held.retain(|(rail, _), _| *rail != self.id);
    }
}

/// Moves an op's bytes, as its device would.
fn carry_out(remote: &mut Remote, op: &Op) {
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
    if let Some((imm, FlightId(flight))) = op.imm
        && !remote.told.contains_key(&flight)
    {
        remote.told.insert(flight, imm.0);
        remote.at_telling.insert(flight, remote.bytes.clone());
    }
}

struct Voyage {
    transfer: Transfer,
    id: FlightId,
    verb: Verb,
    start: usize,
    len: usize,
    deadline: Duration,
    imm: Option<Imm>,
    cancelled: bool,
}

fn region(seed: u64) -> Arc<RegionCore> {
    let mut buffer = Buffer::zeroed(LEN, None).expect("memory");
    let bytes = buffer.as_mut_slice().expect("writable");
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (at as u64 * 31 + seed) as u8;
    }
    let owner = Incarnation::from_bytes([1; 16]);
    let capability = Capability::from_bytes([2; 16]);
    let place = Place::Host(None);
    let (len, access) = (LEN as u64, Access::READ_WRITE);
    Arc::new(RegionCore {
        descriptor: RegionDescriptor::new(owner, len, access, place, capability, Vec::new()),
        backing: buffer.into_backing(),
        gate: Gate::default(),
        registrations: Registrations::default(),
    })
}

/// One world, from its seed; answers what its transfers came to.
fn run(seed: u64) -> BTreeMap<&'static str, u64> {
    let world = Arc::new(Mutex::new(Links {
        dice: Dice(seed),
        held: BTreeMap::new(),
        closed: BTreeSet::new(),
        away: Vec::new(),
        now: Duration::ZERO,
        remote: Remote {
            bytes: vec![0xaa; LEN],
            ..Remote::default()
        },
    }));
    let mut dice = Dice(seed ^ 0x5eed);
    let scheduler = Arc::new(Scheduler::new(Incarnation::from_bytes([9; 16]), SILENCE));
    let load: Arc<NicLoad> = Arc::default();
    for slot in 0..1 + dice.roll(3) as u16 {
        let id = RailId(u32::from(slot));
        let rail = rail(slot, id, &mut dice, &load, &world);
        scheduler.add_rail(id, rail, Class::Direct);
    }
    let local = region(seed);
    let mut source = vec![0; LEN];
    let all = local.span(0..LEN).expect("all");
    all.get(&mut source).expect("host memory");
    let remote = local.descriptor.clone();
    let mut running: Vec<Voyage> = Vec::new();
    let mut outcomes = BTreeMap::new();
    let mut to_start = 1 + dice.roll(6) as usize;
    // Each transfer has a part of the regions to itself, so that its bytes can be told.
    let part = LEN / 8;
    let mut now = Duration::ZERO;
    // A write's end is told before links have let go of its memory.
    while to_start > 0 || !running.is_empty() || scheduler.under_way() > 0 {
        assert!(now < Duration::from_secs(60), "seed {seed}: hangs");
        if to_start > 0 && dice.roll(3) == 0 {
            to_start -= 1;
            running.push(start(
                &scheduler,
                &local,
                &remote,
                &mut dice,
                to_start * part,
                part,
                now,
            ));
        }
        for posted in &mut running {
            if dice.roll(150) == 0 {
                posted.cancelled = true;
                posted.transfer.cancel();
            }
        }
        now += STEP;
        end_ops(&world, &scheduler, now);
        bring_back(&world, &scheduler, &mut dice, &load, now);
        scheduler.tick(now);
        let (ended, going): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|posted| posted.transfer.is_finished());
        running = going;
        for posted in &running {
            let grace = match posted.verb {
                Verb::Write => Duration::ZERO,
                Verb::Read => LATEST,
            };
            assert!(
                now < posted.deadline + grace,
                "seed {seed}: late by more than its grace"
            );
        }
        for posted in ended {
            let code = judge(seed, posted, &world, &source, &local);
            *outcomes.entry(code).or_default() += 1;
        }
    }
    assert_eq!(scheduler.under_way(), 0, "seed {seed}");
    assert_eq!(load.bytes(), 0, "seed {seed}: the load of ended transfers");
    let returns = scheduler.report().iter().map(|rail| rail.returns).sum();
    outcomes.insert("returned", returns);
    let left = world.lock().expect("no panic").held.len();
    assert_eq!(
        left, 0,
        "seed {seed}: links hold ops of transfers that ended"
    );
    outcomes
}

fn rail(
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
            imm_once: true,
        },
        slow_release: dice.roll(2) == 0,
        world: Arc::clone(world),
    };
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

/// Rails that were away long enough come back by new links; the old ones may have a last word.
fn bring_back(
    world: &Arc<Mutex<Links>>,
    scheduler: &Scheduler,
    dice: &mut Dice,
    load: &Arc<NicLoad>,
    now: Duration,
) {
    let mut links = world.lock().expect("no panic");
    let (due, away) = std::mem::take(&mut links.away)
        .into_iter()
        .partition(|(_, _, at)| *at <= now);
    links.away = away;
    let due: Vec<(u16, RailId, Duration)> = due;
    let mut next = links.closed.len() as u32;
    drop(links);
    for (slot, old, _) in due {
        next += 1;
        // A number that no rail had: each closed one had a smaller.
        let id = RailId(100 * next + u32::from(slot));
        let rail = rail(slot, id, dice, load, world);
        scheduler.came_back(id, rail, Class::Direct, now);
        if dice.roll(4) == 0 {
            scheduler.down(old, "its second stream broke as well", now);
        }
    }
}

fn start(
    scheduler: &Arc<Scheduler>,
    local: &Arc<RegionCore>,
    remote: &RegionDescriptor,
    dice: &mut Dice,
    start: usize,
    part: usize,
    now: Duration,
) -> Voyage {
    let len = 1 + dice.roll(part as u64) as usize;
    let verb = if dice.roll(3) == 0 {
        Verb::Read
    } else {
        Verb::Write
    };
    let imm = (verb == Verb::Write && dice.roll(2) == 0).then_some(Imm(start as u32));
    let allowed = STEP * (5 + dice.roll(200) as u32);
    let mut runs = Vec::new();
    let mut at = 0;
    while at < len {
        let run = (1 + dice.roll(4000) as usize).min(len - at);
        runs.push(Run {
            local: (start + at) as u64,
            remote: (start + at) as u64,
            len: run as u64,
        });
        at += run;
    }
    let order = Order {
        verb,
        local: Some(Arc::clone(local)),
        remote: Some(remote.clone()),
        runs,
        imm,
        policy: Policy::Prefer,
        allowed,
    };
    let slot = Arc::new(Slot::default());
    let id = scheduler.start(order, &slot, now);
    let canceller: Arc<dyn Canceller> = scheduler.clone();
    Voyage {
        transfer: Transfer::new(slot, Arc::downgrade(&canceller), id),
        id,
        verb,
        start,
        len,
        deadline: now + allowed,
        imm,
        cancelled: false,
    }
}

/// Ends the ops that are due.
fn end_ops(world: &Arc<Mutex<Links>>, scheduler: &Scheduler, now: Duration) {
    let due: Vec<(RailId, OpId)> = {
        let mut links = world.lock().expect("no panic");
        links.now = now;
        let due = links
            .held
            .iter()
            .filter(|(_, (_, at, fate))| *at <= now && !matches!(fate, Fate::Hangs));
        due.map(|(key, _)| *key).collect()
    };
    for (rail, id) in due {
        let mut links = world.lock().expect("no panic");
        let Some((op, _, fate)) = links.held.remove(&(rail, id)) else {
            continue;
        };
        if !matches!(fate, Fate::Refused) && links.dice.roll(8) != 0 {
            // A rail may break before or after the bytes went.
            carry_out(&mut links.remote, &op);
        } else if matches!(fate, Fate::Done) {
            carry_out(&mut links.remote, &op);
        }
        drop(links);
        match fate {
            Fate::BreaksRail => {
                scheduler.down(rail, "the cable was cut", now);
                let fallen = scheduler.fallen();
                let mut links = world.lock().expect("no panic");
                let known = |slot: u16| links.away.iter().any(|(away, ..)| *away == slot);
                let mut places = fallen.iter().map(|(rail, _)| (rail.0 % 100) as u16);
                let slot = places.find(|slot| !known(*slot));
                let back = now + STEP * links.dice.roll(AWAY) as u32;
                // Some stay away for good.
                if let Some(slot) = slot.filter(|_| links.dice.roll(3) != 0) {
                    links.away.push((slot, rail, back));
                }
            }
            Fate::Refused => {
                let error = FabricError::NotAllowed { what: "this" };
                scheduler.completed(rail, id, Err(OpError::Op(error)), now);
            }
            Fate::Done | Fate::Hangs => scheduler.completed(rail, id, Ok(()), now),
        }
    }
}

/// Checks what a transfer came to.
fn judge(
    seed: u64,
    posted: Voyage,
    world: &Arc<Mutex<Links>>,
    source: &[u8],
    local: &Arc<RegionCore>,
) -> &'static str {
    let range = posted.start..posted.start + posted.len;
    let links = world.lock().expect("no panic");
    let outcome: Outcome = posted.transfer.wait();
    match outcome {
        Ok(delivery) => {
            let receipt = &delivery.receipt;
            assert!(receipt.is_whole(), "seed {seed}: {receipt:?}");
            assert_eq!(receipt.requested.0, posted.len as u64, "seed {seed}");
            let by_nic: u64 = delivery.nics.iter().map(|nic| nic.bytes.0).sum();
            assert_eq!(by_nic, posted.len as u64, "seed {seed}");
            let mut here = vec![0; posted.len];
            local
                .span(range.clone())
                .expect("inside")
                .get(&mut here)
                .expect("host memory");
            match posted.verb {
                Verb::Write => {
                    assert_eq!(
                        links.remote.bytes[range.clone()],
                        source[range.clone()],
                        "seed {seed}"
                    );
                }
                Verb::Read => assert_eq!(here, links.remote.bytes[range.clone()], "seed {seed}"),
            }
            let told = links.remote.told.get(&posted.id.0).copied();
            assert_eq!(told, posted.imm.map(|imm| imm.0), "seed {seed}");
            "done"
        }
        Err(error) => {
            if let Some(then) = links.remote.at_telling.get(&posted.id.0) {
                assert_eq!(
                    then[range.clone()],
                    source[range],
                    "seed {seed}: told too early"
                );
            }
            let code = error.code();
            assert!(code != "cancelled" || posted.cancelled, "seed {seed}");
            match error {
                FabricError::Cancelled => "cancelled",
                FabricError::Deadline { .. } => "deadline",
                FabricError::NotAllowed { .. } => "refused",
                FabricError::PeerLost { .. } => "lost",
                other => panic!("seed {seed}: {other}"),
            }
        }
    }
}

/// `just simulate` asks for many more.
#[test]
fn whatever_a_seed_does_every_transfer_ends_in_time_and_whole_or_with_its_error() {
    let asked = std::env::var("CROWFLY_SIM_SEEDS").ok();
    sail(asked.map_or(SEEDS, |text| text.parse().expect("a number of seeds")));
}

fn sail(seeds: u64) {
    let mut sum: HashMap<&'static str, u64> = HashMap::new();
    for seed in 0..seeds {
        for (code, count) in run(seed) {
            *sum.entry(code).or_default() += count;
        }
    }
    // A simulation in which nothing ever goes wrong, or right, would prove nothing.
    for code in [
        "done",
        "cancelled",
        "deadline",
        "refused",
        "lost",
        "returned",
    ] {
        assert!(
            sum.get(code).is_some_and(|count| *count > seeds / 100),
            "{code}: {sum:?}"
        );
    }
}

#[test]
fn the_same_seed_has_the_same_end() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
