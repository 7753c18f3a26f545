//! The reader of `cufile.log`.

use super::{CufileLog, CufileMessage};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::sighting::Tally;
use crate::evidence::wording::wording;
use crate::evidence::{Artefact, Format};

/// Most distinct messages kept.
const MAX_MESSAGES: usize = 1_024;

pub(crate) struct CufileLogReader {
    messages: Tally<CufileMessage, String>,
}

impl Default for CufileLogReader {
    fn default() -> Self {
        Self {
            messages: Tally::with_limit(MAX_MESSAGES),
        }
    }
}

impl Reader for CufileLogReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let Some(message) = message(line.trimmed()) else {
            return Verdict::Refused;
        };
        let key = format!("{} {}", message.level, wording(&message.text));
        self.messages
            .see_as(key.as_str(), None, || line.cite().of(message));
        Verdict::Taken
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let log = CufileLog {
            beyond_limit: self.messages.beyond(),
            messages: self.messages.into_seen(),
        };
        Some((Format::CufileLog, Artefact::CufileLog(log)))
    }
}

/// `16-06-2024 05:40:20:816 [pid=3006 tid=3006] ERROR  cufio-fs:79 words`.
fn message(text: &str) -> Option<CufileMessage> {
    let (_, rest) = text.split_once("[pid=")?;
    let (_, rest) = rest.split_once("] ")?;
    let (level, rest) = rest.split_once(' ')?;
    let known = ["ERROR", "WARN", "NOTICE", "INFO", "DEBUG", "TRACE", "FATAL"].contains(&level);
    let (site, text) = rest.trim_start().split_once(' ')?;
    // Component and line, or numbers alone in old releases.
    let is_site = site
        .rsplit_once(':')
        .is_some_and(|(_, n)| n.bytes().all(|b| b.is_ascii_digit()));
    (known && is_site).then(|| CufileMessage {
        level: level.to_owned(),
        site: site.to_owned(),
        text: text.trim().to_owned(),
    })
}
