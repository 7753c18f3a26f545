//! The artefacts of a case by their kind, whichever documents they came in.

use super::Case;
use crate::evidence::{
    Artefact, blocks, cufile, environment, gdscheck, kernel, lspci, nccl_log, nccl_tests, nccl_xml,
    rdma, rocm, topo_matrix, transfer, ucx,
};

macro_rules! sections {
    ($($(#[doc = $doc:literal])+ $name:ident: $variant:ident -> $kind:ty,)+) => {
        impl Case {
            $($(#[doc = $doc])+ pub fn $name(&self) -> impl Iterator<Item = &$kind> {
                self.artefacts().filter_map(|artefact| match artefact {
                    Artefact::$variant(found) => Some(found),
                    _ => None,
                })
            })+
        }
    };
}

sections! {
    /// `nvidia-smi topo -m`.
    matrices: TopoMatrix -> topo_matrix::TopoMatrix,
    /// `nvidia-smi topo -p2p`.
    p2p_matrices: P2pMatrix -> topo_matrix::P2pMatrix,
    /// `rocm-smi --showtopo`.
    rocm_topologies: RocmTopology -> rocm::RocmTopology,
    /// NCCL's topology XML.
    nccl_topologies: NcclTopology -> nccl_xml::NcclTopology,
    /// NCCL's graph XML.
    nccl_graphs: NcclGraph -> nccl_xml::NcclGraph,
    /// nccl-tests and rccl-tests.
    tests: NcclTests -> nccl_tests::NcclTests,
    /// cuFile logs.
    cufile_logs: CufileLog -> cufile::CufileLog,
    /// cuFile configurations.
    cufile_configs: CufileConfig -> cufile::CufileConfig,
    /// nvidia-fs statistics.
    nvidia_fs_stats: NvidiaFsStats -> cufile::NvidiaFsStats,
    /// Lists of RDMA devices.
    rdma_lists: RdmaDevices -> rdma::RdmaDevices,
    /// `lspci`.
    pci_lists: Lspci -> lspci::Lspci,
    /// `lspci -t`.
    pci_trees: LspciTree -> lspci::LspciTree,
    /// `lsblk`.
    block_lists: BlockDevices -> blocks::BlockDevices,
    /// Kernel messages.
    kernel_logs: KernelLog -> kernel::KernelLog,
    /// Kernel command lines.
    command_lines: KernelCmdline -> kernel::KernelCmdline,
    /// UCX logs.
    ucx_logs: UcxLog -> ucx::UcxLog,
    /// NIXL and Mooncake logs.
    transfer_logs: TransferLog -> transfer::TransferLog,
    /// Environments.
    environments: Environment -> environment::Environment,
}

impl Case {
    /// Every artefact, in the order of documents and lines.
    pub fn artefacts(&self) -> impl Iterator<Item = &Artefact> {
        self.documents
            .iter()
            .flat_map(|document| &document.sections)
            .map(|section| &section.artefact)
    }

    /// NCCL and RCCL logs.
    pub fn nccl_logs(&self) -> impl Iterator<Item = &nccl_log::NcclLog> {
        self.artefacts().filter_map(|artefact| match artefact {
            Artefact::NcclLog(log) => Some(&**log),
            _ => None,
        })
    }

    /// `gdscheck` reports.
    pub fn gds_checks(&self) -> impl Iterator<Item = &gdscheck::GdsCheck> {
        self.artefacts().filter_map(|artefact| match artefact {
            Artefact::GdsCheck(check) => Some(&**check),
            _ => None,
        })
    }
}
