//! From what an attempt met to an obstacle: what it is, what proves it, how to get rid of it.

use crowfly_route::obstacle::{Code, Fix, Obstacle};

use super::super::error::VerbsError;
use super::{ExportError, Refused};

/// Where nvidia-peermem and its predecessors show that they are there. That they are does not mean
/// that they work.
const PEER_CLIENTS: [&str; 3] = [
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
];

/// Through what memory was to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium<'o> {
    /// Host memory, by its address.
    Host,
    /// A dma-buf of this owner's memory.
    DmaBuf(&'o str),
    /// This owner's memory, by its address.
    PeerClient(&'o str),
}

/// What a refused registration means. The error numbers are those of the kernel's RDMA core and of
/// the drivers below it.
pub(super) fn obstacle(nic: &str, medium: &Medium<'_>, error: &VerbsError) -> Obstacle {
    let what = match medium {
        Medium::Host => "host memory".to_owned(),
        Medium::DmaBuf(owner) => format!("a dma-buf of {owner}"),
        Medium::PeerClient(owner) => format!("memory of {owner} by its address"),
    };
    let refused =
        |code, why: &str| Obstacle::blocks(code, format!("{nic} cannot register {what}: {why}"));
    let obstacle = match (medium, error.errno()) {
        _ if matches!(error, VerbsError::Unsupported { .. }) => refused(
            Code::NoVerbsLibrary,
            "libibverbs is missing or too old",
        )
        .fixed_by(
            Fix::run(
                "Install rdma-core (dma-bufs need version 34 or newer).",
                "apt-get install ibverbs-providers",
            )
            .checked_by("ibv_devices"),
        ),
        (Medium::DmaBuf(_), Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS)) => {
            refused(Code::NicWithoutDmaBuf, "it does not take dma-bufs").fixed_by(Fix::by_hand(
                "Use a NIC whose driver registers dma-bufs (mlx5, bnxt_re, irdma, efa) on Linux 5.12 or newer.",
            ))
        }
        // The importer found no way for the NIC to reach the exporter's memory.
        (Medium::DmaBuf(_), Some(libc::EREMOTEIO | libc::ENXIO | libc::EIO)) => refused(
            Code::PeerDmaRefused,
            "the kernel finds no way for DMA between the two",
        )
        .fixed_by(Fix::by_hand(
            "Put NIC and GPU below one PCIe switch, or clear ACS redirection above them.",
        )),
        (Medium::PeerClient(_), Some(libc::EFAULT | libc::EINVAL)) => {
            let mut none = refused(Code::NoPeerMemoryClient, "no peer-memory client answered for it")
                .fixed_by(Fix::run("Load nvidia-peermem.", "modprobe nvidia-peermem"));
            for at in PEER_CLIENTS {
                none = none.seen(at, shows(at));
            }
            none
        }
        (Medium::Host, Some(libc::EFAULT)) => refused(
            Code::RegistrationRefused,
            "it is memory of another device, or a file's",
        ),
        (Medium::Host, Some(libc::ENOMEM)) => memlock(refused),
        (_, Some(libc::ENOMEM | libc::ENOSPC)) => refused(
            Code::RegistrationExhausted,
            "there is no room for it",
        )
        .fixed_by(Fix::by_hand(
            "Register less, or in one region; deregister what is not used; look for BAR space in the kernel's log.",
        )),
        (_, Some(libc::EPERM | libc::EACCES)) => refused(
            Code::RegistrationDenied,
            "the process may not",
        )
        .fixed_by(Fix::by_hand(
            "Give the container /dev/infiniband/uverbs* and the IPC_LOCK capability.",
        )),
        _ => refused(Code::RegistrationRefused, "the attempt was refused"),
    };
    obstacle.seen(call(medium), error.to_string())
}

/// The limit on locked memory is what a registration of host memory runs into first.
fn memlock(refused: impl Fn(Code, &str) -> Obstacle) -> Obstacle {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    match limit.current {
        Some(bytes) => refused(Code::MemlockTooSmall, "it may not lock that much memory")
            .seen("RLIMIT_MEMLOCK", format!("{bytes} bytes"))
            .fixed_by(Fix::run("Raise the limit.", "ulimit -l unlimited").checked_by("ulimit -l")),
        None => refused(Code::RegistrationExhausted, "there is no room for it")
            .seen("RLIMIT_MEMLOCK", "unlimited")
            .fixed_by(Fix::by_hand("Register less, or free memory.")),
    }
}

const fn call(medium: &Medium<'_>) -> &'static str {
    match medium {
        Medium::DmaBuf(_) => "ibv_reg_dmabuf_mr",
        Medium::Host | Medium::PeerClient(_) => "ibv_reg_mr",
    }
}

fn shows(path: &str) -> String {
    match std::fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "absent".to_owned(),
        Err(error) => error.to_string(),
    }
}

pub(super) fn export(owner: &str, error: &ExportError) -> Obstacle {
    Obstacle::blocks(
        Code::DmaBufExportRefused,
        format!("the driver does not export memory of {owner} as a dma-buf"),
    )
    .seen(error.call, error.to_string())
    .fixed_by(Fix::by_hand(
        "Use the driver's open kernel modules (CUDA 11.7 or newer), and memory that was not made for another process.",
    ))
}

pub(super) fn no_pcie_mapping(nic: &str, owner: &str, refused: &Refused) -> Obstacle {
    let at = match refused {
        Refused::Export(error) => error.call,
        Refused::Register(_) => "ibv_reg_dmabuf_mr",
    };
    Obstacle::slows(
        Code::NoPcieMapping,
        format!("{nic} reaches {owner} without the PCIe mapping that was asked for first"),
    )
    .seen(at, refused.to_string())
    .fixed_by(Fix::by_hand(
        "Update the GPU's driver and the NIC's, or accept the way through the CPU's coherent link.",
    ))
}

pub(super) fn no_data_direct(nic: &str, owner: &str, refused: &Refused) -> Obstacle {
    let at = match refused {
        Refused::Export(error) => error.call,
        Refused::Register(_) => "mlx5dv_reg_dmabuf_mr",
    };
    Obstacle::slows(
        Code::NoPcieMapping,
        format!("{nic} has a data-direct path, and does not reach {owner} by it"),
    )
    .seen(at, refused.to_string())
    .fixed_by(Fix::by_hand(
        "Update the GPU's driver (CUDA 12.8 or newer) and the NIC's, or accept the way through the CPU.",
    ))
}

pub(super) fn strict_ordering(nic: &str, why: &str) -> Obstacle {
    Obstacle::slows(
        Code::RelaxedOrderingOff,
        format!("{nic} registers memory in strict PCIe order"),
    )
    .seen("ibv_reg_mr_iova2", why)
    .fixed_by(Fix::by_hand(
        "Update rdma-core and the NIC's driver; allow relaxed ordering in the NIC's PCIe settings.",
    ))
}
