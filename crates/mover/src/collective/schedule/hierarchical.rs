//! Two levels: inside a host over shared memory, and between hosts over the network.

use std::ops::Range;

use super::{Circle, Schedule, direct_gather, direct_scatter, ring_reduce, share, tree_broadcast};
use crate::collective::hosts::Hosts;
use crate::collective::schedule::tree::tree_up;

/// All-reduce. Where all hosts have as many ranks, the ranks of a host reduce a share each, the ranks
/// with the same share of all hosts form a ring (one stream for each of them, as many as rails), and
/// the shares are gathered inside the hosts. Otherwise one rank of each host does that for it.
pub(crate) fn hierarchical_reduce(
    out: &mut Schedule,
    me: usize,
    hosts: &Hosts,
    chunk: usize,
    whole: &Range<usize>,
) {
    let (local, index) = hosts.around(me);
    let inside = Circle {
        members: local,
        me: index,
        chunk,
        last: false,
    };
    if let Some(across) = hosts.across(index) {
        let place = across.iter().position(|rank| *rank == me);
        let outside = Circle {
            members: &across,
            me: place.unwrap_or_default(),
            chunk,
            last: true,
        };
        direct_scatter(out, &inside, whole);
        ring_reduce(out, &outside, &share(whole, index, local.len()));
        direct_gather(out, &inside, whole);
        return;
    }
    let leaders = hosts.leaders();
    tree_up(out, &inside, whole);
    if let Some(place) = leaders.iter().position(|rank| *rank == me) {
        let outside = Circle {
            members: &leaders,
            me: place,
            chunk,
            last: true,
        };
        ring_reduce(out, &outside, whole);
    }
    tree_broadcast(out, &inside, 0, whole);
}
