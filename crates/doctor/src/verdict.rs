//! What becomes of the data between two ends.

use std::fmt;

use serde::Serialize;

use crate::evidence::Format;
use crate::finding::Quote;

/// Which way data goes between two ends, or in a whole case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Devices move the bytes from end to end.
    Direct,
    /// The same, capped below what the devices can do; a finding says by what.
    DirectButSlow,
    /// Bounced through host memory.
    Staged,
    /// Through the kernel's network stack.
    Socket,
    /// Data does not arrive, or arrives wrong.
    Broken,
    /// Nothing given proves any of these; [`Missing`] says what to collect.
    InsufficientEvidence,
}

impl Verdict {
    /// The word used in tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DirectButSlow => "direct-but-slow",
            Self::Staged => "staged",
            Self::Socket => "socket",
            Self::Broken => "broken",
            Self::InsufficientEvidence => "insufficient-evidence",
        }
    }

    /// The worse of two. What could not be judged does not outweigh what could.
    pub fn worse(self, other: Self) -> Self {
        if self.rank() >= other.rank() {
            self
        } else {
            other
        }
    }

    const fn rank(self) -> u8 {
        match self {
            Self::InsufficientEvidence => 0,
            Self::Direct => 1,
            Self::DirectButSlow => 2,
            Self::Staged => 3,
            Self::Socket => 4,
            Self::Broken => 5,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a pair's two ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairKind {
    /// Two GPUs of one machine or NVLink domain.
    GpuGpu,
    /// A GPU and the network adapter that serves it.
    GpuNic,
    /// A GPU and a drive.
    GpuDrive,
    /// A GPU and a mounted file system.
    GpuFileSystem,
}

impl PairKind {
    /// Every kind, in the order in which they are listed.
    pub const ALL: [Self; 4] = [
        Self::GpuGpu,
        Self::GpuNic,
        Self::GpuDrive,
        Self::GpuFileSystem,
    ];

    /// The words for it: `GPU–NIC`.
    pub const fn title(self) -> &'static str {
        match self {
            Self::GpuGpu => "GPU–GPU",
            Self::GpuNic => "GPU–NIC",
            Self::GpuDrive => "GPU–drive",
            Self::GpuFileSystem => "GPU–file system",
        }
    }
}

/// Two ends, as the evidence names them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Pair {
    /// What the ends are.
    pub kind: PairKind,
    /// The machine or source that both ends belong to, where it is named.
    pub on: Option<String>,
    /// The GPU (`GPU0`, `gpu0`, `rank 4`).
    pub gpu: String,
    /// The other end (`mlx5_0`, `NIC3`, `nvme0`, `/data`, `rank 5`).
    pub other: String,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of a file the name will do: its folders would drown the pair.
        if let Some(on) = self.on.as_deref().and_then(|on| on.rsplit('/').next()) {
            write!(f, "{on} ")?;
        }
        write!(f, "{}–{}", self.gpu, self.other)
    }
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The machine's layout and settings: what software does with them by default.
    Predicted,
    /// A rate that was measured and sits at a wire's: the way to the wire does not hold it back.
    /// Outweighs a prediction.
    Measured,
    /// Transfers themselves: channels, statistics, a rate that one way alone can reach. Outweighs
    /// the others.
    Observed,
}

/// What one pair was judged to be, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairVerdict {
    /// The pair.
    #[serde(flatten)]
    pub pair: Pair,
    /// The verdict.
    pub verdict: Verdict,
    /// Whether transfers were seen to go that way, or it follows from what the machine allows.
    pub basis: Basis,
    /// One sentence: what shows it, or what caps it, or what is missing.
    pub why: String,
    /// What proves it.
    pub evidence: Vec<Quote>,
    /// Findings that bear on it, by code.
    pub findings: Vec<&'static str>,
}

/// What one kind of pair was judged to be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindVerdict {
    /// The kind.
    pub kind: PairKind,
    /// The worst that is proven of any of its pairs.
    pub verdict: Verdict,
    /// What it rests on; absent where nothing was judged.
    pub basis: Option<Basis>,
    /// One sentence: how many pairs, and what the worst of them is about.
    pub why: String,
}

/// Evidence that would settle an open question.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Missing {
    /// The question it would settle; `None` when it bears on all.
    pub about: Option<PairKind>,
    /// What to collect, for a person.
    pub what: String,
    /// Why it would settle the question.
    pub why: String,
    /// The command that gets it.
    pub command: String,
    /// The format that the doctor reads it as, where it is one of those.
    pub format: Option<Format>,
}
