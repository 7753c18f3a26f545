//! How a paste is taken apart: lines in, artefacts out, in bounded memory.
//!
//! Several artefacts can be open at once, because output interleaves. Each line goes to the open
//! readers, the last successful one first; a line that none takes may open a new one. A markdown
//! fence closes them all.

use std::borrow::Cow;

use super::cite::{Cite, LineNumber, SourceName};
use super::line::{Line, plain, undecorated};
use super::reader::{Reader, Verdict};
use super::recognise;
use super::{Document, Section, Unread};

/// Longest line read; the rest of a longer one is skipped.
pub const MAX_LINE_BYTES: usize = 8 << 20;
/// Most artefacts open at once; the one idle for longest is closed for another.
pub const MAX_OPEN: usize = 8;
/// Most artefacts of one source; later ones are counted as unread.
pub const MAX_SECTIONS: usize = 256;
/// Unread lines that are quoted.
pub const MAX_UNREAD_QUOTES: usize = 8;
/// Bytes looked at to tell text from other things.
const SNIFF_BYTES: usize = 512;

/// Reads one source whole.
pub fn read(source: impl Into<SourceName>, bytes: &[u8]) -> Document {
    let mut intake = Intake::new(source);
    intake.feed(bytes);
    intake.finish()
}

/// Reads one source piece by piece.
pub struct Intake {
    source: SourceName,
    /// The first bytes, until there are enough of them to tell what they are.
    head: Option<Vec<u8>>,
    /// A line whose end has not arrived.
    carry: Vec<u8>,
    /// The line was longer than [`MAX_LINE_BYTES`] and has been read; what remains of it is skipped.
    skipping: bool,
    lines: u64,
    desk: Desk,
}

impl Intake {
    /// An intake for the source of this name.
    pub fn new(source: impl Into<SourceName>) -> Self {
        Self {
            source: source.into(),
            head: Some(Vec::new()),
            carry: Vec::new(),
            skipping: false,
            lines: 0,
            desk: Desk::default(),
        }
    }

    /// Takes the next bytes, cut anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        let Some(head) = &mut self.head else {
            return self.lines_of(bytes);
        };
        // The first bytes wait until there are enough of them to tell what they are.
        let wanted = SNIFF_BYTES.saturating_sub(head.len()).min(bytes.len());
        let (front, rest) = bytes.split_at(wanted);
        head.extend_from_slice(front);
        if head.len() >= SNIFF_BYTES {
            self.begin();
            self.lines_of(rest);
        }
    }

    fn begin(&mut self) {
        let head = self.head.take().unwrap_or_default();
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head);
        self.desk.unread.binary = binary_kind(text);
        self.lines_of(text);
    }

    fn lines_of(&mut self, bytes: &[u8]) {
        if self.desk.unread.binary.is_some() {
            return;
        }
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            if self.skipping {
                self.skipping = false;
            } else if self.carry.is_empty() && line.len() <= MAX_LINE_BYTES {
                self.line(line, true);
            } else {
                self.carry(line);
                let whole = std::mem::take(&mut self.carry);
                if self.skipping {
                    self.skipping = false;
                } else {
                    self.line(&whole, true);
                }
            }
        }
        if !self.skipping {
            self.carry(rest);
        }
    }

    /// Adds to an unfinished line; one that grows too long is read as far as the limit.
    fn carry(&mut self, bytes: &[u8]) {
        let room = MAX_LINE_BYTES.saturating_sub(self.carry.len());
        self.carry
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            let cut = std::mem::take(&mut self.carry);
            self.line(&cut, false);
            self.skipping = true;
        }
    }

    fn line(&mut self, raw: &[u8], whole: bool) {
        self.lines += 1;
        let number = LineNumber(self.lines);
        let raw = raw.trim_ascii_end();
        // Nearly all lines are valid, and checking that alone is several times faster.
        let text =
            std::str::from_utf8(raw).map_or_else(|_| String::from_utf8_lossy(raw), Cow::Borrowed);
        // A progress bar rewrites its line, and other writers' text follows it.
        let mut parts = text.split('\r').peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            if part.is_empty() && !last {
                continue;
            }
            let cleaned = plain(part.trim_end());
            let (text, task) = undecorated(&cleaned);
            let line = Line::new(&self.source, number, text, task, whole || !last);
            self.desk.take(&line);
        }
    }

    /// The end of the source.
    pub fn finish(mut self) -> Document {
        if self.head.is_some() {
            self.begin();
        }
        if !self.carry.is_empty() {
            let last = std::mem::take(&mut self.carry);
            self.line(&last, false);
        }
        self.desk.close_all();
        let mut sections = self.desk.sections;
        sections.sort_by_key(|s| (s.first, s.last));
        Document {
            source: self.source,
            sections,
            unread: self.desk.unread,
            lines: self.lines,
        }
    }
}

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

#[derive(Default)]
struct Desk {
    /// The last successful reader comes first.
    open: Vec<Open>,
    sections: Vec<Section>,
    unread: Unread,
    /// A line with nothing but `{`, in case the next one shows what it begins.
    lone_brace: bool,
}

impl Desk {
    fn take(&mut self, line: &Line<'_>) {
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

    fn close_all(&mut self) {
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

/// What bytes are, when they are not text.
fn binary_kind(head: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 8] = [
        (b"BZh", "bzip2 archive"),
        (b"\x1f\x8b", "gzip archive"),
        (b"\xfd7zXZ", "xz archive"),
        (b"\x28\xb5\x2f\xfd", "zstd archive"),
        (b"PK\x03\x04", "zip archive"),
        (b"%PDF", "PDF document"),
        (b"\x89PNG", "PNG image"),
        (b"\xff\xd8\xff", "JPEG image"),
    ];
    let known = MAGIC.iter().find(|(magic, _)| head.starts_with(magic));
    match known {
        Some((_, kind)) => Some(kind),
        None if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") => {
            Some("UTF-16 text")
        }
        None if memchr::memchr(0, head).is_some() => Some("binary file"),
        None => None,
    }
}
