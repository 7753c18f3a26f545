//! AMD GPUs and RCCL: A1 to A3.

use crowfly_route::obstacle::Fix;

use crate::case::{Case, Machine};
use crate::evidence::nccl_log::{NcclLog, Note};
use crate::facts::flows::net_uses;
use crate::facts::host::{has_amd_gpu, has_rdma, is_virtual};
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(crate) const RULES: &[Rule] = &[NO_PEER_MEMORY, DMABUF_OFF, HOST];

const NO_PEER_MEMORY: Rule = Rule {
    id: "A1",
    name: "rccl-no-peer-memory",
    family: Family::Amd,
    summary: "RCCL found no peer memory client: GPUDirect RDMA is off",
    page: Page {
        condition: "The amdgpu driver is not registered with the RDMA stack.",
        detection: "RCCL's `GDRDMA not enabled`; none of the three places of memory_peers/amdkfd and no ib_register_peer_memory_client among the kernel's symbols.",
        consequence: "GPU data is copied through host memory, unless dma-buf is on.",
        fix: "The amdgpu driver of AMD's packages (amdgpu-dkms) with an RDMA stack that has the hook; or dma-buf (A2); RCCL_FORCE_ENABLE_GDRDMA=1 where only the detection fails.",
        source: "RCCL src/transport/net_ib.cc",
        false_alarms: "With dma-buf in use the client is not needed: channels that end in /GDRDMA show it.",
    },
    check: no_peer_memory,
};

fn all_direct(log: &NcclLog) -> bool {
    let uses = net_uses(log);
    !uses.is_empty() && uses.iter().all(|u| u.plain() == 0)
}

/// The places where the driver's client shows.
const CLIENTS: [&str; 3] = [
    "/sys/kernel/mm/memory_peers/amdkfd/version",
    "/sys/kernel/memory_peers/amdkfd/version",
    "/sys/memory_peers/amdkfd/version",
];

fn client_missing(machine: &Machine) -> bool {
    CLIENTS.iter().all(|place| machine.lacks(place))
        && machine.lacks("kallsyms:ib_register_peer_memory_client")
}

fn no_peer_memory(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding
            .fixed_by(
                Fix::by_hand("Install AMD's amdgpu-dkms after the RDMA stack.")
                    .checked_by("ls /sys/kernel/mm/memory_peers/amdkfd; sudo grep ib_register_peer_memory_client /proc/kallsyms"),
            )
            .fixed_by(Fix::run("Or use dma-buf, on a kernel that has it.", "export NCCL_DMABUF_ENABLE=1"))
    };
    let mut findings = Vec::new();
    for log in case.nccl_logs().filter(|log| !all_direct(log)) {
        if let Some(said) = log.notes.iter().find(|n| n.what == Note::GdrModuleMissing) {
            findings.push(fixed(
                rule.fault("RCCL found no peer memory client, so GPUDirect RDMA is off")
                    .implying(PairKind::GpuNic, Verdict::Staged)
                    .quoting(&said.first),
            ));
        }
    }
    if case.nccl_logs().any(all_direct) {
        return findings;
    }
    for machine in &case.machines {
        if has_amd_gpu(machine) && has_rdma(machine) && client_missing(machine) {
            findings.push(fixed(
                rule.warning(format!(
                    "The RDMA stack of {} has no client for AMD GPU memory",
                    machine.source
                ))
                .quoting_all(CLIENTS.iter().filter_map(|place| machine.quote(place)))
                .doubting("With dma-buf in use none is needed."),
            ));
        }
    }
    findings
}

const DMABUF_OFF: Rule = Rule {
    id: "A2",
    name: "rccl-dmabuf-off",
    family: Family::Amd,
    summary: "RCCL does not use dma-buf",
    page: Page {
        condition: "dma-buf is off by default in RCCL, or the kernel lacks what it needs.",
        detection: "`Dmabuf feature disabled without NCCL_DMABUF_ENABLE=1`; a kernel without CONFIG_PCI_P2PDMA or CONFIG_DMABUF_MOVE_NOTIFY.",
        consequence: "Only the peer memory client is left for GPUDirect RDMA.",
        fix: "NCCL_DMABUF_ENABLE=1 and a kernel with both options.",
        source: "RCCL src/misc/rocmwrap.cc",
        false_alarms: "With the peer memory client GPUDirect RDMA works all the same: it is a note where the channels show that.",
    },
    check: dmabuf_off,
};

fn dmabuf_off(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding.fixed_by(
            Fix::run("Switch it on, on every rank.", "export NCCL_DMABUF_ENABLE=1")
                .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep -i dmabuf; grep -E 'PCI_P2PDMA|DMABUF_MOVE_NOTIFY' /boot/config-$(uname -r)"),
        )
    };
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        let Some(said) = log
            .notes
            .iter()
            .find(|n| matches!(n.what, Note::DmaBufDisabled | Note::DmaBufKernelUnsupported))
        else {
            continue;
        };
        let plain = net_uses(log).iter().any(|u| u.plain() > 0);
        let finding = if plain {
            rule.warning("RCCL does not use dma-buf, and channels lack GPUDirect RDMA")
        } else {
            rule.note("RCCL does not use dma-buf; with the peer memory client it does without")
        };
        findings.push(fixed(finding.quoting(&said.first)));
    }
    for machine in case
        .machines
        .iter()
        .filter(|m| has_amd_gpu(m) && has_rdma(m))
    {
        const OPTION: &str = "kconfig:CONFIG_DMABUF_MOVE_NOTIFY";
        let off = machine.lacks(OPTION) || machine.text(OPTION) == Some("n");
        if off && client_missing(machine) {
            findings.push(fixed(
                rule.warning(
                    "The kernel lacks CONFIG_DMABUF_MOVE_NOTIFY, which dma-buf with AMD GPUs needs",
                )
                .quoting_all(machine.quote(OPTION)),
            ));
        }
    }
    findings
}

const HOST: Rule = Rule {
    id: "A3",
    name: "amd-host-settings",
    family: Family::Amd,
    summary: "a host of AMD GPUs without iommu=pt",
    page: Page {
        condition: "The IOMMU is on without passthrough on a host of AMD GPUs.",
        detection: "RCCL's `Missing \"iommu=pt\"`; a command line without iommu=pt on bare metal with an IOMMU. Large BARs are checked by K6.",
        consequence: "Hangs, or no peer-to-peer DMA between GPUs.",
        fix: "iommu=pt on the kernel's command line.",
        source: "RCCL src/init.cc; AMD Instinct system settings",
        false_alarms: "RCCL prints its remark in virtual machines too, where the host decides.",
    },
    check: host,
};

fn host(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding
            .fixed_by(
                Fix::run("Add it to the kernel's command line and boot again.", "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && sudo update-grub")
                    .checked_by("grep -c iommu=pt /proc/cmdline"),
            )
            .doubting("In a virtual machine the host decides.")
    };
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        if let Some(said) = log.notes.iter().find(|n| n.what == Note::IommuPtMissing) {
            findings.push(fixed(
                rule.warning("RCCL misses iommu=pt on the kernel's command line")
                    .quoting(&said.first),
            ));
        }
    }
    for machine in &case.machines {
        let line = machine.text("/proc/cmdline");
        let without = line.is_some_and(|l| {
            !l.split_whitespace().any(|w| {
                matches!(
                    w,
                    "iommu=pt" | "amd_iommu=off" | "intel_iommu=off" | "iommu=off"
                )
            })
        });
        let on = !machine
            .snapshot
            .as_ref()
            .is_none_or(|s| s.list("/sys/class/iommu").is_empty());
        if has_amd_gpu(machine) && without && on && !is_virtual(machine) {
            findings.push(fixed(
                rule.warning(format!(
                    "{} has AMD GPUs and an IOMMU without iommu=pt",
                    machine.source
                ))
                .quoting_all(machine.quote("/proc/cmdline")),
            ));
        }
    }
    findings
}
