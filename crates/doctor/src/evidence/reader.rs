//! What every reader of a format can do.

use super::line::Line;
use super::{Artefact, Format};

/// What a reader says to a line that it is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It belongs to this artefact.
    Taken,
    /// It belongs to this artefact and may say something to others as well: a command line is an
    /// environment and the beginning of what it runs.
    Shared,
    /// It does not; the artefact may go on after it.
    Refused,
    /// It begins another artefact of the same format.
    Restart,
    /// It belongs to this artefact and is its last line.
    Last,
}

/// One artefact being read, line by line. Readers never fail and never look at a line twice.
pub(crate) trait Reader {
    /// Takes the line if it belongs.
    fn offer(&mut self, line: &Line<'_>) -> Verdict;

    /// What was read; `None` when it came to nothing.
    fn finish(self: Box<Self>) -> Option<(Format, Artefact)>;
}
