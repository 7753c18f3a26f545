//! How near GPUs, NICs and drives are to each other, whichever evidence shows it.

mod log;
mod matrix;
mod near;
mod pci;
mod snapshot;
mod xml;

use crate::case::Case;
use crate::evidence::nccl_log::PathType;
use crate::finding::Quote;
use crate::verdict::PairKind;

pub(crate) use near::{GpuNics, Near, gpu_gpu_level, gpu_nics};
pub(crate) use pci::{is_gpu, is_nic};
pub(crate) use snapshot::{is_compute, of_machine};
pub(crate) use xml::is_interface;

/// One machine's places, as one piece of evidence shows them.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// The machine or source.
    pub(crate) on: String,
    /// GPUs as the evidence names them.
    pub(crate) gpus: Vec<String>,
    /// RDMA NICs as the evidence names them. Empty proves nothing: some tools do not list all.
    pub(crate) nics: Vec<String>,
    /// Every distance that is known.
    pub(crate) reaches: Vec<Reach>,
    /// The maker of the CPUs.
    pub(crate) cpu: CpuMaker,
    /// The maker of the GPUs is AMD, so the library is RCCL.
    pub(crate) amd_gpus: bool,
    /// GPUs whose memory the CPU reaches coherently (Grace): their NIC can be reached over C2C.
    pub(crate) coherent: Vec<String>,
    /// NVLink or xGMI may be there and would not show: which GPUs reach each other, and through
    /// whose NIC, is open.
    pub(crate) links_unknown: bool,
    /// Parts are missing.
    pub(crate) clipped: bool,
}

impl Site {
    /// Whether it looks like a virtual machine whose PCI tree hides which NIC is near which GPU: a
    /// whole board of linked GPUs with as many NICs, none of which is near any. Such boards are
    /// built with a NIC beside each GPU.
    pub(crate) fn hides_places(&self) -> bool {
        let whole_board = self.gpus.len() >= WHOLE_BOARD && self.nics.len() >= self.gpus.len();
        let linked = self
            .of_kind(PairKind::GpuGpu)
            .all(|r| matches!(r.nearness, Nearness::Link(_)));
        let none_near = self
            .of_kind(PairKind::GpuNic)
            .all(|r| r.nearness > Nearness::Pxb);
        whole_board && linked && none_near
    }
}

/// Most GPUs and NICs of one machine that are looked at; the largest have 32 and some dozens. A text
/// that claims more counts as clipped.
pub(crate) const MAX_GPUS: usize = 64;
pub(crate) const MAX_NICS: usize = 128;

/// GPUs of a board with NVSwitches.
const WHOLE_BOARD: usize = 8;

/// The maker of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuMaker {
    Intel,
    Amd,
    Other,
    Unknown,
}

/// How near two devices are.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub(crate) kind: PairKind,
    pub(crate) gpu: String,
    pub(crate) other: String,
    pub(crate) nearness: Nearness,
    /// Another function of the NIC that is nearer than the NIC itself (data direct).
    pub(crate) through: Option<String>,
    pub(crate) quote: Quote,
}

/// What lies between two devices, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Nearness {
    /// NVLink or xGMI, this many; 0 where the count is not told.
    Link(u32),
    Pix,
    Pxb,
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    Sys,
}

impl Nearness {
    /// NCCL's name for it. NCCL knows no `NODE`: it walks sysfs itself and says PHB or SYS.
    pub(crate) fn paths(self) -> (PathType, PathType) {
        match self {
            Self::Link(_) => (PathType::Nvl, PathType::Nvl),
            Self::Pix => (PathType::Pix, PathType::Pix),
            Self::Pxb => (PathType::Pxb, PathType::Pxb),
            Self::Phb => (PathType::Phb, PathType::Phb),
            Self::Node => (PathType::Phb, PathType::Sys),
            Self::Sys => (PathType::Sys, PathType::Sys),
        }
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Link(_) => "NVLink",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

impl Site {
    fn new(on: String) -> Self {
        Self {
            on,
            gpus: Vec::new(),
            nics: Vec::new(),
            reaches: Vec::new(),
            cpu: CpuMaker::Unknown,
            amd_gpus: false,
            coherent: Vec::new(),
            links_unknown: false,
            clipped: false,
        }
    }

    /// What is known of one kind.
    pub(crate) fn of_kind(&self, kind: PairKind) -> impl Iterator<Item = &Reach> {
        self.reaches.iter().filter(move |reach| reach.kind == kind)
    }
}

/// Every machine's places.
pub(crate) fn sites(case: &Case) -> Vec<Site> {
    let mut sites: Vec<Site> = case.matrices().map(matrix::of_matrix).collect();
    sites.extend(case.rocm_topologies().map(matrix::of_rocm));
    sites.extend(case.nccl_topologies().map(xml::of_xml));
    sites.extend(case.nccl_logs().map(log::of_log));
    sites.extend(case.pci_trees().map(pci::of_tree));
    sites.extend(case.machines.iter().map(snapshot::of_machine));
    sites.retain(|site| !site.gpus.is_empty());
    let told = cpu_told(case);
    for site in &mut sites {
        if site.cpu == CpuMaker::Unknown {
            site.cpu = told;
        }
    }
    sites
}

/// The maker of the CPUs as other evidence of the case tells it, where it agrees.
fn cpu_told(case: &Case) -> CpuMaker {
    let mut intel = false;
    let mut amd = false;
    for topology in case.nccl_topologies() {
        for cpu in &topology.cpus {
            intel |= cpu.vendor == "GenuineIntel";
            amd |= cpu.vendor == "AuthenticAMD";
        }
    }
    for tree in case.pci_trees() {
        amd |= tree.functions.iter().any(|f| is_amd_root(&f.name));
    }
    for list in case.pci_lists() {
        amd |= list.functions.iter().any(|f| is_amd_root(&f.name));
        intel |= list
            .functions
            .iter()
            .any(|f| f.class == "Host bridge" && f.name.starts_with("Intel"));
    }
    for line in case.command_lines() {
        amd |= line.arguments.iter().any(|a| a.value.name == "amd_iommu");
        intel |= line.arguments.iter().any(|a| a.value.name == "intel_iommu");
    }
    match (intel, amd) {
        (true, false) => CpuMaker::Intel,
        (false, true) => CpuMaker::Amd,
        _ => CpuMaker::Unknown,
    }
}

pub(crate) fn is_amd_root(name: &str) -> bool {
    name.contains("Advanced Micro Devices")
        && [
            "Root",
            "FCH",
            "Data Fabric",
            "IOMMU",
            "Starship",
            "Milan",
            "Genoa",
            "Turin",
        ]
        .iter()
        .any(|word| name.contains(word))
}
