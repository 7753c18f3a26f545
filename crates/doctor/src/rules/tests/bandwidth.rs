//! Bus bandwidth against what the hardware could carry: T1.

use std::collections::{BTreeMap, BTreeSet};

use crowfly_route::obstacle::{Cost, Fix};
use crowfly_route::units::BytesPerSecond;

use crate::case::Case;
use crate::facts::flows::{is_socket, net_uses};
use crate::facts::measured::{Measured, measured};
use crate::facts::rdma::ports;
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(super) const LINE_RATE: Rule = Rule {
    id: "T1",
    name: "bandwidth-below-line-rate",
    family: Family::Tests,
    summary: "bus bandwidth against the line rate of the NICs and NVLinks in use",
    page: Page {
        condition: "A run's bus bandwidth stays well below what carries it.",
        detection: "The best bus bandwidth of any size, against the summed rate of the NICs that the log's channels use on a node (several nodes), or against the NVLinks of the GPU model (one node). Below 70 % it is reported as slow, below 60 % of NVLink or xGMI as worth a look. Without the NICs in use there is no line rate, and no verdict.",
        consequence: "Something on the way caps it: a staged path, a slow rail, a far NIC.",
        fix: "Look at the channels and at the layout first.",
        source: "nccl-tests doc/PERFORMANCE.md; NVIDIA and AMD data sheets for link rates",
        false_alarms: "The rule of thumb that a good result lies within 10 to 15 % of the line rate is wrong both ways. Trees and reduction in switches (NVLS, SHARP) move less than the formula counts, so two nodes with 8 x 400 Gb/s can show 480 GB/s on 400; rings over many nodes, small sizes and few channels stay below on a healthy fabric; and a staged path on a machine with fast memory can come near the line rate.",
    },
    check: line_rate,
};

/// Below this part of the line rate a result is called slow.
const SLOW: f64 = 0.7;
/// The same for links between GPUs: a ring over xGMI fills about 70 % of them, one over NVLink 80 %.
const SLOW_LINKS: f64 = 0.6;

fn line_rate(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.tests()
        .filter_map(measured)
        .filter_map(|run| match run.hosts.len() {
            1 => one_node(rule, &run),
            _ => over_network(rule, case, &run),
        })
        .collect()
}

fn one_node(rule: &Rule, run: &Measured<'_>) -> Option<Finding> {
    if run.run.devices.len() < 2 {
        return None;
    }
    let model = run.model?;
    let Some(links) = model.links else {
        return Some(
            rule.note(format!(
                "{:.1} GB/s of bus bandwidth, {:.0} % of the {:.1} GB/s of these GPUs' PCIe links",
                run.peak,
                run.peak / model.pcie * 100.0,
                model.pcie
            ))
            .quoting(run.peak_cite)
            .doubting("A copy through host memory crosses the same link and can come as near; only the channel lines tell P2P from SHM."),
        );
    };
    let part = run.peak / links;
    let title = format!(
        "{:.1} GB/s of bus bandwidth, {:.0} % of the {links:.0} GB/s of these GPUs' links",
        run.peak,
        part * 100.0
    );
    let largest = run.run.rows.iter().map(|r| r.value.size.0).max()?;
    // Small operations never fill the links.
    const FILLS: u64 = 256 << 20;
    if part >= SLOW_LINKS || largest < FILLS {
        return Some(rule.note(title).quoting(run.peak_cite));
    }
    Some(
        rule.warning(title)
            .quoting(run.peak_cite)
            .costing(
                Cost {
                    now: BytesPerSecond::gb(run.peak),
                    without: BytesPerSecond::gb(links),
                },
                "measured, against the data sheet's rate of the links",
            )
            .fixed_by(
                Fix::run("See whether all channels go peer to peer, and all NVLinks are up.", "nvidia-smi nvlink -s; NCCL_DEBUG=INFO <job> 2>&1 | grep -c 'via SHM'")
                    .checked_by("all_reduce_perf -b 1G -e 8G -f 2 -g <gpus>"),
            )
            .doubting("Not every operation and number of GPUs can fill all links: four GPUs of a board of eight, all-to-all, and boards whose links are split reach less."),
    )
}

/// The summed rate in GB/s of the NICs that a node's channels use, the least of all nodes, and how
/// many they are; `None` when a NIC or its rate is not shown.
fn used_rate(case: &Case) -> Option<(f64, usize, Vec<Quote>)> {
    let mut nodes: BTreeMap<Option<String>, BTreeSet<String>> = BTreeMap::new();
    for log in case.nccl_logs() {
        for net in net_uses(log) {
            if !is_socket(&net.network) {
                let names = net.nic?;
                nodes
                    .entry(net.host)
                    .or_default()
                    .extend(names.split('+').map(str::to_owned));
            }
        }
    }
    let ports = ports(case);
    let mut quotes = Vec::new();
    let mut least: Option<(f64, usize)> = None;
    for names in nodes.values() {
        let mut sum = 0.0;
        for name in names {
            let rates: BTreeSet<u64> = ports
                .iter()
                .filter(|p| p.device == *name && p.active != Some(false))
                .filter_map(|p| p.rate_gbps)
                .map(|rate| rate.round() as u64)
                .collect();
            let from_file = || {
                case.nccl_topologies()
                    .flat_map(|t| &t.nets)
                    .find(|n| n.name == *name)
                    .and_then(|n| n.speed_mbps)
                    .map(|mbps| mbps / 1_000)
            };
            // Nodes whose cards of one name differ in rate leave the line rate open.
            let rate = match rates.len() {
                0 => from_file()?,
                1 => rates.first().copied()?,
                _ => return None,
            };
            quotes.extend(
                ports
                    .iter()
                    .filter(|p| p.device == *name)
                    .find_map(|p| p.rate_quote.clone()),
            );
            sum += rate as f64 / 8.0;
        }
        if least.is_none_or(|(best, _)| sum < best) {
            least = Some((sum, names.len()));
        }
    }
    let (rate, nics) = least.filter(|(rate, _)| *rate > 0.0)?;
    Some((rate, nics, quotes))
}

fn over_network(rule: &Rule, case: &Case, run: &Measured<'_>) -> Option<Finding> {
    let Some((rate, nics, quotes)) = used_rate(case) else {
        return unnamed_nics(rule, run);
    };
    let part = run.peak / rate;
    let title = format!(
        "{:.1} GB/s of bus bandwidth, {:.0} % of the {rate:.0} GB/s of the {nics} NICs in use on a node",
        run.peak,
        part * 100.0
    );
    if part >= SLOW {
        return Some(rule.note(title).quoting(run.peak_cite).quoting_all(quotes));
    }
    Some(
        rule.fault(title)
            .quoting(run.peak_cite)
            .quoting_all(quotes)
            .implying(PairKind::GpuNic, Verdict::DirectButSlow)
            .costing(
                Cost {
                    now: BytesPerSecond::gb(run.peak),
                    without: BytesPerSecond::gb(rate),
                },
                "measured, against the line rate of the NICs in use",
            )
            .fixed_by(
                Fix::run("Look at channels without /GDRDMA, then at each rail alone.", "ib_write_bw -d <nic> --use_cuda=0 --report_gbits <peer>")
                    .checked_by("all_reduce_perf -b 1G -e 8G -f 2 -g 1"),
            )
            .doubting("Operations other than all-reduce, all-gather and reduce-scatter fill the network less."),
    )
}

/// Several nodes took part, and nothing names the NICs: what the rate alone says.
fn unnamed_nics(rule: &Rule, run: &Measured<'_>) -> Option<Finding> {
    if !run.is_over_network() {
        return None;
    }
    let over = match (run.hosts.len(), run.ranks) {
        (0 | 1, Some(ranks)) => format!("{ranks} ranks"),
        (nodes, _) => format!("{nodes} nodes"),
    };
    let collect = Fix::run(
        "Run again with the log, which names the NICs of each channel, and list their rates.",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH all_reduce_perf …; ibstat",
    );
    let finding = match run.filled_wire() {
        Some(wire) => rule
            .note(format!(
                "{:.1} GB/s over {over}, steady over the largest sizes: {:.0} % of {wire}, which is as much as a healthy run gets of that",
                run.peak,
                run.peak / wire.gb() * 100.0,
            ))
            .doubting("Nothing names the NICs. Should they be faster than this, the run is slow after all; and a staged path can fill a wire too, at the cost of host memory."),
        None => {
            let gpus = run.gpus_of_a_node().unwrap_or(1);
            let parts: Vec<String> = [100.0, 200.0, 400.0, 800.0]
                .iter()
                .map(|gbps| (gbps, run.peak / (f64::from(gpus) * gbps / 8.0) * 100.0))
                .filter(|(_, part)| *part <= 130.0)
                .map(|(gbps, part)| format!("{part:.0} % of {gpus} at {gbps} Gb/s"))
                .collect();
            let reading = match parts.is_empty() {
                true => String::new(),
                false => format!(" With one NIC a GPU it would be {}", parts.join(", ")),
            };
            rule.note(format!(
                "{:.1} GB/s over {over}: nothing says which NICs carried it.{reading}",
                run.peak,
            ))
        }
    };
    Some(finding.quoting(run.peak_cite).fixed_by(collect))
}
