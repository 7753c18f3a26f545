//! Rings: each rank sends to the next and receives from the one before.

use std::ops::Range;

use super::{Circle, How, Schedule, share};

/// Reduces: afterwards each member has its share of `whole` reduced. Share `m` starts at the member
/// after `m` and comes round to `m`.
pub(crate) fn ring_scatter(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let n = circle.len();
    if n < 2 {
        return;
    }
    let part = |back: usize| share(whole, (circle.me + 2 * n - back) % n, n);
    let (before, next) = (circle.after(n - 1), circle.after(1));
    circle.send(out, next, part(1));
    for step in 2..n {
        circle.relay(out, before, next, part(step), How::Fold);
    }
    circle.receive(out, before, part(n), How::folding(circle.last));
}

/// Gathers: each member starts with its share of `whole` and ends with all.
pub(crate) fn ring_gather(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let n = circle.len();
    if n < 2 {
        return;
    }
    let part = |back: usize| share(whole, (circle.me + n - back) % n, n);
    let (before, next) = (circle.after(n - 1), circle.after(1));
    circle.send(out, next, part(0));
    for step in 1..n - 1 {
        circle.relay(out, before, next, part(step), How::Store);
    }
    circle.receive(out, before, part(n - 1), How::Store);
}

/// Reduces and gathers; a chunk of the own share goes round again as soon as it is reduced.
pub(crate) fn ring_reduce(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let n = circle.len();
    if n < 2 {
        return;
    }
    let part = |back: usize| share(whole, (circle.me + 2 * n - back) % n, n);
    let (before, next) = (circle.after(n - 1), circle.after(1));
    circle.send(out, next, part(1));
    for step in 2..n {
        circle.relay(out, before, next, part(step), How::Fold);
    }
    circle.relay(out, before, next, part(n), How::folding(circle.last));
    for step in 1..n - 1 {
        circle.relay(out, before, next, part(step), How::Store);
    }
    circle.receive(out, before, part(n - 1), How::Store);
}

/// A broadcast from the member at `root` along the ring, chunk after chunk.
pub(crate) fn chain(out: &mut Schedule, circle: &Circle<'_>, root: usize, whole: &Range<usize>) {
    let n = circle.len();
    if n < 2 {
        return;
    }
    let place = (circle.me + n - root % n) % n;
    let (before, next) = (circle.after(n - 1), circle.after(1));
    if place == 0 {
        circle.send(out, next, whole.clone());
    } else if place == n - 1 {
        circle.receive(out, before, whole.clone(), How::Store);
    } else {
        circle.relay(out, before, next, whole.clone(), How::Store);
    }
}
