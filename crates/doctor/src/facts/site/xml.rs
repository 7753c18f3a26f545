//! Places from NCCL's topology XML.

use super::{CpuMaker, MAX_GPUS, MAX_NICS, Nearness, Reach, Site};
use crate::evidence::nccl_xml::{Index, LinkKind, NcclTopology, XmlFunction, XmlLink};
use crate::finding::Quote;
use crate::verdict::PairKind;

/// PCI class of NVSwitches.
const NVSWITCH: u32 = 0x06_8000;

struct Place {
    name: String,
    function: Option<Index>,
    cpu: Option<Index>,
    quote: Quote,
}

pub(super) fn of_xml(topology: &NcclTopology) -> Site {
    let source = topology
        .cpus
        .first()
        .map(|cpu| cpu.cite.source.to_string())
        .or_else(|| topology.gpus.first().map(|g| g.cite.source.to_string()));
    let mut site = Site::new(source.unwrap_or_default());
    site.clipped = topology.clipped;
    site.cpu = cpu(topology);
    site.amd_gpus = topology.gpus.iter().any(|gpu| gpu.gcn.is_some());
    site.links_unknown = topology.gpus.is_empty();
    let (mut gpus, mut nics) = (gpus(topology), nics(topology));
    site.clipped |= gpus.len() > MAX_GPUS || nics.len() > MAX_NICS;
    gpus.truncate(MAX_GPUS);
    nics.truncate(MAX_NICS);
    site.gpus = gpus.iter().map(|g| g.name.clone()).collect();
    site.nics = nics.iter().map(|n| n.name.clone()).collect();
    for gpu in &topology.gpus {
        if gpu.links.iter().any(|link| link.kind == LinkKind::C2c) {
            site.coherent.push(format!("GPU{}", gpu.device));
        }
    }
    for (at, a) in gpus.iter().enumerate() {
        for (beyond, b) in gpus.iter().enumerate().skip(at + 1) {
            let nearness = linked(topology, at, beyond).unwrap_or_else(|| between(topology, a, b));
            site.reaches.push(reach(PairKind::GpuGpu, a, b, nearness));
        }
        for nic in &nics {
            let nearness = between(topology, a, nic);
            site.reaches.push(reach(PairKind::GpuNic, a, nic, nearness));
        }
    }
    if site.links_unknown {
        // Links between GPUs are found at run time, so the file is silent about those pairs.
        site.reaches.retain(|reach| reach.kind != PairKind::GpuGpu);
    }
    site
}

fn reach(kind: PairKind, a: &Place, b: &Place, nearness: Nearness) -> Reach {
    Reach {
        kind,
        gpu: a.name.clone(),
        other: b.name.clone(),
        nearness,
        through: None,
        quote: if kind == PairKind::GpuNic {
            b.quote.clone()
        } else {
            a.quote.clone()
        },
    }
}

fn cpu(topology: &NcclTopology) -> CpuMaker {
    match topology.cpus.first().map(|cpu| cpu.vendor.as_str()) {
        Some("GenuineIntel") => CpuMaker::Intel,
        Some("AuthenticAMD") => CpuMaker::Amd,
        Some(_) => CpuMaker::Other,
        None => CpuMaker::Unknown,
    }
}

fn place(topology: &NcclTopology, name: String, at: Index, function: &XmlFunction) -> Place {
    Place {
        name,
        function: Some(at),
        cpu: function.cpu.or_else(|| {
            let top = topology.above(at).last().copied()?;
            topology.functions.get(top)?.cpu
        }),
        quote: Quote::from(&function.cite),
    }
}

fn gpus(topology: &NcclTopology) -> Vec<Place> {
    if topology.gpus.is_empty() {
        return by_class(topology, |class| {
            matches!(class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200)
        });
    }
    topology
        .gpus
        .iter()
        .map(|gpu| {
            let name = format!("GPU{}", gpu.device);
            let placed = gpu
                .function
                .and_then(|at| Some((at, topology.functions.get(at)?)));
            match placed {
                Some((at, function)) => Place {
                    quote: Quote::from(&gpu.cite),
                    ..place(topology, name, at, function)
                },
                None => Place {
                    name,
                    function: None,
                    cpu: None,
                    quote: Quote::from(&gpu.cite),
                },
            }
        })
        .collect()
}

/// RDMA NICs: networks with GPUDirect or a name that is none of an Ethernet interface.
fn nics(topology: &NcclTopology) -> Vec<Place> {
    if topology.nets.is_empty() {
        return by_class(topology, |class| class >> 16 == 0x02);
    }
    topology
        .nets
        .iter()
        .filter(|net| net.gdr != Some(false) || !is_interface(&net.name))
        .map(|net| {
            let placed = net
                .function
                .and_then(|at| Some((at, topology.functions.get(at)?)));
            let quote = Quote::from(&net.cite);
            match placed {
                Some((at, function)) => Place {
                    quote,
                    ..place(topology, net.name.clone(), at, function)
                },
                None => Place {
                    name: net.name.clone(),
                    function: None,
                    cpu: net.cpu,
                    quote,
                },
            }
        })
        .collect()
}

/// Whether a network's name is one that the kernel gives to Ethernet interfaces.
pub(crate) fn is_interface(name: &str) -> bool {
    [
        "eth", "en", "ens", "eno", "enp", "bond", "lo", "ib", "docker", "veth", "br-",
    ]
    .iter()
    .any(|start| name.starts_with(start))
}

fn by_class(topology: &NcclTopology, wanted: impl Fn(u32) -> bool) -> Vec<Place> {
    topology
        .functions
        .iter()
        .enumerate()
        .filter(|(_, function)| wanted(function.class))
        .map(|(at, function)| {
            let name = function
                .address
                .map_or_else(|| format!("function {at}"), |a| a.to_string());
            place(topology, name, at, function)
        })
        .collect()
}

/// The NVLinks or xGMI links of two GPUs, straight or through NVSwitches.
fn linked(topology: &NcclTopology, a: usize, b: usize) -> Option<Nearness> {
    let (a, b) = (topology.gpus.get(a)?, topology.gpus.get(b)?);
    let address = |at: Option<Index>| topology.functions.get(at?)?.address;
    let gpu_links = |links: &[XmlLink]| links.iter().any(|l| l.kind != LinkKind::C2c);
    if !gpu_links(&a.links) || !gpu_links(&b.links) {
        return None;
    }
    let straight: u32 = a
        .links
        .iter()
        .filter(|link| link.kind != LinkKind::C2c)
        .filter(|link| link.target.is_some() && link.target == address(b.function))
        .map(|link| link.count)
        .sum();
    if straight > 0 {
        return Some(Nearness::Link(straight));
    }
    let switched = |links: &[XmlLink]| -> u32 {
        links
            .iter()
            .filter(|link| link.target_class == Some(NVSWITCH))
            .map(|link| link.count)
            .sum()
    };
    let both = switched(&a.links).min(switched(&b.links));
    (both > 0).then_some(Nearness::Link(both))
}

/// What lies between two functions of one file.
fn between(topology: &NcclTopology, a: &Place, b: &Place) -> Nearness {
    if let (Some(x), Some(y)) = (a.function, b.function) {
        let (above_x, above_y) = (topology.above(x), topology.above(y));
        let meeting = above_x
            .iter()
            .enumerate()
            .find_map(|(at, bridge)| Some((at, above_y.iter().position(|o| o == bridge)?)));
        match meeting {
            // NCCL counts PCI nodes as switches: one in between is PIX.
            Some((0, 0)) => return Nearness::Pix,
            Some(_) => return Nearness::Pxb,
            None => {}
        }
    }
    if a.cpu.is_some() && a.cpu == b.cpu {
        Nearness::Phb
    } else {
        Nearness::Sys
    }
}
