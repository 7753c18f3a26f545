//! Short transfers that a link carries out before the call that starts them returns: no piece is
//! posted, nothing is waited for, and the lock is not held while the bytes move.

use std::sync::Arc;
use std::time::Duration;

use crowfly_route::receipt::{CpuSeconds, Verification};
use crowfly_route::units::Bytes;
use smallvec::smallvec;

use super::{HERE, Scheduler, State};
use crate::fabric::account::{Account, Moved};
use crate::fabric::plan::{Kind, Plan};
use crate::fabric::provider::{Link, OpError, RailId, Run, Short, Verb};
use crate::fabric::stint::cost;
use crate::fabric::transfer::{Delivery, Outcome};

impl Scheduler {
    /// Carries a short transfer out; `None` when it has to be started as others are. `clock` tells the
    /// session's time.
    pub(crate) fn at_once(
        &self,
        kind: &Kind<'_>,
        runs: &[Run],
        clock: impl Fn() -> Duration,
    ) -> Option<Outcome> {
        let bytes: u64 = runs.iter().map(|run| run.len).sum();
        if bytes == 0 || bytes > HERE {
            return None;
        }
        let short = Short {
            verb: kind.verb,
            local: kind.local?,
            remote: kind.remote?,
            runs,
        };
        let (plan, rail, link) = self.state().sole_rail(kind)?;
        let began = clock();
        let result = link.at_once(&short)?;
        let ended = clock();
        let mut state = self.state();
        state.now = state.now.max(ended);
        if let Some(known) = state.rails.get_mut(&rail) {
            known.stirred = ended;
            match &result {
                Ok(_) => {
                    known.totals.ops += 1;
                    match short.verb {
                        Verb::Write => known.totals.written += Bytes(bytes),
                        Verb::Read => known.totals.read += Bytes(bytes),
                    }
                }
                Err(_) => known.totals.failed_ops += 1,
            }
        }
        drop(state);
        let wall = ended.saturating_sub(began);
        let cpu = match result {
            Ok(helped) => with(cost(wall), helped),
            Err(OpError::Op(error)) => return Some(Err(error)),
            // Another rail may do it.
            Err(OpError::Rail(_) | OpError::Elsewhere(_)) => return None,
        };
        let moved = Moved {
            rail,
            bytes,
            checked: None,
        };
        Some(Ok(Delivery::new(Account {
            plan,
            requested: bytes,
            moved: smallvec![moved],
            met: Vec::new(),
            retries: 0,
            wall,
            cpu,
            verification: Verification::NotAsked,
            visibility: None,
        })))
    }
}

fn with(own: CpuSeconds, helped: CpuSeconds) -> CpuSeconds {
    CpuSeconds {
        user: own.user + helped.user,
        system: own.system + helped.system,
    }
}

impl State {
    /// The one rail that would carry a transfer all by itself.
    fn sole_rail(&mut self, kind: &Kind<'_>) -> Option<(Arc<Plan>, RailId, Arc<dyn Link>)> {
        if self.lost.is_some() {
            return None;
        }
        let plan = self.plan(kind).ok()?;
        let [rail] = plan.tiers.first()?[..] else {
            return None;
        };
        let known = self.rails.get(&rail)?;
        let usable = known.down.is_none() && !known.retiring;
        let link = usable.then(|| Arc::clone(&known.rail.link))?;
        Some((plan, rail, link))
    }
}
