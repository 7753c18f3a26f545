//! The reader of `/proc/driver/nvidia-fs/stats`.

use std::collections::BTreeMap;

use super::NvidiaFsStats;
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most GPUs and most counters of one line kept.
const MAX_ENTRIES: usize = 1_024;

/// Lines of counters.
const COUNTERS: [&str; 9] = [
    "Reads",
    "Sparse Reads",
    "Writes",
    "Mmap",
    "Bar1-map",
    "Error",
    "Ops",
    "Batches",
    "Batch",
];

#[derive(Default)]
pub(crate) struct NvidiaFsStatsReader {
    found: NvidiaFsStats,
    begun: bool,
}

impl Reader for NvidiaFsStatsReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let text = line.trimmed();
        if text.starts_with("GDS Version:") && self.found.driver.is_some() {
            return Verdict::Restart;
        }
        let taken = self.telling(text, line) || (self.begun && self.detail(text, line));
        self.begun |= taken;
        if taken {
            Verdict::Taken
        } else {
            Verdict::Refused
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        Some((Format::NvidiaFsStats, Artefact::NvidiaFsStats(self.found)))
    }
}

impl NvidiaFsStatsReader {
    /// Lines that only this file has.
    fn telling(&mut self, text: &str, line: &Line<'_>) -> bool {
        if let Some(rest) = text.strip_prefix("GDS Version:") {
            self.found.gds = Some(line.cite().of(rest.trim().to_owned()));
        } else if let Some(rest) = text.strip_prefix("NVFS Driver(version:") {
            let version = rest.trim_end_matches(')').trim().replace(':', ".");
            self.found.driver = Some(line.cite().of(version));
        } else if let Some(rest) = text.strip_prefix("Mellanox PeerDirect Supported:") {
            self.found.peer_direct = Some(line.cite().of(rest.trim() == "True"));
        } else {
            return text.starts_with("NVFS statistics(ver:")
                || text.starts_with("Active Shadow-Buffer")
                || (text.starts_with("Bar1-map") && self.counters(text, line));
        }
        true
    }

    /// Lines that mean something only among the others.
    fn detail(&mut self, text: &str, line: &Line<'_>) -> bool {
        if let Some(rest) = text.strip_prefix("IO stats:") {
            self.found.io_stats = Some(line.cite().of(rest.trim_start().starts_with("Enabled")));
            return true;
        }
        self.counters(text, line)
            || self.gpu(text, line)
            || text.starts_with("Logging level:")
            || text.starts_with("Active Process:")
    }

    /// `Mmap  : n=1 ok=1 err=0 munmap=2`.
    fn counters(&mut self, text: &str, line: &Line<'_>) -> bool {
        let Some((name, values)) = text.split_once(':') else {
            return false;
        };
        let name = name.trim();
        let pairs = pairs(values);
        if !COUNTERS.contains(&name) || pairs.is_empty() {
            return false;
        }
        // Reads and writes have a second line, of rates.
        let counters = self.found.counters.entry(name.to_owned());
        counters
            .or_insert_with(|| line.cite().of(BTreeMap::new()))
            .value
            .extend(pairs);
        true
    }

    /// `GPU 0000:01:00.0  uuid:… : Registered_MiB=0 Cache_MiB=0 max_pinned_MiB=1`.
    fn gpu(&mut self, text: &str, line: &Line<'_>) -> bool {
        let Some(rest) = text.strip_prefix("GPU ") else {
            return false;
        };
        let Some(Ok(address)) = rest.split_whitespace().next().map(str::parse) else {
            return false;
        };
        if self.found.gpus.len() < MAX_ENTRIES {
            self.found.gpus.push(line.cite().of((address, pairs(rest))));
        }
        true
    }
}

fn pairs(text: &str) -> BTreeMap<String, u64> {
    text.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .take(MAX_ENTRIES)
        .collect()
}
