//! Texts that another part of crowfly reads: kept whole, up to a limit.

use serde::Serialize;

use super::cite::Cite;
use super::intake::MAX_LINE_BYTES;
use super::line::Line;
use super::reader::{Reader, Verdict};
use super::{Artefact, Format};

/// Most of such a text that is kept, in bytes.
pub const MAX_KEPT_BYTES: usize = 16 << 20;

/// A text for another reader.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptText {
    /// The text, lines joined with `\n`.
    pub text: String,
    /// Its first line.
    pub cite: Cite,
    /// Whether all of it is here: not longer than [`MAX_KEPT_BYTES`] and not cut off.
    pub complete: bool,
    /// Whether it, or a line of it, was too long to be kept.
    pub too_long: bool,
}

impl KeptText {
    fn begin(line: &Line<'_>) -> Self {
        Self {
            text: String::new(),
            cite: line.cite(),
            complete: true,
            too_long: false,
        }
    }

    fn push(&mut self, line: &Line<'_>) {
        let cut = line.full.len() >= MAX_LINE_BYTES;
        self.too_long |= cut;
        if !self.too_long && self.text.len() + line.full.len() < MAX_KEPT_BYTES {
            self.text.push_str(line.full);
            self.text.push('\n');
        } else {
            self.too_long = true;
            self.complete = false;
        }
    }
}

/// Keeps hwloc's XML, from its root element to the end of that.
#[derive(Default)]
pub(crate) struct LstopoReader {
    kept: Option<KeptText>,
    ended: bool,
}

impl Reader for LstopoReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let begins = line.trimmed().starts_with("<topology");
        if self.kept.is_some() && begins {
            return Verdict::Restart;
        }
        if !begins && (self.kept.is_none() || !line.trimmed().starts_with('<')) {
            return Verdict::Refused;
        }
        self.kept
            .get_or_insert_with(|| KeptText::begin(line))
            .push(line);
        self.ended = line.full.contains("</topology>");
        if self.ended {
            Verdict::Last
        } else {
            Verdict::Taken
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let mut kept = self.kept?;
        kept.complete &= self.ended;
        Some((Format::Lstopo, Artefact::Kept(kept)))
    }
}

/// Keeps a crowfly snapshot, from its opening brace to the one that closes it.
#[derive(Default)]
pub(crate) struct SnapshotReader {
    kept: Option<KeptText>,
    depth: i64,
    in_string: bool,
    ended: bool,
}

impl SnapshotReader {
    /// A reader for a snapshot whose opening brace stood alone on the line before.
    pub(crate) fn after_brace() -> Self {
        Self {
            depth: 1,
            ..Self::default()
        }
    }

    fn balance(&mut self, text: &str) {
        let mut escaped = false;
        for b in text.bytes() {
            match b {
                _ if escaped => escaped = false,
                b'\\' if self.in_string => escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' if !self.in_string => self.depth += 1,
                b'}' if !self.in_string => self.depth -= 1,
                _ => {}
            }
        }
        // JSON strings do not go over lines.
        self.in_string = false;
        self.ended = self.depth <= 0;
    }
}

impl Reader for SnapshotReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        if self.kept.is_none() {
            let begins =
                line.text.contains("\"crowfly.snapshot/") && line.text.contains("\"schema\"");
            if !begins || (self.depth == 0 && !line.trimmed().starts_with('{')) {
                return Verdict::Refused;
            }
            let mut kept = KeptText::begin(line);
            if self.depth > 0 {
                kept.text.push_str("{\n");
            }
            self.kept = Some(kept);
        }
        if let Some(kept) = &mut self.kept {
            kept.push(line);
            kept.complete &= !line.full.is_empty();
        }
        self.balance(line.full);
        if self.ended {
            Verdict::Last
        } else {
            Verdict::Taken
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let mut kept = self.kept?;
        kept.complete &= self.ended;
        Some((Format::Snapshot, Artefact::Kept(kept)))
    }
}
