//! The reader of NCCL and RCCL logs.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::completion::CompletionError;
use super::connections::Connections;
use super::members::Members;
use super::network::{IbUse, Interface, SocketUse};
use super::prefix::{Prefix, Processes};
use super::version::LibraryVersion;
use super::{
    GdrNic, GdrPair, GraphPath, NcclLog, Note, PluginNote, RingSummary, Setting, Warning, limits,
};
use crate::evidence::cite::Cite;
use crate::evidence::line::{Line, excerpt};
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::sighting::{ProcessId, Tally};
use crate::evidence::wording::wording;
use crate::evidence::{Artefact, Format};

mod info;

/// What the marks of both libraries share.
static MARK: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("CCL "));

/// Where PyTorch's own lines about NCCL come from.
static TORCH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("ProcessGroupNCCL.cpp:"));

/// Most messages read out of one line; interleaving glues two, rarely three.
const MAX_MESSAGES: usize = 16;

pub(crate) struct NcclReader {
    processes: Processes,
    connections: Connections,
    members: Members,
    versions: Tally<LibraryVersion>,
    settings: Tally<Setting>,
    bootstrap: Tally<Vec<Interface>>,
    networks: Tally<String>,
    plugins: Tally<PluginNote>,
    ib: Tally<IbUse>,
    sockets: Tally<SocketUse>,
    gdr_pairs: Tally<GdrPair>,
    gdr_nics: Tally<GdrNic>,
    paths: Tally<GraphPath>,
    notes: Tally<Note>,
    rings: Tally<RingSummary>,
    completions: Tally<CompletionError>,
    warnings: Tally<Warning, String>,
    lines: u64,
}

impl Default for NcclReader {
    fn default() -> Self {
        Self {
            processes: Processes::default(),
            connections: Connections::default(),
            members: Members::default(),
            versions: Tally::with_limit(limits::FACTS),
            settings: Tally::with_limit(limits::FACTS),
            bootstrap: Tally::with_limit(limits::FACTS),
            networks: Tally::with_limit(limits::FACTS),
            plugins: Tally::with_limit(limits::FACTS),
            ib: Tally::with_limit(limits::FACTS),
            sockets: Tally::with_limit(limits::FACTS),
            gdr_pairs: Tally::with_limit(limits::FACTS),
            gdr_nics: Tally::with_limit(limits::FACTS),
            paths: Tally::with_limit(limits::FACTS),
            notes: Tally::with_limit(limits::FACTS),
            rings: Tally::with_limit(limits::FACTS),
            completions: Tally::with_limit(limits::FACTS),
            warnings: Tally::with_limit(limits::WARNINGS),
            lines: 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Info,
    Warn,
    Version,
}

/// Where the next message of a text begins: the place of its mark, the mark, the place of its words.
fn next_mark(text: &str, from: usize) -> Option<(usize, Mark, usize)> {
    let bytes = text.as_bytes();
    let mut from = from;
    loop {
        let tail = from + MARK.find(bytes.get(from..)?)?;
        let after = tail + MARK.needle().len();
        let rest = bytes.get(after..)?;
        let (at, maker) = tail.checked_sub(1).map_or((0, b' '), |at| (at, bytes[at]));
        match maker {
            b'N' if rest.starts_with(b"INFO ") => return Some((at, Mark::Info, after + 5)),
            b'N' if rest.starts_with(b"WARN ") => return Some((at, Mark::Warn, after + 5)),
            b'N' if rest.starts_with(b"TRACE ") => return Some((at, Mark::Info, after + 6)),
            b'N' | b'R' if rest.starts_with(b"version") => {
                return Some((at, Mark::Version, after + 7));
            }
            _ => from = after,
        }
    }
}

/// One message and who wrote it.
struct Message<'a, 'b> {
    text: &'a str,
    by: ProcessId,
    line: &'a Line<'b>,
    /// Its tail is really its tail.
    whole: bool,
}

impl Message<'_, '_> {
    fn cite(&self) -> Cite {
        self.line.cite()
    }
}

impl Reader for NcclReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let text = line.text;
        let Some(first) = next_mark(text, 0) else {
            return self.without_mark(line);
        };
        self.connections.settle();
        self.lines += 1;
        let (mut begin, mut next) = (0, Some(first));
        for _ in 0..MAX_MESSAGES {
            let Some((at, mark, words)) = next else { break };
            if mark == Mark::Version {
                // Printed without a prefix, so nobody in particular said it.
                self.version(&text[at..], None, line);
                break;
            }
            next = next_mark(text, words);
            let prefix = &text[begin..at];
            let by = self.processes.identify(prefix, line.task, begin > 0);
            let end = match next {
                // A version is itself what an INFO line says.
                Some((later, Mark::Version, _)) => {
                    self.version(&text[later..], Some(by), line);
                    next = None;
                    text.len()
                }
                Some((later, ..)) => words + Prefix::parse(&text[words..later]).starts,
                None => text.len(),
            };
            let message = Message {
                text: text[words..end].trim_start(),
                by,
                line,
                whole: line.whole && next.is_none(),
            };
            match mark {
                Mark::Info => self.info(&message),
                Mark::Warn => self.warn(&message, Prefix::parse(prefix).site),
                Mark::Version => {}
            }
            begin = end;
        }
        Verdict::Taken
    }

    fn finish(mut self: Box<Self>) -> Option<(Format, Artefact)> {
        let spoken = self.connections.own_ranks();
        let ranks = self.members.ranks();
        for (at, process) in self.processes.known_mut().iter_mut().enumerate() {
            let id = ProcessId(at as u32);
            process.rank = ranks
                .get(&id)
                .copied()
                .or(spoken.get(&id).copied().flatten());
        }
        let gathered = self.connections.finish();
        let beyond_limits = gathered.beyond
            + self.members.beyond()
            + self.settings.beyond()
            + self.gdr_pairs.beyond()
            + self.gdr_nics.beyond()
            + self.paths.beyond()
            + self.notes.beyond()
            + self.completions.beyond()
            + self.warnings.beyond();
        let log = NcclLog {
            processes: self.processes.into_known(),
            versions: self.versions.into_seen(),
            settings: self.settings.into_seen(),
            bootstrap: self.bootstrap.into_seen(),
            networks: self.networks.into_seen(),
            plugins: self.plugins.into_seen(),
            ib: self.ib.into_seen(),
            sockets: self.sockets.into_seen(),
            gdr_pairs: self.gdr_pairs.into_seen(),
            gdr_nics: self.gdr_nics.into_seen(),
            paths: self.paths.into_seen(),
            notes: self.notes.into_seen(),
            connections: gathered.connections,
            totals: gathered.totals,
            cut: gathered.cut,
            rings: self.rings.into_seen(),
            members: self.members.into_list(),
            completions: self.completions.into_seen(),
            warnings: self.warnings.into_seen(),
            beyond_limits,
            lines: self.lines,
        };
        Some((Format::NcclLog, Artefact::NcclLog(Box::new(log))))
    }
}

impl NcclReader {
    /// A line without a mark: the rest of a wrapped suffix, or one of RCCL's banner.
    fn without_mark(&mut self, line: &Line<'_>) -> Verdict {
        let banner = [
            "HIP version",
            "ROCm version",
            "Hostname     :",
            "Librccl path",
        ];
        if let Some(error) = torch_error(line.text) {
            self.lines += 1;
            let key = wording(error);
            self.warnings.see_as(key.as_str(), None, || {
                line.cite().of(Warning {
                    site: Some("ProcessGroupNCCL".to_owned()),
                    text: excerpt(error),
                })
            });
            return Verdict::Taken;
        }
        if self.connections.takes_wrapped_rest(line.text)
            || (self.lines > 0 && banner.iter().any(|words| line.trimmed().starts_with(words)))
        {
            self.lines += 1;
            return Verdict::Taken;
        }
        Verdict::Refused
    }

    fn version(&mut self, text: &str, by: Option<ProcessId>, line: &Line<'_>) {
        if let Some(version) = LibraryVersion::parse(text) {
            self.versions.see(version, by, || line.cite());
        }
    }

    fn warn(&mut self, message: &Message<'_, '_>, site: Option<&str>) {
        let text = message.text;
        if text.contains("iommu=pt") {
            self.note(message, Note::IommuPtMissing);
        } else if text.starts_with("NUMA auto balancing") {
            self.note(message, Note::NumaBalancing);
        }
        if let Some(completion) = CompletionError::parse(text) {
            self.completions
                .see(completion, message.by, || message.cite());
        }
        let key = wording(text);
        self.warnings.see_as(key.as_str(), message.by, || {
            message.cite().of(Warning {
                site: site.map(excerpt),
                text: excerpt(text),
            })
        });
    }

    fn note(&mut self, message: &Message<'_, '_>, note: Note) {
        self.notes.see(note, message.by, || message.cite());
    }

    fn plugin_note(&mut self, message: &Message<'_, '_>, note: PluginNote) {
        self.plugins.see(note, message.by, || message.cite());
    }
}

/// What PyTorch says when a collective did not end, or failed in the library.
fn torch_error(text: &str) -> Option<&str> {
    let at = TORCH.find(text.as_bytes())?;
    let rest = text.get(at + TORCH.needle().len()..)?;
    let (_, words) = rest.split_once("] ")?;
    let telling = [
        "Watchdog caught",
        "NCCL error",
        "collective operation timeout",
        "ncclRemoteError",
    ];
    telling.iter().any(|t| words.contains(t)).then_some(words)
}
