//! Files of `lstopo --of xml`, format versions 2 and 3 (hwloc's own "Upgrading" and XML notes).

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::Node;

use super::file::shortened;
use super::hierarchy::{self, PortSpeeds};
use super::pcie::{self, PciDevice, RootComplex};
use super::{
    BlockDevice, Drive, DriveTransport, Gpu, Host, Interface, Nic, NumaInfo, Oddity, RdmaPort,
    Topology, TopologyError, decode, xml,
};
use crate::units::{Bytes, BytesPerSecond, NumaNode, PciAddress};

mod bitmap;
mod links;

use bitmap::Bitmap;

pub(super) fn read(topology: Node<'_, '_>) -> Result<Topology, TopologyError> {
    let version = topology.attribute("version").unwrap_or("1");
    let format = match version.split('.').next() {
        Some("2") => Format::Two,
        Some("3") => Format::Three,
        _ => {
            return Err(TopologyError::HwlocVersion {
                found: shortened(version),
            });
        }
    };
    let mut reader = Reader::new(format);
    for object in topology.children().filter(|n| n.has_tag_name("object")) {
        reader.object(object, &Place::default());
    }
    Ok(reader.finish(topology))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Two,
    Three,
}

/// Where in the tree an object is. Cheap to copy: what grows is shared.
#[derive(Clone, Default)]
struct Place {
    package: Option<u32>,
    numa: Option<NumaNode>,
    root: Option<RootComplex>,
    above: Vec<PciAddress>,
}

/// What the operating system calls a PCI function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OsDevice {
    Block,
    Network,
    OpenFabrics,
    /// Graphics, a coprocessor or both.
    Accelerator,
}

struct Reader {
    format: Format,
    topology: Topology,
    hierarchy: hierarchy::Builder,
    functions: BTreeSet<PciAddress>,
    /// GPUs' names and memory by what their libraries' devices say.
    models: BTreeMap<PciAddress, Model>,
    nics: BTreeMap<PciAddress, Nic>,
    drives: BTreeMap<(PciAddress, String), Drive>,
    by_index: links::ByIndex,
}

#[derive(Default)]
struct Model {
    name: Option<String>,
    memory: Option<Bytes>,
}

impl Reader {
    fn new(format: Format) -> Self {
        Self {
            format,
            topology: Topology::default(),
            hierarchy: hierarchy::Builder::default(),
            functions: BTreeSet::new(),
            models: BTreeMap::new(),
            nics: BTreeMap::new(),
            drives: BTreeMap::new(),
            by_index: links::ByIndex::default(),
        }
    }

    /// Reads an object and what is in it. The depth is limited by the caller.
    fn object(&mut self, object: Node<'_, '_>, at: &Place) {
        let mut here = at.clone();
        match object.attribute("type").unwrap_or_default() {
            "Machine" => self.machine(object),
            "Package" => {
                here.package = xml::number(object, "os_index");
                self.processor(object);
            }
            "NUMANode" => self.numa(object, at),
            "Bridge" if object.attribute("bridge_type") == Some("0-1") => {
                here.root = object.attribute("bridge_pci").and_then(root_complex);
            }
            "Bridge" | "PCIDev" => {
                if let Some(address) = self.function(object, at) {
                    here.above.push(address);
                }
            }
            "OSDev" => self.os_device(object, at),
            _ => {}
        }
        // Devices hang off the object whose memory they are near.
        if let Some(set) = object.attribute("nodeset") {
            here.numa = Bitmap::parse(set).only().map(NumaNode);
        }
        for child in object.children().filter(|n| n.has_tag_name("object")) {
            self.object(child, &here);
        }
    }

    fn machine(&mut self, object: Node<'_, '_>) {
        let host = &mut self.topology.host;
        host.kernel = info(object, "OSRelease").map(str::to_owned);
        host.machine = info(object, "Architecture").map(str::to_owned);
    }

    fn processor(&mut self, package: Node<'_, '_>) {
        let host = &mut self.topology.host;
        let text = |name| info(package, name).map(str::to_owned);
        let number = |name| info(package, name).and_then(|v| v.parse().ok());
        *host = Host {
            cpu_vendor: text("CPUVendor"),
            cpu_family: number("CPUFamilyNumber"),
            cpu_model: number("CPUModelNumber"),
            cpu_name: text("CPUModel"),
            sockets: Some(host.sockets.unwrap_or(0).saturating_add(1)),
            ..std::mem::take(host)
        };
    }

    fn numa(&mut self, object: Node<'_, '_>, at: &Place) {
        let Some(number) = xml::number(object, "os_index") else {
            return self.odd("NUMANode", "without a number; left out".into());
        };
        let cpus = Bitmap::parse(object.attribute("cpuset").unwrap_or_default());
        self.topology.numa.push(NumaInfo {
            node: NumaNode(number),
            cpus: cpus.list(),
            socket: at.package,
            memory: xml::number(object, "local_memory").map(Bytes),
            distances: Vec::new(),
        });
    }

    fn function(&mut self, object: Node<'_, '_>, at: &Place) -> Option<PciAddress> {
        let bus_id = object.attribute("pci_busid").unwrap_or_default();
        let Ok(address) = bus_id.parse::<PciAddress>() else {
            self.odd("PCIDev", format!("`{bus_id}` is no PCI address; left out"));
            return None;
        };
        if !self.functions.insert(address) {
            self.odd(bus_id, "named twice; the second one is left out".into());
            return None;
        }
        let (class, vendor, device) = object
            .attribute("pci_type")
            .and_then(pci_type)
            .unwrap_or_else(|| {
                self.odd(bus_id, "without class and ids".into());
                (0, pcie::NO_ID, pcie::NO_ID)
            });
        let function = PciDevice {
            class,
            vendor,
            device,
            name: pcie::name(vendor, device),
            numa: at.numa,
            ..PciDevice::unseen(address, at.root)
        };
        // Gigabytes per second of the link as it ran; zero where it was not known.
        let rate = object
            .attribute("pci_link_speed")
            .and_then(|speed| speed.parse::<f64>().ok())
            .filter(|speed| *speed > 0.0 && speed.is_finite())
            .map(BytesPerSecond::gb);
        let speeds = PortSpeeds {
            rate,
            express: true,
            ..PortSpeeds::default()
        };
        self.hierarchy.add(function, at.above.clone(), speeds);
        if let Some(index) = xml::number(object, "gp_index") {
            self.by_index.function(index, address);
        }
        Some(address)
    }

    fn os_device(&mut self, object: Node<'_, '_>, at: &Place) {
        // Devices outside PCI are software, or hang off a bus that is not looked at.
        let Some(address) = at.above.last().copied() else {
            return;
        };
        let name = object.attribute("name").unwrap_or_default();
        if let Some(index) = xml::number(object, "gp_index") {
            self.by_index.os_device(index, address);
        }
        for kind in self.kinds(object) {
            match kind {
                OsDevice::Block => self.drive(object, name, address),
                OsDevice::Network => self.nic(address, name).interfaces.push(Interface {
                    name: name.to_owned(),
                    state: None,
                    rate: None,
                    mtu: None,
                }),
                OsDevice::OpenFabrics => {
                    let ports = rdma_ports(object);
                    let nic = self.nic(address, name);
                    nic.name = name.to_owned();
                    nic.ports = ports;
                }
                OsDevice::Accelerator => {
                    let model = self.models.entry(address).or_default();
                    let kibibytes = info(object, "CUDAGlobalMemorySize")
                        .or_else(|| info(object, "RSMIVRAMSize"))
                        .and_then(|size| size.parse::<u64>().ok());
                    model.memory = model
                        .memory
                        .or(kibibytes.and_then(|k| k.checked_mul(1024)).map(Bytes));
                    let name = info(object, "GPUModel").map(str::to_owned);
                    model.name = model.name.take().or(name);
                }
            }
        }
    }

    /// Version 2 numbers the kinds, version 3 has a bit for each.
    fn kinds(&self, object: Node<'_, '_>) -> Vec<OsDevice> {
        let Some(number) = xml::number::<u64>(object, "osdev_type") else {
            return Vec::new();
        };
        if self.format == Format::Two {
            let kind = match number {
                0 => OsDevice::Block,
                1 | 5 => OsDevice::Accelerator,
                2 => OsDevice::Network,
                3 => OsDevice::OpenFabrics,
                _ => return Vec::new(),
            };
            return vec![kind];
        }
        let kinds = [
            (1 << 0, OsDevice::Block),
            (1 << 2 | 1 << 3, OsDevice::Accelerator),
            (1 << 4, OsDevice::Network),
            (1 << 5, OsDevice::OpenFabrics),
        ];
        let set = kinds.iter().filter(|(bits, _)| number & bits != 0);
        set.map(|(_, kind)| *kind).collect()
    }

    fn nic(&mut self, address: PciAddress, name: &str) -> &mut Nic {
        self.nics.entry(address).or_insert_with(|| Nic {
            name: name.to_owned(),
            address: Some(address),
            model: None,
            firmware: None,
            ports: Vec::new(),
            interfaces: Vec::new(),
            virtual_function: false,
        })
    }

    fn drive(&mut self, object: Node<'_, '_>, name: &str, address: PciAddress) {
        let controller = nvme_controller(name);
        let size = info(object, "Size").and_then(|s| s.parse::<u64>().ok());
        self.topology.blocks.insert(
            name.to_owned(),
            BlockDevice {
                number: info(object, "LinuxDeviceID").map(str::to_owned),
                kind: "disk".into(),
                size: size.and_then(|k| k.checked_mul(1024)).map(Bytes),
                logical_block: info(object, "SectorSize").and_then(|s| s.parse().ok()),
                ..BlockDevice::default()
            },
        );
        let transport = match (&controller, name.get(..2)) {
            (Some(_), _) => DriveTransport::NvmePcie,
            (_, Some("vd")) => DriveTransport::Virtio,
            (_, Some("sd")) => DriveTransport::Scsi,
            _ => DriveTransport::Other,
        };
        let drive_name = controller.unwrap_or_else(|| name.to_owned());
        self.drives
            .entry((address, drive_name.clone()))
            .or_insert_with(|| Drive {
                name: drive_name,
                address: Some(address),
                model: info(object, "Model").map(str::to_owned),
                transport,
                blocks: Vec::new(),
            })
            .blocks
            .push(name.to_owned());
    }

    fn odd(&mut self, at: &str, what: String) {
        self.topology.oddities.push(Oddity::new(at, what));
    }

    fn finish(mut self, file: Node<'_, '_>) -> Topology {
        let mut topology = self.topology;
        topology.pci = self.hierarchy.settle(&mut topology.oddities);
        topology.numa.sort_by_key(|n| n.node);
        topology.numa.dedup_by_key(|n| n.node);
        links::latencies(file, &mut topology.numa);
        let models = &mut self.models;
        topology.gpus = topology
            .pci
            .values()
            .filter_map(|function| {
                let vendor = decode::gpu_vendor(function, &topology.pci)?;
                let model = models.remove(&function.address).unwrap_or_default();
                Some(Gpu {
                    address: Some(function.address),
                    name: model.name.unwrap_or_else(|| function.name.clone()),
                    vendor,
                    memory: model.memory,
                    bar: None,
                    compute_capability: None,
                    performance_state: None,
                })
            })
            .collect();
        topology.nics = self.nics.into_values().collect();
        for nic in &mut topology.nics {
            let function = nic.address.and_then(|address| topology.pci.get(&address));
            nic.model = function.map(|f| f.name.clone());
            nic.virtual_function = function.is_some_and(|f| f.name.contains("Virtual Function"));
        }
        topology
            .nics
            .sort_by(|a, b| decode::natural(&a.name).cmp(&decode::natural(&b.name)));
        topology.drives = self.drives.into_values().collect();
        topology
            .drives
            .sort_by(|a, b| decode::natural(&a.name).cmp(&decode::natural(&b.name)));
        topology.gpu_links =
            links::between_gpus(file, &self.by_index, &topology.gpus, &mut topology.oddities);
        topology
    }
}

/// The value of an object's `<info name=… value=…>`.
fn info<'a>(object: Node<'a, '_>, name: &str) -> Option<&'a str> {
    object
        .children()
        .find(|n| n.has_tag_name("info") && n.attribute("name") == Some(name))?
        .attribute("value")
}

/// `0000:[2b-3b]`: the domain and the buses behind a host bridge.
fn root_complex(text: &str) -> Option<RootComplex> {
    let (domain, buses) = text.split_once(":[")?;
    let (first, _) = buses.split_once('-')?;
    Some(RootComplex {
        domain: u32::from_str_radix(domain, 16).ok()?,
        bus: u8::from_str_radix(first, 16).ok()?,
    })
}

/// `0302 [10de:1db8] [10de:131d] a1 00`: class, ids, ids of the board.
fn pci_type(text: &str) -> Option<(u32, u16, u16)> {
    let (class, rest) = text.split_once(" [")?;
    let (vendor, rest) = rest.split_once(':')?;
    let (device, _) = rest.split_once(']')?;
    let id = |text| u16::from_str_radix(text, 16).ok();
    Some((u32::from(id(class)?) << 8, id(vendor)?, id(device)?))
}

/// `nvme0` of `nvme0n1`.
fn nvme_controller(block: &str) -> Option<String> {
    let (controller, namespace) = block.strip_prefix("nvme")?.split_once('n')?;
    let number = |text: &str| text.parse::<u32>().is_ok();
    (number(controller) && number(namespace)).then(|| format!("nvme{controller}"))
}

/// The most ports of an RDMA device that are looked for.
const MAX_PORTS: u32 = 8;

fn rdma_ports(object: Node<'_, '_>) -> Vec<RdmaPort> {
    (1..=MAX_PORTS)
        .filter_map(|number| {
            // The state's number as in `4: ACTIVE`.
            let state = info(object, &format!("Port{number}State"))?;
            Some(RdmaPort {
                number,
                active: Some(state == "4"),
                state: Some(state.to_owned()),
                link_layer: None,
                rate: None,
                gids: Vec::new(),
            })
        })
        .collect()
}
