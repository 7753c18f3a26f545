//! What a machine without GPU would allow if one sat in each of its slots.
//!
//! Each PCIe port that a card can be put behind gets a GPU in thought, and the planner is asked for
//! the straight way from every drive and RDMA adapter into it, as it is asked for real ones. Only what
//! lies in the machine itself is kept of the answer: of a GPU that is not there, neither driver nor
//! runtime can be missing.

use std::collections::BTreeMap;

use crowfly_route::hop::{Candidate, Class, Standing};
use crowfly_route::obstacle::{Code, Effect, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::search;
use crowfly_route::snapshot::Snapshot;
use crowfly_route::topology::{
    AcsState, Device, Gpu, GpuVendor, PciDevice, PcieGeneration, PcieLink, PcieSpeed, PortKind,
    Relation, RootComplex, Topology,
};
use crowfly_route::units::{BytesPerSecond, NumaNode, PciAddress};
use serde::Serialize;

/// The most slots that are looked at; a machine has a dozen.
pub const MAX_SLOTS: usize = 64;
/// The most drives and adapters that are looked at from each slot.
pub const MAX_OTHERS: usize = 32;

/// The class code of a GPU, and a maker that none has.
const GPU_CLASS: u32 = 0x03_0200;
const NOBODY: u16 = 0xffff;

/// What decides about the way between two devices, whatever the GPU is.
const OF_THE_HOST: [Code; 11] = [
    Code::KernelWithoutP2pdma,
    Code::AcsRedirect,
    Code::NoCommonSwitch,
    Code::IommuTranslates,
    Code::PathUnreadable,
    Code::ThroughHostBridge,
    Code::AcrossSockets,
    Code::LinkDegraded,
    Code::BehindHypervisor,
    Code::DriveNotOnPcie,
    Code::NoRdmaDevice,
];

/// A place for a card.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slot {
    /// The port above it; `None` for the bus of a host bridge without ports, as virtual machines
    /// have it.
    pub port: Option<PciAddress>,
    /// The host bridge it belongs to.
    pub root: Option<RootComplex>,
    /// Its NUMA node.
    pub numa: Option<NumaNode>,
    /// What is in it now.
    pub taken_by: Option<String>,
    /// The fastest link that the port offers.
    pub link: Option<PcieSpeed>,
    /// What that carries in one direction.
    pub bytes_per_second: Option<BytesPerSecond>,
    /// Every drive and RDMA adapter elsewhere, as a GPU here would see it.
    pub others: Vec<Other>,
}

/// A drive or adapter, as a GPU in a slot would see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Other {
    /// Its name.
    pub name: String,
    /// What lies between them.
    pub relation: Relation,
    /// Whether its DMA may reach the GPU.
    pub standing: Standing,
    /// What stands in the way.
    pub obstacles: Vec<Code>,
}

/// All slots, and what stands between them and the rest.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Slots {
    /// Each slot, at most [`MAX_SLOTS`].
    pub slots: Vec<Slot>,
    /// Slots after the limit.
    pub beyond_limit: usize,
    /// Each obstacle once, for the first pair that meets it; `gpu0` stands for the GPU in thought.
    pub obstacles: Vec<Met>,
}

/// An obstacle, and how many pairs of slot and device meet it.
#[derive(Clone, Debug, Serialize)]
pub struct Met {
    /// The obstacle.
    #[serde(flatten)]
    pub obstacle: Obstacle,
    /// How many pairs.
    pub pairs: usize,
}

/// Where a card can be put.
struct Position<'a> {
    port: Option<&'a PciDevice>,
    root: Option<RootComplex>,
    cards: Vec<PciAddress>,
}

/// Looks at every slot of a machine.
pub fn look(topology: &Topology, snapshot: &Snapshot) -> Slots {
    let places = places(topology);
    let beyond_limit = places.len().saturating_sub(MAX_SLOTS);
    let mut met: BTreeMap<Code, Met> = BTreeMap::new();
    let slots = places
        .iter()
        .take(MAX_SLOTS)
        .map(|place| slot(topology, snapshot, place, &mut met))
        .collect();
    let mut obstacles: Vec<Met> = met.into_values().collect();
    obstacles.sort_by_key(|met| match met.obstacle.effect {
        Effect::Blocks => 0,
        Effect::Unproven => 1,
        Effect::Slows => 2,
    });
    Slots {
        slots,
        beyond_limit,
        obstacles,
    }
}

/// Ports without a switch behind them, and the buses of host bridges that have no port at all.
fn places(topology: &Topology) -> Vec<Position<'_>> {
    let below = |port: PciAddress| {
        topology
            .pci
            .values()
            .filter(move |f| f.parent == Some(port))
    };
    let port = |f: &&PciDevice| matches!(f.port, Some(PortKind::Root | PortKind::Downstream));
    let mut places: Vec<Position<'_>> = topology
        .pci
        .values()
        .filter(port)
        .filter(|port| below(port.address).all(|f| !f.is_bridge()))
        .map(|port| Position {
            port: Some(port),
            root: port.root,
            cards: below(port.address).map(|f| f.address).collect(),
        })
        .collect();
    let mut roots: Vec<RootComplex> = topology.pci.values().filter_map(|f| f.root).collect();
    roots.sort_unstable();
    roots.dedup();
    for root in roots {
        if !topology
            .pci
            .values()
            .any(|f| port(&f) && f.root == Some(root))
        {
            places.push(Position {
                port: None,
                root: Some(root),
                cards: Vec::new(),
            });
        }
    }
    places
}

fn slot(
    topology: &Topology,
    snapshot: &Snapshot,
    place: &Position<'_>,
    met: &mut BTreeMap<Code, Met>,
) -> Slot {
    let link = place
        .port
        .and_then(|port| fastest(snapshot, port.address))
        .or_else(|| {
            let known = |card: &PciAddress| topology.link_above(*card)?.maximum;
            place.cards.iter().find_map(known)
        });
    let card = in_thought(topology, place, link);
    let numa = card.numa;
    let mut machine = topology.clone();
    machine.pci.insert(card.address, card.clone());
    machine.gpus.push(Gpu {
        address: Some(card.address),
        name: "a GPU in thought".into(),
        vendor: GpuVendor::Other,
        memory: None,
        bar: None,
        compute_capability: None,
        performance_state: None,
    });
    let gpu = machine.gpus.len().saturating_sub(1);
    let elsewhere = |device: &Device| {
        let address = topology.address_of(*device);
        address.is_some_and(|address| !place.cards.contains(&address))
    };
    let others: Vec<Other> = others(topology)
        .filter(elsewhere)
        .take(MAX_OTHERS)
        .filter_map(|device| other(&machine, snapshot, device, gpu, met))
        .collect();
    let taken: Vec<String> = place
        .cards
        .iter()
        .map(|card| named(topology, *card))
        .collect();
    Slot {
        port: place.port.map(|port| port.address),
        root: place.root,
        numa,
        taken_by: (!taken.is_empty()).then(|| taken.join(", ")),
        link,
        bytes_per_second: link.map(PcieSpeed::rate),
        others,
    }
}

/// The devices that a GPU exchanges data with: drives, and adapters with RDMA.
fn others(topology: &Topology) -> impl Iterator<Item = Device> {
    topology.devices().filter(|device| match device {
        Device::Nic(index) => topology
            .nics
            .get(*index)
            .is_some_and(|nic| !nic.ports.is_empty()),
        Device::Drive(_) => true,
        Device::Gpu(_) | Device::Function(_) => false,
    })
}

fn other(
    machine: &Topology,
    snapshot: &Snapshot,
    device: Device,
    gpu: usize,
    met: &mut BTreeMap<Code, Met>,
) -> Option<Other> {
    let name = machine.name_of(device);
    let from = match device {
        Device::Nic(_) => Place::Nic(name.clone()),
        _ => Place::Drive(name.clone()),
    };
    let to = Place::Gpu(u32::try_from(gpu).ok()?);
    let straight = |candidate: &Candidate| {
        !candidate.route.hops.is_empty() && candidate.route.class() == Class::Direct
    };
    // A drive that no DMA of its own moves data off has no straight way at all: the others' reasons
    // say why.
    let found = search::candidates(machine, Some(snapshot), &from, &to).ok()?;
    let way = found
        .iter()
        .find(|c| straight(c))
        .or(found.iter().find(|c| {
            let unreachable = |o: &Obstacle| OF_THE_HOST.contains(&o.code);
            c.obstacles.iter().any(unreachable)
        }))?;
    let mut kept = Candidate {
        route: way.route.clone(),
        obstacles: way.obstacles.clone(),
    };
    kept.obstacles.retain(|o| OF_THE_HOST.contains(&o.code));
    // A function that is not there shows nothing.
    let thought = machine.address_of(Device::Gpu(gpu))?.to_string();
    for obstacle in &mut kept.obstacles {
        obstacle.evidence.retain(|seen| !seen.at.contains(&thought));
    }
    for obstacle in &kept.obstacles {
        met.entry(obstacle.code)
            .and_modify(|met| met.pairs += 1)
            .or_insert_with(|| Met {
                obstacle: obstacle.clone(),
                pairs: 1,
            });
    }
    let relation = machine.pcie_distance(device, Device::Gpu(gpu)).relation;
    Some(Other {
        name,
        relation,
        standing: kept.standing(),
        obstacles: kept.obstacles.iter().map(|o| o.code).collect(),
    })
}

/// A GPU behind a port, on an address that nothing has.
fn in_thought(topology: &Topology, place: &Position<'_>, link: Option<PcieSpeed>) -> PciDevice {
    let domain = match (place.port, place.root) {
        (Some(port), _) => port.address.domain,
        (None, Some(root)) => root.domain,
        (None, None) => 0,
    };
    let free = (0..=u8::MAX)
        .rev()
        .flat_map(|bus| (0..32).rev().map(move |device| (bus, device)))
        .map(|(bus, device)| PciAddress {
            domain,
            bus,
            device,
            function: 0,
        })
        .find(|address| !topology.pci.contains_key(address));
    // A domain whose every address is taken has no room for a card either; the last one then stands
    // for the card that is there.
    let address = free.unwrap_or(PciAddress {
        domain,
        bus: u8::MAX,
        device: 31,
        function: 0,
    });
    let beside = |f: &&PciDevice| f.parent.is_none() && f.root == place.root;
    let model = place.port.or_else(|| topology.pci.values().find(beside));
    let numa = model.and_then(|f| topology.numa_of(f.address));
    PciDevice {
        address,
        parent: place.port.map(|port| port.address),
        root: place.root,
        class: GPU_CLASS,
        vendor: NOBODY,
        device: NOBODY,
        name: "a GPU in thought".into(),
        driver: None,
        numa,
        port: None,
        link: link.map(|speed| PcieLink {
            current: Some(speed),
            maximum: Some(speed),
            rate: None,
        }),
        power_state: None,
        acs: AcsState::NoCapability,
        bars: Vec::new(),
        iommu_group: model.and_then(|f| f.iommu_group),
        iommu_type: model.and_then(|f| f.iommu_type.clone()),
        max_read_request: None,
        max_payload: None,
        relaxed_ordering: None,
        peer_memory: None,
        physical_function: None,
        aer: None,
    }
}

/// The best that the link below a port can do, by the port's own account.
fn fastest(snapshot: &Snapshot, port: PciAddress) -> Option<PcieSpeed> {
    let text = |file: &str| snapshot.text(&format!("/sys/bus/pci/devices/{port}/{file}"));
    Some(PcieSpeed {
        generation: PcieGeneration::from_gigatransfers(text("max_link_speed")?)?,
        width: text("max_link_width")?
            .trim()
            .parse()
            .ok()
            .filter(|w| *w > 0)?,
    })
}

/// The name of the device at an address, or what its function is.
fn named(topology: &Topology, address: PciAddress) -> String {
    let device = topology
        .devices()
        .find(|device| topology.address_of(*device) == Some(address));
    match (device, topology.pci.get(&address)) {
        (Some(device), _) => topology.name_of(device),
        (None, Some(function)) => function.name.clone(),
        (None, None) => address.to_string(),
    }
}
