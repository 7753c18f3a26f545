//! Exchanges with partners at doubling distances.
//!
//! They need a power of two. Members beyond the largest power of two first hand all they have to a
//! member below it, and get the result from there.

use std::ops::Range;

use super::{Action, Circle, How, Schedule, chunks};

/// Where a member stands: how many take part, and its partner beyond that, if any.
fn fold_in(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) -> Option<usize> {
    let (n, me) = (circle.len(), circle.me);
    let power = 1 << n.max(1).ilog2();
    if me >= power {
        let partner = circle.member(me - power);
        circle.send(out, partner, whole.clone());
        circle.receive(out, partner, whole.clone(), How::Store);
        return None;
    }
    if me + power < n {
        // Never the last: wherever a member is beyond the power, that is 2 at least.
        circle.receive(out, circle.member(me + power), whole.clone(), How::Fold);
    }
    Some(power)
}

fn hand_back(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>, power: usize) {
    if circle.me + power < circle.len() {
        circle.send(out, circle.member(circle.me + power), whole.clone());
    }
}

/// The two halves of a range.
fn halves(range: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let middle = range.start + range.len() / 2;
    (range.start..middle, middle..range.end)
}

/// All-reduce by recursive halving and doubling (Rabenseifner). Half of everything goes to and from the
/// nearest rank, and what is left to ever farther ones: neighbours share the most, be it a core or a switch.
pub(crate) fn halving_reduce(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let Some(power) = fold_in(out, circle, whole) else {
        return;
    };
    let me = circle.me;
    let mut mine = whole.clone();
    let mut steps = Vec::new();
    let mut distance = 1;
    while distance < power {
        let partner = circle.member(me ^ distance);
        let (low, high) = halves(&mine);
        let (keep, give) = if me & distance == 0 {
            (low, high)
        } else {
            (high, low)
        };
        circle.send(out, partner, give.clone());
        let how = How::folding(circle.last && distance * 2 == power);
        circle.receive(out, partner, keep.clone(), how);
        steps.push((partner, keep.clone(), give));
        mine = keep;
        distance *= 2;
    }
    for (partner, keep, give) in steps.into_iter().rev() {
        circle.send(out, partner, keep);
        circle.receive(out, partner, give, How::Store);
    }
    hand_back(out, circle, whole, power);
}

/// All-reduce by recursive doubling: everything is exchanged in each step, for few bytes.
pub(crate) fn doubling_reduce(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let Some(power) = fold_in(out, circle, whole) else {
        return;
    };
    let mut distance = 1;
    while distance < power {
        let partner = circle.member(circle.me ^ distance);
        let how = How::folding(circle.last && distance * 2 == power);
        // One chunk each way at a time: it must be out before the partner's is folded into it.
        for part in chunks(whole.clone(), circle.chunk) {
            out.push(Action::Send {
                to: partner,
                part: part.clone(),
            });
            out.push(Action::Receive {
                from: partner,
                part,
                how,
            });
        }
        distance *= 2;
    }
    hand_back(out, circle, whole, power);
}

/// A barrier: after step k each member has heard of the 2^(k+1) − 1 before it.
pub(crate) fn dissemination(out: &mut Schedule, circle: &Circle<'_>) {
    let n = circle.len();
    let mut distance = 1;
    while distance < n {
        out.push(Action::Send {
            to: circle.after(distance),
            part: 0..0,
        });
        out.push(Action::Receive {
            from: circle.after(n - distance),
            part: 0..0,
            how: How::Store,
        });
        distance *= 2;
    }
}
