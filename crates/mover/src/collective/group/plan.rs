//! What a call becomes: a list of what this rank sends and receives.

use std::ops::Range;

use crowfly_route::collective::Collective;

use super::Group;
use crate::collective::choose::Algorithm;
use crate::collective::element::Element;
use crate::collective::hosts::Hosts;
use crate::collective::schedule::{self, Circle, Schedule};

/// Bytes of a chunk by streams within a machine, which have no slots that it must fit: each costs a head,
/// and there it is soon on its way anyway.
const STREAM_CHUNK: usize = 1 << 20;
/// Bytes of a span that each rank reduces, where each has a core.
const SPAN_OF_A_RANK: usize = 1 << 20;
/// The same where they share cores, and with them the caches.
const SPAN_OF_ONE_OF_MANY: usize = 256 << 10;

/// The parts for each rank, and those from each.
pub(super) type Parts<'a> = (&'a [Range<usize>], &'a [Range<usize>]);

/// What is to be done.
pub(super) struct Wanted<'a> {
    pub collective: Collective,
    pub algorithm: Algorithm,
    /// Numbers: of the whole buffer for all-reduce and broadcast, of one rank's part otherwise.
    pub count: usize,
    pub root: usize,
    pub parts: Option<Parts<'a>>,
}

impl Group {
    /// Numbers of a chunk. What one rank after the other passes on goes in small ones: the last waits for
    /// as many of them as there are ranks.
    pub(super) fn chunk(&self, collective: Collective, element: Element) -> usize {
        let large = self.one_machine && self.streams && collective != Collective::Broadcast;
        let bytes = if large {
            STREAM_CHUNK
        } else {
            self.layout.chunk
        };
        (bytes / element.size()).max(1)
    }

    /// Numbers of a span. Links inside a machine are as fast as its memory, so there it pays to reduce
    /// what was sent, and to get it back, while it is in the caches; links between machines are slower,
    /// and the steps of a span would cost more than that saves.
    pub(super) fn span(&self, element: Element) -> usize {
        if self.one_machine {
            let of_a_rank = if self.roomy {
                SPAN_OF_A_RANK
            } else {
                SPAN_OF_ONE_OF_MANY
            };
            (of_a_rank * self.members.len() / element.size()).max(1)
        } else {
            usize::MAX
        }
    }
}

/// What a schedule is made of.
pub(super) struct Plan<'a> {
    pub group: usize,
    pub me: usize,
    pub hosts: &'a Hosts,
    /// Numbers of a chunk.
    pub chunk: usize,
    /// Numbers that an all-reduce by shares is done with before it goes on to the next.
    pub span: usize,
}

impl Plan<'_> {
    pub(super) fn schedule(&self, task: &Wanted<'_>) -> Schedule {
        let members: Vec<usize> = (0..self.group).collect();
        let circle = Circle {
            members: &members,
            me: self.me,
            chunk: self.chunk,
            last: true,
        };
        let mut out = Schedule::new();
        let one = 0..task.count;
        let all = 0..task.count.saturating_mul(self.group);
        match (task.collective, task.algorithm) {
            (Collective::AllReduce, Algorithm::Hierarchical) => {
                schedule::hierarchical_reduce(&mut out, self.me, self.hosts, self.chunk, &one);
            }
            (Collective::AllReduce, Algorithm::Direct) => {
                schedule::direct_reduce(&mut out, &circle, &one);
            }
            (Collective::AllReduce, Algorithm::Halving) => {
                for span in schedule::chunks(one, self.span) {
                    schedule::halving_reduce(&mut out, &circle, &span);
                }
            }
            (Collective::AllReduce, Algorithm::Doubling) => {
                schedule::doubling_reduce(&mut out, &circle, &one);
            }
            (Collective::AllReduce, Algorithm::Tree) => {
                schedule::tree_reduce(&mut out, &circle, &one);
            }
            (Collective::AllReduce, _) => {
                for span in schedule::chunks(one, self.span) {
                    schedule::ring_reduce(&mut out, &circle, &span);
                }
            }
            (Collective::ReduceScatter, Algorithm::Direct) => {
                schedule::direct_scatter(&mut out, &circle, &all);
            }
            (Collective::ReduceScatter, _) => schedule::ring_scatter(&mut out, &circle, &all),
            (Collective::AllGather, Algorithm::Direct) => {
                schedule::direct_gather(&mut out, &circle, &all);
            }
            (Collective::AllGather, _) => schedule::ring_gather(&mut out, &circle, &all),
            (Collective::Broadcast, Algorithm::Chain) => {
                schedule::chain(&mut out, &circle, task.root, &one);
            }
            (Collective::Broadcast, _) => {
                schedule::tree_broadcast(&mut out, &circle, task.root, &one);
            }
            (Collective::AllToAll, _) => {
                if let Some((to, from)) = task.parts {
                    schedule::all_to_all(&mut out, &circle, to, from);
                }
            }
            (Collective::Barrier, _) => schedule::dissemination(&mut out, &circle),
        }
        out
    }
}
