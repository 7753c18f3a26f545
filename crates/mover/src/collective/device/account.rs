//! What NCCL says of the way that bytes go: its log, read as `crowfly doctor` reads it.

use std::path::PathBuf;

use crowfly_doctor::evidence::nccl_log::{NcclLog, Transport};
use crowfly_doctor::evidence::{Artefact, read};
use crowfly_machine::nccl::log;
use crowfly_route::hop::Class;
use serde::Serialize;

use super::calls::{Calls, NcclCalls};

/// What NCCL says of a collective that it did.
///
/// NCCL does not count bytes by their way; it says how it connects GPUs, once, and sends what belongs
/// to a connection by that.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NcclAccount {
    /// The library.
    pub library: String,
    /// Its version.
    pub version: String,
    /// How it connects this rank with others, as far as it said.
    pub links: Vec<NcclLink>,
    /// Where that was said, or why it was not.
    pub evidence: Evidence,
    /// What it did in this communicator so far.
    pub calls: NcclCalls,
}

/// Channels between this rank and another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NcclLink {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives; absent where the network reduces.
    pub to: Option<u32>,
    /// What NCCL goes by.
    pub transport: Transport,
    /// Whether that goes straight.
    pub class: Class,
    /// Channels that go so.
    pub channels: u64,
    /// The first line of the log that says so.
    pub line: String,
}

/// Where an account comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// NCCL's log.
    Log {
        /// The file.
        file: PathBuf,
        /// Lines of it that were read.
        lines: u64,
    },
    /// There is none: which way bytes went is not known.
    Unknown {
        /// Why.
        why: String,
    },
}

/// The version as people write it: 22005 is 2.20.5; before 2.9, 2804 was 2.8.4.
pub(super) fn version_text(number: u32) -> String {
    let (major, minor, patch) = match number {
        ..10_000 => (number / 1000, number / 100 % 10, number % 100),
        _ => (number / 10_000, number / 100 % 100, number % 100),
    };
    format!("{major}.{minor}.{patch}")
}

/// The log of this process's library, from where a communicator began.
#[derive(Debug)]
pub(super) struct Log {
    file: Result<PathBuf, String>,
    start: u64,
    library: String,
    version: String,
    calls: Calls,
    /// The last account, and how long the log was.
    last: Option<(u64, NcclAccount)>,
}

impl Log {
    /// Notes where the log is now; what was written before is of other communicators.
    pub(super) fn begin(rank: usize, ranks: usize) -> Self {
        let file = log::file().map_err(|no| no.to_string());
        Self::at(file, Calls::begin(rank, ranks))
    }

    fn at(file: Result<PathBuf, String>, calls: Calls) -> Self {
        Self {
            start: file.as_ref().map_or(0, |file| log::len(file)),
            file,
            library: String::new(),
            version: String::new(),
            calls,
            last: None,
        }
    }

    pub(super) fn of(self, library: String, version: String) -> Self {
        Self {
            library,
            version,
            ..self
        }
    }

    /// What the log says of a rank by now.
    pub(super) fn account(&mut self, rank: usize) -> NcclAccount {
        let len = self.file.as_ref().map_or(0, |file| log::len(file));
        if let Some((known, account)) = &self.last
            && *known == len
        {
            return NcclAccount {
                calls: self.calls.account(),
                ..account.clone()
            };
        }
        let (links, evidence) = self.read(rank);
        let account = NcclAccount {
            library: self.library.clone(),
            version: self.version.clone(),
            links,
            evidence,
            calls: self.calls.account(),
        };
        self.last = Some((len, account.clone()));
        account
    }

    fn read(&self, rank: usize) -> (Vec<NcclLink>, Evidence) {
        let unknown = |why: String| (Vec::new(), Evidence::Unknown { why });
        let file = match &self.file {
            Ok(file) => file,
            Err(why) => return unknown(why.clone()),
        };
        let bytes = match log::read(file, self.start) {
            Ok(bytes) => bytes,
            Err(error) => return unknown(format!("{}: {error}", file.display())),
        };
        let document = read(file.display().to_string().as_str(), &bytes);
        let logs = document.sections.into_iter();
        let logs = logs.filter_map(|section| match section.artefact {
            Artefact::NcclLog(log) => Some(*log),
            _ => None,
        });
        let (mut links, mut lines) = (Vec::new(), 0);
        for log in logs {
            lines += log.lines;
            links.extend(links_of(&log, rank));
        }
        let file = file.clone();
        (links, Evidence::Log { file, lines })
    }
}

/// The connections of a rank that this process said.
fn links_of(log: &NcclLog, rank: usize) -> Vec<NcclLink> {
    let process = std::process::id();
    let ours = |from: u32, to: Option<u32>| {
        let mut ends = [Some(from), to].into_iter().flatten();
        ends.any(|end| end as usize == rank)
    };
    let connections = log.connections.iter().filter(|seen| {
        let by = log.process(seen.what.by).and_then(|by| by.pid);
        by.is_none_or(|by| by == process) && ours(seen.what.from, seen.what.to)
    });
    let links = connections.map(|seen| NcclLink {
        from: seen.what.from,
        to: seen.what.to,
        transport: seen.what.transport.clone(),
        class: class(&seen.what.transport),
        channels: seen.count,
        line: seen.first.quote.to_string(),
    });
    links.collect()
}

/// Whether a transport goes straight between GPUs, through host memory, or through the kernel's
/// network stack.
fn class(transport: &Transport) -> Class {
    match transport {
        Transport::P2p { .. } => Class::Direct,
        Transport::Net { gdr: true, .. } | Transport::CollNet { gdr: true, .. } => Class::Direct,
        Transport::Net { network, .. } if network.contains("Socket") => Class::Socket,
        Transport::Net { .. } | Transport::Shm { .. } | Transport::CollNet { .. } => Class::Staged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        let of = [2_804, 21_403, 22_705].map(version_text);
        assert_eq!(of, ["2.8.4", "2.14.3", "2.27.5"]);
    }

    fn said(lines: &[&str]) -> NcclAccount {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("nccl.log");
        let process = std::process::id();
        let prefixed = |line: &&str| format!("node:{process}:9 [0] NCCL INFO {line}\n");
        let before = "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct";
        std::fs::write(&file, prefixed(&before)).expect("written");
        let mut log = Log::at(Ok(file.clone()), Calls::begin(0, 2))
            .of("libnccl.so.2".into(), "2.20.5".into());
        let text: String = lines.iter().map(prefixed).collect();
        let other = "node:1:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\n";
        let all = prefixed(&before) + &text + other;
        std::fs::write(&file, all).expect("written");
        let account = log.account(0);
        assert_eq!(log.account(0), account, "and again");
        account
    }

    #[test]
    fn the_links_of_this_rank_are_those_that_its_own_process_said_since_it_joined() {
        let account = said(&[
            "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
            "Channel 01/0 : 0[0] -> 1[1] via P2P/IPC",
            "Channel 00/0 : 2[2] -> 3[3] via P2P/IPC",
            "Channel 00/0 : 4[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
            "Channel 00/0 : 0[0] -> 4[0] [send] via NET/IB/0",
            "Channel 00/0 : 0[0] -> 5[0] [send] via NET/Socket/0",
        ]);
        let links = account.links.iter();
        let links = links.map(|link| (link.from, link.to, link.class, link.channels));
        assert_eq!(
            links.collect::<Vec<_>>(),
            [
                (0, Some(1), Class::Direct, 2),
                (4, Some(0), Class::Direct, 1),
                (0, Some(4), Class::Staged, 1),
                (0, Some(5), Class::Socket, 1),
            ]
        );
        let first = account.links.first().expect("there are some");
        assert!(
            first.line.ends_with("0[0] -> 1[1] via P2P/IPC"),
            "{}",
            first.line
        );
        let Evidence::Log { lines, .. } = account.evidence else {
            panic!("{:?}", account.evidence)
        };
        assert_eq!(lines, 7);
    }

    #[test]
    fn without_a_log_the_way_is_unknown_and_the_reason_said() {
        let mut none = Log::at(Err("nobody asked".into()), Calls::begin(0, 2));
        let account = none.account(0);
        assert_eq!(account.links, []);
        let why = "nobody asked".to_owned();
        assert_eq!(account.evidence, Evidence::Unknown { why });
        let mut gone = Log::at(Ok("/nowhere/nccl.log".into()), Calls::begin(0, 2));
        let Evidence::Unknown { why } = gone.account(0).evidence else {
            panic!("there is no such file")
        };
        assert!(why.starts_with("/nowhere/nccl.log: "), "{why}");
    }
}
