//! Ports: R1 to R3.

use std::collections::BTreeMap;

use crowfly_route::obstacle::{Cost, Fix};
use crowfly_route::units::BytesPerSecond;

use crate::case::Case;
use crate::facts::rdma::{Port, ports};
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::rules::nccl::list;
use crate::verdict::{PairKind, Verdict};

/// Ports by the machine or source that lists them.
fn by_machine(case: &Case) -> BTreeMap<String, Vec<Port>> {
    let mut grouped: BTreeMap<String, Vec<Port>> = BTreeMap::new();
    for port in ports(case) {
        grouped.entry(port.on.clone()).or_default().push(port);
    }
    grouped
}

pub(super) const NOT_ACTIVE: Rule = Rule {
    id: "R1",
    name: "port-not-active",
    family: Family::Rdma,
    summary: "an RDMA port is not active",
    page: Page {
        condition: "The port of an RDMA device is not in service.",
        detection: "state other than ACTIVE in ibv_devinfo, ibstat, ibstatus, rdma link or sysfs.",
        consequence: "The device is skipped; when no port is active there is no RDMA at all.",
        fix: "Cable, switch port, subnet manager (state INIT), `ip link set up` for RoCE.",
        source: "NCCL documentation, networking issues",
        false_alarms: "Second ports of a card and ports that somebody disabled are often meant to be down.",
    },
    check: not_active,
};

fn not_active(rule: &Rule, case: &Case) -> Vec<Finding> {
    by_machine(case)
        .into_iter()
        .filter_map(|(on, ports)| {
            let known: Vec<&Port> = ports.iter().filter(|p| p.active.is_some()).collect();
            let down: Vec<&Port> = known.iter().copied().filter(|p| p.active == Some(false)).collect();
            if down.is_empty() {
                return all_active(rule, &known);
            }
            let names: Vec<String> = down.iter().map(|p| p.name()).collect();
            let names = list(names.iter().map(String::as_str));
            let finding = if down.len() == known.len() {
                rule.broken(format!("No RDMA port of {on} is active: {names}"))
                    .implying(PairKind::GpuNic, Verdict::Broken)
                    .doubting("With no port up, software that can goes through TCP instead, over other interfaces.")
            } else {
                rule.warning(format!("{} of {} RDMA ports of {on} are not active: {names}", down.len(), known.len()))
                    .doubting("Unused ports of a card are meant to be down.")
            };
            Some(
                finding
                    .quoting_all(down.iter().map(|p| p.quote.clone()))
                    .fixed_by(
                        Fix::by_hand("Look at cable and switch port; on InfiniBand at the subnet manager; on RoCE set the interface up.")
                            .checked_by("ibv_devinfo | grep -E 'hca_id|state'"),
                    ),
            )
        })
        .collect()
}

/// What the ports of a machine are, when nothing is wrong with their state.
fn all_active(rule: &Rule, known: &[&Port]) -> Option<Finding> {
    let words: Vec<String> = known
        .iter()
        .map(|port| {
            let rate = port
                .rate_gbps
                .map_or(String::new(), |rate| format!(" {rate:.0} Gb/s"));
            let layer = match port.ethernet {
                Some(true) => " RoCE",
                Some(false) => " InfiniBand",
                None => "",
            };
            format!("{}{rate}{layer}", port.name())
        })
        .collect();
    let all = match words.len() {
        0 => return None,
        1 => "The RDMA port is active".to_owned(),
        ports => format!("All {ports} RDMA ports are active"),
    };
    Some(
        rule.note(format!("{all}: {}", list(words.iter().map(String::as_str))))
            .quoting_all(known.iter().map(|p| p.quote.clone())),
    )
}

pub(super) const RATES: Rule = Rule {
    id: "R2",
    name: "mixed-rates",
    family: Family::Rdma,
    summary: "active ports differ in rate or kind",
    page: Page {
        condition: "Active ports of one machine have different rates or link layers, or one of several like cards is slower than the others.",
        detection: "Rate and link layer of the active ports; cards of one model held against each other.",
        consequence: "A slow rail sets the pace of all; a management port that is taken for a rail does so by far.",
        fix: "For a slow card: cable, FEC, the port's speed at the switch. For unlike cards: name the ones for data with NCCL_IB_HCA.",
        source: "practice",
        false_alarms: "Unlike cards are fine when the slow ones are not used for data.",
    },
    check: rates,
};

fn rates(rule: &Rule, case: &Case) -> Vec<Finding> {
    by_machine(case)
        .into_iter()
        .flat_map(|(on, ports)| {
            let active: Vec<&Port> = ports.iter().filter(|p| p.active == Some(true)).collect();
            let rated: Vec<(&Port, f64)> = active
                .iter()
                .filter_map(|p| Some((*p, p.rate_gbps.filter(|r| *r > 0.0)?)))
                .collect();
            let mut findings = Vec::new();
            findings.extend(slower_than_peers(rule, &rated));
            if findings.is_empty() {
                findings.extend(unlike(rule, &on, &active, &rated));
            }
            findings
        })
        .collect()
}

fn slower_than_peers(rule: &Rule, rated: &[(&Port, f64)]) -> Option<Finding> {
    let slow = rated.iter().find_map(|(port, rate)| {
        let alike = |other: &&(&Port, f64)| {
            other.0.model.is_some()
                && other.0.model == port.model
                && other.0.ethernet == port.ethernet
        };
        let best = rated
            .iter()
            .filter(alike)
            .map(|(_, r)| *r)
            .fold(0.0, f64::max);
        (best > *rate).then_some((port, *rate, best))
    })?;
    let (port, rate, best) = slow;
    Some(
        rule.fault(format!(
            "{} runs at {rate} Gb/s; other cards of its model run at {best} Gb/s",
            port.name()
        ))
        .quoting_all(port.rate_quote.clone())
        .costing(
            Cost {
                now: BytesPerSecond::from_gbps(rate),
                without: BytesPerSecond::from_gbps(best),
            },
            "line rates of the ports",
        )
        .implying(PairKind::GpuNic, Verdict::DirectButSlow)
        .fixed_by(
            Fix::run("Look at the link: cable, forward error correction, the port's speed at the switch.", format!("mlxlink -d {} -m -e -c", port.device))
                .checked_by("ibstat | grep Rate"),
        )
        .doubting("Ports of one card model can be configured differently on purpose."),
    )
}

fn unlike(rule: &Rule, on: &str, active: &[&Port], rated: &[(&Port, f64)]) -> Option<Finding> {
    let fastest = rated.iter().map(|(_, r)| *r).fold(0.0, f64::max);
    let slower: Vec<&Port> = rated
        .iter()
        .filter(|(_, r)| *r < fastest)
        .map(|(p, _)| *p)
        .collect();
    let kinds: Vec<bool> = active.iter().filter_map(|p| p.ethernet).collect();
    let mixed = kinds.contains(&true) && kinds.contains(&false);
    if slower.is_empty() && !mixed {
        return None;
    }
    let best: Vec<String> = rated
        .iter()
        .filter(|(_, r)| *r >= fastest)
        .map(|(p, _)| p.device.clone())
        .collect();
    let what = match (slower.is_empty(), mixed) {
        (false, true) => "rates and link layers",
        (false, false) => "rates",
        _ => "link layers",
    };
    let finding = rule
        .warning(format!("Active RDMA ports of {on} differ in {what}"))
        .quoting_all(active.iter().filter_map(|p| p.rate_quote.clone()))
        .quoting_all(active.iter().map(|p| p.quote.clone()))
        .doubting("It matters only when the slow ones are used for data.");
    Some(if best.is_empty() {
        finding
    } else {
        finding.fixed_by(
            Fix::run(
                "Name the ports for data, so that no slow one is taken for a rail.",
                format!("export NCCL_IB_HCA={}", best.join(",")),
            )
            .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'NET/IB : Using'"),
        )
    })
}

pub(super) const MTU: Rule = Rule {
    id: "R3",
    name: "small-mtu",
    family: Family::Rdma,
    summary: "a port sends smaller packets than it could",
    page: Page {
        condition: "The active MTU of an active port is below what it can do.",
        detection: "active_mtu against max_mtu; a RoCE interface with an MTU of 1500.",
        consequence: "More packets for the same bytes: lower bandwidth and more work.",
        fix: "MTU 9000 on the interface and every switch port for RoCE (it then uses 4096); the subnet manager's MTU on InfiniBand.",
        source: "rdma-core ibv_devinfo; NVIDIA RoCE configuration",
        false_alarms: "Over a network that has no jumbo frames this is its best. Ports that are down say nothing.",
    },
    check: mtu,
};

/// A RoCE packet of 4096 bytes and its headers do not fit into less.
const JUMBO: u32 = 4_200;

/// Bytes that Ethernet (preamble, header, checksum, gap: 38), IPv4 (20), UDP (8) and InfiniBand's base
/// header and checksum (16) add to each packet of RoCE v2.
const ROCE_OVERHEAD: u32 = 82;

/// What a line leaves for data when packets carry this much of it.
fn payload_rate(gbps: f64, mtu: u32) -> BytesPerSecond {
    let part = f64::from(mtu) / (f64::from(mtu) + f64::from(ROCE_OVERHEAD));
    BytesPerSecond::from_gbps(gbps * part)
}

fn mtu(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding
            .fixed_by(
                Fix::run(
                    "Set jumbo frames on the interface, and on every switch port in between.",
                    "sudo ip link set dev <interface> mtu 9000",
                )
                .checked_by("ibv_devinfo | grep active_mtu   # 4096 is right"),
            )
            .doubting("Every switch on the way has to pass such packets.")
    };
    let small: Vec<Port> = ports(case)
        .into_iter()
        .filter(|p| p.active == Some(true))
        .filter(|p| match (&p.active_mtu, p.max_mtu) {
            (Some((now, _)), Some(max)) => *now < max,
            _ => false,
        })
        .collect();
    let mut findings = Vec::new();
    if let Some(first) = small.first()
        && let Some((now, _)) = &first.active_mtu
    {
        let names: Vec<String> = small.iter().map(Port::name).collect();
        let title = format!(
            "{} sends packets of {now} bytes; {} is possible",
            list(names.iter().map(String::as_str)),
            first.max_mtu.unwrap_or_default()
        );
        let mut finding = fixed(rule.warning(title)).quoting_all(
            small
                .iter()
                .filter_map(|p| Some(p.active_mtu.as_ref()?.1.clone())),
        );
        if let (Some(rate), Some(max), Some(true)) =
            (first.rate_gbps, first.max_mtu, first.ethernet)
        {
            finding = finding.costing(
                Cost {
                    now: payload_rate(rate, *now),
                    without: payload_rate(rate, max),
                },
                format!(
                    "line rate of {}, less {ROCE_OVERHEAD} bytes of headers and gaps for each packet",
                    first.name()
                ),
            );
        }
        findings.push(finding);
    }
    for machine in &case.machines {
        for nic in &machine.topology.nics {
            let roce = nic
                .ports
                .iter()
                .any(|p| p.active == Some(true) && p.link_layer.as_deref() == Some("Ethernet"));
            let small = nic
                .interfaces
                .iter()
                .find(|i| i.mtu.is_some_and(|mtu| mtu < JUMBO));
            if let (true, Some(interface)) = (roce, small) {
                let key = format!("/sys/class/net/{}/mtu", interface.name);
                findings.push(
                    fixed(rule.warning(format!(
                        "{} has an MTU of {}, so {} sends small RoCE packets",
                        interface.name,
                        interface.mtu.unwrap_or_default(),
                        nic.name
                    )))
                    .quoting_all(machine.quote(&key)),
                );
            }
        }
    }
    findings.truncate(Finding::MAX_EVIDENCE);
    findings
}
