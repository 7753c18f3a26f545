//! The readers of NIXL and Mooncake output.
//!
//! Both log in the manner of glog (`E0421 11:56:59.774282 709103 nixl_agent.cpp:259] words`); the
//! source file tells which of the two wrote a line.

use super::{Level, TransferLog, TransferMessage};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::sighting::Tally;
use crate::evidence::wording::wording;
use crate::evidence::{Artefact, Format};

/// Most distinct messages kept.
const MAX_MESSAGES: usize = 2_048;

/// Fronts of the names of NIXL's source files.
const NIXL_FILES: [&str; 12] = [
    "nixl_",
    "ucx_backend",
    "ucx_utils",
    "libfabric_",
    "gds_",
    "posix_backend",
    "obj_backend",
    "gpunetio_",
    "hf3fs_",
    "mooncake_backend",
    "agent_",
    "ucx_mo_",
];

/// Parts of the names of Mooncake's source files.
const MOONCAKE_FILES: [&str; 17] = [
    "transfer_engine",
    "transfer_metadata",
    "rdma_context",
    "rdma_endpoint",
    "rdma_transport",
    "_transport.cpp",
    "topology.cpp",
    "worker_pool",
    "endpoint_store",
    "client_service",
    "master_",
    "real_client",
    "memory_location",
    "transport.cpp",
    "mooncake",
    "rail_monitor",
    "efa_context",
];

/// What both readers share.
struct Messages {
    tally: Tally<TransferMessage, String>,
}

impl Default for Messages {
    fn default() -> Self {
        Self {
            tally: Tally::with_limit(MAX_MESSAGES),
        }
    }
}

impl Messages {
    fn take(&mut self, level: Level, site: Option<&str>, text: &str, line: &Line<'_>) {
        let key = format!("{level:?} {}", wording(text));
        self.tally.see_as(key.as_str(), None, || {
            line.cite().of(TransferMessage {
                level,
                site: site.map(str::to_owned),
                text: text.to_owned(),
            })
        });
    }

    fn finish(self) -> Artefact {
        Artefact::TransferLog(TransferLog {
            beyond_limit: self.tally.beyond(),
            messages: self.tally.into_seen(),
        })
    }
}

/// Reads NIXL's output.
#[derive(Default)]
pub(crate) struct NixlReader {
    messages: Messages,
}

impl Reader for NixlReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        if let Some((level, site, text)) = glog(line.trimmed()) {
            if !NIXL_FILES.iter().any(|front| site.starts_with(front)) {
                return Verdict::Refused;
            }
            self.messages.take(level, Some(site), text, line);
            return Verdict::Taken;
        }
        let Some(text) = python_message(line.text) else {
            return Verdict::Refused;
        };
        self.messages.take(Level::Info, None, text, line);
        Verdict::Taken
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        Some((Format::NixlLog, self.messages.finish()))
    }
}

/// What NIXL's Python side logs, whatever its logger puts in front.
fn python_message(text: &str) -> Option<&str> {
    if let Some(at) = text.find("Initialized NIXL agent: ") {
        return text.get(at..);
    }
    let at = text
        .find("Backend ")
        .filter(|_| text.ends_with(" was instantiated"))?;
    text.get(at..)
}

/// Reads Mooncake's output.
#[derive(Default)]
pub(crate) struct MooncakeReader {
    messages: Messages,
}

impl Reader for MooncakeReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let Some((level, site, text)) = glog(line.trimmed()) else {
            return Verdict::Refused;
        };
        let is_nixl = NIXL_FILES.iter().any(|front| site.starts_with(front));
        if is_nixl || !MOONCAKE_FILES.iter().any(|part| site.contains(part)) {
            return Verdict::Refused;
        }
        self.messages.take(level, Some(site), text, line);
        Verdict::Taken
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        Some((Format::MooncakeLog, self.messages.finish()))
    }
}

/// Level, place and words of `I20251205 03:33:19.085604  2021 transfer_engine.cpp:559] words`; the
/// year is not always there.
fn glog(text: &str) -> Option<(Level, &str, &str)> {
    let level = match text.bytes().next()? {
        b'I' => Level::Info,
        b'W' => Level::Warning,
        b'E' => Level::Error,
        b'F' => Level::Fatal,
        _ => return None,
    };
    let (date, rest) = text[1..].split_once(' ')?;
    (matches!(date.len(), 4 | 8) && date.bytes().all(|b| b.is_ascii_digit())).then_some(())?;
    let (head, words) = rest.split_once("] ")?;
    let mut head = head.split_whitespace();
    let time = head.next()?;
    (time.len() == 15 && time.as_bytes().get(8) == Some(&b'.')).then_some(())?;
    head.next()?.parse::<u64>().ok()?;
    let site = head.next()?;
    (head.next().is_none() && site.contains(':')).then_some((level, site, words.trim()))
}
