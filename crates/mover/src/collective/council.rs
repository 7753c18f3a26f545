//! How the ranks of a group agree on what went wrong.
//!
//! Whoever notices something tells all others, and whoever hears something new tells all others as
//! well. Since verdicts only grow, all end with the same one; a rank knows that it has when every
//! rank that is not lost has said the same. Threads of the fabric do this, so a rank takes part
//! even while its program does something else. A rank that does not answer counts as lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::call::Call;
use super::error::CollectiveError;
use super::mesh::Mesh;
use super::verdict::{Report, Verdict, judge};
use crate::fabric::Reader;

/// Rounds in which ranks that do not answer are given up.
const ROUNDS: u32 = 2;

/// Why a rank that took its leave is missed.
pub(crate) const HAD_LEFT: &str = "it had left";

#[derive(Default)]
struct State {
    verdict: Verdict,
    /// The last word of each rank, this one's included.
    reports: BTreeMap<usize, Report>,
    entered: u64,
    call: Option<Call>,
    /// Ranks that took their leave: fine, unless something is still wanted from them.
    departed: Vec<usize>,
    settled: Option<CollectiveError>,
}

/// The agreement of one group.
pub(crate) struct Council {
    group: u64,
    /// The mesh's numbers of the group's ranks.
    members: Vec<usize>,
    me: usize,
    mesh: Weak<Mesh>,
    failed: AtomicBool,
    departures: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Council {
    pub(crate) fn new(group: u64, members: Vec<usize>, me: usize, mesh: Weak<Mesh>) -> Self {
        Self {
            group,
            members,
            me,
            mesh,
            failed: AtomicBool::new(false),
            departures: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) const fn group(&self) -> u64 {
        self.group
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something went wrong.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Whether a rank took its leave.
    pub(crate) fn has_departed(&self, rank: usize) -> bool {
        self.departures.load(Ordering::Acquire) && self.state().departed.contains(&rank)
    }

    /// Notes which call this rank has come to.
    pub(crate) fn enter(&self, number: u64, call: Call) {
        let mut state = self.state();
        (state.entered, state.call) = (number, Some(call));
    }

    /// Says what went wrong. Once this rank has said something, what else goes wrong with its call only
    /// follows from that, and others may have settled on what it said: it adds nothing.
    pub(crate) fn accuse(&self, add: impl FnOnce(&mut Verdict)) {
        if self.state().reports.contains_key(&self.me) {
            return;
        }
        self.convene(add);
    }

    /// Has this rank say what it knows, where it did not, with those that have left since.
    pub(crate) fn convene(&self, add: impl FnOnce(&mut Verdict)) {
        let departed = std::mem::take(&mut self.state().departed);
        self.add(|verdict| {
            add(verdict);
            for rank in departed {
                verdict.lose(rank, self.me, HAD_LEFT);
            }
        });
    }

    fn add(&self, add: impl FnOnce(&mut Verdict)) {
        let report = {
            let mut state = self.state();
            let before = state.verdict.clone();
            add(&mut state.verdict);
            self.failed.store(true, Ordering::Release);
            self.speak(&mut state, &before)
        };
        self.tell(report);
    }

    /// What this rank has to say anew, if anything.
    fn speak(&self, state: &mut State, before: &Verdict) -> Option<(Report, Vec<usize>)> {
        let news = state.verdict != *before || !state.reports.contains_key(&self.me);
        let report = news.then(|| {
            let report = Report {
                verdict: state.verdict.clone(),
                // What it was when it first spoke: others judge by it.
                entered: state
                    .reports
                    .get(&self.me)
                    .map_or(state.entered, |r| r.entered),
                call: state.reports.get(&self.me).map_or(state.call, |r| r.call),
            };
            state.reports.insert(self.me, report.clone());
            let others = (0..self.members.len()).filter(|rank| *rank != self.me);
            let others = others.filter(|rank| !state.verdict.lost.contains_key(rank));
            (
                report,
                others
                    .filter_map(|rank| self.members.get(rank).copied())
                    .collect(),
            )
        });
        let mut present = (0..self.members.len()).filter(|r| !state.verdict.lost.contains_key(r));
        let agreed = present.all(|rank| {
            let report = state.reports.get(&rank);
            report.is_some_and(|report| report.verdict == state.verdict)
        });
        if agreed {
            state.settled = Some(judge(&state.verdict, &state.reports));
        } else if news {
            state.settled = None;
        }
        self.changed.notify_all();
        report
    }

    fn tell(&self, report: Option<(Report, Vec<usize>)>) {
        if let (Some((report, others)), Some(mesh)) = (report, self.mesh.upgrade()) {
            mesh.report(self.group, &report, &others);
        }
    }

    /// A rank's report came.
    pub(crate) fn heard(&self, from_mesh: usize, mut fields: Reader<'_>) {
        let from = self.members.iter().position(|member| *member == from_mesh);
        let report = Report::decode(&mut fields, self.members.len());
        let (Some(from), Some(report)) = (from, report) else {
            return;
        };
        let ours = {
            let mut state = self.state();
            let before = state.verdict.clone();
            state.verdict.merge(report.verdict.clone());
            self.failed.store(true, Ordering::Release);
            // One that was overtaken by a later one says less.
            let mut both = report.verdict.clone();
            if let Some(known) = state.reports.get(&from) {
                both.merge(known.verdict.clone());
            }
            if both == report.verdict {
                state.reports.insert(from, report);
            }
            self.speak(&mut state, &before)
        };
        self.tell(ours);
    }

    /// A peer is gone.
    pub(crate) fn gone(&self, mesh_rank: usize, why: &str, orderly: bool) {
        let Some(rank) = self.members.iter().position(|member| *member == mesh_rank) else {
            return;
        };
        if orderly {
            let mut state = self.state();
            // Who has said what it knows of a failure may leave before the others have settled.
            if !self.has_failed() || state.reports.contains_key(&rank) {
                state.departed.push(rank);
                self.departures.store(true, Ordering::Release);
                return;
            }
        }
        if !self.state().verdict.lost.contains_key(&rank) {
            self.convene(|verdict| verdict.lose(rank, self.me, why));
        }
    }

    /// Waits until all agree, for `grace` at most, and answers what on.
    pub(crate) fn settle(&self, grace: Duration) -> CollectiveError {
        let started = Instant::now();
        for round in 1..=ROUNDS {
            let until = started + grace * round / ROUNDS;
            let silent = {
                let mut state = self.state();
                loop {
                    if let Some(error) = &state.settled {
                        return error.clone();
                    }
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                let all = 0..self.members.len();
                let missing = all.filter(|rank| {
                    let agrees = |report: &Report| report.verdict == state.verdict;
                    !state.verdict.lost.contains_key(rank)
                        && !state.reports.get(rank).is_some_and(agrees)
                });
                missing.collect::<Vec<_>>()
            };
            let why = "it did not answer when others were lost or late";
            self.add(|verdict| {
                for rank in silent.into_iter().filter(|rank| *rank != self.me) {
                    verdict.lose(rank, self.me, why);
                }
            });
        }
        let state = self.state();
        let settled = state.settled.clone();
        settled.unwrap_or_else(|| judge(&state.verdict, &state.reports))
    }

    /// The mesh's numbers of the ranks that are left, when all have agreed.
    pub(crate) fn left(&self) -> Vec<usize> {
        let state = self.state();
        let here =
            |rank: &usize| !state.verdict.lost.contains_key(rank) && !state.departed.contains(rank);
        let ranks = (0..self.members.len()).filter(here);
        ranks
            .filter_map(|rank| self.members.get(rank).copied())
            .collect()
    }
}

/// All councils of a mesh, and what came for groups that do not exist here yet.
#[derive(Default)]
pub(crate) struct Councils {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    councils: Vec<Arc<Council>>,
    early: Vec<(usize, u64, Vec<u8>)>,
    gone: BTreeMap<usize, (String, bool)>,
}

/// Reports that are kept for groups that do not exist yet.
const MAX_EARLY: usize = 1024;

impl Councils {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, council: &Arc<Council>) {
        let (early, gone) = {
            let mut known = self.known();
            known.councils.push(Arc::clone(council));
            let mine = |(_, group, _): &mut (usize, u64, Vec<u8>)| *group == council.group();
            let early: Vec<_> = known.early.extract_if(.., mine).collect();
            (early, known.gone.clone())
        };
        for (from, _, body) in early {
            council.heard(from, Reader::new(&body));
        }
        for (rank, (why, orderly)) in gone {
            council.gone(rank, &why, orderly);
        }
    }

    pub(crate) fn remove(&self, council: &Arc<Council>) {
        let mut known = self.known();
        known.councils.retain(|other| !Arc::ptr_eq(other, council));
    }

    pub(crate) fn heard(&self, from: usize, group: u64, body: &[u8]) {
        let council = {
            let mut known = self.known();
            let found = known.councils.iter().find(|c| c.group() == group).cloned();
            if found.is_none() && known.early.len() < MAX_EARLY {
                known.early.push((from, group, body.to_vec()));
            }
            found
        };
        if let Some(council) = council {
            council.heard(from, Reader::new(body));
        }
    }

    pub(crate) fn gone(&self, rank: usize, why: &str, orderly: bool) {
        let councils = {
            let mut known = self.known();
            let first = (why.to_owned(), orderly);
            known.gone.entry(rank).or_insert(first);
            known.councils.clone()
        };
        for council in councils {
            council.gone(rank, why, orderly);
        }
    }

    /// Why a peer is gone, if it is.
    pub(crate) fn why(&self, rank: usize) -> Option<String> {
        self.known().gone.get(&rank).map(|(why, _)| why.clone())
    }
}
