//! Whether the arguments of a call fit each other.

use std::ops::Range;

use crowfly_route::collective::Collective;

use crate::collective::element::Element;
use crate::collective::error::CollectiveError;

pub(in crate::collective) fn bad(collective: Collective, what: String) -> CollectiveError {
    let collective = collective.as_str();
    CollectiveError::BadCall { collective, what }
}

/// How many numbers there are in so many bytes.
pub(in crate::collective) fn numbers(
    collective: Collective,
    bytes: usize,
    element: Element,
) -> Result<usize, CollectiveError> {
    if !bytes.is_multiple_of(element.size()) {
        let what = format!("{bytes} bytes are no whole number of {element}");
        return Err(bad(collective, what));
    }
    Ok(bytes / element.size())
}

pub(in crate::collective) fn fits(
    collective: Collective,
    bytes: usize,
    wanted: usize,
) -> Result<(), CollectiveError> {
    if bytes == wanted {
        return Ok(());
    }
    let what = format!("a buffer of {bytes} bytes where {wanted} are needed");
    Err(bad(collective, what))
}

/// Parts that follow each other, one for each rank.
pub(in crate::collective) fn parts(
    counts: &[usize],
    ranks: usize,
    bytes: usize,
    element: Element,
) -> Result<Vec<Range<usize>>, CollectiveError> {
    let collective = Collective::AllToAll;
    if counts.len() != ranks {
        let what = format!("{} sizes for {ranks} ranks", counts.len());
        return Err(bad(collective, what));
    }
    let mut end = 0usize;
    let mut parts = Vec::with_capacity(ranks);
    for count in counts {
        let start = end;
        end = start.saturating_add(*count);
        parts.push(start..end);
    }
    let needed = end.saturating_mul(element.size());
    fits(collective, bytes, needed)?;
    Ok(parts)
}
