//! A server of the catalogue as a machine: the devices that its entry names, on the links that its
//! parts have.
//!
//! The catalogue knows what is in a server and how fast it is, not which slot it is in. Where it says
//! nothing, the layout is that of the servers that are built for this: two sockets, and below each
//! PCIe switch a GPU with its adapters and a drive. What was assumed stands among the oddities.

use crowfly_route::topology::{
    Drive, DriveTransport, Gpu as GpuDevice, GpuLink, GpuLinkKind, GpuVendor, Host, Interface,
    Nic as Adapter, NumaInfo, Oddity, PciDevice, PcieGeneration, PcieLink, PcieSpeed, PortKind,
    RdmaPort, RootComplex, Topology,
};
use crowfly_route::units::{BytesPerSecond, NumaNode, PciAddress};

use crate::catalog::{Catalog, Entry, Gpu, Server, Transport, Used};
use crate::error::PlanError;

/// The most GPUs of one machine that are laid out.
pub const MAX_GPUS: u32 = 32;
/// The most adapters below one switch.
const MAX_ADAPTERS_PER_SWITCH: u32 = 12;
const SOCKETS: u32 = 2;
const LANES: u8 = 16;
/// A data-center drive.
const DRIVE: PcieSpeed = PcieSpeed {
    generation: PcieGeneration(4),
    width: 4,
};
/// The slot of a device about which nothing is known.
const USUAL_GENERATION: u8 = 5;
/// One NVLink in one direction, in 1e9 B/s, by generation: 25 up to the fourth, 50 in the fifth.
const NVLINK_GBS: [(u8, f64); 3] = [(3, 25.0), (4, 25.0), (5, 50.0)];
const FIRST_BUS: u8 = 8;
/// Buses of one switch: those of the root port, of the switch and of the devices.
const BUSES: u8 = 4;
const BRIDGE: u32 = 0x06_0400;
const GPU_CLASS: u32 = 0x03_0200;
const NIC_CLASS: u32 = 0x02_0700;
const DRIVE_CLASS: u32 = 0x01_0802;

/// A server of the catalogue as a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The machine.
    pub topology: Topology,
    /// Entries that this rests on.
    pub used: Vec<Used>,
}

impl Layout {
    /// The layout of a server.
    ///
    /// # Errors
    /// The name is unknown, or the accelerators have no PCIe link to anything: their network is part
    /// of them.
    pub fn of(catalog: &Catalog, id: &str) -> Result<Self, PlanError> {
        let entry = catalog.servers.get(id)?;
        let gpu = catalog.gpus.get(&entry.facts.gpu)?;
        if gpu.facts.eth_ports.is_some() || gpu.facts.ici_gbs_bidir.is_some() {
            return Err(PlanError::Impossible {
                what: format!(
                    "{id}: the network of {} is part of the accelerator, so there is no PCIe hop to draw",
                    gpu.id
                ),
                hint: "choose a server whose adapters are devices of their own".into(),
            });
        }
        let mut draft = Draft::new(catalog, entry, gpu);
        draft.build();
        let used = vec![entry.used(), gpu.used()];
        for unverified in used.iter().filter(|used| !used.verified) {
            let at = format!("{} {}", unverified.kind, unverified.id);
            let what = "the catalogue's entry is unverified".to_owned();
            draft.topology.oddities.push(odd(&at, what));
        }
        Ok(Self {
            topology: draft.topology,
            used,
        })
    }
}

fn odd(at: &str, what: String) -> Oddity {
    Oddity {
        at: at.to_owned(),
        what,
    }
}

struct Draft<'a> {
    server: &'a Server,
    gpu: &'a Entry<Gpu>,
    gpus: u32,
    nics: u32,
    gpu_slot: PcieSpeed,
    nic_slot: PcieSpeed,
    adapter: Option<String>,
    topology: Topology,
}

impl<'a> Draft<'a> {
    fn new(catalog: &Catalog, entry: &'a Entry<Server>, gpu: &'a Entry<Gpu>) -> Self {
        let server = &entry.facts;
        let part = server.tray_gpus.unwrap_or(server.gpus).clamp(1, MAX_GPUS);
        let nics = server.nics.unwrap_or(0);
        let share = u64::from(nics) * u64::from(part) / u64::from(server.gpus.max(1));
        let nic = server
            .nic
            .as_ref()
            .and_then(|name| catalog.nics.get(name).ok());
        let generation = gpu.facts.pcie_gen.unwrap_or(USUAL_GENERATION);
        let slot = |generation| PcieSpeed {
            generation: PcieGeneration(generation),
            width: LANES,
        };
        let nic_slot = nic.and_then(|nic| nic.facts.pcie_gen).unwrap_or(generation);
        let mut topology = Topology::default();
        let assumed = &mut topology.oddities;
        if part < server.gpus {
            let what = format!("one tray of {part} of the {} GPUs is shown", server.gpus);
            assumed.push(odd(&entry.id, what));
        }
        if gpu.facts.pcie_gen.is_none() {
            let what = format!("its PCIe generation is not known; taken as {USUAL_GENERATION}");
            assumed.push(odd(&gpu.id, what));
        }
        Self {
            server,
            gpu,
            gpus: part,
            nics: u32::try_from(share).unwrap_or(u32::MAX),
            gpu_slot: slot(generation),
            nic_slot: slot(nic_slot),
            adapter: nic.map(|nic| nic.id.clone()),
            topology,
        }
    }

    fn build(&mut self) {
        let sockets = SOCKETS.min(self.gpus);
        let node = |number: u32| NumaInfo {
            node: NumaNode(number),
            cpus: String::new(),
            socket: Some(number),
            memory: None,
            distances: Vec::new(),
        };
        self.topology.numa = (0..sockets).map(node).collect();
        self.topology.host = Host {
            sockets: Some(sockets),
            ..Host::default()
        };
        let pairs = self
            .server
            .pairs_per_uplink
            .unwrap_or(1)
            .clamp(1, self.gpus);
        let switches = self.gpus.div_ceil(pairs);
        let per_switch = self.nics.div_ceil(switches).min(MAX_ADAPTERS_PER_SWITCH);
        for number in 0..switches {
            let socket = number * sockets / switches;
            let gpus = pairs.min(self.gpus - number * pairs);
            let dealt = u32::try_from(self.topology.nics.len()).unwrap_or(u32::MAX);
            let nics = per_switch.min(self.nics.saturating_sub(dealt));
            self.switch(number, NumaNode(socket), gpus, nics);
        }
        let drives = "a drive below each switch";
        let what = format!(
            "which slot a device is in, the catalogue does not say; taken as {sockets} sockets, and {drives}"
        );
        self.topology.oddities.push(odd("slots", what));
        self.links_between_gpus();
    }

    /// A switch below a root port of its own, with GPUs, adapters and a drive.
    fn switch(&mut self, number: u32, node: NumaNode, gpus: u32, nics: u32) {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        let bus = FIRST_BUS.saturating_add(number.saturating_mul(BUSES));
        let at = |bus, device| PciAddress {
            domain: 0,
            bus,
            device,
            function: 0,
        };
        let (port, switch) = (at(bus, 1), at(bus + 1, 0));
        let root = RootComplex { domain: 0, bus };
        let uplink = self.gpu_slot;
        let mut add = |address, parent, class, name: &str, kind, speed: Option<PcieSpeed>| {
            let link = speed.map(|speed| PcieLink {
                current: Some(speed),
                maximum: Some(speed),
                rate: None,
            });
            let function = PciDevice {
                parent,
                class,
                vendor: 0,
                device: 0,
                name: name.to_owned(),
                numa: Some(node),
                port: kind,
                link,
                ..PciDevice::unseen(address, Some(root))
            };
            self.topology.pci.insert(address, function);
        };
        add(port, None, BRIDGE, "root port", Some(PortKind::Root), None);
        add(
            switch,
            Some(port),
            BRIDGE,
            "PCIe switch",
            Some(PortKind::Switch),
            Some(uplink),
        );
        let below = (0u8..).map(|device| at(bus + 2, device));
        let mut below = below.take(usize::from(u8::MAX));
        let mut dealt = |class, name: &str, count: u32, speed| -> Vec<PciAddress> {
            let addresses: Vec<_> = below.by_ref().take(count as usize).collect();
            for address in &addresses {
                add(*address, Some(switch), class, name, None, Some(speed));
            }
            addresses
        };
        let (gpu_slot, nic_slot) = (self.gpu_slot, self.nic_slot);
        let gpu_name = self.gpu.id.clone();
        let nic_name = self
            .adapter
            .clone()
            .unwrap_or_else(|| "network adapter".into());
        let gpus = dealt(GPU_CLASS, &gpu_name, gpus, gpu_slot);
        let nics = dealt(NIC_CLASS, &nic_name, nics, nic_slot);
        let drives = dealt(DRIVE_CLASS, "NVMe drive", 1, DRIVE);
        gpus.into_iter().for_each(|address| self.gpu_at(address));
        nics.into_iter().for_each(|address| self.nic_at(address));
        drives
            .into_iter()
            .for_each(|address| self.drive_at(address));
    }

    fn gpu_at(&mut self, address: PciAddress) {
        let id = self.gpu.id.as_str();
        let vendor = match id {
            id if id.starts_with("mi") => GpuVendor::Amd,
            id if id.starts_with("trainium") => GpuVendor::Other,
            _ => GpuVendor::Nvidia,
        };
        self.topology.gpus.push(GpuDevice {
            address: Some(address),
            name: self
                .gpu
                .facts
                .names
                .first()
                .map_or(id, String::as_str)
                .to_owned(),
            vendor,
            memory: None,
            bar: None,
            compute_capability: None,
            performance_state: None,
        });
    }

    fn nic_at(&mut self, address: PciAddress) {
        let index = self.topology.nics.len();
        let rate = self.server.nic_gbps.map(BytesPerSecond::from_gbps);
        let (prefix, layer) = match self.server.transport {
            Transport::Infiniband => ("mlx5_", Some("InfiniBand")),
            Transport::Roce => ("mlx5_", Some("Ethernet")),
            Transport::Efa => ("rdmap", Some("Ethernet")),
            Transport::Tcpx | Transport::Tcpxo | Transport::Tcp => ("eth", None),
        };
        let name = format!("{prefix}{index}");
        let port = layer.map(|layer| RdmaPort {
            number: 1,
            active: Some(true),
            state: None,
            link_layer: Some(layer.to_owned()),
            rate,
            gids: Vec::new(),
        });
        let interface = Interface {
            name: format!("eth{index}"),
            state: Some("up".into()),
            rate,
            mtu: None,
        };
        self.topology.nics.push(Adapter {
            name,
            address: Some(address),
            model: self.adapter.clone(),
            firmware: None,
            ports: port.into_iter().collect(),
            interfaces: vec![interface],
            virtual_function: false,
        });
    }

    fn drive_at(&mut self, address: PciAddress) {
        let index = self.topology.drives.len();
        self.topology.drives.push(Drive {
            name: format!("nvme{index}"),
            address: Some(address),
            model: None,
            transport: DriveTransport::NvmePcie,
            blocks: vec![format!("nvme{index}n1")],
        });
    }

    /// From all to all, with all that a GPU has: through switches, or as many links as there are peers.
    fn links_between_gpus(&mut self) {
        let facts = &self.gpu.facts;
        let nvlink = facts
            .nvlink_gbs
            .map(|both| (GpuLinkKind::NvLink, both / 2.0));
        let xgmi = facts.p2p_gbs_per_dir.map(|gbs| (GpuLinkKind::Xgmi, gbs));
        let Some((kind, gbs)) = nvlink.or(xgmi) else {
            return;
        };
        let per_link = NVLINK_GBS
            .iter()
            .find(|(generation, _)| facts.nvlink_gen == Some(*generation))
            .map(|(_, gbs)| *gbs);
        let count = per_link.map_or(1, |per_link| (gbs / per_link).round() as u32);
        for a in 0..self.gpus {
            for b in a + 1..self.gpus {
                self.topology.gpu_links.push(GpuLink {
                    a,
                    b,
                    kind,
                    count,
                    rate: Some(BytesPerSecond::gb(gbs)),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crowfly_route::place::Place;
    use crowfly_route::search;

    use super::*;

    fn layout(id: &str) -> Layout {
        Layout::of(&Catalog::built_in(), id).expect("it can be laid out")
    }

    /// `name: class copies/touches/PCIe/RAM ceiling in GB/s` of each way.
    fn ways(id: &str, from: &str, to: &str) -> Vec<String> {
        let topology = layout(id).topology;
        let place = |text: &str| text.parse::<Place>().expect("a place");
        let found = search::candidates(&topology, None, &place(from), &place(to));
        let found = found.expect("both exist").into_iter();
        found
            .map(|candidate| {
                let route = candidate.route;
                let counters = route.counters();
                format!(
                    "{}: {} {}/{}/{}/{} {:.2}",
                    route.name,
                    route.class(),
                    counters.copies,
                    counters.cpu_touches,
                    counters.pcie_hops,
                    counters.host_ram_passes,
                    route
                        .ceiling()
                        .expect("a rate is known")
                        .capacity
                        .rate
                        .as_gb()
                )
            })
            .collect()
    }

    #[test]
    fn given_a_dgx_h100_of_the_catalogue_its_ways_have_the_counters_of_the_real_one() {
        let between = ways("dgx-h100", "gpu:0", "remote:gpu:0");
        for expected in [
            "gpudirect-rdma: direct 1/0/4/0 50.00",
            "rdma: staged 3/0/8/4 50.00",
            "sockets: socket 5/2/8/8 10.00",
        ] {
            assert!(between.contains(&expected.to_owned()), "{between:?}");
        }
        let inward = ways("dgx-h100", "drive:nvme0", "gpu:0");
        for expected in [
            "gpudirect-storage: direct 1/0/2/0 7.88",
            "o-direct: staged 2/0/4/2 7.88",
            "page-cache: staged 3/1/4/4 7.88",
        ] {
            assert!(inward.contains(&expected.to_owned()), "{inward:?}");
        }
        let wrong_side = ways("dgx-h100", "nic:mlx5_4", "gpu:0");
        let expected = "gpudirect-rdma: direct 1/0/4/0 50.00".to_owned();
        assert!(wrong_side.contains(&expected), "{wrong_side:?}");
        let beside = ways("dgx-h100", "gpu:0", "gpu:7");
        assert!(beside.contains(&"nvlink: direct 1/0/0/0 450.00".to_owned()));
    }

    #[test]
    fn every_server_is_laid_out_with_its_devices_or_refused_by_name() {
        let catalog = Catalog::built_in();
        let mut refused = Vec::new();
        for entry in catalog.servers.iter() {
            let Ok(layout) = Layout::of(&catalog, &entry.id) else {
                refused.push(entry.facts.gpu.as_str());
                continue;
            };
            let part = entry.facts.tray_gpus.unwrap_or(entry.facts.gpus);
            let topology = &layout.topology;
            assert_eq!(topology.gpus.len(), part as usize, "{}", entry.id);
            let nics = entry.facts.nics.unwrap_or(0) * part / entry.facts.gpus;
            assert_eq!(topology.nics.len(), nics as usize, "{}", entry.id);
            assert!(topology.oddities.iter().any(|odd| odd.at == "slots"));
            let addresses: Vec<_> = topology.gpus.iter().map(|gpu| gpu.address).collect();
            assert!(addresses.is_sorted(), "{}: {addresses:?}", entry.id);
        }
        refused.dedup();
        for gpu in refused {
            assert!(gpu.starts_with("tpu") || gpu.starts_with("gaudi"), "{gpu}");
        }
    }

    #[test]
    fn given_an_entry_that_nobody_checked_the_machine_says_so() {
        let said = |id: &str| {
            let oddities = layout(id).topology.oddities;
            let mut unverified = oddities
                .iter()
                .filter(|odd| odd.what.contains("unverified"));
            unverified.next().map(|odd| odd.at.clone())
        };
        assert_eq!(
            said("aws-p6e-gb200").as_deref(),
            Some("server aws-p6e-gb200")
        );
        assert_eq!(said("dgx-h100"), None);
    }

    #[test]
    fn given_an_unknown_server_the_nearest_are_named() {
        let error = Layout::of(&Catalog::built_in(), "dgx-h10").expect_err("unknown");
        assert_eq!(error.code(), "plan-unknown-name");
    }
}
