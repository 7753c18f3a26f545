//! What NCCL's own topology says and does not say: N21 and N22.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::facts::site::{is_interface, sites};
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(super) const LINK_SPEEDS: Rule = Rule {
    id: "N21",
    name: "topology-link-speeds",
    family: Family::Nccl,
    summary: "NCCL's topology shows maximum link speeds, or none on virtual PCI",
    page: Page {
        condition: "A topology file is read as if it showed the machine as it runs.",
        detection: "link_speed and link_width of NCCL's XML: the smaller of the *maximum* of device and port, never the current one. Empty and 0 mean virtual PCI. A file without <gpu> elements was written by hand, to be passed as NCCL_TOPO_FILE. `gdr=\"0\"` on a network means that GPUDirect RDMA is not possible with it.",
        consequence: "A link that came up slow cannot be seen in it, and in a virtual machine NCCL does not know which NIC is near which GPU.",
        fix: "Look at current_link_speed and current_link_width; in virtual machines pass the vendor's file as NCCL_TOPO_FILE.",
        source: "NCCL src/graph/xml.cc",
        false_alarms: "None: what is wrong is reported apart from what is a note.",
    },
    check: link_speeds,
};

fn link_speeds(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings: Vec<Finding> = sites(case)
        .iter()
        .filter(|site| site.hides_places())
        .filter_map(|site| {
            let first = site.of_kind(PairKind::GpuNic).next()?;
            Some(pass_topology(
                rule.warning(format!(
                    "{} GPUs on one board and {} NICs, none near any GPU: so virtual PCI looks, and NCCL needs the vendor's topology",
                    site.gpus.len(),
                    site.nics.len()
                ))
                .quoting(first.quote.clone())
                .doubting("On bare metal it would be the real layout, and then N1's advice holds."),
            ))
        })
        .collect();
    for topology in case.nccl_topologies() {
        let hand_written = topology.gpus.is_empty() && !topology.functions.is_empty();
        if hand_written && let Some(cpu) = topology.cpus.first() {
            findings.push(
                rule.note("This topology is written for NCCL to read, as vendors do for virtual machines whose PCI is virtual: pass it as NCCL_TOPO_FILE. Links between GPUs are not in it")
                    .quoting(&cpu.cite)
                    .fixed_by(
                        Fix::run("In a virtual machine of this kind, pass it to NCCL on every rank.", "export NCCL_TOPO_FILE=<this file>")
                            .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep NCCL_TOPO_FILE"),
                    ),
            );
        }
        let virtual_pci = topology
            .functions
            .iter()
            .find(|f| f.gigatransfers.is_none() && f.lanes.is_none_or(|l| l == 0));
        if let (false, Some(function)) = (hand_written, virtual_pci) {
            findings.push(pass_topology(
                rule.warning("NCCL saw virtual PCI without link speeds: it cannot know which NIC is near which GPU")
                    .quoting(&function.cite),
            ));
        }
        let refused: Vec<_> = topology
            .nets
            .iter()
            .filter(|n| n.gdr == Some(false))
            .collect();
        let any_gdr = topology.nets.iter().any(|n| n.gdr == Some(true));
        if let (Some(first), false) = (refused.first(), any_gdr) {
            let plain = refused.iter().all(|n| is_interface(&n.name));
            let (title, verdict) = if plain {
                (
                    format!(
                        "NCCL's only network is {}, an Ethernet interface without RDMA",
                        first.name
                    ),
                    Verdict::Socket,
                )
            } else {
                (
                    format!(
                        "NCCL marked {} as unable to do GPUDirect RDMA (gdr=\"0\")",
                        first.name
                    ),
                    Verdict::Staged,
                )
            };
            findings.push(
                rule.fault(title)
                    .quoting_all(refused.iter().map(|n| &n.cite))
                    .implying(PairKind::GpuNic, verdict)
                    .fixed_by(Fix::run(
                        "See whether there are RDMA devices, and a peer memory module or dma-buf.",
                        "ibv_devinfo; lsmod | grep nvidia_peermem",
                    ))
                    .doubting("A job on one node needs no network."),
            );
        }
    }
    findings
}

fn pass_topology(finding: Finding) -> Finding {
    finding.fixed_by(
        Fix::run(
            "Pass the vendor's topology of this instance type.",
            "export NCCL_TOPO_FILE=<vendor's file>",
        )
        .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep NCCL_TOPO_FILE"),
    )
}

pub(super) const MODEL: Rule = Rule {
    id: "N22",
    name: "nccl-speed-model",
    family: Family::Nccl,
    summary: "what NCCL's own model expects of this topology",
    page: Page {
        condition: "NCCL chose channels by a model of bandwidths, not by measuring.",
        detection: "speedintra and speedinter of NCCL's graph XML. The model counts GB/s: PCIe Gen3 x16 12, sockets of AMD 16, of Intel Broadwell 6, Skylake 10, Sapphire Rapids 22, Emerald Rapids 40, NVLink of sm70 and sm80 20, of sm90 20.6, of sm100 40.1 each.",
        consequence: "The figures are what NCCL plans with, not what the hardware does.",
        fix: "Use them to see which link NCCL takes for the narrow one.",
        source: "NCCL src/graph/topo.h",
        false_alarms: "None: this is a note. A worst path of PHB or SYS to the NIC is reported as N1 where a layout shows it.",
    },
    check: model,
};

fn model(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_graphs()
        .filter_map(|graphs| {
            let graph = graphs.graphs.first()?;
            let ring = &graph.value;
            let speeds = match (ring.speed_intra, ring.speed_inter) {
                (Some(intra), Some(inter)) => {
                    format!("{intra} GB/s inside the node and {inter} GB/s between nodes")
                }
                (Some(intra), None) => format!("{intra} GB/s inside the node"),
                _ => return None,
            };
            let far = ring
                .type_inter
                .as_deref()
                .filter(|path| matches!(*path, "PHB" | "SYS"));
            let title = match far {
                Some(path) => format!(
                    "NCCL plans {} channels of {speeds} each, and its worst way to a NIC is {path}",
                    ring.channels
                ),
                None => format!(
                    "NCCL plans {} channels of {speeds} each, by its model",
                    ring.channels
                ),
            };
            Some(rule.note(title).quoting(&graph.cite))
        })
        .collect()
}
