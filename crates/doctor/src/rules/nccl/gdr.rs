//! What GPUDirect RDMA needs below NCCL: N4 to N6.

use crowfly_route::obstacle::Fix;

use crate::case::{Case, Machine};
use crate::evidence::nccl_log::distance::era_of;
use crate::evidence::nccl_log::{GdrNic, NcclLog, Note, Sighting};
use crate::facts::flows::{is_socket, net_uses};
use crate::facts::host::{has_nvidia_gpu, has_rdma, kernel_at_least, peermem_loaded};
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

/// The first kernel whose RDMA stack registers dma-buf memory.
const DMABUF_KERNEL: (u32, u32) = (5, 12);

/// Refusals of GPUDirect RDMA for a NIC, unless another line or channel shows that it works.
fn refusals(log: &NcclLog) -> Vec<&Sighting<GdrNic>> {
    let works = |name: &str| {
        log.gdr_nics
            .iter()
            .any(|other| other.what.enabled && other.what.name == name)
    };
    let all_direct = {
        let uses = net_uses(log);
        !uses.is_empty() && uses.iter().all(|u| u.plain() == 0)
    };
    log.gdr_nics
        .iter()
        .filter(|nic| !nic.what.enabled && !all_direct && !works(&nic.what.name))
        .collect()
}

pub(super) const PEERMEM_NOT_SEEN: Rule = Rule {
    id: "N4",
    name: "peermem-not-seen",
    family: Family::Nccl,
    summary: "this NCCL version does not see the loaded peer memory module",
    page: Page {
        condition: "NCCL looks for the peer memory module under names that the loaded one does not have.",
        detection: "`GPU Direct RDMA Disabled for HCA` in a log of 2.22 or earlier. Up to 2.21 NCCL looks for memory_peers/nv_mem alone, 2.22 also for nv_mem_nc, 2.23 and later also for /sys/module/nvidia_peermem.",
        consequence: "GPUDirect RDMA is off although the module is loaded.",
        fix: "Use NCCL 2.23 or later, or dma-buf with the open GPU driver.",
        source: "NCCL net_ib/gdr.cc; NVIDIA/nccl issue 1676",
        false_alarms: "When no module is loaded at all, this is N5.",
    },
    check: peermem_not_seen,
};

fn peermem_not_seen(rule: &Rule, case: &Case) -> Vec<Finding> {
    let loaded = case.machines.iter().find_map(|m| {
        (peermem_loaded(m) == Some(true)).then(|| m.quote("/sys/module/nvidia_peermem"))?
    });
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        let refused = refusals(log);
        let (Some(first), Some(release)) = (refused.first(), log.release()) else {
            continue;
        };
        let Some(era) = era_of(release) else { continue };
        if era.peer_memory_modules.contains(&"nvidia_peermem") {
            continue;
        }
        let looked = era.peer_memory_modules.join(" and ");
        let title = format!(
            "NCCL {release} looks for {looked} alone and found no peer memory for {}",
            first.what.name
        );
        let finding = if loaded.is_some() {
            rule.fault(title)
        } else {
            rule.warning(title).doubting(
                "Whether nvidia_peermem is loaded is not shown; if it is not, N5 is the cause.",
            )
        };
        findings.push(
            finding
                .implying(PairKind::GpuNic, Verdict::Staged)
                .quoting(&first.first)
                .quoting_all(log.versions.first().map(|v| &v.first))
                .quoting_all(loaded.clone())
                .fixed_by(Fix::by_hand("Use NCCL 2.23 or later."))
                .fixed_by(
                    Fix::run(
                        "Or see which of the three places exists.",
                        "ls -d /sys/kernel/mm/memory_peers/nv_mem /sys/kernel/mm/memory_peers/nv_mem_nc /sys/module/nvidia_peermem",
                    )
                    .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'GPU Direct RDMA'"),
                ),
        );
    }
    findings
}

pub(super) const PEERMEM_NOT_LOADED: Rule = Rule {
    id: "N5",
    name: "peermem-not-loaded",
    family: Family::Nccl,
    summary: "neither nvidia_peermem nor dma-buf gives the NIC a way to GPU memory",
    page: Page {
        condition: "The module nvidia_peermem is not loaded, and dma-buf cannot stand in for it.",
        detection: "/sys/module/nvidia_peermem is absent on a machine with an NVIDIA GPU and an RDMA NIC; or NCCL says `Disabled for HCA … (no module)`. lsmod shows the name with an underscore.",
        consequence: "No GPUDirect RDMA: every message is copied through host memory.",
        fix: "modprobe nvidia-peermem, after ib_core is there; rebuild the GPU driver after installing another RDMA stack. Or use the open GPU driver with a kernel of 5.12 or later, for dma-buf.",
        source: "NCCL documentation, troubleshooting GPUDirect RDMA; net_ib/gdr.cc",
        false_alarms: "With the open GPU driver and a recent kernel dma-buf does the same without the module: channels that end in /GDRDMA show it.",
    },
    check: peermem_not_loaded,
};

fn peermem_not_loaded(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        let refused = refusals(log);
        let Some(first) = refused.first() else {
            continue;
        };
        // Without a word about the module, and in a version that may not see it, N4 speaks.
        let sees = log
            .release()
            .and_then(era_of)
            .is_none_or(|era| era.peer_memory_modules.contains(&"nvidia_peermem"));
        let no_module = first
            .what
            .reason
            .as_deref()
            .is_some_and(|reason| reason.contains("module"));
        if sees || no_module {
            findings.push(fix_module(
                rule.fault(format!(
                    "NCCL found neither a peer memory module nor dma-buf for {}: GPUDirect RDMA is off",
                    first.what.name
                ))
                .implying(PairKind::GpuNic, Verdict::Staged)
                .quoting_all(refused.iter().map(|r| &r.first).take(3)),
            ));
        }
    }
    if channels_direct(case) {
        return findings;
    }
    for machine in &case.machines {
        let absent = peermem_loaded(machine) == Some(false);
        if !absent || !has_nvidia_gpu(machine) || !has_rdma(machine) {
            continue;
        }
        let old = kernel_at_least(machine, DMABUF_KERNEL) == Some(false);
        let title = format!("nvidia_peermem is not loaded on {}", machine.source);
        let finding = if old {
            rule.fault(format!("{title}, and its kernel is too old for dma-buf"))
                .implying(PairKind::GpuNic, Verdict::Staged)
        } else {
            rule.warning(format!("{title}: only dma-buf is left for GPUDirect RDMA"))
                .doubting("With the open GPU driver, NCCL, UCX and others register GPU memory by dma-buf, and nothing is lost.")
        };
        findings.push(fix_module(
            finding
                .quoting_all(machine.quote("/sys/module/nvidia_peermem"))
                .quoting_all(machine.quote("uname:release")),
        ));
    }
    findings
}

fn channels_direct(case: &Case) -> bool {
    let uses: Vec<_> = case.nccl_logs().flat_map(net_uses).collect();
    !uses.is_empty() && uses.iter().all(|u| u.plain() == 0)
}

fn fix_module(finding: Finding) -> Finding {
    finding
        .fixed_by(
            Fix::run("Load the module, after the RDMA stack.", "sudo modprobe nvidia-peermem")
                .checked_by("lsmod | grep nvidia_peermem"),
        )
        .fixed_by(Fix::by_hand(
            "If it does not load, rebuild the GPU driver: it has to be built after the RDMA stack that is installed.",
        ))
}

pub(super) const DMABUF: Rule = Rule {
    id: "N6",
    name: "dmabuf-impossible",
    family: Family::Nccl,
    summary: "dma-buf cannot be used here",
    page: Page {
        condition: "Something that dma-buf registration needs is missing.",
        detection: "A kernel before 5.12; a plugin that says `Support for DMA-BUF registrations: false`. What NCCL itself does: ibv_reg_dmabuf_mr with descriptor -1 answers EOPNOTSUPP or EPROTONOSUPPORT for no, EBADF for yes.",
        consequence: "Software falls back to the peer memory module, and without that to host memory.",
        fix: "Open GPU kernel modules, a kernel of 5.12 or later, an rdma-core that has ibv_reg_dmabuf_mr.",
        source: "NCCL net_ib/gdr.cc, ibDmaBufSupportInitOnce",
        false_alarms: "Where nvidia_peermem is loaded nothing is lost.",
    },
    check: dmabuf,
};

fn dmabuf(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        let plain = net_uses(log)
            .iter()
            .any(|u| u.plain() > 0 && !is_socket(&u.network));
        let said = log
            .notes
            .iter()
            .find(|note| note.what == Note::PluginDmaBuf(false));
        if let (true, Some(said)) = (plain, said) {
            findings.push(
                rule.warning("The network plugin cannot register GPU memory by dma-buf")
                    .quoting(&said.first)
                    .doubting("Plugins of clouds without device RDMA say so as well; then the instance type is the cause.")
                    .fixed_by(Fix::by_hand("Use the open GPU kernel modules, and versions of libfabric and the plugin that know dma-buf.")),
            );
        }
    }
    for machine in &case.machines {
        if impossible(machine) && has_nvidia_gpu(machine) && has_rdma(machine) {
            findings.push(
                rule.warning(format!(
                    "The kernel of {} is older than 5.12: no dma-buf registration",
                    machine.source
                ))
                .quoting_all(machine.quote("uname:release"))
                .doubting("Distributions have brought it back to some older kernels.")
                .fixed_by(Fix::by_hand(
                    "Use a kernel of 5.12 or later, or load nvidia-peermem.",
                )),
            );
        }
    }
    findings
}

fn impossible(machine: &Machine) -> bool {
    kernel_at_least(machine, DMABUF_KERNEL) == Some(false) && peermem_loaded(machine) != Some(true)
}
