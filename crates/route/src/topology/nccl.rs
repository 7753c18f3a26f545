//! Topology files of NCCL and RCCL: what `NCCL_TOPO_DUMP_FILE` writes and `NCCL_TOPO_FILE` reads.
//!
//! Such a file has no drives and no host bridges, folds each switch into one node, and tells the
//! *maximum* speed of a link, because that is what NCCL reads.

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::Node;

use super::gpu_links::{self, LinkEnds};
use super::hierarchy::{self, PortSpeeds};
use super::pcie::{self, PciDevice, PcieGeneration, PcieSpeed, PortKind};
use super::{
    Gpu, GpuLink, GpuLinkKind, GpuVendor, Host, Nic, NumaInfo, Oddity, RdmaPort, Topology, decode,
    xml,
};
use crate::units::{BytesPerSecond, NumaNode, PciAddress};

/// What one file holds, while it is read.
#[derive(Default)]
struct Reader {
    hierarchy: hierarchy::Builder,
    seen: BTreeMap<PciAddress, Details>,
    nics: Vec<Nic>,
    links: Vec<(PciAddress, Target)>,
    oddities: Vec<Oddity>,
}

/// What a `<gpu>` says of its function.
#[derive(Default)]
struct Details {
    is_gpu: bool,
    compute_capability: Option<String>,
}

struct Target {
    kind: GpuLinkKind,
    address: Option<PciAddress>,
    is_switch: bool,
    count: u32,
}

/// PCI class of NVSwitches, as link targets name them.
const NVSWITCH: &str = "0x068000";
const MAX_LINKS: u32 = 64;
/// More NUMA nodes than any machine has.
const MAX_NODES: usize = 1024;

pub(super) fn read(system: Node<'_, '_>) -> Topology {
    let mut reader = Reader::default();
    let mut topology = Topology::default();
    let mut nodes = BTreeSet::new();
    for cpu in system.children().filter(|n| n.has_tag_name("cpu")) {
        let numa = xml::number(cpu, "numaid").map(NumaNode);
        nodes.extend(numa.filter(|_| nodes.len() < MAX_NODES));
        topology.host = host(cpu);
        reader.children(cpu, numa, &mut Vec::new());
    }
    topology.numa = nodes
        .into_iter()
        .map(|node| NumaInfo {
            node,
            cpus: String::new(),
            socket: None,
            memory: None,
            distances: Vec::new(),
        })
        .collect();
    reader.finish(topology)
}

fn host(cpu: Node<'_, '_>) -> Host {
    let text = |name| cpu.attribute(name).map(str::to_owned);
    Host {
        cpu_vendor: text("vendor"),
        cpu_family: xml::number(cpu, "familyid").map(family),
        cpu_model: xml::number(cpu, "modelid"),
        machine: text("arch"),
        ..Host::default()
    }
}

/// NCCL writes base and extended family as `base + (extended << 4)`, where everybody else adds them
/// and only to a base of 15: Zen 4 is 175 there and 25 elsewhere. Files that people wrote by hand
/// have the usual number, which ends in no 15.
fn family(written: u32) -> u32 {
    match (written & 0xf, written >> 4) {
        (0xf, extended) => 0xf + extended,
        _ => written,
    }
}

impl Reader {
    /// Reads what is below a CPU or a PCI node. The depth is limited by the caller.
    fn children(&mut self, of: Node<'_, '_>, numa: Option<NumaNode>, above: &mut Vec<PciAddress>) {
        for node in of.children().filter(Node::is_element) {
            match node.tag_name().name() {
                "pci" => self.function(node, numa, above),
                "gpu" => self.gpu(node, above.last().copied()),
                "nic" => self.adapters(node, above.last().copied()),
                _ => {}
            }
        }
    }

    fn function(
        &mut self,
        node: Node<'_, '_>,
        numa: Option<NumaNode>,
        above: &mut Vec<PciAddress>,
    ) {
        let bus_id = node.attribute("busid").unwrap_or_default();
        let Ok(address) = bus_id.parse::<PciAddress>() else {
            let what = format!("`{bus_id}` is no PCI address; left out with all below it");
            return self.odd("pci", what);
        };
        if self.seen.contains_key(&address) {
            return self.odd(bus_id, "named twice; the second one is left out".into());
        }
        self.seen.insert(address, Details::default());
        let class = xml::number(node, "class").unwrap_or_default();
        let id = |name| xml::number::<u16>(node, name).unwrap_or(pcie::NO_ID);
        let (vendor, device) = (id("vendor"), id("device"));
        let function = PciDevice {
            class,
            vendor,
            device,
            name: pcie::name(vendor, device),
            numa,
            port: pcie::is_bridge(class).then_some(PortKind::Switch),
            ..PciDevice::unseen(address, None)
        };
        let maximum = speed(node);
        let speeds = PortSpeeds {
            maximum,
            express: true,
            ..PortSpeeds::default()
        };
        self.hierarchy.add(function, above.clone(), speeds);
        above.push(address);
        self.children(node, numa, above);
        above.pop();
    }

    fn gpu(&mut self, node: Node<'_, '_>, function: Option<PciAddress>) {
        let Some((address, details)) =
            function.and_then(|address| Some((address, self.seen.get_mut(&address)?)))
        else {
            return;
        };
        details.is_gpu = true;
        // `sm` is 90 for compute capability 9.0; RCCL writes it too, with another meaning.
        details.compute_capability = xml::number::<u32>(node, "sm")
            .filter(|_| !node.has_attribute("gcn"))
            .map(|sm| format!("{}.{}", sm / 10, sm % 10));
        for link in node.children().filter(Node::is_element) {
            let kind = match link.tag_name().name() {
                "nvlink" => GpuLinkKind::NvLink,
                "xgmi" => GpuLinkKind::Xgmi,
                _ => continue,
            };
            self.links.push((
                address,
                Target {
                    kind,
                    address: link.attribute("target").and_then(|t| t.parse().ok()),
                    is_switch: link.attribute("tclass") == Some(NVSWITCH),
                    count: xml::number(link, "count").unwrap_or(1).min(MAX_LINKS),
                },
            ));
        }
    }

    /// Every `<net>` of a `<nic>`; two ports of a card are two.
    fn adapters(&mut self, nic: Node<'_, '_>, address: Option<PciAddress>) {
        for net in nic.children().filter(|n| n.has_tag_name("net")) {
            let Some(name) = net.attribute("name") else {
                continue;
            };
            let rate = xml::number::<u32>(net, "speed")
                .filter(|megabits| *megabits > 0)
                .map(|megabits| BytesPerSecond::from_gbps(f64::from(megabits) / 1e3));
            self.nics.push(Nic {
                name: name.to_owned(),
                address,
                model: None,
                firmware: None,
                ports: vec![RdmaPort {
                    number: xml::number(net, "port").unwrap_or(1),
                    active: None,
                    state: None,
                    link_layer: None,
                    rate,
                    gids: Vec::new(),
                }],
                interfaces: Vec::new(),
                virtual_function: false,
            });
        }
    }

    fn odd(&mut self, at: &str, what: String) {
        self.oddities.push(Oddity::new(at, what));
    }

    fn finish(mut self, mut topology: Topology) -> Topology {
        topology.pci = std::mem::take(&mut self.hierarchy).settle(&mut self.oddities);
        topology.gpus = topology
            .pci
            .values()
            .filter_map(|function| {
                let details = self.seen.get(&function.address)?;
                let known = decode::gpu_vendor(function, &topology.pci);
                let by_class = matches!(function.subclass(), 0x0300 | 0x0302 | 0x0380 | 0x1200);
                let vendor = known.or((details.is_gpu
                    || by_class && function.vendor == pcie::NO_ID)
                    .then_some(GpuVendor::Other))?;
                Some(Gpu {
                    address: Some(function.address),
                    name: match function.vendor {
                        pcie::NO_ID => "GPU of unnamed make".into(),
                        _ => function.name.clone(),
                    },
                    vendor,
                    memory: None,
                    bar: None,
                    compute_capability: details.compute_capability.clone(),
                    performance_state: None,
                })
            })
            .collect();
        self.name_bare_adapters(&topology.pci);
        for nic in &mut self.nics {
            nic.model = nic
                .address
                .and_then(|address| topology.pci.get(&address))
                .filter(|function| function.vendor != pcie::NO_ID)
                .map(|function| function.name.clone());
        }
        self.nics
            .sort_by(|a, b| decode::natural(&a.name).cmp(&decode::natural(&b.name)));
        topology.nics = std::mem::take(&mut self.nics);
        topology.gpu_links = self.gpu_links(&topology.gpus);
        topology.oddities = self.oddities;
        topology
    }

    /// Files that vendors write by hand name network functions without a `<net>`.
    fn name_bare_adapters(&mut self, pci: &BTreeMap<PciAddress, PciDevice>) {
        let named: BTreeSet<_> = self.nics.iter().filter_map(|nic| nic.address).collect();
        for function in pci.values() {
            if function.class >> 16 == 0x02 && !named.contains(&function.address) {
                self.nics.push(Nic {
                    name: function.address.to_string(),
                    address: Some(function.address),
                    model: None,
                    firmware: None,
                    ports: Vec::new(),
                    interfaces: Vec::new(),
                    virtual_function: false,
                });
            }
        }
    }

    fn gpu_links(&mut self, gpus: &[Gpu]) -> Vec<GpuLink> {
        let index: BTreeMap<PciAddress, u32> = (0u32..)
            .zip(gpus)
            .filter_map(|(index, gpu)| Some((gpu.address?, index)))
            .collect();
        let mut ends: BTreeMap<u32, LinkEnds> = BTreeMap::new();
        let mut unknown = Vec::new();
        for (from, target) in &self.links {
            let Some(from) = index.get(from) else {
                continue;
            };
            let ends = ends.entry(*from).or_default();
            let to = target.address.and_then(|address| index.get(&address));
            match (to, target.is_switch) {
                (Some(to), _) => ends.add_gpu_links(*to, target.kind, target.count),
                (None, true) => ends.add_switch_links(target.count),
                // The other end is a CPU, or a GPU that the container does not see.
                (None, false) => unknown.push((*from, target.address)),
            }
        }
        for (gpu, to) in unknown {
            let to = to.map_or_else(|| "nothing".into(), |address| address.to_string());
            self.odd(
                &format!("gpu{gpu}"),
                format!("linked to {to}, which is no GPU of this file"),
            );
        }
        let rate = |gpu: u32, kind| {
            let gpu = gpus.get(gpu as usize)?;
            let capability = gpu.compute_capability.as_deref()?;
            (kind == GpuLinkKind::NvLink).then(|| gpu_links::nvlink_rate(capability))?
        };
        gpu_links::join(&ends, rate, &mut self.oddities)
    }
}

fn speed(node: Node<'_, '_>) -> Option<PcieSpeed> {
    let width = xml::number::<u8>(node, "link_width")?;
    Some(PcieSpeed {
        generation: PcieGeneration::from_gigatransfers(node.attribute("link_speed")?)?,
        width: PcieSpeed::WIDTHS.contains(&width).then_some(width)?,
    })
}

#[cfg(test)]
mod tests {
    use super::family;

    #[test]
    fn families_read_as_nccl_writes_them_and_as_people_do() {
        assert_eq!(family(175), 25);
        assert_eq!(family(143), 23);
        assert_eq!(family(111), 21, "Bulldozer, which is no Zen");
        assert_eq!(family(23), 23);
        assert_eq!(family(6), 6);
    }
}
