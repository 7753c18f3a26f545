//! `crowfly map`: the devices of a machine and what lies between them.

use std::path::PathBuf;

use clap::Args;
use crowfly_route::topology::{
    Device, GpuLinkKind, Host, LinkState, NumaInfo, Oddity, PcieSpeed, Relation, Topology,
};
use crowfly_route::units::{BytesPerSecond, NumaNode, PciAddress};
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::machine::DescribedMachineArgs;
use crate::output::Output;
use crate::path::shown;
use crate::{file, render};

pub mod groups;
pub mod outline;

/// The version of the JSON form of a map.
pub const MAP_SCHEMA: &str = "crowfly.map/1";
/// The most devices between which distances are told. A machine with sixteen GPUs has fifty.
pub const MAX_DEVICES: usize = 256;

/// Arguments of `crowfly map`.
#[derive(Args, Debug)]
pub struct MapArgs {
    /// Also draw it into an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    machine: DescribedMachineArgs,
}

/// A machine's devices, links and distances.
#[derive(Debug, Serialize)]
pub struct Map {
    schema: &'static str,
    host: Host,
    numa: Vec<NumaInfo>,
    devices: Vec<Entry>,
    /// The PCIe links between the devices and the CPUs, each once.
    links: Vec<Link>,
    gpu_links: Vec<GpuLink>,
    /// Every pair of devices; empty when there are more than [`MAX_DEVICES`].
    distances: Vec<Pair>,
    oddities: Vec<Oddity>,
    /// What all of it was taken from.
    #[serde(skip)]
    pub topology: Topology,
}

#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    kind: &'static str,
    address: Option<PciAddress>,
    model: Option<String>,
    numa: Option<NumaNode>,
}

#[derive(Debug, Serialize)]
struct Link {
    /// As pairs name it.
    name: String,
    /// The function below the link.
    below: PciAddress,
    current: Option<PcieSpeed>,
    maximum: Option<PcieSpeed>,
    state: LinkState,
    /// In one direction after encoding.
    bytes_per_second: Option<BytesPerSecond>,
}

#[derive(Debug, Serialize)]
struct GpuLink {
    a: String,
    b: String,
    kind: GpuLinkKind,
    count: u32,
    /// Of all of them, in one direction.
    bytes_per_second: Option<BytesPerSecond>,
}

#[derive(Debug, Serialize)]
struct Pair {
    a: String,
    b: String,
    relation: Relation,
    /// What lies between them by PCIe, where NVLink or xGMI is nearer.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_pcie: Option<Relation>,
    bridges: Vec<PciAddress>,
    links: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    doubts: Vec<String>,
}

/// Draws the map.
pub fn run(args: &MapArgs, out: &mut Output) -> Result<Exit, Failure> {
    let (topology, _) = args.machine.look()?;
    let map = Map::new(topology);
    if let Some(path) = &args.svg {
        let picture = render::map_svg::render(&map.topology);
        file::replace(path, picture.as_bytes())?;
        out.note(&format!("picture written to {}", shown(path)));
    }
    let verbose = out.verbose();
    out.show(&map, |columns| {
        render::map::render(&map.topology, columns, verbose)
    })?;
    Ok(Exit::Ok)
}

impl Map {
    /// The map of a topology.
    pub fn new(topology: Topology) -> Self {
        let devices: Vec<Device> = topology.devices().collect();
        Self {
            schema: MAP_SCHEMA,
            host: topology.host.clone(),
            numa: topology.numa.clone(),
            devices: devices.iter().map(|d| entry(&topology, *d)).collect(),
            links: links(&topology, &devices),
            gpu_links: gpu_links(&topology),
            distances: pairs(&topology, &devices),
            oddities: topology.oddities.clone(),
            topology,
        }
    }
}

fn entry(topology: &Topology, device: Device) -> Entry {
    let address = topology.address_of(device);
    let function = address.and_then(|address| topology.pci.get(&address));
    let (kind, model) = match device {
        Device::Gpu(index) => {
            let gpu = topology.gpus.get(index);
            ("gpu", gpu.map(|gpu| gpu.name.clone()))
        }
        Device::Nic(index) => {
            let nic = topology.nics.get(index);
            ("nic", nic.and_then(|nic| nic.model.clone()))
        }
        Device::Drive(index) => {
            let drive = topology.drives.get(index);
            ("drive", drive.and_then(|drive| drive.model.clone()))
        }
        Device::Function(_) => ("function", function.map(|f| f.name.clone())),
    };
    Entry {
        name: topology.name_of(device),
        kind,
        address,
        model,
        numa: address.and_then(|address| topology.numa_of(address)),
    }
}

fn links(topology: &Topology, devices: &[Device]) -> Vec<Link> {
    let mut below: Vec<PciAddress> = devices
        .iter()
        .filter_map(|device| topology.address_of(*device))
        .flat_map(|address| {
            let above = topology.above(address).map(|bridge| bridge.address);
            std::iter::once(address).chain(above)
        })
        .collect();
    below.sort_unstable();
    below.dedup();
    let link = |below: PciAddress| {
        let link = topology.link_above(below)?;
        let crossing = topology.crossing_above(below)?;
        Some(Link {
            name: crossing.link,
            below,
            current: link.current,
            maximum: link.maximum,
            state: topology.link_state(below)?,
            bytes_per_second: crossing.rate,
        })
    };
    below.into_iter().filter_map(link).collect()
}

fn gpu_links(topology: &Topology) -> Vec<GpuLink> {
    let links = topology.gpu_links.iter();
    links
        .map(|link| GpuLink {
            a: topology.name_of(Device::Gpu(link.a as usize)),
            b: topology.name_of(Device::Gpu(link.b as usize)),
            kind: link.kind,
            count: link.count,
            bytes_per_second: link.rate,
        })
        .collect()
}

fn pairs(topology: &Topology, devices: &[Device]) -> Vec<Pair> {
    if devices.len() > MAX_DEVICES {
        return Vec::new();
    }
    let mut pairs = Vec::new();
    for (position, a) in devices.iter().enumerate() {
        for b in devices.iter().skip(position + 1) {
            let distance = topology.distance(*a, *b);
            let by_pcie = topology.pcie_distance(*a, *b).relation;
            pairs.push(Pair {
                a: topology.name_of(*a),
                b: topology.name_of(*b),
                relation: distance.relation,
                by_pcie: (by_pcie != distance.relation).then_some(by_pcie),
                bridges: distance.path.bridges,
                links: distance
                    .path
                    .crossings
                    .into_iter()
                    .map(|c| c.link)
                    .collect(),
                doubts: distance.path.doubts,
            });
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::machines;

    use super::*;

    #[test]
    fn given_a_small_machine_the_document_tells_devices_links_and_every_pair() {
        let map = Map::new(machines::pcie_box().topology());
        insta::assert_json_snapshot!(map);
    }

    #[test]
    fn given_a_dgx_every_pair_is_there_once_and_names_links_that_are_listed() {
        let map = Map::new(machines::dgx_h100().topology());
        let devices = map.devices.len();
        assert_eq!(devices, 26);
        assert_eq!(map.distances.len(), devices * (devices - 1) / 2);
        let first = &map.distances[0];
        assert_eq!((first.a.as_str(), first.b.as_str()), ("gpu0", "gpu1"));
        assert_eq!(first.relation, Relation::NvLink(18));
        assert_eq!(first.by_pcie, Some(Relation::Node));
        let listed = |name: &String| map.links.iter().any(|link| &link.name == name);
        let by_pcie = |pair: &&Pair| matches!(pair.relation, Relation::Pix);
        for pair in map.distances.iter().filter(by_pcie) {
            assert!(pair.links.iter().all(listed), "{pair:?}");
        }
    }
}
