//! Max-min fair shares of links, and what happens as jobs end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::fabric::LinkId;
use crate::error::PlanError;

/// Flows that advance together.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) kind: &'static str,
    /// What each flow moves.
    pub(super) bytes: f64,
    pub(super) flows: u64,
    /// Flows on each link, in the order of the links.
    pub(super) loads: Vec<(LinkId, f64)>,
}

/// What happened.
#[derive(Debug)]
pub(super) struct Run {
    /// When each job ended, in seconds.
    pub(super) ends: Vec<f64>,
    /// The link that gave each job its rate while all ran; `None` where none did.
    pub(super) held_by: Vec<Option<LinkId>>,
    /// Load of each link while all ran, B/s.
    pub(super) first_loads: Vec<f64>,
    pub(super) events: u64,
}

/// Rates of flows, and the links that limit them.
struct Rates {
    rate: Vec<f64>,
    held_by: Vec<Option<LinkId>>,
    load: Vec<f64>,
}

/// Runs jobs over links until all have ended. Jobs that end within a share of `together` of each
/// other end at once.
pub(super) fn run(capacity: &[f64], jobs: &[Job], together: f64) -> Result<Run, PlanError> {
    let mut remaining: Vec<f64> = jobs.iter().map(|job| job.bytes).collect();
    let mut ends = vec![0.0; jobs.len()];
    let mut running: Vec<usize> = (0..jobs.len()).collect();
    let by_link = by_link(capacity.len(), jobs);
    let (mut now, mut events) = (0.0, 0);
    let mut first: Option<Rates> = None;
    while !running.is_empty() {
        let rates = fair(capacity, jobs, &by_link, &running);
        let times = |job: &usize| remaining_time(&remaining, &rates.rate, *job);
        let next = running.iter().map(times).fold(f64::INFINITY, f64::min);
        if !next.is_finite() {
            return Err(PlanError::Impossible {
                what: "a job has no link that works".into(),
                hint: "let fewer links fail, or try another seed".into(),
            });
        }
        now += next;
        events += 1;
        running.retain(|job| {
            let rate = rates.rate.get(*job).copied().unwrap_or(0.0);
            let ended = remaining_time(&remaining, &rates.rate, *job) <= next * (1.0 + together);
            if let Some(left) = remaining.get_mut(*job) {
                *left = (*left - rate * next).max(0.0);
            }
            if ended && let Some(end) = ends.get_mut(*job) {
                *end = now;
            }
            !ended
        });
        first.get_or_insert(rates);
    }
    let first = first.unwrap_or(Rates {
        rate: Vec::new(),
        held_by: Vec::new(),
        load: vec![0.0; capacity.len()],
    });
    Ok(Run {
        ends,
        held_by: first.held_by,
        first_loads: first.load,
        events,
    })
}

fn remaining_time(remaining: &[f64], rate: &[f64], job: usize) -> f64 {
    match (remaining.get(job), rate.get(job)) {
        (Some(bytes), Some(rate)) => bytes / rate,
        _ => f64::INFINITY,
    }
}

/// The jobs on each link, with their flows.
fn by_link(links: usize, jobs: &[Job]) -> Vec<Vec<(u32, f64)>> {
    let mut by_link = vec![Vec::new(); links];
    for (index, job) in jobs.iter().enumerate() {
        for (link, flows) in &job.loads {
            if let Some(on) = by_link.get_mut(*link as usize) {
                on.push((index as u32, *flows));
            }
        }
    }
    by_link
}

/// A link and the rate of a flow at which it is full. Ordered by rate, then by number.
#[derive(Clone, Copy, PartialEq)]
struct Full {
    rate: f64,
    link: LinkId,
}

impl Eq for Full {}

impl Ord for Full {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rate
            .total_cmp(&other.rate)
            .then(self.link.cmp(&other.link))
    }
}

impl PartialOrd for Full {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): all rates grow together; when
/// a link is full the jobs on it keep their rate, and the others grow on.
fn fair(capacity: &[f64], jobs: &[Job], by_link: &[Vec<(u32, f64)>], running: &[usize]) -> Rates {
    let mut rate = vec![0.0; jobs.len()];
    let mut held_by = vec![None; jobs.len()];
    let mut load = vec![0.0; capacity.len()];
    let mut growing = vec![0.0; capacity.len()];
    let mut open = vec![false; jobs.len()];
    for job in running {
        if let (Some(open), Some(job)) = (open.get_mut(*job), jobs.get(*job)) {
            *open = true;
            for (link, flows) in &job.loads {
                if let Some(growing) = growing.get_mut(*link as usize) {
                    *growing += flows;
                }
            }
        }
    }
    let full_at = |link: usize, load: &[f64], growing: &[f64]| {
        let (capacity, load, growing) = (capacity.get(link)?, load.get(link)?, growing.get(link)?);
        // What rounding leaves of jobs that no longer grow is not a flow.
        (*growing > 1e-9).then(|| Full {
            rate: ((capacity - load) / growing).max(0.0),
            link: link as LinkId,
        })
    };
    let all = (0..capacity.len()).filter_map(|link| full_at(link, &load, &growing));
    let mut heap: BinaryHeap<Reverse<Full>> = all.map(Reverse).collect();
    while let Some(Reverse(candidate)) = heap.pop() {
        let link = candidate.link as usize;
        let Some(current) = full_at(link, &load, &growing) else {
            continue;
        };
        // The link was put back with a higher rate since.
        if current.rate > candidate.rate {
            heap.push(Reverse(current));
            continue;
        }
        for (job, _) in by_link.get(link).into_iter().flatten() {
            let job = *job as usize;
            let Some(open) = open.get_mut(job).filter(|open| **open) else {
                continue;
            };
            *open = false;
            if let (Some(rate), Some(held)) = (rate.get_mut(job), held_by.get_mut(job)) {
                *rate = current.rate;
                *held = Some(candidate.link);
            }
            for (other, flows) in jobs.get(job).into_iter().flat_map(|job| &job.loads) {
                let other = *other as usize;
                if let (Some(load), Some(growing)) = (load.get_mut(other), growing.get_mut(other)) {
                    *load += flows * current.rate;
                    *growing -= flows;
                }
            }
        }
    }
    Rates {
        rate,
        held_by,
        load,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(bytes: f64, loads: &[(LinkId, f64)]) -> Job {
        Job {
            kind: "test",
            bytes,
            flows: 1,
            loads: loads.to_vec(),
        }
    }

    #[test]
    fn flows_share_a_link_and_what_one_cannot_use_goes_to_the_others() {
        // Two flows share link 0; one of them passes link 1 as well, which is narrower.
        let jobs = [job(10.0, &[(0, 1.0)]), job(2.0, &[(0, 1.0), (1, 1.0)])];
        let run = run(&[10.0, 2.0], &jobs, 0.0).expect("links work");
        // 8 and 2 until one second, then 10 alone for the last two bytes.
        assert_eq!(run.ends, [1.2, 1.0]);
        assert_eq!(run.held_by, [Some(0), Some(1)]);
        assert_eq!(run.first_loads, [10.0, 2.0]);
        assert_eq!(run.events, 2);
    }

    #[test]
    fn a_ring_is_as_slow_as_the_link_that_most_of_its_flows_cross() {
        let run = run(&[10.0, 10.0], &[job(10.0, &[(0, 1.0), (1, 4.0)])], 0.0);
        assert_eq!(run.expect("links work").ends, [4.0]);
    }

    #[test]
    fn a_link_that_carries_nothing_is_an_error_and_no_endless_loop() {
        let refused = run(&[0.0], &[job(1.0, &[(0, 1.0)])], 0.0).expect_err("no way");
        assert_eq!(refused.code(), "plan-impossible");
    }

    fn some_jobs() -> impl Strategy<Value = (Vec<f64>, Vec<Job>)> {
        let links = prop::collection::vec(1.0..100.0f64, 1..8);
        links.prop_flat_map(|capacity| {
            let count = capacity.len() as LinkId;
            let path = prop::collection::btree_map(0..count, 1..4u8, 1..=count as usize);
            let one = (path, 1.0..50.0f64).prop_map(|(path, bytes)| {
                let loads: Vec<_> = path.into_iter().map(|(l, n)| (l, f64::from(n))).collect();
                job(bytes, &loads)
            });
            (Just(capacity), prop::collection::vec(one, 1..12))
        })
    }

    proptest! {
        #[test]
        fn no_link_carries_more_than_it_can_and_every_flow_is_held_by_a_full_one((capacity, jobs) in some_jobs()) {
            let all: Vec<usize> = (0..jobs.len()).collect();
            let rates = fair(&capacity, &jobs, &by_link(capacity.len(), &jobs), &all);
            for (load, capacity) in rates.load.iter().zip(&capacity) {
                prop_assert!(*load <= capacity * (1.0 + 1e-9));
            }
            for (job, held) in jobs.iter().zip(&rates.held_by) {
                let link = held.expect("every flow is held") as usize;
                prop_assert!(job.loads.iter().any(|(l, _)| *l as usize == link));
                prop_assert!(rates.load[link] >= capacity[link] * (1.0 - 1e-9));
            }
        }

        #[test]
        fn every_job_ends_no_sooner_than_alone((capacity, jobs) in some_jobs()) {
            let shared = run(&capacity, &jobs, 0.0).expect("links work");
            for (job, end) in jobs.iter().zip(&shared.ends) {
                let alone = run(&capacity, std::slice::from_ref(job), 0.0).expect("links work");
                prop_assert!(*end >= alone.ends[0] * (1.0 - 1e-9));
            }
        }
    }
}
