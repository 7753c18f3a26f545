//! One transfer on its way: what is left to post, what is in flight, where it went.

use std::sync::Arc;
use std::time::Duration;

use crowfly_route::obstacle::Obstacle;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{CpuSeconds, Verification};
use smallvec::SmallVec;

use super::account::{Account, Incidents, Moved};
use super::descriptor::{RegionDescriptor, RemoteSlice};
use super::error::FabricError;
use super::gate::Gate;
use super::plan::{Kind, Plan};
use super::port::PortCount;
use super::provider::{Imm, Limits, Local, RailId, Run, Segment, Verb};
use super::region::{LocalSlice, RegionCore};
use super::transfer::{Checked, Slot};

/// What is to be moved.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub verb: Verb,
    pub local: Option<Arc<RegionCore>>,
    pub remote: Option<RegionDescriptor>,
    pub runs: Vec<Run>,
    pub imm: Option<Imm>,
    pub policy: Policy,
    pub allowed: Duration,
}

impl Order {
    /// One run between two slices of the same length.
    pub(crate) fn run(local: &LocalSlice, remote: &RemoteSlice) -> Result<Run, FabricError> {
        let (from, to) = (local.len() as u64, remote.len());
        if from != to {
            return Err(FabricError::LengthMismatch { from, to });
        }
        Ok(Run {
            local: local.range.start as u64,
            remote: remote.range.start,
            len: from,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }

    /// What moves where.
    pub(crate) const fn kind(&self) -> Kind<'_> {
        Kind {
            verb: self.verb,
            policy: self.policy,
            local: self.local.as_ref(),
            remote: self.remote.as_ref(),
        }
    }
}

/// What a flight's immediate value waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tell {
    /// There is none, or it is on its way.
    Nothing,
    /// The bytes, whose last piece is not posted yet.
    Bytes(Imm),
}

/// A piece ready to be posted.
pub(crate) struct Piece {
    pub segments: Vec<Segment>,
    pub imm: Option<Imm>,
}

/// One transfer on its way.
pub(crate) struct Flight {
    pub order: Order,
    pub gate: Arc<Gate>,
    pub slot: Arc<Slot>,
    /// When it must have ended.
    pub deadline: Duration,
    pub started: Duration,
    /// Which rails may carry it.
    pub plan: Arc<Plan>,
    /// What it met on the way.
    pub met: Vec<Obstacle>,
    /// Bytes moved, by rail, in the order of those. By most transfers it is one, for which nothing is allocated.
    pub moved: SmallVec<[(RailId, u64); 1]>,
    pub retries: u64,
    /// How often a rail failed that had pieces of it.
    pub falls: u64,
    /// Whether its value was sent with its number by a link that failed: from then on only links that send
    /// the number along may carry it, for the receiver to tell it from a new one.
    pub numbered: bool,
    /// CPU time of the links for its pieces.
    pub cpu: CpuSeconds,
    /// What the rails' ports had counted when it started, where somebody looked.
    pub ports: Vec<(RailId, Result<PortCount, String>)>,
    /// Ops posted and not ended, or whose value may have been counted.
    pub in_flight: usize,
    /// Whether it is in the line of those with something left to post.
    pub waits: bool,
    /// Why it is ending early.
    pub ending: Option<FabricError>,
    tell: Tell,
    next_run: usize,
    /// Bytes of that run which were handed out.
    handed: u64,
    again: Vec<Piece>,
    total: u64,
}

impl Flight {
    pub(crate) fn new(mut order: Order, plan: Arc<Plan>, slot: Arc<Slot>, now: Duration) -> Self {
        order.runs.retain(|run| run.len > 0);
        Self {
            gate: Arc::default(),
            slot,
            deadline: now.saturating_add(order.allowed),
            started: now,
            plan,
            met: Vec::new(),
            moved: SmallVec::new(),
            retries: 0,
            falls: 0,
            numbered: false,
            cpu: CpuSeconds::default(),
            ports: Vec::new(),
            in_flight: 0,
            waits: false,
            ending: None,
            tell: order.imm.map_or(Tell::Nothing, Tell::Bytes),
            next_run: 0,
            handed: 0,
            again: Vec::new(),
            total: order.bytes(),
            order,
        }
    }

    /// It pays for what a link did for it.
    pub(crate) fn pays(&mut self, cpu: CpuSeconds) {
        self.cpu += cpu;
    }

    /// A rail moved bytes of it.
    pub(crate) fn has_moved(&mut self, rail: RailId, bytes: u64) {
        match self.moved.binary_search_by_key(&rail, |(known, _)| *known) {
            Ok(at) => self.moved[at].1 += bytes,
            Err(at) => self.moved.insert(at, (rail, bytes)),
        }
    }

    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn local(&self) -> Option<Local> {
        self.order.local.as_ref().map(|region| Local {
            region: Arc::clone(region),
            flight: Arc::clone(&self.gate),
        })
    }

    /// Whether there is something to post.
    pub(crate) fn has_work(&self) -> bool {
        if self.ending.is_some() {
            return false;
        }
        !self.again.is_empty() || self.bytes_left() || self.may_tell()
    }

    fn bytes_left(&self) -> bool {
        self.next_run < self.order.runs.len()
    }

    /// The value follows once all bytes are there.
    fn may_tell(&self) -> bool {
        self.tell != Tell::Nothing
            && self.in_flight == 0
            && self.again.is_empty()
            && !self.bytes_left()
    }

    /// Whether everything was moved and told.
    pub(crate) fn is_done(&self) -> bool {
        self.in_flight == 0 && !self.has_work()
    }

    /// Notes what was met on the way, once.
    pub(crate) fn met(&mut self, obstacle: Obstacle) {
        let known = |known: &Obstacle| known.summary == obstacle.summary;
        if !self.plan.obstacles.iter().chain(&self.met).any(known) {
            self.met.push(obstacle);
        }
    }

    /// Its account when it has ended well; `port` says what a rail's port has counted by now.
    pub(crate) fn account(
        &mut self,
        now: Duration,
        port: impl Fn(RailId) -> Result<PortCount, String>,
    ) -> Account {
        let verb = self.order.verb;
        let checked = |rail: RailId, bytes: u64| {
            let (_, before) = self.ports.iter().find(|(known, _)| *known == rail)?;
            let counted = before.clone().and_then(|before| Ok((before, port(rail)?)));
            Some(match counted {
                Ok((before, after)) => after.since(before, verb).judge(bytes),
                Err(why) => Checked::Unavailable { why },
            })
        };
        let mut moved: SmallVec<[Moved; 1]> = SmallVec::new();
        for (rail, bytes) in &self.moved {
            // A rail that was made anew goes by the same port.
            let same = |known: &&mut Moved| self.plan.go_by_one_nic(known.rail, *rail);
            match moved.iter_mut().find(same) {
                Some(known) => known.bytes += bytes,
                None => moved.push(Moved {
                    rail: *rail,
                    bytes: *bytes,
                    checked: None,
                }),
            }
        }
        for one in &mut moved {
            one.checked = checked(one.rail, one.bytes);
        }
        let plan = Arc::clone(&self.plan);
        let spent = (now.saturating_sub(self.started), self.cpu);
        let incidents = Incidents {
            moved,
            met: std::mem::take(&mut self.met),
            retries: self.retries,
            verification: Verification::NotAsked,
            visibility: None,
        };
        Account::new(plan, self.total, spent, incidents)
    }

    /// Puts back a piece whose rail failed.
    pub(crate) fn put_back(&mut self, piece: Piece) {
        self.again.push(piece);
    }

    /// The next piece for a link with these limits, of about `size` bytes.
    pub(crate) fn take(&mut self, limits: &Limits, size: u64) -> Option<Piece> {
        if self.ending.is_some() {
            return None;
        }
        if let Some(piece) = self.again.pop() {
            return Some(self.fitted(piece, limits));
        }
        if self.bytes_left() {
            let whole = self.next_run == 0 && self.handed == 0;
            let segments = self.cut(limits, size);
            let mut piece = Piece {
                segments,
                imm: None,
            };
            // One piece carries everything: its value can travel with it.
            if whole && !self.bytes_left() {
                piece.imm = self.take_tell();
            }
            return Some(piece);
        }
        if self.may_tell() {
            return Some(Piece {
                segments: Vec::new(),
                imm: self.take_tell(),
            });
        }
        None
    }

    fn take_tell(&mut self) -> Option<Imm> {
        match std::mem::replace(&mut self.tell, Tell::Nothing) {
            Tell::Nothing => None,
            Tell::Bytes(imm) => Some(imm),
        }
    }

    fn cut(&mut self, limits: &Limits, size: u64) -> Vec<Segment> {
        let mut room = size.clamp(1, u64::from(limits.op_bytes.max(1)));
        let mut segments = Vec::new();
        while room > 0 && segments.len() < limits.segments.max(1) {
            let Some(run) = self.order.runs.get(self.next_run) else {
                break;
            };
            let len = (run.len - self.handed).min(room);
            if len > 0 {
                segments.push(Segment {
                    local: run.local + self.handed,
                    remote: run.remote + self.handed,
                    len: u32::try_from(len).unwrap_or(u32::MAX),
                });
            }
            room -= len;
            self.handed += len;
            if self.handed == run.len {
                self.next_run += 1;
                self.handed = 0;
            }
        }
        segments
    }

    /// A piece that was cut for another rail, cut down to this one's limits.
    fn fitted(&mut self, mut piece: Piece, limits: &Limits) -> Piece {
        let most = u64::from(limits.op_bytes.max(1));
        let mut room = most;
        let mut kept = Vec::new();
        let mut rest = Vec::new();
        for segment in piece.segments.drain(..) {
            let fits = if kept.len() < limits.segments.max(1) {
                u64::from(segment.len).min(room)
            } else {
                0
            };
            room -= fits;
            let fits = u32::try_from(fits).unwrap_or(u32::MAX);
            if fits > 0 {
                kept.push(Segment {
                    len: fits,
                    ..segment
                });
            }
            if fits < segment.len {
                rest.push(Segment {
                    local: segment.local + u64::from(fits),
                    remote: segment.remote + u64::from(fits),
                    len: segment.len - fits,
                });
            }
        }
        if !rest.is_empty() {
            // The value must not arrive before the rest has.
            if let Some(imm) = piece.imm.take() {
                self.tell = Tell::Bytes(imm);
            }
            self.again.push(Piece {
                segments: rest,
                imm: None,
            });
        }
        Piece {
            segments: kept,
            imm: piece.imm,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fabric::identity::Incarnation;

    fn limits(op_bytes: u32, segments: usize) -> Limits {
        Limits {
            op_bytes,
            segments,
            ops: 8,
            bytes: 1 << 30,
            imm_once: true,
        }
    }

    fn flight(lens: &[u64], imm: Option<Imm>) -> Flight {
        let mut at = 0;
        let runs = lens.iter().map(|len| {
            let run = Run {
                local: at,
                remote: 10_000 + 2 * at,
                len: *len,
            };
            at += len;
            run
        });
        let order = Order {
            verb: Verb::Write,
            local: None,
            remote: None,
            runs: runs.collect(),
            imm,
            policy: Policy::Prefer,
            allowed: Duration::from_secs(1),
        };
        let plan = Arc::new(Plan::new(Incarnation::from_bytes([1; 16]), &order.kind()));
        Flight::new(order, plan, Arc::default(), Duration::ZERO)
    }

    #[test]
    fn a_value_travels_with_its_bytes_only_when_one_piece_holds_them_all() {
        let mut small = flight(&[10], Some(Imm(7)));
        let piece = small.take(&limits(100, 4), 100).expect("the bytes");
        assert_eq!((piece.segments.len(), piece.imm), (1, Some(Imm(7))));
        assert!(small.is_done());

        let mut large = flight(&[150], Some(Imm(7)));
        let first = large.take(&limits(100, 4), 100).expect("100 bytes");
        let second = large.take(&limits(100, 4), 100).expect("50 bytes");
        assert_eq!((first.imm, second.imm), (None, None));
        large.in_flight = 2;
        assert!(
            large.take(&limits(100, 4), 100).is_none(),
            "the bytes first"
        );
        large.in_flight = 0;
        let told = large.take(&limits(100, 4), 100).expect("then the value");
        assert_eq!((told.segments.len(), told.imm), (0, Some(Imm(7))));
    }

    #[test]
    fn pages_that_lie_apart_share_a_piece_up_to_the_links_limit() {
        let mut paged = flight(&[16, 16, 16, 16, 16], None);
        let sizes: Vec<usize> = std::iter::from_fn(|| paged.take(&limits(1000, 2), 1000))
            .map(|piece| piece.segments.len())
            .collect();
        assert_eq!(sizes, [2, 2, 1]);
    }

    proptest! {
        #[test]
        fn every_byte_is_handed_out_once_however_it_is_cut_and_cut_again(
            lens in proptest::collection::vec(0u64..300, 0..12),
            cuts in proptest::collection::vec((1u32..200, 1usize..4, any::<bool>()), 1..20),
        ) {
            let mut flight = flight(&lens, Some(Imm(1)));
            let mut seen = vec![0u8; lens.iter().sum::<u64>() as usize];
            let mut told = 0;
            let mut back = 0;
            for (op_bytes, segments, fails) in cuts.iter().cycle() {
                let limits = limits(*op_bytes, *segments);
                let Some(piece) = flight.take(&limits, u64::from(*op_bytes)) else { break };
                let bytes: u64 = piece.segments.iter().map(|s| u64::from(s.len)).sum();
                prop_assert!(bytes <= u64::from(*op_bytes) && piece.segments.len() <= *segments);
                if *fails && back < 50 {
                    back += 1;
                    flight.put_back(piece);
                    continue;
                }
                told += usize::from(piece.imm.is_some());
                for segment in piece.segments {
                    prop_assert_eq!(segment.remote, 10_000 + 2 * (segment.local - offset_in(&lens, segment.local)) + offset_in(&lens, segment.local));
                    for at in segment.local..segment.local + u64::from(segment.len) {
                        seen[at as usize] += 1;
                    }
                }
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
            prop_assert_eq!(told, 1);
            prop_assert!(flight.is_done());
        }
    }

    /// How far into its run a local offset lies.
    fn offset_in(lens: &[u64], local: u64) -> u64 {
        let mut start = 0;
        for len in lens {
            if local < start + len {
                return local - start;
            }
            start += len;
        }
        0
    }
}
