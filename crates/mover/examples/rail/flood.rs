//! More writes than are kept, to a peer that takes none for a while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::{Options, RailTotals, Transfer};

use super::{East, FLOODED, Failure, ask, by_rdma};

/// Time to stop the peer, or to cut it off, before the flood.
const PAUSE: Duration = Duration::from_secs(3);
/// What ends later than this after it was due ends too late by itself.
const SLACK: Duration = Duration::from_secs(4);
/// No queue is as long.
const MOST: usize = 1 << 16;
/// How often it is looked whether time goes on.
const GLANCE: Duration = Duration::from_millis(100);
/// Nobody is kept from the processor for as long.
const JUMP: Duration = Duration::from_secs(2);

/// Milliseconds by which the clock jumped: an emulator that is stopped lets none of them be used.
fn jumps() -> Arc<AtomicU64> {
    let sum = Arc::new(AtomicU64::new(0));
    let weak = Arc::downgrade(&sum);
    std::thread::spawn(move || {
        while let Some(sum) = weak.upgrade() {
            let before = Instant::now();
            std::thread::sleep(GLANCE);
            let took = before.elapsed();
            if took > JUMP {
                sum.fetch_add(took.as_millis() as u64, Ordering::Relaxed);
            }
        }
    });
    sum
}

impl East {
    /// Writes until one is refused because so many are kept; then all of these end in time, done or with a code, and
    /// what this end and its peer count are those that were done.
    pub fn flood(&self, allowed: Duration, len: usize, valued: bool) -> Result<(), Failure> {
        let source = self.source(len, 1)?;
        let to = self.remote.slice(0..len as u64)?;
        println!("writing");
        std::thread::sleep(PAUSE);
        let options = Options::within(allowed);
        let write = || match valued {
            true => self.peer.write_imm(&source.whole(), &to, FLOODED, options),
            false => self.peer.write(&source.whole(), &to, options),
        };
        let (before, jumps) = (self.totals(), jumps());
        let began = Instant::now();
        let (mut kept, mut refused): (Vec<Transfer>, _) = (Vec::new(), None);
        let mut at_once = 0;
        for _ in 0..MOST {
            let written = write();
            if !written.is_finished() {
                kept.push(written);
                continue;
            }
            match written.wait() {
                Ok(_) => at_once += 1,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        match refused {
            Some(error) if error.code() == "queue-full" => {}
            other => return Err(format!("{} writes are kept, then {other:?}", kept.len()).into()),
        }
        let (count, filled) = (kept.len() + at_once, began.elapsed());
        println!("full with {count} writes after {filled:?}");
        let mut ends = BTreeMap::from([("done", at_once as u64)]);
        let mut retries = 0;
        for written in kept {
            let code = match written.wait() {
                Ok(delivery) => {
                    by_rdma(&delivery, &self.nic, len)?;
                    retries += delivery.receipt.retries;
                    "done"
                }
                Err(error) => {
                    if !ends.contains_key(error.code()) {
                        println!("{} after {:?}: {error}", error.code(), began.elapsed());
                    }
                    error.code()
                }
            };
            *ends.entry(code).or_default() += 1;
        }
        let took = began.elapsed();
        println!("ended after {took:?}: {ends:?}, retries {retries}");
        let stopped = Duration::from_millis(jumps.load(Ordering::Relaxed));
        if took > filled + allowed + SLACK + stopped {
            return Err(format!("too late, though time jumped by {stopped:?}").into());
        }
        let done = ends.get("done").copied().unwrap_or_default();
        // Of what ended too late some pieces had arrived.
        let after = self.totals();
        let written = after.written.0 - before.written.0;
        if !(done * len as u64..=(count * len) as u64).contains(&written) {
            return Err(format!("{done} were done, and what was counted is {after:?}").into());
        }
        // The peer may have counted what was done too late.
        let most = if valued { count as u64 } else { 0 };
        let least = if valued { done } else { 0 };
        let counted: u64 = ask(&self.peer, "counted")?.parse()?;
        if !(least..=most).contains(&counted) {
            return Err(format!("{done} were done, and the peer counted {counted}").into());
        }
        write().wait()?;
        self.verify(65_536)
    }

    fn totals(&self) -> RailTotals {
        let rails = self.peer.rails().into_iter();
        rails.fold(RailTotals::default(), |mut sum, rail| {
            sum += rail.totals;
            sum
        })
    }
}
