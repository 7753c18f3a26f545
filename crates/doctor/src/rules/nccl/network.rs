//! Which network NCCL chose: N13, N14, N17, and plugins and NICs left idle.

use std::collections::BTreeSet;

use crowfly_route::obstacle::{Cost, Fix};
use crowfly_route::units::BytesPerSecond;

use crate::case::Case;
use crate::evidence::nccl_log::{NcclLog, Note, PluginNote};
use crate::facts::flows::{Span, is_socket, net_uses, span};
use crate::facts::nics::few_nics;
use crate::facts::rdma::ports;
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(super) const NO_RDMA: Rule = Rule {
    id: "N13",
    name: "no-rdma-network",
    family: Family::Nccl,
    summary: "NCCL found no RDMA device and uses sockets",
    page: Page {
        condition: "NCCL's RDMA network found no device, or sockets were chosen.",
        detection: "`NET/IB : No device found.`, `NET/Socket : Using`, `Using network Socket` (or FastSocket), in a job that is not known to stay on one node.",
        consequence: "All network data goes through the kernel's TCP stack and host memory.",
        fix: "Give the job /dev/infiniband; check the NCCL_IB_HCA filter, that libibverbs and the provider are installed, and that ports are up.",
        source: "NCCL src/transport/net_ib.cc, net_socket.cc",
        false_alarms: "A job on one node needs no network. A plugin's network that was chosen instead is not this.",
    },
    check: no_rdma,
};

/// Whether some RDMA network is in use or was initialised.
fn rdma_in_use(log: &NcclLog) -> bool {
    let chosen = log.networks.iter().any(|n| !is_socket(&n.what));
    let channels = net_uses(log).iter().any(|u| !is_socket(&u.network));
    let initialised = log.plugins.iter().any(|p| match &p.what {
        PluginNote::Initialized(name) => !is_socket(name),
        _ => false,
    });
    chosen || channels || initialised
}

fn no_rdma(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let none = log.notes.iter().find(|n| n.what == Note::NoIbDevice);
            let chosen = log.networks.iter().find(|n| is_socket(&n.what));
            let sockets = log.sockets.first();
            let channel = net_uses(log).into_iter().find(|u| is_socket(&u.network));
            let channel = channel.as_ref().and_then(|u| u.cite(u.plain() == 0));
            let nothing = none.is_none() && chosen.is_none() && sockets.is_none() && channel.is_none();
            if rdma_in_use(log) || nothing {
                return None;
            }
            let quotes = none
                .map(|n| &n.first)
                .into_iter()
                .chain(sockets.map(|s| &s.first))
                .chain(chosen.map(|c| &c.first))
                .chain(channel);
            if span(log) == Span::OneNode {
                return Some(
                    rule.note("NCCL has sockets alone for a network, which this job on one node does not need")
                        .quoting_all(quotes)
                        .doubting("Over several nodes the same settings would send everything through TCP."),
                );
            }
            let over_ib = sockets.and_then(|s| {
                s.what
                    .interfaces
                    .iter()
                    .find(|i| i.name.starts_with("ib"))
            });
            let title = match (none, over_ib) {
                (_, Some(interface)) => format!(
                    "NCCL uses TCP over {}, an InfiniBand interface: IP over InfiniBand, not RDMA",
                    interface.name
                ),
                (Some(_), None) => "NCCL found no RDMA device and goes through TCP sockets".to_owned(),
                (None, None) => "NCCL goes through TCP sockets".to_owned(),
            };
            let filter = log
                .settings
                .iter()
                .find(|s| s.what.name == "NCCL_IB_HCA");
            let mut finding = rule
                .fault(title)
                .quoting_all(quotes)
                .quoting_all(filter.map(|f| &f.first))
                .implying(PairKind::GpuNic, Verdict::Socket)
                .fixed_by(
                    Fix::run("See whether the job sees RDMA devices at all.", "ls /dev/infiniband /sys/class/infiniband; ibv_devinfo")
                        .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'NET/IB : Using'"),
                );
            if let Some(filter) = filter {
                finding = finding.fixed_by(Fix::by_hand(format!(
                    "NCCL_IB_HCA={} has to name a device that is visible in this container and whose port is active; unset it to let NCCL look for itself.",
                    filter.what.value
                )));
            }
            if span(log) == Span::Unknown {
                finding = finding.doubting("If all ranks run on one node, no network is needed and this is harmless.");
            }
            Some(finding)
        })
        .collect()
}

pub(super) const WRONG_INTERFACE: Rule = Rule {
    id: "N14",
    name: "wrong-interface",
    family: Family::Nccl,
    summary: "NCCL picked an interface that other nodes cannot reach",
    page: Page {
        condition: "Sockets or the bootstrap use a loopback, container, virtual or wireless interface.",
        detection: "`NET/Socket : Using` and `Bootstrap : Using` with lo, docker, br-, virbr, veth, cni, flannel, cali, podman, tailscale, tun, zt, wg or wl.",
        consequence: "Over several nodes the job hangs at the start, or crawls.",
        fix: "NCCL_SOCKET_IFNAME with the interface that reaches the other nodes.",
        source: "NCCL documentation, NCCL_SOCKET_IFNAME",
        false_alarms: "On one node it does no harm, and is reported as a note.",
    },
    check: wrong_interface,
};

const UNREACHABLE: [&str; 16] = [
    "lo",
    "docker",
    "br-",
    "virbr",
    "veth",
    "cni",
    "flannel",
    "cali",
    "podman",
    "tailscale",
    "tun",
    "zt",
    "wg",
    "wl",
    "lxc",
    "kube-ipvs",
];

pub(crate) fn is_unreachable(interface: &str) -> bool {
    UNREACHABLE.iter().any(|start| {
        if *start == "lo" {
            interface == "lo"
        } else {
            interface.starts_with(start)
        }
    })
}

fn wrong_interface(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let in_sockets = log
                .sockets
                .iter()
                .flat_map(|s| s.what.interfaces.iter().map(move |i| (i, &s.first)));
            let in_bootstrap = log
                .bootstrap
                .iter()
                .flat_map(|s| s.what.iter().map(move |i| (i, &s.first)));
            let bad: Vec<_> = in_sockets
                .chain(in_bootstrap)
                .filter(|(interface, _)| is_unreachable(&interface.name))
                .collect();
            if bad.is_empty() {
                return None;
            }
            let names: BTreeSet<&str> = bad.iter().map(|(i, _)| i.name.as_str()).collect();
            let names: Vec<&str> = names.into_iter().collect();
            let title = format!(
                "NCCL picked {}, which other nodes cannot reach",
                names.join(" and ")
            );
            let finding = match span(log) {
                Span::OneNode => rule.note(format!("{title}; harmless on one node")),
                Span::ManyNodes => rule.fault(title),
                Span::Unknown => rule.warning(title).doubting("On one node it does no harm."),
            };
            Some(
                finding
                    .quoting_all(bad.iter().map(|(_, cite)| *cite))
                    .fixed_by(
                        Fix::run(
                            "Name the interface that reaches the other nodes, or exclude these.",
                            format!("export NCCL_SOCKET_IFNAME=^{}", names.join(",")),
                        )
                        .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'Bootstrap'"),
                    ),
            )
        })
        .collect()
}

pub(super) const NO_PXN: Rule = Rule {
    id: "N17",
    name: "pxn-off",
    family: Family::Nccl,
    summary: "PXN is off because the network plugin is old",
    page: Page {
        condition: "GPUs cannot send through a peer's NIC, because the plugin's interface is too old for it.",
        detection: "`PXN Disabled as plugin is v4`.",
        consequence: "On rail-wise networks traffic between rails crosses the spine, and all-to-all slows down.",
        fix: "A plugin whose interface is v5 or later.",
        source: "NCCL src/transport/net.cc, ncclPxnDisable",
        false_alarms: "With one NIC a node nothing is lost.",
    },
    check: no_pxn,
};

fn no_pxn(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let said = log
                .notes
                .iter()
                .find(|note| matches!(note.what, Note::PxnDisabled(_)))?;
            Some(
                rule.warning("GPUs cannot use a peer's NIC (PXN): the network plugin's interface is too old")
                    .quoting(&said.first)
                    .fixed_by(
                        Fix::by_hand("Use a newer network plugin, of the same release as NCCL where it comes with the container.")
                            .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep -c 'PXN Disabled'   # 0 is right"),
                    )
                    .doubting("It matters where a node has several NICs on separate rails."),
            )
        })
        .collect()
}

pub(super) const PLUGIN_FAILED: Rule = Rule {
    id: "N26",
    name: "network-plugin-failed",
    family: Family::Nccl,
    summary: "a network plugin was found and could not be initialised",
    page: Page {
        condition: "A network plugin such as aws-ofi-nccl was loaded and failed.",
        detection: "Lines in which the plugin or NCCL says that it could not be initialised, and no other RDMA network in use.",
        consequence: "NCCL goes on with its own network, which in a cloud means TCP.",
        fix: "The plugin's own messages name the cause: no device given to the container, another libfabric, a missing provider.",
        source: "NCCL src/plugin/net.cc; practice",
        false_alarms: "On one node no network is needed, and RDMA devices are often not given to such a job.",
    },
    check: plugin_failed,
};

fn plugin_failed(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let failed = log.plugins.iter().find(|p| match &p.what {
                PluginNote::Failed(name) => name != "IB" && !is_socket(name),
                _ => false,
            });
            let warned = log.warnings.iter().find(|w| {
                let text = &w.what.text;
                text.contains("NET/OFI")
                    && (text.contains("nitializ") || text.contains("ailed to init"))
                    && text.to_ascii_lowercase().contains("fail")
            });
            let first = warned.map(|w| &w.first).or(failed.map(|f| &f.first))?;
            let title = "A network plugin was loaded and could not be initialised";
            let finding = if span(log) == Span::OneNode || rdma_in_use(log) {
                rule.note(format!("{title}; this job does without it"))
            } else {
                rule.warning(title)
            };
            Some(
                finding
                    .quoting(first)
                    .quoting_all(failed.map(|f| &f.first))
                    .fixed_by(
                        Fix::run(
                            "See which provider libfabric finds.",
                            "fi_info -p efa -t FI_EP_RDM",
                        )
                        .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'Using network'"),
                    ),
            )
        })
        .collect()
}

pub(super) const IDLE_NICS: Rule = Rule {
    id: "N27",
    name: "nics-left-idle",
    family: Family::Nccl,
    summary: "NCCL lists more NICs than its channels use",
    page: Page {
        condition: "A node has RDMA NICs that no channel of a completed run uses.",
        detection: "Devices of `NET/IB : Using` that no channel line names, while fewer are used than the node has GPUs; or NCCL_IB_HCA naming at most half as many NICs as the node has GPUs.",
        consequence: "The rate of the idle NICs is lost, unless they serve storage or management.",
        fix: "Check that each is near a GPU (topology) and of the same kind and rate; name the ones for NCCL with NCCL_IB_HCA.",
        source: "practice",
        false_alarms: "NICs for storage or management, and NICs of another link layer or rate, are left out rightly. A clipped log shows fewer channels.",
    },
    check: idle_nics,
};

fn idle_nics(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings: Vec<Finding> = few_named(rule, case).into_iter().collect();
    findings.extend(unused(rule, case));
    findings
}

/// NCCL_IB_HCA names fewer NICs than a node has GPUs.
fn few_named(rule: &Rule, case: &Case) -> Option<Finding> {
    let few = few_nics(case)?;
    Some(
        rule.warning(format!(
            "NCCL_IB_HCA={} leaves {} to the {} GPUs of a node, which share its rate",
            few.setting.value,
            few.counted(),
            few.gpus
        ))
        .quoting(few.setting.quote.clone())
        .fixed_by(
            Fix::run(
                "Name one NIC for each GPU, or let NCCL choose.",
                "unset NCCL_IB_HCA",
            )
            .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'NET/IB : Using'"),
        )
        .doubting("If the node has no more NICs than these, this is its best."),
    )
}

/// The line rate of a NIC in Gb/s, as other evidence shows it.
fn rate_of(case: &Case, name: &str) -> Option<f64> {
    let of_port = ports(case)
        .into_iter()
        .find(|p| p.device == name)
        .and_then(|p| p.rate_gbps);
    let of_file = || {
        let mut nets = case.nccl_topologies().flat_map(|t| &t.nets);
        Some(nets.find(|n| n.name == name)?.speed_mbps? as f64 / 1e3)
    };
    of_port.or_else(of_file)
}

fn unused(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let list = log.ib.iter().max_by_key(|l| l.what.devices.len())?;
            let uses: Vec<_> = net_uses(log)
                .into_iter()
                .filter(|u| !is_socket(&u.network))
                .collect();
            let used: BTreeSet<u32> = uses.iter().map(|u| u.device).collect();
            let listed: BTreeSet<u32> = list.what.devices.iter().map(|d| d.index).collect();
            let idle: Vec<&str> = list
                .what
                .devices
                .iter()
                .filter(|d| !used.contains(&d.index))
                .filter_map(|d| d.ports.first().map(|p| p.name.as_str()))
                .collect();
            let alike = {
                let layers: BTreeSet<_> = list
                    .what
                    .devices
                    .iter()
                    .flat_map(|d| d.ports.iter().map(|p| format!("{:?}{}", p.layer, p.sharp)))
                    .collect();
                layers.len() == 1
            };
            // As many NICs as GPUs is what a node needs; more serve other ends.
            let devices = log.processes.iter().filter_map(|p| p.device).max();
            let gpus = devices.map_or(0, |last| last as usize + 1);
            if used.len() >= gpus {
                return None;
            }
            let whole = log.rings.len() + log.members.iter().filter(|m| m.completed.is_some()).count() > 0;
            if used.is_empty() || idle.is_empty() || !used.is_subset(&listed) || !alike || !whole || list.what.clipped {
                return None;
            }
            let names = super::distance::list(idle.iter().copied());
            let rates = |devices: &BTreeSet<u32>| -> Option<f64> {
                list.what
                    .devices
                    .iter()
                    .filter(|d| devices.contains(&d.index))
                    .map(|d| rate_of(case, &d.ports.first()?.name))
                    .sum()
            };
            let finding = rule.warning(format!(
                    "Only {} of {} NICs carry channels; {names} carry none",
                    used.len(),
                    listed.len()
                ));
            let finding = match (rates(&used), rates(&listed)) {
                (Some(now), Some(without)) => finding.costing(
                    Cost {
                        now: BytesPerSecond::from_gbps(now),
                        without: BytesPerSecond::from_gbps(without),
                    },
                    "line rates of the NICs in use, and of all",
                ),
                _ => finding,
            };
            Some(
                finding.quoting(&list.first)
                .quoting_all(uses.iter().filter_map(|u| u.cite(u.plain() == 0)).take(2))
                .doubting("NICs meant for storage or management are left out rightly, and a clipped log shows fewer channels.")
                .fixed_by(Fix::by_hand("Check with `nvidia-smi topo -m` that each NIC is near a GPU, and name the ones for NCCL with NCCL_IB_HCA.")),
            )
        })
        .collect()
}
