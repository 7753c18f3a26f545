//! Short transfers that are carried out before the call that starts them returns: no piece is posted, nothing
//! is waited for, and one lock is taken, that of a turnstile. There are several of those, so that threads
//! do not wait for each other; who finds none free has its transfer posted as longer ones are.
//!
//! What is the same for all transfers of a kind is kept at the turnstile: the plan, what carries them out, and
//! where they are counted.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{HERE, Scheduler};
use crate::fabric::account::Account;
use crate::fabric::gate::{Kept, Passing, Turnstile};
use crate::fabric::plan::{Kind, Kinds, Plan};
use crate::fabric::provider::{OpError, RailId, Run, Short, Shortcut};
use crate::fabric::rail::ShortTotals;
use crate::fabric::stint::cost;
use crate::fabric::transfer::{Delivery, Outcome};

/// As many threads carry out short transfers with one peer at the same time.
pub(crate) const AT_ONCE: usize = 4;

/// The turnstiles to one peer, made when they are first needed.
#[derive(Default)]
pub(super) struct Turnstiles([OnceLock<Turnstile<Shortcuts>>; AT_ONCE]);

/// What is kept at one of them.
#[derive(Default)]
struct Shortcuts {
    /// That of the plans it was made by ([`Plans::era`](crate::fabric::plan::Plans::era)).
    era: u64,
    by_kind: Kinds<Known>,
}

/// How short transfers of one kind go.
struct Known {
    plan: Arc<Plan>,
    rail: RailId,
    shortcut: Box<dyn Shortcut>,
    /// Written only by those who pass the turnstile.
    totals: Arc<ShortTotals>,
}

impl Kept for Shortcuts {
    type Gone = Vec<Known>;

    fn let_go(&mut self) -> Vec<Known> {
        self.by_kind.drop_if(|known| !known.shortcut.is_open())
    }
}

impl Shortcuts {
    fn is_ready(&self, kind: &Kind<'_>, era: u64) -> bool {
        self.era == era && self.by_kind.has(kind)
    }
}

impl Turnstiles {
    /// The first one that is free, from the thread's own on, and its number.
    fn enter(&self) -> Option<(usize, Passing<'_, Shortcuts>)> {
        let own = own();
        (own..own + AT_ONCE).find_map(|at| {
            let at = at % AT_ONCE;
            let made = self.0.get(at)?;
            let turnstile = made.get_or_init(|| Turnstile::new(Shortcuts::default()));
            Some((at, turnstile.enter()?))
        })
    }
}

/// The number of the turnstile at which the calling thread tries first.
fn own() -> usize {
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.get().unwrap_or_else(|| {
        let own = NEXT.fetch_add(1, Ordering::Relaxed) % AT_ONCE;
        OWN.set(Some(own));
        own
    })
}

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
        // Dropped after the turnstile was left.
        let mut gone = Vec::new();
        let (at, mut passing) = self.turnstiles.enter()?;
        if !passing
            .kept()
            .is_ready(kind, self.era.load(Ordering::Acquire))
        {
            gone.extend(self.prepare(passing.kept_mut(), kind, at));
        }
        let known = passing.kept().by_kind.find(kind)?;
        let began = clock();
        let Some(result) = known.shortcut.carry(&short, passing.pass()) else {
            gone.append(&mut passing.kept_mut().let_go());
            return None;
        };
        let ended = clock();
        known.totals.add(short.verb, bytes, result.is_ok(), ended);
        let wall = ended.saturating_sub(began);
        let cpu = match result {
            Ok(helped) => cost(wall) + helped,
            Err(OpError::Op(error)) => return Some(Err(error)),
            // Another rail may do it.
            Err(OpError::Rail(_) | OpError::Elsewhere(_)) => return None,
        };
        let plan = Arc::clone(&known.plan);
        let account = Account::plain(plan, bytes, (wall, cpu), known.rail);
        Some(Ok(Delivery::new(account)))
    }

    /// Has what transfers of a kind need at a turnstile, where that can be; answers what is of no use any more.
    fn prepare(&self, kept: &mut Shortcuts, kind: &Kind<'_>, at: usize) -> Vec<Known> {
        let mut gone = Vec::new();
        let era = self.era.load(Ordering::Acquire);
        if kept.era != era {
            gone = kept.by_kind.drop_if(|_| true);
            kept.era = era;
        }
        if !kept.by_kind.has(kind)
            && let Some(known) = self.shortcut(kind, at)
        {
            gone.extend(kept.by_kind.keep(kind, known));
        }
        gone
    }

    /// How transfers of a kind go that one rail would carry all by itself, from the turnstile of this number.
    fn shortcut(&self, kind: &Kind<'_>, at: usize) -> Option<Known> {
        let mut state = self.state();
        if state.lost.is_some() || kind.is_of_a_gpu() {
            return None;
        }
        let plan = state.plan(kind).ok()?;
        let [rail] = plan.tiers.first()?[..] else {
            return None;
        };
        let known = state.rails.get(&rail)?;
        let usable = known.down.is_none() && !known.retiring;
        let link = usable.then(|| Arc::clone(&known.rail.link))?;
        let totals = Arc::clone(known.short.get(at)?);
        drop(state);
        Some(Known {
            shortcut: link.shortcut(kind.local?, kind.remote?)?,
            plan,
            rail,
            totals,
        })
    }
}
