//! GPUs and their drivers: H1 to H5.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::Note;
use crate::evidence::topo_matrix::P2pStatus;
use crate::facts::host::{has_nvidia_gpu, has_rdma};
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(crate) const RULES: &[Rule] = &[ATTRIBUTE, CHIPSET, NO_PEER_ACCESS, DATA_DIRECT, NVSWITCH];

const ATTRIBUTE: Rule = Rule {
    id: "H1",
    name: "gpu-attribute-is-no-proof",
    family: Family::Gpu,
    summary: "the GPU's GPUDirect attribute says nothing about the NIC",
    page: Page {
        condition: "Software reports that the GPU supports GPUDirect RDMA.",
        detection: "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED in any log.",
        consequence: "It is the GPU's own property; the NIC, the path and the modules can still be missing.",
        fix: "Register GPU memory with the NIC itself, or look at /GDRDMA on the channels.",
        source: "libfabric issue 12409",
        false_alarms: "None: this is a note.",
    },
    check: attribute,
};

fn attribute(rule: &Rule, case: &Case) -> Vec<Finding> {
    const NAME: &str = "GPU_DIRECT_RDMA_SUPPORTED";
    let in_transfers = case.transfer_logs().flat_map(|log| {
        log.messages
            .iter()
            .filter(|m| m.what.text.contains(NAME))
            .map(|m| &m.first)
    });
    let in_nccl = case.nccl_logs().flat_map(|log| {
        log.warnings
            .iter()
            .filter(|w| w.what.text.contains(NAME))
            .map(|w| &w.first)
    });
    let in_ucx = case.ucx_logs().flat_map(|log| {
        log.problems
            .iter()
            .filter(|p| p.what.text.contains(NAME))
            .map(|p| &p.first)
    });
    in_transfers
        .chain(in_nccl)
        .chain(in_ucx)
        .take(1)
        .map(|cite| {
            rule.note(
                "That the GPU supports GPUDirect RDMA says nothing about the NIC and the path",
            )
            .quoting(cite)
        })
        .collect()
}

const CHIPSET: Rule = Rule {
    id: "H2",
    name: "chipset-one-way",
    family: Family::Gpu,
    summary: "on this chipset NICs can write GPU memory and not read it",
    page: Page {
        condition: "The root complex forwards writes between its ports and not reads.",
        detection: "An Intel Core Ultra 200S (Arrow Lake) desktop processor with an NVIDIA GPU and an RDMA NIC.",
        consequence: "Receiving into GPU memory works, sending from it fails.",
        fix: "Another platform, or sending from host memory (NCCL_NET_GDR_READ=0).",
        source: "NVIDIA/open-gpu-kernel-modules issue 1253",
        false_alarms: "GPU and NIC under one switch do not pass the root complex.",
    },
    check: chipset,
};

/// Arrow Lake-S: family 6, model 198.
const ARROW_LAKE: (u32, u32) = (6, 198);

fn chipset(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.machines
        .iter()
        .filter(|machine| {
            let host = &machine.topology.host;
            let intel = host.cpu_vendor.as_deref() == Some("GenuineIntel");
            let model = host.cpu_family.zip(host.cpu_model);
            intel && model == Some(ARROW_LAKE) && has_nvidia_gpu(machine) && has_rdma(machine)
        })
        .map(|machine| {
            let name = machine.topology.host.cpu_name.clone().unwrap_or_default();
            rule.warning("On this processor NICs can write GPU memory and fail to read it, unless both share a switch")
                .quoting(Quote::device(machine.source.clone(), "processor", &name))
                .fixed_by(
                    Fix::run("Send from host memory.", "export NCCL_NET_GDR_READ=0")
                        .checked_by("ib_read_bw --use_cuda=0 <peer>   # fails where reads do not pass"),
                )
                .doubting("It was reported of boards with the Z890 chipset; others of this processor may differ.")
        })
        .collect()
}

const NO_PEER_ACCESS: Rule = Rule {
    id: "H3",
    name: "no-peer-access",
    family: Family::Gpu,
    summary: "the driver refuses peer access between these GPUs",
    page: Page {
        condition: "GeForce boards, some virtual GPUs and some chipsets have no peer-to-peer DMA in the stock driver.",
        detection: "`nvidia-smi topo -p2p` with NS, CNS, GNS or TNS; `CANNOT Access Peer Device`; a refusal in NCCL's log. PIX in `topo -m` does not imply peer access.",
        consequence: "GPUs exchange data through host memory; no GPUDirect RDMA either on GeForce.",
        fix: "None with that board and driver; data-centre and workstation boards have it.",
        source: "NVIDIA/nccl issue 1086; nvidia-smi documentation",
        false_alarms: "The capabilities n (NVLink) and a (atomics) say nothing about PCIe.",
    },
    check: no_peer_access,
};

fn no_peer_access(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for matrix in case.p2p_matrices() {
        if matches!(matrix.capability, Some('n' | 'a')) {
            continue;
        }
        let cells = || {
            matrix.rows.iter().flat_map(|row| {
                matrix
                    .columns
                    .iter()
                    .zip(&row.value.1)
                    .filter(move |(column, _)| **column != row.value.0)
                    .filter_map(move |(_, cell)| Some((row, cell.as_ref()?)))
            })
        };
        let refused: Vec<_> = cells()
            .filter(|(_, cell)| {
                matches!(
                    cell,
                    P2pStatus::NotSupported
                        | P2pStatus::ChipsetNotSupported
                        | P2pStatus::GpuNotSupported
                        | P2pStatus::TopologyNotSupported
                        | P2pStatus::DisabledByDriver
                )
            })
            .collect();
        let Some((first, cell)) = refused.first() else {
            continue;
        };
        let reason = match cell {
            P2pStatus::ChipsetNotSupported => "the chipset does not support it",
            P2pStatus::GpuNotSupported => "the GPU does not support it",
            P2pStatus::TopologyNotSupported => "the topology does not allow it",
            P2pStatus::DisabledByDriver => "a setting of the driver switches it off",
            _ => "it is not supported",
        };
        let mut finding = rule
            .fault(format!("The driver refuses peer access between GPUs: {reason}"))
            .quoting(&first.cite)
            .quoting_all(refused.iter().map(|(row, _)| &row.cite))
            .fixed_by(
                Fix::by_hand("Nothing helps with a GeForce board and the stock driver; use boards that support it, or plan for host memory.")
                    .checked_by("nvidia-smi topo -p2p r"),
            );
        if refused.len() == cells().count() && case.matrices().next().is_none() {
            finding = finding.implying(PairKind::GpuGpu, Verdict::Staged);
        }
        findings.push(finding);
    }
    // The samples of CUDA print it, which are no format of their own.
    let printed: Vec<_> = case
        .documents
        .iter()
        .flat_map(|d| &d.unread.first)
        .filter(|cite| cite.quote.contains("CANNOT Access Peer"))
        .collect();
    if !printed.is_empty() {
        findings.push(
            rule.fault("CUDA cannot access a peer's memory between these GPUs")
                .quoting_all(printed)
                .implying(PairKind::GpuGpu, Verdict::Staged)
                .fixed_by(Fix::run(
                    "See what the driver says.",
                    "nvidia-smi topo -p2p r",
                )),
        );
    }
    for log in case.nccl_logs() {
        let said = log
            .notes
            .iter()
            .find(|n| matches!(n.what, Note::PeerAccessRefused(_)));
        if let Some(said) = said {
            findings.push(
                rule.fault("The driver refuses peer access between GPUs")
                    .quoting(&said.first)
                    .fixed_by(Fix::run("See between which.", "nvidia-smi topo -p2p r")),
            );
        }
    }
    findings
}

const DATA_DIRECT: Rule = Rule {
    id: "H4",
    name: "data-direct",
    family: Family::Gpu,
    summary: "the NIC reaches the GPU through its data-direct function, which is nearer than the NIC itself",
    page: Page {
        condition: "ConnectX-8 with GB300 has a second PCIe function near the GPU.",
        detection: "DDn rows of `topo -m` that are nearer than the NICn rows, with the legend `data-direct function`; data-direct lines of NCCL.",
        consequence: "Whoever reads the NIC's own cell (SYS) concludes that there is no GPUDirect RDMA, wrongly.",
        fix: "Use the better of the two cells.",
        source: "NVIDIA ConnectX-8 data direct; NCCL NCCL_IB_DATA_DIRECT",
        false_alarms: "None: this is a note.",
    },
    check: data_direct,
};

fn data_direct(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for matrix in case.matrices() {
        let reached: Vec<_> = matrix
            .gpus()
            .iter()
            .flat_map(|gpu| {
                let name = gpu.to_string();
                matrix
                    .nic_reach(gpu)
                    .into_iter()
                    .map(move |reach| (name.clone(), reach))
            })
            .filter_map(|(gpu, reach)| {
                let through = reach.through.clone()?;
                Some((gpu, reach, through))
            })
            .collect();
        if let Some((gpu, reach, through)) = reached.first() {
            findings.push(
                rule.note(format!(
                    "{gpu} reaches {} through its data-direct function {through}: {}",
                    reach.name.clone().unwrap_or_else(|| reach.nic.to_string()),
                    reach.link
                ))
                .quoting_all(reached.iter().map(|(_, reach, _)| &reach.cite)),
            );
        }
    }
    for log in case.nccl_logs() {
        if let Some(said) = log
            .notes
            .iter()
            .find(|n| matches!(n.what, Note::DataDirect(_)))
        {
            findings.push(
                rule.note("NCCL uses the data-direct function of the NIC")
                    .quoting(&said.first),
            );
        }
    }
    findings
}

const NVSWITCH: Rule = Rule {
    id: "H5",
    name: "nvswitch-needs-fabric-manager",
    family: Family::Gpu,
    summary: "a machine with NVSwitches needs the fabric manager",
    page: Page {
        condition: "NVSwitches join the GPUs, and a service has to set them up.",
        detection: "NVIDIA bridges (class 0680) among the PCI devices, beside data-centre GPUs.",
        consequence: "Without nvidia-fabricmanager of the driver's own version, CUDA itself does not start (error 802).",
        fix: "Install and start it.",
        source: "NVIDIA Fabric Manager user guide",
        false_alarms: "In a virtual machine with a part of the board the host may run it. This is a note: whether it runs is not shown by PCI.",
    },
    check: nvswitch,
};

fn nvswitch(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.pci_lists()
        .filter_map(|list| {
            let switches: Vec<_> = list
                .functions
                .iter()
                .filter(|f| {
                    f.name.contains("NVIDIA") || f.ids.is_some_and(|(vendor, _)| vendor == 0x10de)
                })
                .filter(|f| {
                    f.class_code == Some(0x0680)
                        || f.class == "Bridge"
                        || f.name.contains("NVSwitch")
                })
                .collect();
            let first = switches.first()?;
            Some(
                rule.note(format!(
                    "{} NVSwitches: the fabric manager has to run",
                    switches.len()
                ))
                .quoting(&first.cite)
                .fixed_by(
                    Fix::run(
                        "See whether it runs, in the driver's own version.",
                        "systemctl status nvidia-fabricmanager",
                    )
                    .checked_by("nvidia-smi -q | grep -A2 Fabric"),
                ),
            )
        })
        .collect()
}
