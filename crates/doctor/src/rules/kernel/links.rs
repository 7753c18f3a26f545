//! Links below their best: K7 and K8.

use crowfly_route::obstacle::{Cost, Fix};
use crowfly_route::topology::{Device, LinkState, PcieGeneration, PcieSpeed};
use crowfly_route::units::BytesPerSecond;

use crate::case::{Case, Machine};
use crate::evidence::kernel::Topic;
use crate::evidence::lspci::{Lspci, PciFunction, PciLink};
use crate::facts::site::{is_gpu, is_nic};
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};
use crate::rules::nccl::list;
use crate::verdict::{PairKind, Verdict};

pub(super) const DEGRADED: Rule = Rule {
    id: "K7",
    name: "link-degraded",
    family: Family::Kernel,
    summary: "a PCIe link runs below its best",
    page: Page {
        condition: "A GPU, a NIC, a drive or a port above them came up slower or narrower than both ends can do.",
        detection: "current_link_speed and current_link_width against the maximum; LnkSta against LnkCap of lspci, which calls it downgraded. GPUs that rest at 2.5 GT/s, virtual functions (x0, unknown) and management functions of switches are left out.",
        consequence: "The link caps every transfer over it.",
        fix: "Reseat the board or cable; slot bifurcation and link speed in the firmware; look for AER messages.",
        source: "PCI Express link training; practice",
        false_alarms: "An idle GPU slows its own link down and speeds it up under load: look while it works. A board in a slower slot is as fast as the slot.",
    },
    check: degraded,
};

fn degraded(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings: Vec<Finding> = case
        .machines
        .iter()
        .flat_map(|machine| on_machine(rule, machine))
        .collect();
    for list in case.pci_lists() {
        findings.extend(in_list(rule, list));
    }
    for log in case.kernel_logs() {
        let seen: Vec<_> = log
            .messages
            .iter()
            .filter(|m| m.what.topic == Topic::LinkDegraded)
            .collect();
        if let Some(first) = seen.first() {
            let title = match first.what.device {
                Some(device) => {
                    format!("The kernel says that the link above {device} came up below its best")
                }
                None => "The kernel says that a link came up below its best".to_owned(),
            };
            findings.push(fixed(rule.warning(title)).quoting_all(seen.iter().map(|m| &m.first)));
        }
    }
    findings
}

fn on_machine(rule: &Rule, machine: &Machine) -> Vec<Finding> {
    let topology = &machine.topology;
    let mut findings: Vec<Finding> = Vec::new();
    for device in topology.devices() {
        let Some(address) = topology.address_of(device) else {
            continue;
        };
        let chain = std::iter::once(address).chain(topology.above(address).map(|b| b.address));
        for at in chain {
            let slow = topology.link_state(at) == Some(LinkState::Degraded);
            let link = topology.link_above(at);
            let Some((current, maximum)) = link
                .and_then(|l| Some((l.current?, l.maximum?)))
                .filter(|_| slow)
            else {
                continue;
            };
            let place = at.to_string();
            let title = format!(
                "The link above {at} ({}) runs at {current}; it could do {maximum}",
                topology.name_of(device)
            );
            let quote = Quote::device(
                machine.source.clone(),
                place,
                &format!("link {current}, maximum {maximum}"),
            );
            // A port above several devices is reported once.
            if findings.iter().any(|f| f.evidence.contains(&quote)) {
                continue;
            }
            let finding = match device {
                Device::Nic(_) | Device::Gpu(_) => rule
                    .fault(title)
                    .implying(PairKind::GpuNic, Verdict::DirectButSlow),
                _ => rule.warning(title),
            };
            findings.push(fixed(finding).quoting(quote).costing(
                Cost {
                    now: current.rate(),
                    without: maximum.rate(),
                },
                LINK_RATES,
            ));
        }
    }
    findings
}

/// Where a link's figures are from.
const LINK_RATES: &str = "link rates after encoding, as the link is and as both ends could";

fn fixed(finding: Finding) -> Finding {
    finding
        .fixed_by(
            Fix::by_hand("Reseat the board or its riser, and look at bifurcation and link speed of the slot in the firmware's settings.")
                .checked_by("sudo lspci -vvv | grep -E '^[0-9a-f]|LnkSta:' | grep -B1 downgraded"),
        )
}

/// What a function's link does.
enum Link {
    Fine,
    /// An idle GPU.
    Resting,
    Slow(Cost),
}

fn in_list(rule: &Rule, found: &Lspci) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fine = Vec::new();
    for function in &found.functions {
        let device = is_gpu(&function.name)
            || is_nic(&function.name)
            || function.class.contains("Non-Volatile");
        let (Some(now), Some(max), true) = (
            function.details.link_now.first(),
            function.details.link_max.first(),
            device,
        ) else {
            continue;
        };
        match judged(function, now.value, max.value) {
            // A virtual function shows no link of its own.
            Link::Fine if now.value == max.value => {
                fine.push((function.address.to_string(), &now.cite));
            }
            Link::Fine => {}
            Link::Resting => findings.push(
                rule.note(format!(
                    "The link of {} is slow because the GPU rests; under load it speeds up",
                    function.address
                ))
                .quoting(&now.cite)
                .doubting("Look again while the GPU works: only then does the speed say anything."),
            ),
            Link::Slow(cost) => {
                let title = format!(
                    "The link of {} runs at {}; it could do {}",
                    function.address,
                    words(now.value),
                    words(max.value)
                );
                let finding = if is_nic(&function.name) {
                    rule.fault(title)
                        .implying(PairKind::GpuNic, Verdict::DirectButSlow)
                } else {
                    rule.fault(title)
                };
                findings.push(
                    fixed(finding)
                        .quoting(&now.cite)
                        .quoting(&max.cite)
                        .costing(cost, LINK_RATES)
                        .doubting("If the slot itself is slower or narrower than the board, this is the slot's best."),
                );
            }
        }
    }
    if findings.is_empty() && !fine.is_empty() {
        findings.push(
            rule.note(format!(
                "The links of {} run at their best",
                list(fine.iter().map(|(address, _)| address.as_str()))
            ))
            .quoting_all(fine.iter().map(|(_, cite)| *cite)),
        );
    }
    findings
}

fn judged(function: &PciFunction, now: PciLink, max: PciLink) -> Link {
    let (Some(speed), Some(lanes)) = (now.gigatransfers, now.lanes.filter(|l| *l > 0)) else {
        return Link::Fine;
    };
    let (Some(best), Some(most)) = (max.gigatransfers, max.lanes.filter(|l| *l > 0)) else {
        return Link::Fine;
    };
    let virtual_function = function.name.contains("Virtual Function");
    if virtual_function || (speed >= best && lanes >= most) {
        return Link::Fine;
    }
    // Resting GPUs slow down to Gen1 or Gen2; boards with narrow links keep their width.
    const RESTING: f64 = 5.0;
    if is_gpu(&function.name) && lanes >= most && speed <= RESTING {
        return Link::Resting;
    }
    let rate = |gigatransfers: f64, lanes: u32| -> Option<BytesPerSecond> {
        let generation = PcieGeneration::from_gigatransfers(&format!("{gigatransfers}"))?;
        let width = u8::try_from(lanes).ok()?;
        Some(PcieSpeed { generation, width }.rate())
    };
    match (rate(speed, lanes), rate(best, most)) {
        (Some(now), Some(without)) => Link::Slow(Cost { now, without }),
        _ => Link::Fine,
    }
}

fn words(link: PciLink) -> String {
    let speed = link.gigatransfers.unwrap_or_default();
    format!("{speed} GT/s x{}", link.lanes.unwrap_or_default())
}

pub(super) const READ_REQUESTS: Rule = Rule {
    id: "K8",
    name: "small-read-requests",
    family: Family::Kernel,
    summary: "a NIC reads in small requests, or without relaxed ordering on AMD",
    page: Page {
        condition: "The NIC's largest read request is 512 bytes or less, or relaxed ordering is off.",
        detection: "MaxReadReq and RlxdOrd in DevCtl of a NIC; `[RO]` in NCCL's list of NICs, on AMD CPUs.",
        consequence: "Reading memory over PCIe, which is sending, stays below the link's rate.",
        fix: "mlxconfig or setpci for MaxReadReq 4096; NCCL_IB_PCI_RELAXED_ORDERING=1; the firmware's setting for preferred I/O.",
        source: "NCCL net_ib; NVIDIA performance tuning for AMD and Intel servers",
        false_alarms: "Where the measured rate is the line rate, nothing is lost. Virtual functions take the physical one's setting.",
    },
    check: read_requests,
};

/// At 200 Gb/s and more, NICs need larger requests than this to read at line rate.
const SMALL_REQUEST: u32 = 512;

fn read_requests(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for list in case.pci_lists() {
        for function in list.functions.iter().filter(|f| is_nic(&f.name)) {
            let small = function
                .details
                .max_read_request
                .first()
                .filter(|r| r.value <= SMALL_REQUEST);
            if let Some(small) = small
                && !function.name.contains("Virtual Function")
            {
                let title = format!(
                    "NIC {} reads in requests of {} bytes at most",
                    function.address, small.value
                );
                findings.push(
                    larger(rule.warning(title), &function.address.to_string()).quoting(&small.cite),
                );
            }
        }
    }
    for machine in &case.machines {
        let topology = &machine.topology;
        for nic in topology
            .nics
            .iter()
            .filter(|nic| !nic.ports.is_empty() && !nic.virtual_function)
        {
            let function = nic.address.and_then(|address| topology.pci.get(&address));
            let Some((function, request)) = function
                .and_then(|f| Some((f, f.max_read_request.filter(|r| *r <= SMALL_REQUEST)?)))
            else {
                continue;
            };
            let amd = topology.host.cpu_vendor.as_deref() == Some("AuthenticAMD");
            let ordered = function.relaxed_ordering == Some(false) && amd;
            let title = if ordered {
                format!(
                    "{} reads in requests of {request} bytes at most, and relaxed ordering is off",
                    nic.name
                )
            } else {
                format!("{} reads in requests of {request} bytes at most", nic.name)
            };
            findings.push(
                larger(rule.warning(title), &function.address.to_string()).quoting(Quote::device(
                    machine.source.clone(),
                    function.address.to_string(),
                    &format!("MaxReadReq {request}"),
                )),
            );
        }
    }
    findings.truncate(Finding::MAX_EVIDENCE);
    findings
}

fn larger(finding: Finding, address: &str) -> Finding {
    finding
        .fixed_by(
            Fix::run(
                "Raise the largest read request to 4096 bytes, until the next boot.",
                format!("sudo setpci -s {address} CAP_EXP+8.w=5000:7000"),
            )
            .checked_by(format!("sudo lspci -vvv -s {address} | grep MaxReadReq")),
        )
        .doubting("If a measurement shows the line rate, nothing is lost.")
}
