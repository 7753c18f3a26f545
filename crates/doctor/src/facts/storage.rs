//! Whether GPUDirect Storage is ready, and whether cuFile fell back.

use crate::case::Machine;
use crate::evidence::Sighting;
use crate::evidence::cufile::{CufileLog, CufileMessage};

/// Whether a machine can place file data in GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// By this.
    Ready(&'static str),
    /// Not, for this reason.
    Missing(String),
    /// Nobody looked.
    NotLookedAt,
}

const MODULE: &str = "/sys/module/nvidia_fs";
const PROC: &str = "/proc/driver/nvidia-fs";

/// The symbols by which the NVMe driver offers itself to nvidia-fs.
pub(crate) const NVME_HOOKS: [&str; 2] = [
    "kallsyms:nvme_v1_register_nvfs_dma_ops",
    "kallsyms:nvme_v2_register_nvfs_dma_ops",
];

pub(crate) fn nvidia_fs_loaded(machine: &Machine) -> Option<bool> {
    if machine.has(MODULE) || machine.has(PROC) {
        Some(true)
    } else if machine.lacks(MODULE) || machine.lacks(PROC) {
        Some(false)
    } else {
        None
    }
}

/// Whether cuFile is configured to use the kernel's own P2PDMA.
pub(crate) fn p2pdma_configured(machine: &Machine) -> bool {
    machine.text("/etc/cufile.json").is_some_and(|json| {
        json.lines().any(|line| {
            let line = line.trim();
            line.starts_with("\"use_pci_p2pdma\"") && line.contains("true")
        })
    })
}

/// Whether the kernel was built with peer-to-peer DMA; `None` when nobody could look.
pub(crate) fn kernel_p2pdma(machine: &Machine) -> Option<bool> {
    match machine.text("kconfig:CONFIG_PCI_P2PDMA") {
        Some("y") => Some(true),
        Some(_) => Some(false),
        None if machine.lacks("kconfig:CONFIG_PCI_P2PDMA") => Some(false),
        None if machine.has("kallsyms:p2pdma_pgmap_ops") => Some(true),
        None => None,
    }
}

pub(crate) fn readiness(machine: &Machine) -> Readiness {
    let hooked = NVME_HOOKS.iter().any(|hook| machine.has(hook));
    let unhooked = NVME_HOOKS.iter().all(|hook| machine.lacks(hook));
    let p2pdma = p2pdma_configured(machine) && kernel_p2pdma(machine) == Some(true);
    match nvidia_fs_loaded(machine) {
        _ if p2pdma => Readiness::Ready("the kernel's P2PDMA"),
        Some(true) if unhooked => {
            Readiness::Missing("the NVMe driver has no hook for nvidia-fs, so cuFile copies".into())
        }
        Some(true) if hooked => Readiness::Ready("nvidia-fs"),
        Some(false) => Readiness::Missing(
            "nvidia-fs is not loaded and cuFile is not configured for P2PDMA, so it copies through host memory".into(),
        ),
        _ => Readiness::NotLookedAt,
    }
}

/// The message by which cuFile says that it went the POSIX way.
pub(crate) fn fell_back(log: &CufileLog) -> Option<&Sighting<CufileMessage>> {
    log.messages.iter().find(|message| {
        let text = message.what.text.to_ascii_lowercase();
        (text.contains("compat mode") || text.contains("compatible mode"))
            && (text.contains("using cufile posix") || text.contains("posix read/write"))
    })
}
