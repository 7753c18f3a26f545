//! Everyone to everyone: the fewest steps, and as many bytes as a ring.

use std::ops::Range;

use super::{Action, Circle, How, Schedule, chunks, share};

/// Sends each other member its share, nearest first, a chunk to each in turn.
fn send_shares(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let n = circle.len();
    let mut left: Vec<_> = (1..n)
        .map(|by| {
            let part = share(whole, (circle.me + by) % n, n);
            (circle.after(by), chunks(part, circle.chunk))
        })
        .collect();
    let mut more = true;
    while more {
        more = false;
        for (to, parts) in &mut left {
            if let Some(part) = parts.next() {
                out.push(Action::Send { to: *to, part });
                more = true;
            }
        }
    }
}

/// Receives everyone's part of a range and reduces them in the order of the ranks that follow.
fn fold_all(out: &mut Schedule, circle: &Circle<'_>, part: &Range<usize>) {
    let n = circle.len();
    for by in 1..n {
        let last = circle.last && by == n - 1;
        out.push(Action::Receive {
            from: circle.after(n - by),
            part: part.clone(),
            how: How::folding(last),
        });
    }
}

/// Reduces: afterwards each member has its share of `whole` reduced.
pub(crate) fn direct_scatter(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    send_shares(out, circle, whole);
    let own = share(whole, circle.me, circle.len());
    for part in chunks(own, circle.chunk) {
        fold_all(out, circle, &part);
    }
}

/// Gathers: each member starts with its share of `whole` and ends with all.
pub(crate) fn direct_gather(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let n = circle.len();
    for part in chunks(share(whole, circle.me, n), circle.chunk) {
        for by in 1..n {
            let to = circle.after(by);
            let part = part.clone();
            out.push(Action::Send { to, part });
        }
    }
    receive_shares(out, circle, whole);
}

fn receive_shares(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let n = circle.len();
    for by in 1..n {
        let part = share(whole, (circle.me + n - by) % n, n);
        circle.receive(out, circle.after(n - by), part, How::Store);
    }
}

/// Reduces and gathers; a chunk of the own share goes out as soon as it is reduced.
pub(crate) fn direct_reduce(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let n = circle.len();
    if n < 2 {
        return;
    }
    send_shares(out, circle, whole);
    for part in chunks(share(whole, circle.me, n), circle.chunk) {
        fold_all(out, circle, &part);
        for by in 1..n {
            let to = circle.after(by);
            let part = part.clone();
            out.push(Action::Send { to, part });
        }
    }
    receive_shares(out, circle, whole);
}

/// Sends `to[m]` of one buffer to member `m` and receives `from[m]` of another buffer from it.
pub(crate) fn all_to_all(
    out: &mut Schedule,
    circle: &Circle<'_>,
    to: &[Range<usize>],
    from: &[Range<usize>],
) {
    let n = circle.len();
    for by in 1..n {
        let (towards, source) = ((circle.me + by) % n, (circle.me + n - by) % n);
        if let Some(part) = to.get(towards) {
            circle.send(out, circle.member(towards), part.clone());
        }
        if let Some(part) = from.get(source) {
            circle.receive(out, circle.member(source), part.clone(), How::Store);
        }
    }
}
