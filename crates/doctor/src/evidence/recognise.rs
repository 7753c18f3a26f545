//! Which format a line begins, by what it says.
//!
//! Each format has telling words; only formats whose words a line contains look at it closely, so a
//! line of some other program costs one pass over its bytes.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input};

use super::blocks::LsblkReader;
use super::cufile::{CufileConfigReader, CufileLogReader, NvidiaFsStatsReader};
use super::environment::EnvironmentReader;
use super::gdscheck::GdsCheckReader;
use super::kept::{LstopoReader, SnapshotReader};
use super::kernel::{KernelCmdlineReader, KernelLogReader};
use super::line::Line;
use super::lspci::{LspciReader, LspciTreeReader};
use super::nccl_log::NcclReader;
use super::nccl_tests::NcclTestsReader;
use super::nccl_xml::{NcclGraphReader, NcclTopologyReader};
use super::rdma::{IbstatReader, IbstatusReader, IbvDevinfoReader, RdmaLinkReader, ShowGidsReader};
use super::reader::{Reader, Verdict};
use super::rocm::RocmReader;
use super::topo_matrix::MatrixReader;
use super::transfer::{MooncakeReader, NixlReader};
use super::ucx::UcxReader;

type Opening = Option<(Box<dyn Reader>, Verdict)>;

/// Offers a line to a new reader, which takes it only if it can be the first one.
fn begin<R: Reader + Default + 'static>(line: &Line<'_>) -> Opening {
    let mut reader = Box::new(R::default());
    match reader.offer(line) {
        verdict @ (Verdict::Taken | Verdict::Shared | Verdict::Last) => Some((reader, verdict)),
        Verdict::Refused | Verdict::Restart => None,
    }
}

/// The same, where only a line that starts with a number can be the first one: the words (`int`,
/// `half`) are in too many lines of other programs.
fn begin_with_number<R: Reader + Default + 'static>(line: &Line<'_>) -> Opening {
    let text = line.trimmed().trim_start_matches('#').trim_start();
    text.starts_with(|c: char| c.is_ascii_digit())
        .then(|| begin::<R>(line))
        .flatten()
}

/// A format's reader and its telling words; the first in the list that takes a line has it.
struct Teller {
    words: &'static [&'static str],
    begin: fn(&Line<'_>) -> Opening,
}

/// What the first lines of a snapshot contain.
const SNAPSHOT: &str = "\"crowfly.snapshot/";

const TELLERS: &[Teller] = &[
    Teller {
        words: &[
            "NCCL INFO",
            "NCCL WARN",
            "NCCL version",
            "RCCL version",
            "ProcessGroupNCCL.cpp:",
        ],
        begin: begin::<NcclReader>,
    },
    Teller {
        words: &[
            "ROCm System Management",
            "between two GPUs",
            "(Topology) Numa",
            " TABLE:",
        ],
        begin: begin::<RocmReader>,
    },
    Teller {
        words: &["GPU", "NIC", "topo -p2p"],
        begin: begin::<MatrixReader>,
    },
    Teller {
        words: &[
            "GDS release",
            "nvidia_fs ",
            "libcufile",
            "Platform ",
            "platform ",
            "cufile init",
            "No GPU found",
            "GPUDirect Storage",
            "upported",
            "compat",
            "properties.",
            "CONFIGURATION:",
        ],
        begin: begin::<GdsCheckReader>,
    },
    Teller {
        words: &[
            "busbw",
            "out-of-place",
            "nThread",
            "Rank ",
            "Out of bounds",
            "Avg bus",
            "_perf",
            "Collective test",
            "Test NCCL",
            "Test CUDA",
        ],
        begin: begin::<NcclTestsReader>,
    },
    Teller {
        words: &["float", "half", "double", "int", "fp8", "f8e", "char"],
        begin: begin_with_number::<NcclTestsReader>,
    },
    Teller {
        words: &[
            "<system ",
            "<cpu numaid=",
            "<pci busid=",
            "<gpu dev=",
            "<net name=",
        ],
        begin: begin::<NcclTopologyReader>,
    },
    Teller {
        words: &["<graphs", "<graph id="],
        begin: begin::<NcclGraphReader>,
    },
    Teller {
        words: &["<topology"],
        begin: begin::<LstopoReader>,
    },
    Teller {
        words: &[SNAPSHOT],
        begin: begin::<SnapshotReader>,
    },
    Teller {
        words: &["hca_id:"],
        begin: begin::<IbvDevinfoReader>,
    },
    Teller {
        words: &["CA '"],
        begin: begin::<IbstatReader>,
    },
    Teller {
        words: &["Infiniband device '"],
        begin: begin::<IbstatusReader>,
    },
    Teller {
        words: &["INDEX", ":0000:", ":ffff:", "fe80:"],
        begin: begin::<ShowGidsReader>,
    },
    Teller {
        words: &[" state ", " ==> "],
        begin: begin::<RdmaLinkReader>,
    },
    Teller {
        words: &[
            "LnkSta:", "LnkCap:", "ACSCtl:", ".0 ", ".1 ", ".2 ", ".3 ", ".4 ", ".5 ", ".6 ", ".7 ",
        ],
        begin: begin::<LspciReader>,
    },
    Teller {
        words: &["-[", "[0000:"],
        begin: begin::<LspciTreeReader>,
    },
    Teller {
        words: &["NAME "],
        begin: begin::<LsblkReader>,
    },
    Teller {
        words: &["[pid="],
        begin: begin::<CufileLogReader>,
    },
    Teller {
        words: &[
            "\"logging\"",
            "\"profile\"",
            "\"execution\"",
            "\"properties\"",
            "\"fs\"",
            "\"denylist\"",
            "\"blacklist\"",
            "\"miscellaneous\"",
            "\"allow_compat_mode\"",
            "\"use_pci_p2pdma\"",
        ],
        begin: begin::<CufileConfigReader>,
    },
    Teller {
        words: &[
            "GDS Version:",
            "NVFS ",
            "Mellanox PeerDirect Supported",
            "Shadow-Buffer",
            "Bar1-map",
        ],
        begin: begin::<NvidiaFsStatsReader>,
    },
    Teller {
        words: &[
            "BOOT_IMAGE=",
            "GRUB_CMDLINE_LINUX",
            "Kernel command line:",
            "root=",
        ],
        begin: begin::<KernelCmdlineReader>,
    },
    Teller {
        words: &[
            "Xid (PCI:",
            "ACS redirect",
            "peer-to-peer DMA",
            "Unknown symbol",
            "disagrees about version",
            "segfault at",
            "available PCIe bandwidth",
            "AER:",
            "PCIe Bus Error",
            "no space for",
            "can't assign",
            "failed to assign",
            "peermem",
            "nv_peer_mem",
            "p2pdma",
            "nvidia-fs",
            "nvidia_fs",
            "nvfs",
            "NVRM:",
            "nvidia-",
            "mlx5_core",
            "mlx5_ib",
            "bnxt_re",
            "irdma",
            "infiniband",
            "DMAR:",
            "AMD-Vi:",
            "iommu:",
            "amdgpu",
            "amdkfd",
            "kfd:",
            "Out of memory:",
            "oom-kill",
        ],
        begin: begin::<KernelLogReader>,
    },
    Teller {
        words: &[" UCX  ", "cfg#", "ep_cfg["],
        begin: begin::<UcxReader>,
    },
    Teller {
        words: &[".cpp:", ".h:", "NIXL agent", "was instantiated"],
        begin: begin::<NixlReader>,
    },
    Teller {
        words: &[".cpp:", ".h:"],
        begin: begin::<MooncakeReader>,
    },
    Teller {
        words: &["=", "name: "],
        begin: begin::<EnvironmentReader>,
    },
];

static WORDS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let words = TELLERS.iter().flat_map(|teller| teller.words);
    // Every line of unrelated text goes through this, so its speed is worth the table.
    let kind = Some(AhoCorasickKind::DFA);
    AhoCorasick::builder().kind(kind).build(words).ok()
});

/// Which teller each word of [`WORDS`] belongs to.
static OWNERS: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let each = |(at, teller): (usize, &Teller)| std::iter::repeat_n(at, teller.words.len());
    TELLERS.iter().enumerate().flat_map(each).collect()
});

/// Whether a line can be the first one of some artefact, and belongs to that one alone.
pub(super) fn begins(line: &Line<'_>) -> bool {
    let mut begun = false;
    open(line, false, |_, verdict| {
        begun |= verdict != Verdict::Shared
    });
    begun
}

/// Begins an artefact with a line, if it can be the first line of one; several, if it is shared.
pub(super) fn open(
    line: &Line<'_>,
    lone_brace: bool,
    mut begin: impl FnMut(Box<dyn Reader>, Verdict),
) {
    if lone_brace && line.text.contains(SNAPSHOT) {
        let mut reader = Box::new(SnapshotReader::after_brace());
        if reader.offer(line) == Verdict::Taken {
            return begin(reader, Verdict::Taken);
        }
    }
    let Some(words) = WORDS.as_ref() else { return };
    // The plain search skips ahead; only a line with a telling word is searched for all of them.
    let Some(first) = words.find(line.text) else {
        return;
    };
    let mut candidates = 0_u64;
    // The first match to end is not the first to begin: a longer word can reach over it.
    let from = first.end().saturating_sub(words.max_pattern_len());
    let rest = Input::new(line.text).range(from..);
    for found in words.find_overlapping_iter(rest) {
        if let Some(owner) = OWNERS.get(found.pattern().as_usize()) {
            candidates |= 1 << owner;
        }
    }
    for (_, teller) in TELLERS
        .iter()
        .enumerate()
        .filter(|(at, _)| candidates & (1 << at) != 0)
    {
        if let Some((reader, verdict)) = (teller.begin)(line) {
            begin(reader, verdict);
            if verdict != Verdict::Shared {
                return;
            }
        }
    }
}
