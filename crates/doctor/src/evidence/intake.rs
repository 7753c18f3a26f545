//! How a paste is taken apart: lines in, artefacts out, in bounded memory.
//!
//! Several artefacts can be open at once, because output interleaves. Each line goes to the open
//! readers, the last successful one first; a line that none takes may open a new one. A markdown
//! fence closes them all. Where the text names the machine that wrote each line, each machine's lines
//! are read apart.

mod desk;
mod wide;
mod writers;

use std::borrow::Cow;

use self::desk::Desk;
use self::wide::Wide;
use self::writers::{Headings, MAX_APART_BYTES, MAX_WRITERS};
use super::cite::{LineNumber, SourceName};
use super::line::{Line, plain, undecorated};
use super::recognise;
use super::{Document, Unread};

/// Longest line read; the rest of a longer one is skipped.
pub const MAX_LINE_BYTES: usize = 8 << 20;
/// Most artefacts open at once; the one idle for longest is closed for another.
pub const MAX_OPEN: usize = 8;
/// Most artefacts of one source; later ones are counted as unread.
pub const MAX_SECTIONS: usize = 256;
/// Unread lines that are quoted.
pub const MAX_UNREAD_QUOTES: usize = 8;
/// Bytes looked at to tell text from other things.
const SNIFF_BYTES: usize = 2 << 10;

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
    /// The bytes are UTF-16.
    wide: Option<Wide>,
    /// The bytes are not text, but this.
    binary: Option<&'static str>,
    /// A line whose end has not arrived.
    carry: Vec<u8>,
    /// The line was longer than [`MAX_LINE_BYTES`] and has been read; what remains of it is skipped.
    skipping: bool,
    lines: u64,
    /// Every line begins with the name of the machine that wrote it.
    named: bool,
    headings: Headings,
    /// Who wrote the lines; the first is the source itself.
    writers: Vec<Writer>,
    /// Whose lines these are.
    writer: usize,
    /// Bytes of lines that were read apart from the source's own.
    apart: usize,
}

/// One machine's lines.
struct Writer {
    /// Its name in the text; empty for the source itself.
    name: String,
    source: SourceName,
    desk: Desk,
}

impl Intake {
    /// An intake for the source of this name.
    pub fn new(source: impl Into<SourceName>) -> Self {
        let source = source.into();
        Self {
            writers: vec![Writer {
                name: String::new(),
                source: source.clone(),
                desk: Desk::default(),
            }],
            source,
            head: Some(Vec::new()),
            wide: None,
            binary: None,
            carry: Vec::new(),
            skipping: false,
            lines: 0,
            named: false,
            headings: Headings::default(),
            writer: 0,
            apart: 0,
        }
    }

    /// Takes the next bytes, cut anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        let Some(head) = &mut self.head else {
            return self.text(bytes);
        };
        // The first bytes wait until there are enough of them to tell what they are.
        let wanted = SNIFF_BYTES.saturating_sub(head.len()).min(bytes.len());
        let (front, rest) = bytes.split_at(wanted);
        head.extend_from_slice(front);
        if head.len() >= SNIFF_BYTES {
            self.begin();
            self.text(rest);
        }
    }

    /// Whether what came so far shows that the source is no text, so that reading on is of no use.
    pub fn is_binary(&self) -> bool {
        self.binary.is_some()
    }

    fn begin(&mut self) {
        let head = self.head.take().unwrap_or_default();
        if let Some((mut wide, mark)) = Wide::of(&head) {
            let text = wide.decode(head.get(mark..).unwrap_or_default());
            self.wide = Some(wide);
            self.begin_with(text.as_bytes());
        } else {
            self.begin_with(head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head));
        }
    }

    fn begin_with(&mut self, text: &[u8]) {
        self.binary = binary_kind(text);
        let begins = |line: &str| {
            let (text, task) = undecorated(line);
            recognise::begins(&Line::new(&self.source, LineNumber(1), text, task, true))
        };
        self.named = writers::are_named(&String::from_utf8_lossy(text), begins);
        self.lines_of(text);
    }

    fn text(&mut self, bytes: &[u8]) {
        match &mut self.wide {
            None => self.lines_of(bytes),
            Some(wide) => {
                let text = wide.decode(bytes);
                self.lines_of(text.as_bytes());
            }
        }
    }

    fn lines_of(&mut self, bytes: &[u8]) {
        if self.binary.is_some() {
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
        if memchr::memchr(b'\r', text.as_bytes()).is_none() {
            return self.part(text.trim_end(), number, whole);
        }
        // A progress bar rewrites its line, and other writers' text follows it.
        let mut parts = text.split('\r').peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            if part.is_empty() && !last {
                continue;
            }
            self.part(part.trim_end(), number, whole || !last);
        }
    }

    /// A line, or what stands in one between two carriage returns.
    fn part(&mut self, text: &str, number: LineNumber, whole: bool) {
        let cleaned = plain(text);
        let (mut text, mut task) = undecorated(&cleaned);
        // Before decorations go: a heading can look like one.
        if let Some(name) = self.headings.announced(&cleaned) {
            self.turn_to(&name);
            return;
        }
        if self.named
            && let Some((name, rest)) = writers::split(text)
        {
            self.turn_to(name);
            let (inner, inner_task) = undecorated(rest);
            (text, task) = (inner, inner_task.or(task));
        }
        if self.writer > 0 {
            self.apart += text.len();
        }
        if let Some(writer) = self.writers.get_mut(self.writer) {
            let line = Line::new(&writer.source, number, text, task, whole);
            writer.desk.take(&line);
        }
    }

    /// Turns to a writer by name; one too many, and a line too many, count as the source itself.
    fn turn_to(&mut self, name: &str) {
        if self.apart > MAX_APART_BYTES {
            self.writer = 0;
            return;
        }
        if self
            .writers
            .get(self.writer)
            .is_some_and(|w| w.name == name)
        {
            return;
        }
        let known = self.writers.iter().position(|w| w.name == name);
        self.writer = match known {
            Some(at) => at,
            None if self.writers.len() <= MAX_WRITERS => {
                self.writers.push(Writer {
                    name: name.to_owned(),
                    source: SourceName::new(format!("{} ({name})", self.source)),
                    desk: Desk::default(),
                });
                self.writers.len() - 1
            }
            None => 0,
        };
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
        let mut sections = Vec::new();
        let mut unread = Unread {
            binary: self.binary,
            ..Unread::default()
        };
        for mut writer in self.writers {
            writer.desk.close_all();
            sections.extend(writer.desk.sections);
            unread.lines += writer.desk.unread.lines;
            unread.first.extend(writer.desk.unread.first);
        }
        sections.sort_by_key(|s| (s.first, s.last));
        sections.truncate(MAX_SECTIONS);
        unread.first.sort_by_key(|cite| cite.line);
        unread.first.truncate(MAX_UNREAD_QUOTES);
        Document {
            source: self.source,
            sections,
            unread,
            lines: self.lines,
        }
    }
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
    const TAR: &[u8] = b"ustar";
    const TAR_AT: usize = 257;
    if head.get(TAR_AT..).is_some_and(|rest| rest.starts_with(TAR)) {
        return Some("tar archive");
    }
    let known = MAGIC.iter().find(|(magic, _)| head.starts_with(magic));
    match known {
        Some((_, kind)) => Some(kind),
        None if memchr::memchr(0, head).is_some() => Some("binary file"),
        None => None,
    }
}
