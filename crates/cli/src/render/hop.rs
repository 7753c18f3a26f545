//! One hop on one line: from where to where, who moves it, how fast, over which links.

use crowfly_route::hop::{Crossing, Hop};

use super::cell::Cell;
use super::style::{FAINT, WARN};

/// The hop as parts of a line.
pub fn line(hop: &Hop) -> Vec<Cell> {
    let mut parts = vec![
        Cell::from(format!("{} → {}", hop.from, hop.to)),
        Cell::styled(FAINT, format!(", {}", hop.carrier)),
    ];
    if let Some(capacity) = &hop.capacity {
        parts.push(format!(", {capacity}").into());
    }
    for (index, crossing) in hop.crosses.iter().enumerate() {
        let before = if index == 0 { ", over " } else { ", " };
        parts.push(Cell::styled(FAINT, before));
        parts.push(link(crossing));
    }
    parts
}

fn link(crossing: &Crossing) -> Cell {
    if crossing.degraded {
        Cell::styled(WARN, format!("{} (degraded)", crossing.link))
    } else {
        Cell::styled(FAINT, &crossing.link)
    }
}
