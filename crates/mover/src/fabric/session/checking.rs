//! Checking a transfer from end to end: both ends compute the checksum of the bytes they have.
//!
//! The bytes of a transfer, run after run, are cut and hashed as the storage half does it
//! ([`digest`]), so a checksum of a file that was moved whole is the same in both.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crowfly_route::receipt::Verification;

use super::{Session, locked};
use crate::digest::{self, GRID, Running};
use crate::fabric::conn::{Conn, Frame};
use crate::fabric::descriptor::RegionDescriptor;
use crate::fabric::error::FabricError;
use crate::fabric::fields::{Reader, Writer};
use crate::fabric::flight::Order;
use crate::fabric::identity::Capability;
use crate::fabric::provider::{FlightId, Run, Verb, Wait};
use crate::fabric::region::RegionCore;
use crate::fabric::regions::Wish;
use crate::fabric::transfer::{Canceller, Delivery, Outcome, Slot};
use crate::fabric::wire::{self, Header, Kind, MAX_SEGMENTS, Status, Violation};

/// The most runs of bytes of a transfer that is checked.
pub const MAX_CHECKED_RUNS: usize = 1 << 16;
/// Checks of one peer that run at a time; others wait for their turn.
const MAX_RUNNING: usize = 16;
/// Runs that one peer may have named for checksums that it has not asked for to the end.
const MAX_NAMED: usize = MAX_RUNNING * MAX_CHECKED_RUNS;
/// Checksums for one peer that are being computed, those it does not wait for any more included.
const MAX_ASKED: usize = 4 * MAX_RUNNING;
/// Bytes that are hashed between two looks at the gate.
const STEP: usize = 256 << 10;

/// A transfer that is done and whose bytes are being compared.
struct Check {
    /// Its number, once it is known: the transfer may end before its start returns.
    flight: Arc<OnceLock<FlightId>>,
    order: Order,
    delivery: Delivery,
    slot: Arc<Slot>,
    deadline: Duration,
    here: Option<u64>,
    there: Option<u64>,
}

impl Check {
    fn end(self, outcome: Result<(), FabricError>) {
        let outcome: Outcome = outcome.map(|()| self.delivery);
        self.slot.put(outcome);
    }
}

/// What is being compared, and how many checksums are being computed for the peer.
#[derive(Default)]
pub(super) struct Checking(Mutex<State>, Arc<AtomicUsize>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Check>,
    running: HashMap<u64, Check>,
    next: u64,
    /// What the peer has named so far, by its number.
    named: HashMap<u64, Named>,
}

struct Named {
    capability: Capability,
    runs: Vec<(u64, u32)>,
}

/// Ends a transfer early, whether its bytes are still on the way or already being compared.
pub(crate) struct Both {
    pub session: std::sync::Weak<Session>,
}

impl Canceller for Both {
    fn cancel(&self, flight: FlightId) {
        let Some(session) = self.session.upgrade() else {
            return;
        };
        session.scheduler.cancel(flight);
        session.end_checks(
            |check| check.flight.get() == Some(&flight),
            |_| FabricError::Cancelled,
        );
    }

    fn attend(&self, flight: FlightId, wait: &Wait<'_>) {
        if let Some(session) = self.session.upgrade() {
            session.scheduler.attend(flight, wait);
        }
    }
}

impl Session {
    /// Compares the bytes of a transfer that is done; its end comes to the slot.
    pub(crate) fn check(
        &self,
        flight: Arc<OnceLock<FlightId>>,
        order: Order,
        delivery: Delivery,
        slot: Arc<Slot>,
    ) {
        let left = order.allowed.saturating_sub(delivery.wall());
        let deadline = self.now() + left;
        if let Some(error) = self.deaf() {
            return slot.put(Err(error));
        }
        locked(&self.checking.0).waiting.push_back(Check {
            flight,
            order,
            delivery,
            slot,
            deadline,
            here: None,
            there: None,
        });
        self.check_next();
    }

    /// Starts what there is room for.
    fn check_next(&self) {
        loop {
            let mut state = locked(&self.checking.0);
            if state.running.len() >= MAX_RUNNING {
                return;
            }
            let Some(check) = state.waiting.pop_front() else {
                return;
            };
            state.next += 1;
            let id = state.next;
            let order = check.order.clone();
            state.running.insert(id, check);
            drop(state);
            let ends = order.local.clone().zip(order.remote.clone());
            let Some((local, remote)) = ends else {
                self.checked(id, |check| (check.here, check.there) = (Some(0), Some(0)));
                continue;
            };
            self.ask(id, &remote, &order.runs);
            let session = self.this.clone();
            self.copier.push(move || {
                let runs = order.runs.iter().map(|run| (run.local, run.len));
                let sum = sum(&local, runs);
                let Some(session) = session.upgrade() else {
                    return;
                };
                match sum {
                    Ok(sum) => session.checked(id, |check| check.here = Some(sum)),
                    Err(Status::DeviceFailed) => session.check_failed(
                        id,
                        FabricError::GpuFailed {
                            gpu: local.backing().place().to_string(),
                            why: "its bytes could not be read to be compared".into(),
                        },
                    ),
                    Err(_) => session.check_failed(id, FabricError::Deregistered),
                }
            });
        }
    }

    /// Asks for the checksum of what the peer has.
    fn ask(&self, id: u64, remote: &RegionDescriptor, runs: &[Run]) {
        let runs: Vec<(u64, u32)> = pieces(runs.iter().map(|run| (run.remote, run.len))).collect();
        let mut parts = runs.chunks(MAX_SEGMENTS).peekable();
        while let Some(part) = parts.next() {
            let access = wire::Access {
                capability: remote.capability(),
                imm: None,
                runs: part.to_vec(),
            };
            let more = if parts.peek().is_some() { MORE } else { LAST };
            self.tell(Frame {
                status: more,
                ..Frame::new(Kind::Sum, id, access.encode())
            });
        }
    }

    fn checked(&self, id: u64, found: impl FnOnce(&mut Check)) {
        let mut state = locked(&self.checking.0);
        let Some(check) = state.running.get_mut(&id) else {
            return;
        };
        found(check);
        let (Some(here), Some(there)) = (check.here, check.there) else {
            return;
        };
        let Some(mut check) = state.running.remove(&id) else {
            return;
        };
        drop(state);
        let (source, target) = match check.order.verb {
            Verb::Write => (here, there),
            Verb::Read => (there, here),
        };
        let hex = |sum: u64| format!("{sum:016x}");
        let algorithm = digest::ALGORITHM.to_owned();
        let outcome = if source == target {
            let checksum = hex(source);
            check.delivery.verified(Verification::Matched {
                algorithm,
                checksum,
            });
            Ok(())
        } else {
            Err(FabricError::Differs {
                algorithm,
                expected: hex(source),
                found: hex(target),
            })
        };
        check.end(outcome);
        self.check_next();
    }

    fn check_failed(&self, id: u64, error: FabricError) {
        let check = locked(&self.checking.0).running.remove(&id);
        if let Some(check) = check {
            check.end(Err(error));
        }
        self.check_next();
    }

    /// Ends all checks that are meant, with an error.
    fn end_checks(&self, meant: impl Fn(&Check) -> bool, error: impl Fn(&Check) -> FabricError) {
        let mut state = locked(&self.checking.0);
        let mut ended: Vec<Check> = state
            .running
            .extract_if(|_, check| meant(check))
            .map(|(_, check)| check)
            .collect();
        let (waiting, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition(meant);
        state.waiting = rest;
        drop(state);
        ended.extend(waiting);
        for check in ended {
            let error = error(&check);
            check.end(Err(error));
        }
    }

    pub(super) fn overdue_checks(&self, now: Duration) {
        self.end_checks(
            |check| check.deadline <= now,
            |check| FabricError::Deadline {
                what: "the comparison of both ends",
                after: check.order.allowed,
            },
        );
        self.check_next();
    }

    pub(super) fn lose_checks(&self, error: &FabricError) {
        self.end_checks(|_| true, |_| error.clone());
    }

    /// A frame about checksums.
    pub(super) fn checking_frame(
        &self,
        conn: &Arc<Conn>,
        header: &Header,
        body: &[u8],
    ) -> Result<(), Violation> {
        match header.kind {
            Kind::Sum => self.asked_to_sum(conn, header, body),
            _ => {
                let mut fields = Reader::new(body);
                let sum = fields.u64().filter(|_| fields.is_done());
                let sum = sum.ok_or(Violation("a malformed checksum"))?;
                let status = Status::of(header.status).unwrap_or(Status::NotAllowed);
                match status.error(self.peer, 0, "checksums") {
                    Ok(()) => self.checked(header.op, |check| check.there = Some(sum)),
                    Err(error) => self.check_failed(header.op, error),
                }
                Ok(())
            }
        }
    }

    fn asked_to_sum(
        &self,
        conn: &Arc<Conn>,
        header: &Header,
        body: &[u8],
    ) -> Result<(), Violation> {
        let access = wire::Access::decode(body).ok_or(Violation("a malformed access"))?;
        let mut state = locked(&self.checking.0);
        let known: usize = state.named.values().map(|named| named.runs.len()).sum();
        if known + access.runs.len() > MAX_NAMED || state.named.len() > MAX_RUNNING {
            return Err(Violation("too many runs to be summed"));
        }
        let named = state.named.entry(header.op).or_insert(Named {
            capability: access.capability,
            runs: Vec::new(),
        });
        if named.capability != access.capability {
            return Err(Violation("a checksum over two regions"));
        }
        named.runs.extend(access.runs);
        if header.status != LAST {
            return Ok(());
        }
        let Some(named) = state.named.remove(&header.op) else {
            return Ok(());
        };
        drop(state);
        // Whoever may write the bytes learns nothing by their checksum that it could not bring about.
        let find = |wish| self.regions.find(&named.capability, wish);
        let region = find(Wish::Read).or_else(|_| find(Wish::Write));
        let (op, conn) = (header.op, Arc::clone(conn));
        match region {
            Err(status) => conn.send(summed(op, Err(status))),
            Ok(region) => {
                let asked = Arc::clone(&self.checking.1);
                if asked.fetch_add(1, Ordering::AcqRel) >= MAX_ASKED {
                    asked.fetch_sub(1, Ordering::AcqRel);
                    conn.send(summed(op, Err(Status::QueueFull)));
                    return Ok(());
                }
                self.copier.push(move || {
                    let runs = named.runs.iter().map(|(at, len)| (*at, u64::from(*len)));
                    conn.send(summed(op, sum(&region, runs)));
                    asked.fetch_sub(1, Ordering::AcqRel);
                });
            }
        }
        Ok(())
    }
}

/// More runs of the same checksum follow.
const MORE: u8 = 1;
/// These are the last.
const LAST: u8 = 0;

fn summed(op: u64, sum: Result<u64, Status>) -> Frame {
    let mut out = Writer::default();
    out.u64(sum.unwrap_or(0));
    Frame {
        status: sum.err().unwrap_or(Status::Done) as u8,
        ..Frame::new(Kind::Summed, op, out.finish())
    }
}

/// Runs as frames carry them: of lengths that 32 bits hold.
fn pieces(runs: impl Iterator<Item = (u64, u64)>) -> impl Iterator<Item = (u64, u32)> {
    runs.flat_map(|(start, len)| {
        let most = u64::from(u32::MAX);
        (0..len.div_ceil(most)).map(move |at| {
            let len = (len - at * most).min(most);
            (start + at * most, u32::try_from(len).unwrap_or(u32::MAX))
        })
    })
}

/// The checksum of runs of a region's bytes, one after the other.
fn sum(region: &RegionCore, runs: impl Iterator<Item = (u64, u64)>) -> Result<u64, Status> {
    let mut buffer = vec![0; STEP];
    let (mut sums, mut running, mut filled) = (Vec::new(), Running::default(), 0);
    for (start, len) in runs {
        let (mut at, end) = (start, start.saturating_add(len));
        while at < end {
            let step = (end - at).min(STEP as u64).min(GRID - filled);
            let range = usize::try_from(at)
                .ok()
                .zip(usize::try_from(at + step).ok());
            let span = range.and_then(|(from, to)| region.span(from..to));
            let span = span.ok_or(Status::OutOfBounds)?;
            let got = {
                let _inside = region.gate.enter().ok_or(Status::NoSuchRegion)?;
                span.get(&mut buffer).map_err(|_| Status::DeviceFailed)?
            };
            running.update(buffer.get(..got).unwrap_or_default());
            at += step;
            filled += step;
            if filled == GRID {
                sums.push(std::mem::take(&mut running).finish());
                filled = 0;
            }
        }
    }
    if filled > 0 {
        sums.push(running.finish());
    }
    Ok(digest::whole(sums))
}
