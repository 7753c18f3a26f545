//! Firmware and drivers: R7, R8, and UCX.

use std::collections::{BTreeMap, BTreeSet};

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::kernel::Topic;
use crate::evidence::transfer::Level;
use crate::facts::rdma::ports;
use crate::facts::ucx::gpu_protocols;
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};
use crate::verdict::Verdict;

pub(super) const FIRMWARE: Rule = Rule {
    id: "R7",
    name: "firmware-differs",
    family: Family::Rdma,
    summary: "cards of one model run different firmware",
    page: Page {
        condition: "RDMA cards of the same model have different firmware versions, in one node or between nodes.",
        detection: "fw_ver of devices with the same part number or board, in all evidence of the case.",
        consequence: "Odd faults that come and go with the pair of nodes.",
        fix: "The same firmware everywhere.",
        source: "practice; NVIDIA firmware release notes",
        false_alarms: "Boards of different makers can carry the same chip with versions of their own.",
    },
    check: firmware,
};

fn firmware(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut models: BTreeMap<String, BTreeMap<String, Quote>> = BTreeMap::new();
    for port in ports(case) {
        if let (Some(model), Some((version, quote))) = (port.model, port.firmware) {
            models
                .entry(model)
                .or_default()
                .entry(version)
                .or_insert(quote);
        }
    }
    models
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(model, versions)| {
            let names: BTreeSet<&str> = versions.keys().map(String::as_str).collect();
            let names: Vec<&str> = names.into_iter().collect();
            rule.warning(format!(
                "Cards of model {model} run different firmware: {}",
                names.join(", ")
            ))
            .quoting_all(versions.values().cloned())
            .fixed_by(
                Fix::run(
                    "Bring all to one version.",
                    "sudo mlxfwmanager --online -u   # or the vendor's tool",
                )
                .checked_by("ibv_devinfo | grep -E 'hca_id|fw_ver'"),
            )
            .doubting("Boards of different makers can carry one chip with versions of their own.")
        })
        .collect()
}

pub(super) const BUILD_ORDER: Rule = Rule {
    id: "R8",
    name: "driver-before-rdma-stack",
    family: Family::Rdma,
    summary: "nvidia-peermem was built against another RDMA stack",
    page: Page {
        condition: "The GPU driver was built before the RDMA stack that is installed now.",
        detection: "Kernel message `Unknown symbol ib_register_peer_memory_client` (or a version that differs).",
        consequence: "nvidia-peermem does not load: no GPUDirect RDMA by that way.",
        fix: "Build the GPU driver again, after the RDMA stack: dkms or reinstall.",
        source: "ai-dynamo/nixl documentation; stelline documentation",
        false_alarms: "The kernel's own RDMA stack has no such symbol: there dma-buf is the way.",
    },
    check: build_order,
};

fn build_order(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.kernel_logs()
        .filter_map(|log| {
            let seen = log.messages.iter().find(|m| {
                matches!(&m.what.topic, Topic::UnknownSymbol(name) if name.contains("peer_memory_client"))
            })?;
            Some(
                rule.fault("nvidia-peermem does not load: the RDMA stack in use lacks the hook that it was built for")
                    .quoting(&seen.first)
                    .fixed_by(
                        Fix::run("Build the GPU driver's modules again, with the installed RDMA stack.", "sudo dkms autoinstall --force && sudo modprobe nvidia-peermem")
                            .checked_by("lsmod | grep nvidia_peermem"),
                    )
                    .fixed_by(Fix::by_hand("Or use dma-buf, with the open GPU driver and a kernel of 5.12 or later."))
                    .doubting("The kernel's own RDMA stack never has this hook; with it dma-buf is the only way."),
            )
        })
        .collect()
}

pub(super) const UCX_STAGES: Rule = Rule {
    id: "R9",
    name: "ucx-through-host",
    family: Family::Rdma,
    summary: "UCX moves GPU memory by TCP or by way of host memory",
    page: Page {
        condition: "UCX's protocol for GPU memory copies through host memory, or its lanes are TCP.",
        detection: "Rows of UCX_PROTO_INFO tables for cuda or rocm memory that name cuda_copy, pipeline or host staging; lanes with tcp and no RDMA transport.",
        consequence: "GPU data is bounced.",
        fix: "UCX with CUDA and gdrcopy or dma-buf support, UCX_TLS and UCX_NET_DEVICES that allow rc, and what N5 says of the peer memory module.",
        source: "UCX documentation, UCX_PROTO_INFO",
        false_alarms: "Small messages go through host memory on purpose, where that is faster.",
    },
    check: ucx_stages,
};

fn ucx_stages(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in case.ucx_logs() {
        let staged: Vec<_> = gpu_protocols(log)
            .into_iter()
            .filter(|p| matches!(p.verdict, Verdict::Staged | Verdict::Socket))
            .collect();
        if let Some(first) = staged.first() {
            let how = if first.verdict == Verdict::Socket {
                "by TCP"
            } else {
                "by way of host memory"
            };
            findings.push(
                rule.fault(format!(
                    "UCX moves large messages of GPU memory {how} ({})",
                    first.table.title.value.trim()
                ))
                .quoting_all(staged.iter().flat_map(|p| [&p.table.title.cite, &p.row.cite]))
                .fixed_by(
                    Fix::run("See which transports UCX was built with and finds here.", "ucx_info -d | grep -E 'Transport|Device|cuda|rocm'")
                        .checked_by("UCX_PROTO_INFO=y <job> 2>&1 | grep -A3 cuda"),
                )
                .doubting("A pipeline through host memory can be UCX's choice where the NIC is far from the GPU."),
            );
        }
        let tcp_only = log.endpoints.iter().find(|e| {
            let lanes = &e.what.lanes;
            let tcp = lanes.iter().any(|(_, over)| over.contains("tcp"));
            let rdma = lanes.iter().any(|(_, over)| {
                ["rc", "dc", "ud", "srd", "ib"]
                    .iter()
                    .any(|t| over.starts_with(t))
            });
            tcp && !rdma && (e.what.config.contains("inter") || lanes.len() == 1)
        });
        if let Some(endpoint) = tcp_only {
            findings.push(
                rule.warning(format!("UCX connects by TCP ({})", endpoint.what.config))
                    .quoting(&endpoint.first)
                    .fixed_by(
                        Fix::run("Let UCX use RDMA, and see what it finds.", "unset UCX_TLS UCX_NET_DEVICES; ucx_info -d | grep -E 'Transport|Device'")
                            .checked_by("UCX_LOG_LEVEL=info <job> 2>&1 | grep cfg"),
                    )
                    .doubting("Connections for set-up alone may be TCP rightly."),
            );
        }
    }
    findings
}

pub(super) const ENGINE_ERRORS: Rule = Rule {
    id: "R10",
    name: "transfer-engine-errors",
    family: Family::Rdma,
    summary: "NIXL or Mooncake reports that transfers or registrations failed",
    page: Page {
        condition: "A transfer engine wrote errors.",
        detection: "Lines of level error or fatal; those about queue pairs, retries and registration end transfers.",
        consequence: "Those transfers failed, or the engine went another way.",
        fix: "Retries and queue pairs: GID, routes and ports, as N20. Registration: locked memory (C1), peer memory module or dma-buf (N5).",
        source: "Mooncake and NIXL sources, their own messages",
        false_alarms: "A peer that ended first causes the same.",
    },
    check: engine_errors,
};

/// Words of errors after which data did not arrive.
const FATAL: [&str; 7] = [
    "retry counter exceeded",
    "modify QP",
    "modify_qp",
    "register memory",
    "ibv_reg_mr",
    "registerMem",
    "Failed to establish",
];

fn engine_errors(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.transfer_logs()
        .filter_map(|log| {
            let seen: Vec<_> = log
                .messages
                .iter()
                .filter(|m| m.what.level >= Level::Error)
                .collect();
            let fatal = seen
                .iter()
                .find(|m| FATAL.iter().any(|words| m.what.text.contains(words)));
            let first = fatal.or(seen.first())?;
            let title = format!("The transfer engine reports: {}", first.what.text);
            let finding = if fatal.is_some() {
                rule.broken(title)
            } else {
                rule.warning(title)
            };
            Some(
                finding
                    .quoting(&first.first)
                    .quoting_all(seen.iter().map(|m| &m.first))
                    .fixed_by(
                        Fix::run("See whether plain RDMA works between the two nodes, and GPU memory can be registered.", "ib_write_bw -d <nic> --use_cuda=0 <peer>")
                            .checked_by("ibv_devinfo | grep state; ulimit -l; lsmod | grep nvidia_peermem"),
                    )
                    .doubting("A peer that ended first causes the same."),
            )
        })
        .collect()
}
