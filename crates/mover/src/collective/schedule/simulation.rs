//! All algorithms carried out in one thread, ranks in an order drawn by a seed, over queues that hold
//! few chunks.

use std::collections::VecDeque;

use super::*;
use crate::collective::hosts::Hosts;

/// A small generator (xorshift), so that a failing seed can be run again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// A number: what it is made of, and how often it was finished.
type Number = (u64, u32);

struct Rank {
    actions: Schedule,
    next: usize,
    buffer: Vec<Number>,
    input: Option<Vec<Number>>,
    /// Sends that wait for room.
    waiting: VecDeque<(usize, Range<usize>)>,
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Carries schedules out; `room` chunks fit between two ranks.
fn simulate(ranks: &mut [Rank], room: usize, seed: u64) {
    let n = ranks.len();
    let mut wires: Vec<VecDeque<Vec<Number>>> = vec![VecDeque::new(); n * n];
    let mut dice = Dice(seed | 1);
    let mut idle = 0;
    while idle < 64 * n {
        let me = dice.below(n);
        let rank = &mut ranks[me];
        idle += 1;
        let mut blocked = vec![false; n];
        let mut kept = VecDeque::new();
        while let Some((to, part)) = rank.waiting.pop_front() {
            let wire = &mut wires[me * n + to];
            if blocked[to] || wire.len() >= room {
                blocked[to] = true;
                kept.push_back((to, part));
                continue;
            }
            let source = rank.input.as_ref().unwrap_or(&rank.buffer);
            wire.push_back(source[part].to_vec());
            idle = 0;
        }
        rank.waiting = kept;
        match rank.actions.get(rank.next) {
            None => {}
            Some(Action::Send { to, part }) => {
                rank.waiting.push_back((*to, part.clone()));
                rank.next += 1;
                idle = 0;
            }
            Some(Action::Receive { from, part, how }) => {
                if rank.input.is_none() && rank.waiting.iter().any(|(_, p)| overlap(p, part)) {
                    continue;
                }
                let Some(numbers) = wires[from * n + me].pop_front() else {
                    continue;
                };
                assert_eq!(numbers.len(), part.len(), "rank {me} from {from}");
                for (into, with) in rank.buffer[part.clone()].iter_mut().zip(numbers) {
                    match how {
                        How::Store => *into = with,
                        How::Fold => *into = (into.0 + with.0, into.1 + with.1),
                        How::FoldLast => *into = (into.0 + with.0, into.1 + with.1 + 1),
                    }
                }
                rank.next += 1;
                idle = 0;
            }
        }
    }
    for (me, rank) in ranks.iter().enumerate() {
        let stuck = rank.actions.get(rank.next);
        assert!(
            stuck.is_none() && rank.waiting.is_empty(),
            "rank {me} is stuck at {stuck:?}"
        );
    }
    assert!(
        wires.iter().all(VecDeque::is_empty),
        "something was sent that nobody wants"
    );
}

/// What rank `rank` has at `at`: sums of some ranks' never equal those of others.
fn number(rank: usize, at: usize) -> u64 {
    (1 << rank) + ((at as u64) << 40)
}

fn sum(n: usize, at: usize) -> u64 {
    (0..n).map(|rank| number(rank, at)).sum()
}

fn ranks(n: usize, count: usize, plan: impl Fn(usize, &mut Schedule)) -> Vec<Rank> {
    let each = |me| {
        let mut actions = Schedule::new();
        plan(me, &mut actions);
        Rank {
            actions,
            next: 0,
            buffer: (0..count).map(|at| (number(me, at), 0)).collect(),
            input: None,
            waiting: VecDeque::new(),
        }
    };
    (0..n).map(each).collect()
}

const COUNTS: [usize; 7] = [0, 1, 2, 7, 13, 64, 101];
const CHUNKS: [usize; 4] = [1, 3, 8, 1000];

/// Every size of a group with every count and chunk, in some order drawn by a seed.
fn cases(mut run: impl FnMut(usize, usize, usize, u64)) {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    for n in 1..=9 {
        for count in COUNTS {
            for chunk in CHUNKS {
                seed = u64::rotate_left(seed, 7).wrapping_mul(0x2545_f491_4f6c_dd1d);
                run(n, count, chunk, seed);
            }
        }
    }
}

#[test]
fn every_all_reduce_gives_every_rank_every_sum_finished_once() {
    type Algorithm = fn(&mut Schedule, &Circle<'_>, &Range<usize>);
    let algorithms: [(&str, Algorithm); 5] = [
        ("ring", ring_reduce),
        ("direct", direct_reduce),
        ("halving", halving_reduce),
        ("doubling", doubling_reduce),
        ("tree", tree_reduce),
    ];
    for (name, algorithm) in algorithms {
        cases(|n, count, chunk, seed| {
            let members: Vec<usize> = (0..n).collect();
            let mut ranks = ranks(n, count, |me, out| {
                let circle = Circle {
                    members: &members,
                    me,
                    chunk,
                    last: true,
                };
                algorithm(out, &circle, &(0..count));
            });
            simulate(&mut ranks, 2, seed);
            for (me, rank) in ranks.iter().enumerate() {
                for (at, got) in rank.buffer.iter().enumerate() {
                    let finished = u32::from(n > 1);
                    assert_eq!(
                        *got,
                        (sum(n, at), finished),
                        "{name}: {n} ranks, {count} by {chunk}, seed {seed:#x}, rank {me} at {at}"
                    );
                }
            }
        });
    }
}

#[test]
fn every_rank_ends_a_reduce_scatter_with_its_share_and_a_gather_with_all() {
    cases(|n, count, chunk, seed| {
        let members: Vec<usize> = (0..n).collect();
        let circle = |me| Circle {
            members: &members,
            me,
            chunk,
            last: true,
        };
        for scatter in [ring_scatter, direct_scatter] {
            let mut ranks = ranks(n, count, |me, out| scatter(out, &circle(me), &(0..count)));
            simulate(&mut ranks, 2, seed);
            for (me, rank) in ranks.iter().enumerate() {
                for at in share(&(0..count), me, n) {
                    assert_eq!(
                        rank.buffer[at],
                        (sum(n, at), u32::from(n > 1)),
                        "{n} {count} {chunk}"
                    );
                }
            }
        }
        for gather in [ring_gather, direct_gather] {
            let mut ranks = ranks(n, count, |me, out| gather(out, &circle(me), &(0..count)));
            simulate(&mut ranks, 2, seed);
            for rank in &ranks {
                for of in 0..n {
                    for at in share(&(0..count), of, n) {
                        assert_eq!(rank.buffer[at], (number(of, at), 0), "{n} {count} {chunk}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_broadcast_from_any_rank_reaches_all() {
    cases(|n, count, chunk, seed| {
        let members: Vec<usize> = (0..n).collect();
        for root in [0, n / 2, n - 1] {
            for spread in [tree_broadcast, chain] {
                let mut ranks = ranks(n, count, |me, out| {
                    let circle = Circle {
                        members: &members,
                        me,
                        chunk,
                        last: true,
                    };
                    spread(out, &circle, root, &(0..count));
                });
                simulate(&mut ranks, 2, seed);
                for rank in &ranks {
                    for at in 0..count {
                        assert_eq!(rank.buffer[at].0, number(root, at), "{n} from {root}");
                    }
                }
            }
        }
    });
}

#[test]
fn an_all_to_all_brings_each_its_part_of_each_whatever_their_sizes() {
    cases(|n, count, chunk, seed| {
        let members: Vec<usize> = (0..n).collect();
        // Rank a has (a + 2b) % 5 more than `count / n` numbers for rank b.
        let size = |a: usize, b: usize| count / n + (a + 2 * b) % 5;
        let starts = |sizes: Vec<usize>| -> Vec<Range<usize>> {
            let mut end = 0;
            sizes
                .into_iter()
                .map(|size| {
                    end += size;
                    end - size..end
                })
                .collect()
        };
        let to = |me: usize| starts((0..n).map(|b| size(me, b)).collect());
        let from = |me: usize| starts((0..n).map(|a| size(a, me)).collect());
        let mut ranks: Vec<Rank> = (0..n)
            .map(|me| {
                let mut actions = Schedule::new();
                let circle = Circle {
                    members: &members,
                    me,
                    chunk,
                    last: true,
                };
                all_to_all(&mut actions, &circle, &to(me), &from(me));
                let total = |parts: &[Range<usize>]| parts.last().map_or(0, |part| part.end);
                Rank {
                    actions,
                    next: 0,
                    buffer: vec![(0, 0); total(&from(me))],
                    input: Some((0..total(&to(me))).map(|at| (number(me, at), 0)).collect()),
                    waiting: VecDeque::new(),
                }
            })
            .collect();
        simulate(&mut ranks, 2, seed);
        for (me, rank) in ranks.iter().enumerate() {
            for a in (0..n).filter(|a| *a != me) {
                let (here, there) = (from(me)[a].clone(), to(a)[me].clone());
                for (at, source) in here.zip(there) {
                    assert_eq!(rank.buffer[at].0, number(a, source), "{n} {me} of {a}");
                }
            }
        }
    });
}

#[test]
fn two_levels_give_every_rank_every_sum_whether_hosts_are_alike_or_not() {
    let spreads: [&[u8]; 5] = [
        &[0, 0, 1, 1],
        &[0, 1, 0, 1, 2, 2],
        &[0, 0, 0, 1],
        &[0, 1, 1],
        &[0, 0, 1, 1, 2, 2, 2, 3],
    ];
    for keys in spreads {
        let hosts = Hosts::of(keys);
        for count in COUNTS {
            for chunk in CHUNKS {
                let n = keys.len();
                let mut ranks = ranks(n, count, |me, out| {
                    hierarchical_reduce(out, me, &hosts, chunk, &(0..count));
                });
                simulate(&mut ranks, 2, 77 + count as u64);
                for rank in &ranks {
                    for at in 0..count {
                        assert_eq!(rank.buffer[at], (sum(n, at), 1), "{keys:?} {count} {chunk}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_barrier_lets_nobody_go_before_all_have_come() {
    for n in 1..=9 {
        let members: Vec<usize> = (0..n).collect();
        let plan = |me: usize, out: &mut Schedule| {
            let circle = Circle {
                members: &members,
                me,
                chunk: 1,
                last: true,
            };
            dissemination(out, &circle);
        };
        for absent in 0..n {
            // One does not come: nobody else may be through.
            let mut some = ranks(n, 0, |me, out| {
                if me != absent {
                    plan(me, out);
                }
            });
            let stuck = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                simulate(&mut some, 4, 5);
            }));
            assert!(n == 1 || stuck.is_err());
            for (me, rank) in some.iter().enumerate() {
                assert!(
                    n == 1 || me == absent || rank.next < rank.actions.len(),
                    "{me} of {n}"
                );
            }
        }
        simulate(&mut ranks(n, 0, plan), 1, 9);
    }
}
