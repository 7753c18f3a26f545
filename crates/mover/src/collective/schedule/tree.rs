//! Binomial trees: few steps, each with the whole buffer.

use std::ops::Range;

use super::{Action, Circle, How, Schedule, chunks};

/// A member's parent, and its children, those with the largest subtrees first.
fn neighbours(circle: &Circle<'_>, root: usize) -> (Option<usize>, Vec<usize>) {
    let n = circle.len().max(1);
    let root = root % n;
    let place = (circle.me + n - root) % n;
    let member = |place: usize| circle.member((place + root) % n);
    // A member's parent lacks its lowest bit; its children each have one lower bit more.
    let lowest = if place == 0 {
        n.next_power_of_two()
    } else {
        place & place.wrapping_neg()
    };
    let parent = (place != 0).then(|| member(place - lowest));
    let mut children = Vec::new();
    let mut bit = lowest / 2;
    while bit > 0 {
        if place + bit < n {
            children.push(member(place + bit));
        }
        bit /= 2;
    }
    (parent, children)
}

/// Broadcast from the member at `root`.
pub(crate) fn tree_broadcast(
    out: &mut Schedule,
    circle: &Circle<'_>,
    root: usize,
    whole: &Range<usize>,
) {
    let (parent, children) = neighbours(circle, root);
    for part in chunks(whole.clone(), circle.chunk) {
        down(out, parent, &children, &part);
    }
}

fn down(out: &mut Schedule, parent: Option<usize>, children: &[usize], part: &Range<usize>) {
    if let Some(from) = parent {
        out.push(Action::Receive {
            from,
            part: part.clone(),
            how: How::Store,
        });
    }
    for to in children {
        out.push(Action::Send {
            to: *to,
            part: part.clone(),
        });
    }
}

/// Reduces towards the member at place 0.
pub(super) fn tree_up(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let (parent, children) = neighbours(circle, 0);
    for part in chunks(whole.clone(), circle.chunk) {
        up(out, circle, parent, &children, &part);
        if let Some(to) = parent {
            out.push(Action::Send { to, part });
        }
    }
}

fn up(
    out: &mut Schedule,
    circle: &Circle<'_>,
    parent: Option<usize>,
    children: &[usize],
    part: &Range<usize>,
) {
    for (at, from) in children.iter().rev().enumerate() {
        let last = circle.last && parent.is_none() && at + 1 == children.len();
        out.push(Action::Receive {
            from: *from,
            part: part.clone(),
            how: How::folding(last),
        });
    }
}

/// All-reduce: up the tree to its root, chunk by chunk, and down again.
pub(crate) fn tree_reduce(out: &mut Schedule, circle: &Circle<'_>, whole: &Range<usize>) {
    let (parent, children) = neighbours(circle, 0);
    for part in chunks(whole.clone(), circle.chunk) {
        up(out, circle, parent, &children, &part);
        match parent {
            Some(to) => out.push(Action::Send { to, part }),
            None => down(out, None, &children, &part),
        }
    }
    if parent.is_some() {
        for part in chunks(whole.clone(), circle.chunk) {
            down(out, parent, &children, &part);
        }
    }
}
