//! Bytes that lie apart in memory and end to end in the file that they become.

use std::ops::Range;

use crate::fabric::{Caches, copy_slice};

/// Copies shorter than this, in bytes, are quicker through the caches.
const FITS_THE_CACHES: usize = 256 << 10;

/// The parts of a file, which whoever gives them keeps until the file is written or given up.
pub trait Parts: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// One of them, the same each time; they follow each other in the file.
    fn part(&self, number: usize) -> &[u8];
}

/// Copies what of the parts lies in the file from `at` on into `out`, and says how many bytes that was. The
/// parts come with their places in the file, ascending, from one that begins at or before `at`.
pub(crate) fn gather<'p>(
    parts: impl Iterator<Item = (Range<u64>, &'p [u8])>,
    at: u64,
    out: &mut [u8],
) -> usize {
    let end = at.saturating_add(out.len() as u64);
    let mut copied = 0;
    for (range, bytes) in parts {
        if range.start >= end {
            break;
        }
        let (first, last) = (range.start.max(at), range.end.min(end));
        if first >= last {
            continue;
        }
        let from = (first - range.start) as usize..(last - range.start) as usize;
        let to = (first - at) as usize..(last - at) as usize;
        if let (Some(out), Some(bytes)) = (out.get_mut(to), bytes.get(from)) {
            // What goes to the drive next is not wanted in the caches of whoever computes.
            let caches = match bytes.len() < FITS_THE_CACHES {
                true => Caches::Keep,
                false => Caches::Pass,
            };
            copy_slice(bytes, out, caches);
            copied += bytes.len();
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_of_the_parts_lies_in_a_window_is_copied_and_nothing_else() {
        let parts: [&[u8]; 4] = [b"abc", b"", b"defgh", b"i"];
        let placed = || {
            let mut at = 0;
            parts.into_iter().map(move |part| {
                let begin = at;
                at += part.len() as u64;
                (begin..at, part)
            })
        };
        for at in 0..10u64 {
            for len in 0..12usize {
                let mut out = vec![b'-'; len];
                let copied = gather(placed(), at, &mut out);
                let expected = b"abcdefghi".get(at as usize..).unwrap_or_default();
                let expected = &expected[..expected.len().min(len)];
                assert_eq!((copied, &out[..copied]), (expected.len(), expected));
                assert!(out[copied..].iter().all(|byte| *byte == b'-'));
            }
        }
    }
}
