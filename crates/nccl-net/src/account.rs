//! What went by each comm and by all of them: receipts, one JSON document a line.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path as FilePath;

use crowfly_mover::fabric::{Delivery, LeftOut, RailReport};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{CpuSeconds, Path, Share};
use crowfly_route::units::Bytes;
use serde::Serialize;

/// The version of the lines in the file of receipts.
pub const SCHEMA: &str = "crowfly.nccl-net/1";
/// The most different obstacles that one comm's receipt names; they repeat with each message.
const MAX_OBSTACLES: usize = 64;

/// Which way a comm goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// This process sends.
    Send,
    /// This process receives.
    Receive,
}

/// How a comm ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Ended {
    /// NCCL closed it.
    Closed,
    /// It failed first.
    Failed {
        /// The error's code.
        code: &'static str,
        /// The error.
        error: String,
    },
    /// The process ended without closing it.
    Open,
}

/// Bytes by NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NicBytes {
    /// The engine path.
    pub path: Path,
    /// The NIC on this host.
    pub nic: String,
    /// Bytes that it moved.
    pub bytes: Bytes,
}

/// What went by a comm, or by several.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Account {
    /// Messages that ended well.
    pub messages: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// The same bytes by path. Only senders know: they write, and the receiver's CPU has no part in it.
    pub shares: Vec<Share>,
    /// The same bytes by NIC.
    pub nics: Vec<NicBytes>,
    /// Bytes that passed a buffer in host RAM on their way.
    pub bounced: Bytes,
    /// Pieces that another rail moved after their own had failed.
    pub retries: u64,
    /// CPU time of the threads that moved bytes.
    pub cpu: CpuSeconds,
    /// Why better routes were not taken.
    pub obstacles: Vec<Obstacle>,
    /// Rails that stood by, and why.
    pub left_out: Vec<LeftOut>,
}

impl Account {
    /// A message arrived.
    pub(crate) fn received(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += Bytes(bytes);
    }

    /// A message without bytes was sent.
    pub(crate) fn sent_nothing(&mut self) {
        self.messages += 1;
    }

    /// A message was sent.
    pub(crate) fn sent(&mut self, delivery: &Delivery) {
        let receipt = &delivery.receipt;
        self.messages += 1;
        self.bytes += receipt.requested;
        self.bounced += receipt.bounced;
        self.retries += receipt.retries;
        self.cpu += receipt.cpu;
        receipt.shares.iter().for_each(|share| self.share(share));
        for used in &delivery.nics {
            self.nic(used.path, &used.nic, used.bytes);
        }
        self.met(&receipt.obstacles);
        for left_out in &delivery.left_out {
            if !self.left_out.contains(left_out) {
                self.left_out.push(left_out.clone());
            }
        }
    }

    fn share(&mut self, share: &Share) {
        let same = |known: &&mut Share| known.path == share.path && known.class == share.class;
        match self.shares.iter_mut().find(same) {
            Some(known) => known.bytes += share.bytes,
            None => self.shares.push(share.clone()),
        }
    }

    fn nic(&mut self, path: Path, nic: &str, bytes: Bytes) {
        let mut known = self.nics.iter_mut();
        match known.find(|known| known.path == path && known.nic == nic) {
            Some(known) => known.bytes += bytes,
            None => self.nics.push(NicBytes {
                path,
                nic: nic.to_owned(),
                bytes,
            }),
        }
    }

    /// Something stood in the way of better routes.
    pub(crate) fn met(&mut self, obstacles: &[Obstacle]) {
        for obstacle in obstacles {
            let same =
                |known: &Obstacle| known.code == obstacle.code && known.summary == obstacle.summary;
            if self.obstacles.len() < MAX_OBSTACLES && !self.obstacles.iter().any(same) {
                self.obstacles.push(obstacle.clone());
            }
        }
    }

    /// What went by another comm as well.
    pub(crate) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.bounced += other.bounced;
        self.retries += other.retries;
        self.cpu += other.cpu;
        other.shares.iter().for_each(|share| self.share(share));
        for used in &other.nics {
            self.nic(used.path, &used.nic, used.bytes);
        }
        self.met(&other.obstacles);
    }

    /// Whether the bytes by path are the bytes.
    pub fn is_whole(&self) -> bool {
        self.shares.iter().map(|share| share.bytes).sum::<Bytes>() == self.bytes
    }
}

/// The receipt of one comm.
#[derive(Clone, Debug, Serialize)]
pub struct CommReceipt {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `comm`.
    pub event: &'static str,
    /// This process.
    pub process: u32,
    /// The device, by its name.
    pub device: String,
    /// Which way it goes.
    pub direction: Direction,
    /// Which life of which process is at the other end.
    pub peer: String,
    /// Where it was reached, or came from.
    pub address: String,
    /// What was asked.
    pub policy: Policy,
    /// How it ended.
    pub ended: Ended,
    /// Seconds from the connection to the end.
    pub seconds: f64,
    /// What went by it.
    #[serde(flatten)]
    pub account: Account,
    /// What went by each rail, records of the protocol included.
    pub rails: Vec<RailReport>,
}

/// What all comms of the process did so far.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `summary`.
    pub event: &'static str,
    /// This process.
    pub process: u32,
    /// What was asked.
    pub policy: Policy,
    /// Comms that ended.
    pub comms: u64,
    /// Of these, comms that failed.
    pub failed: u64,
    /// What was sent.
    pub sent: Account,
    /// What was received.
    pub received: Account,
}

impl Summary {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            schema: SCHEMA,
            event: "summary",
            process: std::process::id(),
            policy,
            comms: 0,
            failed: 0,
            sent: Account::default(),
            received: Account::default(),
        }
    }

    /// A comm ended.
    pub(crate) fn add(&mut self, receipt: &CommReceipt) {
        self.comms += 1;
        self.failed += u64::from(matches!(receipt.ended, Ended::Failed { .. }));
        match receipt.direction {
            Direction::Send => self.sent.add(&receipt.account),
            Direction::Receive => self.received.add(&receipt.account),
        }
    }
}

/// Appends a line; processes that share a file do not mix theirs.
pub(crate) fn append(path: &FilePath, document: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(document)?;
    line.push(b'\n');
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(&line)
}

#[cfg(test)]
mod tests {
    use crowfly_route::hop::Class;
    use crowfly_route::obstacle::Code;

    use super::*;

    fn share(path: Path, bytes: u64) -> Share {
        Share {
            path,
            class: Class::Socket,
            bytes: Bytes(bytes),
            because: None,
        }
    }

    #[test]
    fn bytes_by_path_and_nic_add_up_and_an_obstacle_is_named_once() {
        let obstacle = Obstacle::blocks(Code::NoRdmaDevice, "there is none");
        let mut one = Account {
            messages: 2,
            bytes: Bytes(30),
            shares: vec![share(Path::Tcp, 30)],
            ..Account::default()
        };
        one.nic(Path::Tcp, "eth0", Bytes(30));
        one.met(&[obstacle.clone(), obstacle.clone()]);
        let mut other = Account {
            messages: 1,
            bytes: Bytes(12),
            shares: vec![share(Path::Tcp, 5), share(Path::Verbs, 7)],
            ..Account::default()
        };
        other.nic(Path::Tcp, "eth0", Bytes(5));
        other.nic(Path::Verbs, "mlx5_0:1", Bytes(7));
        other.met(&[obstacle]);
        one.add(&other);
        assert_eq!((one.messages, one.bytes), (3, Bytes(42)));
        assert!(one.is_whole());
        let nics: Vec<_> = one
            .nics
            .iter()
            .map(|n| (n.nic.as_str(), n.bytes.0))
            .collect();
        assert_eq!(nics, [("eth0", 35), ("mlx5_0:1", 7)]);
        assert_eq!(one.obstacles.len(), 1);
    }

    #[test]
    fn receipts_of_several_comms_stand_one_a_line_in_one_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("receipts");
        let summary = Summary::new(Policy::Require);
        append(&file, &summary).expect("written");
        append(&file, &summary).expect("written");
        let text = std::fs::read_to_string(&file).expect("read");
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("a document"))
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["schema"], SCHEMA);
        assert_eq!(lines[0]["policy"], "require");
        assert_eq!(lines[1]["event"], "summary");
    }
}
