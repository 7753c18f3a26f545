//! Open readers, and which of them takes a line.

use super::{MAX_OPEN, MAX_SECTIONS, MAX_UNREAD_QUOTES};
use crate::evidence::cite::{Cite, LineNumber};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::recognise;
use crate::evidence::{Section, Unread};

struct Open {
    reader: Box<dyn Reader>,
    first: Cite,
    last: LineNumber,
    lines: u64,
}

/// What the open readers did with a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// None took it.
    Free,
    /// One took it and leaves it to others as well.
    Shared,
    /// One took it.
    Taken,
}

/// The artefacts that one writer's lines build.
#[derive(Default)]
pub(super) struct Desk {
    /// The last successful reader comes first.
    open: Vec<Open>,
    pub(super) sections: Vec<Section>,
    pub(super) unread: Unread,
    /// A line with nothing but `{`, in case the next one shows what it begins.
    lone_brace: bool,
}

impl Desk {
    pub(super) fn take(&mut self, line: &Line<'_>) {
        let trimmed = line.trimmed();
        if trimmed.is_empty() {
            return;
        }
        if is_fence(trimmed) {
            self.close_all();
            return;
        }
        let fate = self.offer(line);
        if fate == Fate::Taken {
            return;
        }
        let lone_brace = std::mem::replace(&mut self.lone_brace, trimmed == "{");
        let mut begun = fate == Fate::Shared;
        recognise::open(line, lone_brace, |reader, verdict| {
            // What belongs to an open artefact begins another only if that one shares it as well.
            if fate == Fate::Free || verdict == Verdict::Shared {
                begun = true;
                self.begin(reader, verdict, line);
            }
        });
        // Rules and elisions (`===`, `...`) are nothing to read.
        if !begun && trimmed.chars().any(char::is_alphanumeric) {
            self.leave_unread(1, || line.cite());
        }
    }

    /// Offers a line to the open readers.
    fn offer(&mut self, line: &Line<'_>) -> Fate {
        let mut fate = Fate::Free;
        let mut at = 0;
        while let Some(open) = self.open.get_mut(at) {
            let verdict = open.reader.offer(line);
            if matches!(verdict, Verdict::Taken | Verdict::Shared | Verdict::Last) {
                open.last = line.number;
                open.lines += 1;
            }
            match verdict {
                Verdict::Refused => at += 1,
                Verdict::Shared => {
                    fate = Fate::Shared;
                    at += 1;
                }
                Verdict::Taken => {
                    self.open[..=at].rotate_right(1);
                    return Fate::Taken;
                }
                Verdict::Last => {
                    let done = self.open.remove(at);
                    self.close(done);
                    return Fate::Taken;
                }
                Verdict::Restart => {
                    let done = self.open.remove(at);
                    self.close(done);
                    return Fate::Free;
                }
            }
        }
        fate
    }

    fn begin(&mut self, reader: Box<dyn Reader>, verdict: Verdict, line: &Line<'_>) {
        let open = Open {
            reader,
            first: line.cite(),
            last: line.number,
            lines: 1,
        };
        if verdict == Verdict::Last {
            self.close(open);
            return;
        }
        if self.open.len() >= MAX_OPEN
            && let Some(idle) = self.open.pop()
        {
            self.close(idle);
        }
        self.open.insert(0, open);
    }

    pub(super) fn close_all(&mut self) {
        for open in std::mem::take(&mut self.open) {
            self.close(open);
        }
    }

    fn close(&mut self, open: Open) {
        match open.reader.finish() {
            Some((format, artefact)) if self.sections.len() < MAX_SECTIONS => {
                self.sections.push(Section {
                    format,
                    first: open.first.line,
                    last: open.last,
                    artefact,
                })
            }
            _ => self.leave_unread(open.lines, || open.first),
        }
    }

    fn leave_unread(&mut self, lines: u64, cite: impl FnOnce() -> Cite) {
        self.unread.lines += lines;
        if self.unread.first.len() < MAX_UNREAD_QUOTES {
            self.unread.first.push(cite());
        }
    }
}

/// A markdown fence, with or without a language after it. Inline code and Python's `~~~^^` are not.
fn is_fence(trimmed: &str) -> bool {
    trimmed == "~~~"
        || trimmed
            .strip_prefix("```")
            .is_some_and(|rest| !rest.contains('`'))
}
