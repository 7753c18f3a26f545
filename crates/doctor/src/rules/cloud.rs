//! Clouds: V1 to V4.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::{NcclLog, Note, PluginNote};
use crate::facts::flows::{Span, is_socket, net_uses, span};
use crate::facts::host::has_nvidia_gpu;
use crate::facts::settings::settings;
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(crate) const RULES: &[Rule] = &[AWS, GCP_TCPX, GCP_ROCE, AZURE];

const AWS: Rule = Rule {
    id: "V1",
    name: "efa-without-gdr",
    family: Family::Cloud,
    summary: "EFA is used without GPUDirect RDMA",
    page: Page {
        condition: "aws-ofi-nccl carries NCCL over EFA, from host memory.",
        detection: "`disabling GDR` of the plugin, `GDR disabled on GDR-supported instance type`, or channels of the Libfabric network without /GDRDMA.",
        consequence: "GPU data is copied through host memory.",
        fix: "On p4d, p4de, p5 and later: libfabric 1.18 and plugin 1.7 or later, with which FI_EFA_USE_DEVICE_RDMA is not needed; before, set it to 1. Instance types without device RDMA (g4dn, g5, g6, g6e) have no such path.",
        source: "aws-ofi-nccl doc/efa-env-var.md",
        false_alarms: "On instance types without device RDMA this is their best. Protocol SENDRECV is the plugin's default on p4d and no fault.",
    },
    check: aws,
};

/// GPUs that AWS offers only on instance types without device RDMA.
fn without_device_rdma(name: &str) -> bool {
    ["T4", "A10G", "L4", "L40S", "M60", "RTX PRO"]
        .iter()
        .any(|model| name.contains(model))
}

fn is_ofi(log: &NcclLog) -> bool {
    log.plugins.iter().any(|p| {
        matches!(
            p.what,
            PluginNote::OfiPlugin(_) | PluginNote::Libfabric(_) | PluginNote::OfiProvider { .. }
        )
    }) || log.networks.iter().any(|n| n.what.contains("Libfabric"))
        || net_uses(log)
            .iter()
            .any(|u| u.network.contains("Libfabric"))
}

fn aws(rule: &Rule, case: &Case) -> Vec<Finding> {
    let small = case
        .tests()
        .flat_map(|t| &t.devices)
        .any(|d| without_device_rdma(&d.value.gpu));
    case.nccl_logs()
        .filter(|log| is_ofi(log))
        .filter_map(|log| {
            let said = log
                .notes
                .iter()
                .find(|n| matches!(n.what, Note::PluginDisablesGdr(_)));
            let uses = net_uses(log);
            let plain = uses
                .iter()
                .find(|u| u.network.contains("Libfabric") && u.plain() > 0);
            if said.is_none() && plain.is_none() {
                return unshown(rule, log);
            }
            let platform = log.plugins.iter().find_map(|p| match &p.what {
                PluginNote::Platform(name) => Some((name.as_str(), &p.first)),
                _ => None,
            });
            let big = platform.is_some_and(|(name, _)| {
                ["p4d", "p4de", "p5", "p5e", "p5en", "p6"].iter().any(|p| name.starts_with(p))
            });
            let title = match (said, big, small) {
                (_, true, _) => "EFA is used without GPUDirect RDMA on an instance type that has it",
                (_, _, true) => "EFA is used without GPUDirect RDMA: instance types with these GPUs have no device RDMA",
                (Some(_), ..) => "The EFA plugin switched GPUDirect RDMA off",
                (None, ..) => "EFA carries the data from host memory: GPUDirect RDMA is not used",
            };
            let mut finding = if small { rule.note(title) } else { rule.fault(title) }
                .quoting_all(said.map(|s| &s.first))
                .quoting_all(platform.map(|(_, cite)| cite))
                .quoting_all(plain.and_then(|u| u.cite(false)));
            if said.is_some() {
                finding = finding.implying(PairKind::GpuNic, Verdict::Staged);
            }
            if !small {
                finding = finding.fixed_by(
                    Fix::run("Use libfabric 1.18 or later and aws-ofi-nccl 1.7 or later; with older ones set this on every rank.", "export FI_EFA_USE_DEVICE_RDMA=1")
                        .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'via NET' | grep -vc GDRDMA   # 0 is right"),
                );
            }
            if !big && !small {
                finding = finding.doubting("The instance type is not shown; g4dn, g5, g6 and g6e have no device RDMA, and then this is their best.");
            }
            Some(finding)
        })
        .collect()
}

/// EFA was chosen, and no channel shows what became of it.
fn unshown(rule: &Rule, log: &NcclLog) -> Option<Finding> {
    let chosen = log.plugins.iter().find(|p| match &p.what {
        PluginNote::OfiProvider { provider, .. } => provider.contains("efa"),
        _ => false,
    })?;
    let settled = !net_uses(log).is_empty() || span(log) == Span::OneNode;
    (!settled).then(|| {
        rule.note("EFA is used; whether with GPUDirect RDMA, no channel line shows")
            .quoting(&chosen.first)
            .doubting("Instance types differ: p4d, p4de, p5 and later have device RDMA, g4dn, g5, g6 and g6e have not.")
    })
}

const GCP_TCPX: Rule = Rule {
    id: "V2",
    name: "gpudirect-tcp-incomplete",
    family: Family::Cloud,
    summary: "a Google A3 High or Mega node without its GPUDirect-TCPX(O) network, or without the settings it needs",
    page: Page {
        condition: "On A3 High and Mega, NCCL reaches GPU memory through Google's own plugin, which needs its settings and a receive daemon.",
        detection: "/dev/aperture_devices on the machine and sockets in the log; or the plugin's lines (FasTrak, GPUDirectTCPX) with NCCL_NET_GDR_LEVEL other than PIX or NCCL_CROSS_NIC other than 0.",
        consequence: "TCP through host memory, or a slow plugin.",
        fix: "Source nccl-env-profile.sh of the plugin on every rank, and run the receive daemon beside the job.",
        source: "GoogleCloudPlatform/container-engine-accelerators, gpudirect-tcpxo",
        false_alarms: "A3 Ultra and A4 use RoCE and not this plugin (V3).",
    },
    check: gcp_tcpx,
};

fn speaks(log: &NcclLog, names: &[&str]) -> bool {
    let has = |text: &str| names.iter().any(|n| text.to_ascii_lowercase().contains(n));
    log.networks.iter().any(|n| has(&n.what))
        || log.plugins.iter().any(|p| match &p.what {
            PluginNote::Speaks(name) | PluginNote::Initialized(name) => has(name),
            PluginNote::Loaded { name, .. } => has(name),
            _ => false,
        })
}

fn gcp_tcpx(rule: &Rule, case: &Case) -> Vec<Finding> {
    let profile = |finding: Finding| {
        finding.fixed_by(
            Fix::run(
                "Take the plugin's own settings over on every rank.",
                "source /usr/local/fastrak/lib64/nccl-env-profile.sh",
            )
            .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep -E 'Using network|via NET' | head"),
        )
    };
    let mut findings = Vec::new();
    let aperture = case.machines.iter().find_map(|m| {
        m.has("/dev/aperture_devices")
            .then(|| m.quote("/dev/aperture_devices"))?
    });
    for log in case.nccl_logs() {
        let plugin = speaks(log, &["fastrak", "tcpx"]);
        let socket = log
            .networks
            .iter()
            .find(|n| is_socket(&n.what) && !n.what.to_ascii_lowercase().contains("tcpx"));
        if let (Some(aperture), Some(socket), false) = (&aperture, socket, plugin) {
            findings.push(profile(
                rule.fault("This machine has GPUDirect-TCPX(O), and NCCL uses plain sockets")
                    .quoting(&socket.first)
                    .quoting(aperture.clone())
                    .implying(PairKind::GpuNic, Verdict::Socket),
            ));
        }
        if plugin {
            for (name, right) in [("NCCL_NET_GDR_LEVEL", "PIX"), ("NCCL_CROSS_NIC", "0")] {
                let set = settings(case, name);
                if let Some(wrong) = set.iter().find(|s| s.value.trim() != right) {
                    findings.push(profile(
                        rule.warning(format!(
                            "{name}={} where Google's plugin needs {right}",
                            wrong.value
                        ))
                        .quoting(wrong.quote.clone()),
                    ));
                }
            }
        }
    }
    findings
}

const GCP_ROCE: Rule = Rule {
    id: "V3",
    name: "gib-not-used",
    family: Family::Cloud,
    summary: "a Google A3 Ultra or A4 node whose gIB plugin is there and not used",
    page: Page {
        condition: "On A3 Ultra and A4, NCCL uses RoCE through Google's gIB plugin.",
        detection: "The plugin's library or lines in a log whose network is sockets. With NET/gIB or NET/IB and /GDRDMA all is well.",
        consequence: "TCP through host memory.",
        fix: "Source set_nccl_env.sh of gIB on every rank, and give the pod its RDMA interfaces.",
        source: "GoogleCloudPlatform/container-engine-accelerators, gpudirect-rdma",
        false_alarms: "A job on one node uses no network.",
    },
    check: gcp_roce,
};

fn gcp_roce(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let gib = log.plugins.iter().find(|p| match &p.what {
                PluginNote::Path(path) => path.contains("gib"),
                PluginNote::Loaded { name, .. } | PluginNote::Speaks(name) => name.contains("gIB"),
                _ => false,
            })?;
            let socket = log.networks.iter().find(|n| is_socket(&n.what))?;
            Some(
                rule.fault("Google's gIB plugin is there, and NCCL uses sockets")
                    .quoting(&socket.first)
                    .quoting(&gib.first)
                    .implying(PairKind::GpuNic, Verdict::Socket)
                    .fixed_by(
                        Fix::run(
                            "Take gIB's settings over on every rank.",
                            "source /usr/local/gib/scripts/set_nccl_env.sh",
                        )
                        .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'Using network'"),
                    )
                    .doubting("A job on one node uses no network."),
            )
        })
        .collect()
}

const AZURE: Rule = Rule {
    id: "V4",
    name: "azure-nd-settings",
    family: Family::Cloud,
    summary: "an Azure ND node without its topology file or relaxed ordering",
    page: Page {
        condition: "Azure's ND series shows virtual PCI, so NCCL needs a topology file; and its CPUs need relaxed ordering.",
        detection: "Azure's device names (mlx5_ib0 …) in a log, or its firmware in a snapshot with RDMA and NVIDIA GPUs, without NCCL_TOPO_FILE, or with NCCL_IB_PCI_RELAXED_ORDERING not 1.",
        consequence: "GPUs are paired with far NICs; half the bandwidth.",
        fix: "NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml (ndv5 on H100), NCCL_IB_PCI_RELAXED_ORDERING=1.",
        source: "Azure/azhpc-images",
        false_alarms: "Where all channels end in /GDRDMA and the rate is right, nothing is lost; so it is a note then. NCCL turns relaxed ordering on by itself where it can.",
    },
    check: azure,
};

fn azure(rule: &Rule, case: &Case) -> Vec<Finding> {
    let named = case.nccl_logs().find_map(|log| {
        let list = log.ib.iter().find(|list| {
            list.what
                .devices
                .iter()
                .filter(|d| d.ports.iter().any(|p| p.name.starts_with("mlx5_ib")))
                .count()
                >= 4
        })?;
        Some(crate::finding::Quote::from(&list.first))
    });
    const VENDOR: &str = "/sys/class/dmi/id/sys_vendor";
    let machine = case.machines.iter().find_map(|m| {
        let azure = m.text(VENDOR).is_some_and(|v| v.starts_with("Microsoft"));
        let nd = azure
            && has_nvidia_gpu(m)
            && crate::facts::host::has_rdma(m)
            && m.has("capture:environment");
        nd.then(|| m.quote(VENDOR))?
    });
    let Some(quote) = named.or(machine) else {
        return Vec::new();
    };
    let topology = !settings(case, "NCCL_TOPO_FILE").is_empty()
        || case.machines.iter().any(|m| {
            m.text("/etc/nccl.conf")
                .is_some_and(|c| c.contains("NCCL_TOPO_FILE"))
        });
    let ordering = settings(case, "NCCL_IB_PCI_RELAXED_ORDERING");
    let off = ordering.iter().find(|s| s.value.trim() == "0");
    let all_direct = {
        let uses: Vec<_> = case.nccl_logs().flat_map(net_uses).collect();
        !uses.is_empty() && uses.iter().all(|u| u.plain() == 0)
    };
    let (title, extra) = match (topology, off) {
        (_, Some(off)) => (
            "Relaxed ordering is switched off on an Azure ND node",
            Some(off.quote.clone()),
        ),
        (false, None) => (
            "No NCCL_TOPO_FILE on an Azure ND node, whose PCI is virtual",
            None,
        ),
        (true, None) => return Vec::new(),
    };
    let finding = if all_direct && off.is_none() {
        rule.note(title)
    } else {
        rule.warning(title)
    };
    vec![
        finding
            .quoting(quote)
            .quoting_all(extra)
            .fixed_by(
                Fix::run(
                    "Set both on every rank (ndv5-topo.xml on H100).",
                    "export NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml NCCL_IB_PCI_RELAXED_ORDERING=1",
                )
                .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep -E 'TOPO_FILE|RELAXED'"),
            )
            .doubting("Images set it in /etc/nccl.conf, and some NCCL versions do not print that."),
    ]
}
