//! RoCE addresses, priorities and loss: R4 to R6.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::{LinkLayer, Release};
use crate::facts::level::release;
use crate::facts::rdma::{Port, PortGid, ports};
use crate::facts::settings::settings;
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::rules::nccl::list;

pub(super) const GID: Rule = Rule {
    id: "R4",
    name: "wrong-gid",
    family: Family::Rdma,
    summary: "the RoCE address in use is not a RoCE v2 one over IPv4",
    page: Page {
        condition: "NCCL_IB_GID_INDEX points to an entry of another kind, or a port has no RoCE v2 entry over IPv4 at all.",
        detection: "The address table of show_gids, ibv_devinfo -v or sysfs (gid_attrs/types), against NCCL_IB_GID_INDEX.",
        consequence: "Packets are not routed or not answered: status 12 after seconds of retries.",
        fix: "Unset it: NCCL finds the entry itself since 2.21. Before, set the right index on each node.",
        source: "NCCL src/transport/net_ib, connect.cc",
        false_alarms: "Networks over IPv6, and flat ones on RoCE v1, work without such an entry.",
    },
    check: gid,
};

/// The first release that finds the address itself.
const FINDS_GID: Release = Release::new(2, 21, 5);

fn gid(rule: &Rule, case: &Case) -> Vec<Finding> {
    let ports: Vec<_> = ports(case)
        .into_iter()
        .filter(|p| p.ethernet != Some(false) && p.active != Some(false) && !p.gids.is_empty())
        .collect();
    let chosen = settings(case, "NCCL_IB_GID_INDEX");
    let mut findings = Vec::new();
    if let Some(setting) = chosen.first()
        && let Ok(index) = setting.value.trim().parse::<u32>()
    {
        let wrong: Vec<_> = ports
            .iter()
            .filter(|p| {
                !p.gids
                    .iter()
                    .any(|g| g.index == index && g.version_2 && g.ipv4)
                    && p.gids.iter().any(|g| g.version_2 && g.ipv4)
            })
            .collect();
        if let Some(first) = wrong.first() {
            let right = first.gids.iter().find(|g| g.version_2 && g.ipv4);
            let names: Vec<String> = wrong.iter().map(|p| p.name()).collect();
            findings.push(
                rule.fault(format!(
                    "NCCL_IB_GID_INDEX={index} is not the RoCE v2 address over IPv4 of {}, which is {}",
                    list(names.iter().map(String::as_str)),
                    right.map(|g| g.index).unwrap_or_default()
                ))
                .quoting(setting.quote.clone())
                .quoting_all(right.map(|g| g.quote.clone()))
                .fixed_by(
                    Fix::run("Let NCCL find it (2.21 and later), on every rank.", "unset NCCL_IB_GID_INDEX")
                        .checked_by("show_gids | grep v2"),
                ),
            );
        } else if ports.is_empty() {
            let new = release(case).is_some_and(|r| r >= FINDS_GID);
            let words = if new {
                "; this version would find it itself"
            } else {
                ""
            };
            findings.push(
                rule.note(format!("NCCL_IB_GID_INDEX is set to {index}{words}; the address tables of the nodes, in which the right one can differ, are not shown"))
                    .quoting(setting.quote.clone())
                    .fixed_by(Fix::run("Compare the tables of all nodes.", "show_gids")),
            );
        }
    }
    let without: Vec<_> = ports
        .iter()
        .filter(|p| p.ethernet == Some(true) || p.gids.iter().any(|g| g.version_2))
        .filter(|p| !p.gids.iter().any(|g| g.version_2 && g.ipv4))
        .collect();
    if !without.is_empty() {
        let names: Vec<String> = without.iter().map(|p| p.name()).collect();
        findings.push(
            rule.warning(format!(
                "{} has no RoCE v2 address over IPv4",
                list(names.iter().map(String::as_str))
            ))
            .quoting_all(without.iter().filter_map(|p| Some(p.gids.first()?.quote.clone())))
            .fixed_by(
                Fix::by_hand("Give the interface an IPv4 address; the entry appears by itself.")
                    .checked_by("show_gids | grep v2"),
            )
            .doubting("Networks over IPv6 need none. In a container the table shows only the addresses of its own network namespace."),
        );
    }
    if findings.is_empty() {
        findings.extend(usable(rule, &ports));
    }
    findings
}

/// The addresses that routable RoCE uses, as the tables show them.
fn usable(rule: &Rule, ports: &[Port]) -> Option<Finding> {
    let right: Vec<(String, &PortGid)> = ports
        .iter()
        .filter_map(|p| Some((p.name(), p.gids.iter().find(|g| g.version_2 && g.ipv4)?)))
        .collect();
    let words: Vec<String> = right
        .iter()
        .map(|(name, gid)| format!("{} of {name}", gid.index))
        .collect();
    (!words.is_empty()).then(|| {
        rule.note(format!(
            "The RoCE v2 address over IPv4 is index {}",
            list(words.iter().map(String::as_str))
        ))
        .quoting_all(right.iter().map(|(_, gid)| gid.quote.clone()))
    })
}

pub(super) const TRAFFIC_CLASS: Rule = Rule {
    id: "R5",
    name: "lossless-priority",
    family: Family::Rdma,
    summary: "nothing shows that RoCE traffic runs on the lossless priority",
    page: Page {
        condition: "RoCE traffic runs on a priority without flow control.",
        detection: "Failed transfers of NCCL over RoCE without NCCL_IB_TC; a value that looks like a DSCP not yet shifted by two bits (26, 34, 46), or is more than a byte. What the adapter and the switches treat as lossless is in mlnx_qos and their configuration.",
        consequence: "Under load packets are dropped, retries follow, and bandwidth collapses.",
        fix: "NCCL_IB_TC = DSCP of the lossless class, times four; GPU-initiated transports need their own setting.",
        source: "NVIDIA/nccl issue 2383; NVIDIA RoCE configuration",
        false_alarms: "Adapters and switches may map default traffic to the lossless class, and congestion control can do without.",
    },
    check: traffic_class,
};

/// A traffic class is one byte: six bits of DSCP, and two that mark congestion (RFC 3168).
const MAX_CLASS: u32 = 255;
/// Usual DSCPs of lossless classes that are no usual traffic classes.
const UNSHIFTED: [u32; 3] = [26, 34, 46];

fn traffic_class(rule: &Rule, case: &Case) -> Vec<Finding> {
    let set = settings(case, "NCCL_IB_TC");
    if let Some(setting) = set.first() {
        let odd = setting
            .value
            .trim()
            .parse::<u32>()
            .is_ok_and(|tc| tc > MAX_CLASS || UNSHIFTED.contains(&tc));
        return if odd {
            vec![
                rule.warning(format!("NCCL_IB_TC={} looks like a DSCP that was not shifted by two bits", setting.value))
                    .quoting(setting.quote.clone())
                    .doubting("As it is written it may be meant: then it is another class than the usual ones, with the low two bits for congestion marks.")
                    .fixed_by(Fix::run("Use the DSCP of the lossless class times four, as the network defines it (26 gives 104).", "export NCCL_IB_TC=104")),
            ]
        } else {
            Vec::new()
        };
    }
    case.nccl_logs()
        .filter_map(|log| {
            let roce = log.ib.iter().find(|list| {
                list.what
                    .devices
                    .iter()
                    .any(|d| d.ports.iter().any(|p| p.layer == LinkLayer::RoCe))
            })?;
            // Without a symptom there is nothing to look for.
            (!log.completions.is_empty()).then(|| {
                rule.warning("Transfers fail over RoCE without NCCL_IB_TC: whether its priority is lossless, only adapters and switches show")
                    .quoting(&roce.first)
                    .fixed_by(Fix::run("See which priorities have flow control, and which one default traffic takes.", "mlnx_qos -i <interface>; cat /sys/class/infiniband/*/tc/1/traffic_class"))
            })
        })
        .take(1)
        .collect()
}

pub(super) const COUNTERS: Rule = Rule {
    id: "R6",
    name: "loss-counters",
    family: Family::Rdma,
    summary: "an adapter counts lost or repeated packets",
    page: Page {
        condition: "Counters of loss are not zero.",
        detection: "out_of_sequence, packet_seq_err, local_ack_timeout_err, rnr_nak_retry_err of hw_counters; link_downed and port_rcv_errors of counters.",
        consequence: "If they grow under load, bandwidth is lost to retries.",
        fix: "Read them before and after a run; look at cables and flow control of the port that grows.",
        source: "NCCL documentation, networking issues; Linux RDMA counters",
        false_alarms: "They count since boot: only growth says something.",
    },
    check: counters,
};

/// Counters, and from how many on they are worth a word.
const WATCHED: [(&str, u64); 7] = [
    ("hw_counters/packet_seq_err", 1),
    ("hw_counters/local_ack_timeout_err", 1),
    ("hw_counters/rnr_nak_retry_err", 1),
    ("hw_counters/out_of_sequence", 1_000),
    ("counters/port_rcv_errors", 100),
    ("counters/link_downed", 8),
    ("counters/excessive_buffer_overrun_errors", 1),
];

fn counters(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.machines
        .iter()
        .filter_map(|machine| {
            let snapshot = machine.snapshot.as_ref()?;
            let mut grown = Vec::new();
            for (key, _) in snapshot.under("/sys/class/infiniband/") {
                let watched = WATCHED.iter().find(|(name, _)| key.ends_with(name));
                if let Some((_, many)) = watched
                    && snapshot.number::<u64>(key).is_some_and(|count| count >= *many)
                {
                    grown.extend(machine.quote(key));
                }
            }
            if grown.is_empty() {
                return None;
            }
            Some(
                rule.warning(format!("RDMA adapters of {} count lost or repeated packets", machine.source))
                    .quoting_all(grown)
                    .fixed_by(
                        Fix::by_hand("Read the counters before and after a run; look at cable, FEC and flow control of a port that grows.")
                            .checked_by("grep . /sys/class/infiniband/*/ports/1/hw_counters/*err"),
                    )
                    .doubting("They count since boot; only growth under load says something."),
            )
        })
        .collect()
}
