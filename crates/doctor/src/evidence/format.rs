//! The formats that the doctor reads, and how a person gets each of them.

use std::fmt;

use serde::Serialize;

/// One kind of text that machines print and people paste.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// NCCL or RCCL debug output, `NCCL_DEBUG=INFO`.
    NcclLog,
    /// `nvidia-smi topo -m` or `-mp`.
    TopoMatrix,
    /// `nvidia-smi topo -p2p`.
    P2pMatrix,
    /// `rocm-smi --showtopo` or `amd-smi topology`.
    RocmTopology,
    /// A topology that NCCL or RCCL dumped or was given, `NCCL_TOPO_DUMP_FILE`.
    NcclTopology,
    /// The channel graphs that NCCL dumped, `NCCL_GRAPH_DUMP_FILE`.
    NcclGraph,
    /// Output of nccl-tests or rccl-tests.
    NcclTests,
    /// `gdscheck -p`.
    #[serde(rename = "gdscheck")]
    GdsCheck,
    /// The log of the cuFile library.
    CufileLog,
    /// The configuration of the cuFile library.
    CufileConfig,
    /// `/proc/driver/nvidia-fs/stats`.
    NvidiaFsStats,
    /// `ibv_devinfo`, with or without `-v`.
    IbvDevinfo,
    /// `ibstat`.
    Ibstat,
    /// `ibstatus`.
    Ibstatus,
    /// `show_gids`.
    ShowGids,
    /// `rdma link`.
    RdmaLink,
    /// `lspci`, plain, `-nn` or `-vvv`.
    Lspci,
    /// `lspci -t` or `-tv`.
    LspciTree,
    /// `lstopo --of xml`.
    Lstopo,
    /// `lsblk`.
    Lsblk,
    /// The kernel's messages.
    KernelLog,
    /// The kernel's command line, or the boot loader's setting of it.
    KernelCmdline,
    /// UCX debug output, `UCX_LOG_LEVEL=info` or `UCX_PROTO_INFO=y`.
    UcxLog,
    /// NIXL debug output.
    NixlLog,
    /// Output of Mooncake's transfer engine.
    MooncakeLog,
    /// Environment variables, from `env` or a launch command.
    Environment,
    /// A crowfly snapshot.
    Snapshot,
}

impl Format {
    /// Every format, in the order in which they are listed to a person.
    pub const ALL: [Self; 27] = [
        Self::NcclLog,
        Self::TopoMatrix,
        Self::P2pMatrix,
        Self::RocmTopology,
        Self::NcclTopology,
        Self::NcclGraph,
        Self::NcclTests,
        Self::GdsCheck,
        Self::CufileLog,
        Self::CufileConfig,
        Self::NvidiaFsStats,
        Self::IbvDevinfo,
        Self::Ibstat,
        Self::Ibstatus,
        Self::ShowGids,
        Self::RdmaLink,
        Self::Lspci,
        Self::LspciTree,
        Self::Lstopo,
        Self::Lsblk,
        Self::KernelLog,
        Self::KernelCmdline,
        Self::UcxLog,
        Self::NixlLog,
        Self::MooncakeLog,
        Self::Environment,
        Self::Snapshot,
    ];

    /// Its stable name.
    pub const fn code(self) -> &'static str {
        self.describe().0
    }

    /// What it is, for a person.
    pub const fn title(self) -> &'static str {
        self.describe().1
    }

    /// The command that produces it.
    pub const fn collect(self) -> &'static str {
        self.describe().2
    }

    const fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::NcclLog => (
                "nccl-log",
                "NCCL or RCCL log",
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH <job> 2>&1 | tee nccl.log",
            ),
            Self::TopoMatrix => ("topo-matrix", "GPU topology matrix", "nvidia-smi topo -m"),
            Self::P2pMatrix => (
                "p2p-matrix",
                "GPU peer-to-peer matrix",
                "nvidia-smi topo -p2p r",
            ),
            Self::RocmTopology => (
                "rocm-topology",
                "ROCm GPU topology",
                "rocm-smi --showtopo   # or: amd-smi topology",
            ),
            Self::NcclTopology => (
                "nccl-topology",
                "NCCL topology XML",
                "NCCL_TOPO_DUMP_FILE=nccl-topology.xml <job>",
            ),
            Self::NcclGraph => (
                "nccl-graph",
                "NCCL graph XML",
                "NCCL_GRAPH_DUMP_FILE=nccl-graph.xml <job>",
            ),
            Self::NcclTests => (
                "nccl-tests",
                "nccl-tests or rccl-tests result",
                "all_reduce_perf -b 8 -e 8G -f 2 -g 1",
            ),
            Self::GdsCheck => (
                "gdscheck",
                "GPUDirect Storage check",
                "/usr/local/cuda/gds/tools/gdscheck -p",
            ),
            Self::CufileLog => ("cufile-log", "cuFile log", "cat cufile.log"),
            Self::CufileConfig => (
                "cufile-config",
                "cuFile configuration",
                "cat /etc/cufile.json",
            ),
            Self::NvidiaFsStats => (
                "nvidia-fs-stats",
                "nvidia-fs statistics",
                "cat /proc/driver/nvidia-fs/stats",
            ),
            Self::IbvDevinfo => ("ibv-devinfo", "RDMA device list", "ibv_devinfo -v"),
            Self::Ibstat => ("ibstat", "InfiniBand adapter state", "ibstat"),
            Self::Ibstatus => ("ibstatus", "InfiniBand port state", "ibstatus"),
            Self::ShowGids => ("show-gids", "RoCE address table", "show_gids"),
            Self::RdmaLink => ("rdma-link", "RDMA link list", "rdma link"),
            Self::Lspci => ("lspci", "PCI device list", "sudo lspci -vvv -D"),
            Self::LspciTree => ("lspci-tree", "PCI tree", "lspci -tv"),
            Self::Lstopo => ("lstopo", "hwloc topology XML", "lstopo --of xml"),
            Self::Lsblk => ("lsblk", "block device list", "lsblk"),
            Self::KernelLog => ("kernel-log", "kernel messages", "sudo dmesg"),
            Self::KernelCmdline => ("kernel-cmdline", "kernel command line", "cat /proc/cmdline"),
            Self::UcxLog => (
                "ucx-log",
                "UCX log",
                "UCX_LOG_LEVEL=info UCX_PROTO_INFO=y <job> 2>&1 | tee ucx.log",
            ),
            Self::NixlLog => (
                "nixl-log",
                "NIXL log",
                "NIXL_LOG_LEVEL=INFO <job> 2>&1 | tee nixl.log",
            ),
            Self::MooncakeLog => (
                "mooncake-log",
                "Mooncake transfer engine log",
                "GLOG_logtostderr=1 <job> 2>&1 | tee mooncake.log",
            ),
            Self::Environment => ("environment", "environment variables", "env | sort"),
            Self::Snapshot => ("snapshot", "crowfly snapshot", "crowfly capture"),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.title())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_its_own_code_and_a_command() {
        let mut codes: Vec<_> = Format::ALL.iter().map(|f| f.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Format::ALL.len());
        for format in Format::ALL {
            assert!(!format.collect().is_empty(), "{format}");
            assert_eq!(serde_json::to_value(format).unwrap(), format.code());
        }
    }
}
