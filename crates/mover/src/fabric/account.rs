//! A transfer's account: what each rail moved and what that cost, and the receipt that says so.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use crowfly_route::hop::{Class, Route};
use crowfly_route::obstacle::{Effect, Obstacle};
use crowfly_route::receipt::{
    CpuSeconds, Path, RECEIPT_SCHEMA, Receipt, Share, Verification, Visibility,
};
use crowfly_route::units::Bytes;
use smallvec::{SmallVec, smallvec};

use super::plan::{Plan, Way};
use super::port::CHECKED_FROM;
use super::provider::{RailId, Registration};
use super::transfer::{Checked, NicShare, Written};

/// What one rail moved of a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub rail: RailId,
    pub bytes: u64,
    /// What its port's counters say to that; `None` when nobody looked.
    pub checked: Option<Checked>,
}

/// What a finished transfer did, in few words: to write it down takes longer than a short transfer.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub plan: Arc<Plan>,
    pub requested: u64,
    pub wall: Duration,
    pub cpu: CpuSeconds,
    course: Course,
}

/// What became of a transfer on its way.
#[derive(Clone, Debug)]
enum Course {
    /// One rail moved all bytes, whose port's counters nobody looked at, and there is no more to say.
    Plain(RailId),
    Eventful(Box<Incidents>),
}

/// What there is to say of some transfers and not of others.
#[derive(Clone, Debug)]
pub(crate) struct Incidents {
    /// By most transfers it is one rail.
    pub moved: SmallVec<[Moved; 1]>,
    /// What was met on the way.
    pub met: Vec<Obstacle>,
    pub retries: u64,
    pub verification: Verification,
    /// What came of making it visible to the destination's device, where that was to be done.
    pub visibility: Option<Visibility>,
}

impl Account {
    pub(crate) fn new(
        plan: Arc<Plan>,
        requested: u64,
        spent: (Duration, CpuSeconds),
        incidents: Incidents,
    ) -> Self {
        Self::of(
            plan,
            requested,
            spent,
            Course::Eventful(Box::new(incidents)),
        )
    }

    /// Of a transfer that one rail carried and of which there is no more to say.
    pub(crate) const fn plain(
        plan: Arc<Plan>,
        requested: u64,
        spent: (Duration, CpuSeconds),
        rail: RailId,
    ) -> Self {
        Self::of(plan, requested, spent, Course::Plain(rail))
    }

    const fn of(
        plan: Arc<Plan>,
        requested: u64,
        (wall, cpu): (Duration, CpuSeconds),
        course: Course,
    ) -> Self {
        Self {
            plan,
            requested,
            wall,
            cpu,
            course,
        }
    }

    fn incidents(&self) -> Cow<'_, Incidents> {
        match &self.course {
            Course::Plain(rail) => Cow::Owned(Incidents::none(*rail, self.requested)),
            Course::Eventful(incidents) => Cow::Borrowed(incidents),
        }
    }

    /// Adds to what there is to say.
    pub(crate) fn note(&mut self, note: impl FnOnce(&mut Incidents)) {
        let mut incidents = self.incidents().into_owned();
        note(&mut incidents);
        self.course = Course::Eventful(Box::new(incidents));
    }

    /// The same at length.
    pub(crate) fn written(&self) -> Written {
        let plan = &*self.plan;
        let incidents = self.incidents();
        let met = plan.obstacles.iter().chain(&incidents.met);
        let obstacles: Vec<Obstacle> = met.cloned().collect();
        let blocks = |obstacle: &&Obstacle| obstacle.effect == Effect::Blocks;
        let because = obstacles.iter().find(blocks).map(|o| o.summary.clone());
        let used: Vec<(&Moved, &Way)> = incidents
            .moved
            .iter()
            .filter_map(|moved| Some((moved, &**plan.way(moved.rail)?)))
            .collect();
        let mut shares: Vec<Share> = Vec::new();
        for (moved, way) in &used {
            match shares.iter_mut().find(|share| share.path == way.path) {
                Some(share) => share.bytes += Bytes(moved.bytes),
                None => shares.push(Share {
                    path: way.path,
                    class: way.class,
                    bytes: Bytes(moved.bytes),
                    because: because.clone().filter(|_| way.class != Class::Direct),
                }),
            }
        }
        shares.sort_by_key(|share| Reverse(share.bytes));
        let detours = shares.iter().filter(|share| share.class != Class::Direct);
        let bounced = detours.map(|share| share.bytes).sum();
        // Where nothing moved, the way it would have gone.
        let most = used.iter().rev().max_by_key(|(moved, _)| moved.bytes);
        let way = most.map(|(_, way)| *way).or_else(|| plan.first());
        let route = way.map_or_else(|| self.nowhere(), |way| way.route.clone());
        let nics = used.iter().map(|(moved, way)| NicShare {
            path: way.path,
            nic: way.nic.clone(),
            bytes: Bytes(moved.bytes),
            checked: moved.checked.clone().unwrap_or_else(not_looked),
        });
        let nics = nics.collect();
        let receipt = Receipt {
            schema: RECEIPT_SCHEMA.into(),
            policy: plan.policy,
            requested: Bytes(self.requested),
            bounced,
            overread: Bytes(0),
            retries: incidents.retries,
            wall_seconds: self.wall.as_secs_f64(),
            cpu: self.cpu,
            ceiling: route.ceiling().map(|ceiling| ceiling.capacity),
            visibility: self.visibility(used.iter().map(|(_, way)| *way), &incidents),
            verification: incidents.verification.clone(),
            from: plan.from.clone(),
            to: plan.to.clone(),
            obstacles,
            shares,
            route,
        };
        Written {
            receipt,
            nics,
            left_out: plan.left_out.clone(),
        }
    }

    /// The bytes by engine path.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (Path, Bytes)> {
        let (plain, moved): (_, &[Moved]) = match &self.course {
            Course::Plain(rail) => (Some((*rail, self.requested)), &[]),
            Course::Eventful(incidents) => (None, &incidents.moved),
        };
        let moved = moved.iter().map(|moved| (moved.rail, moved.bytes));
        plain.into_iter().chain(moved).filter_map(|(rail, bytes)| {
            let way = self.plan.way(rail)?;
            Some((way.path, Bytes(bytes)))
        })
    }

    fn nowhere(&self) -> Route {
        Route {
            name: "none".into(),
            from: self.plan.from.clone(),
            to: self.plan.to.clone(),
            hops: Vec::new(),
        }
    }

    /// Whether the device of the destination sees the bytes: the least certain of what is said of the
    /// ways that they went.
    fn visibility<'a>(
        &self,
        used: impl Iterator<Item = &'a Way>,
        incidents: &Incidents,
    ) -> Visibility {
        if self.plan.reaches_host() {
            return Registration::visible_to_the_host();
        }
        let said = used.filter_map(|way| way.visibility.clone());
        let said = said
            .chain(incidents.visibility.clone())
            .reduce(less_certain);
        said.unwrap_or_else(|| Visibility::NotNeeded("nothing was written".into()))
    }
}

impl Incidents {
    /// None but that a rail moved so much.
    fn none(rail: RailId, bytes: u64) -> Self {
        let moved = Moved {
            rail,
            bytes,
            checked: None,
        };
        Self {
            moved: smallvec![moved],
            met: Vec::new(),
            retries: 0,
            verification: Verification::NotAsked,
            visibility: None,
        }
    }
}

/// The less certain of two; of two that are as certain the first.
pub(crate) fn less_certain(one: Visibility, other: Visibility) -> Visibility {
    let doubt = |visibility: &Visibility| match visibility {
        Visibility::Unknown(_) => 2,
        Visibility::Flushed(_) => 1,
        Visibility::NotNeeded(_) => 0,
    };
    match doubt(&other) > doubt(&one) {
        true => other,
        false => one,
    }
}

fn not_looked() -> Checked {
    Checked::Unavailable {
        why: format!(
            "nobody looked: the transfer was smaller than {}, or the rail came in later",
            Bytes(CHECKED_FROM)
        ),
    }
}

/// Shares a rail's CPU time out among what is in flight on it, by bytes: each second goes to exactly
/// one transfer however many overlap, and none is lost.
///
/// It keeps the time spent on each byte in flight so far. An op notes that figure when it starts and
/// pays the difference when it ends.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    seen: CpuSeconds,
    /// Bytes in flight, and one for each op.
    weight: u64,
    each: CpuSeconds,
}

/// What the meter showed when an op started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    weight: u64,
    each: CpuSeconds,
}

impl Meter {
    /// Time that passes while nothing is in flight is nobody's: the link works for its peer.
    fn read(&mut self, now: CpuSeconds) {
        if self.weight > 0 {
            let weight = self.weight as f64;
            self.each.user += (now.user - self.seen.user).max(0.0) / weight;
            self.each.system += (now.system - self.seen.system).max(0.0) / weight;
        }
        self.seen = now;
    }

    /// An op starts, when the rail had used this much.
    pub(crate) fn start(&mut self, bytes: u64, now: CpuSeconds) -> Mark {
        self.read(now);
        let weight = bytes.saturating_add(1);
        self.weight = self.weight.saturating_add(weight);
        Mark {
            weight,
            each: self.each,
        }
    }

    /// An op ends; answers what it has to pay.
    pub(crate) fn end(&mut self, mark: Mark, now: CpuSeconds) -> CpuSeconds {
        self.read(now);
        self.weight = self.weight.saturating_sub(mark.weight);
        let weight = mark.weight as f64;
        CpuSeconds {
            user: (self.each.user - mark.each.user) * weight,
            system: (self.each.system - mark.each.system) * weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn used(user: f64) -> CpuSeconds {
        CpuSeconds { user, system: 0.0 }
    }

    #[test]
    fn given_one_that_began_long_ago_when_a_second_comes_then_each_pays_for_its_own_time() {
        let mut meter = Meter::default();
        let first = meter.start(999, used(0.0));
        let second = meter.start(999, used(8.0));
        // Both were worked for equally from here on.
        let late = meter.end(second, used(10.0)).user;
        let early = meter.end(first, used(10.0)).user;
        assert!(
            (early - 9.0).abs() < 1e-9 && (late - 1.0).abs() < 1e-9,
            "{early} {late}"
        );
    }

    #[test]
    fn what_a_link_does_while_nothing_is_in_flight_is_nobodys() {
        let mut meter = Meter::default();
        let first = meter.start(10, used(1.0));
        assert!((meter.end(first, used(2.0)).user - 1.0).abs() < 1e-9);
        let second = meter.start(10, used(7.0));
        assert!((meter.end(second, used(7.5)).user - 0.5).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn however_transfers_overlap_no_second_is_lost_or_paid_twice(
            steps in proptest::collection::vec((0u64..1 << 21, 0u8..3, 0u32..1000), 1..60),
        ) {
            let mut meter = Meter::default();
            let (mut now, mut owed, mut paid) = (0.0, 0.0, 0.0);
            let mut running = Vec::new();
            for (bytes, what, millis) in steps {
                if !running.is_empty() {
                    owed += f64::from(millis) / 1e3;
                }
                now += f64::from(millis) / 1e3;
                match what {
                    0 | 1 => running.push(meter.start(bytes, used(now))),
                    _ if running.is_empty() => {}
                    _ => paid += meter.end(running.remove(0), used(now)).user,
                }
            }
            for mark in running {
                paid += meter.end(mark, used(now)).user;
            }
            prop_assert!((paid - owed).abs() < 1e-6, "{} of {}", paid, owed);
        }
    }
}
