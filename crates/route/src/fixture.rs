//! Machines for tests, built as one would describe them. Behind the feature `fixtures`.
//!
//! A [`Fixture`] records what the kernel of such a machine would show, so that tests start from a
//! [`Snapshot`] and go the whole way:
//!
//! ```
//! use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen4, gen5};
//!
//! let mut machine = Fixture::new();
//! let socket = machine.socket();
//! let root_port = machine.root_port(socket, gen5(16));
//! let switch = machine.switch(root_port, gen5(16));
//! let slot = machine.slot(switch, gen5(16));
//! machine.gpu(slot, &GpuModel::H100);
//! let slot = machine.slot(switch, gen5(16));
//! machine.nic(slot, "mlx5_0", &NicModel::CONNECTX7);
//! let slot = machine.slot(switch, gen4(4));
//! machine.nvme(slot, "nvme0");
//! machine.partition("nvme0n1", "nvme0n1p1");
//! machine.mount("nvme0n1p1", "/data", "xfs");
//!
//! let topology = machine.topology();
//! assert_eq!(topology.gpus.len(), 1);
//! assert_eq!(topology.drives_under("nvme0n1p1")[0].name, "nvme0");
//! ```
//!
//! Whole machines to start from: [`machines::dgx_h100`], [`machines::pcie_box`],
//! [`machines::laptop`], [`machines::sixteen_gpus`]. Bend them with [`Fixture::text`],
//! [`Fixture::degrade`], [`Fixture::access_control`], [`Fixture::as_plain_user`] and the like.
//!
//! Addresses are dealt out in order, so the same calls give the same addresses.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{Observation, Snapshot, Value};
use crate::topology::{PcieGeneration, PcieSpeed, Topology};
use crate::units::{Bytes, PciAddress};

mod blocks;
mod config;
mod devices;
pub mod machines;

pub use devices::{GpuModel, NicModel};

/// A Gen3 link of this width.
pub const fn gen3(width: u8) -> PcieSpeed {
    speed(3, width)
}

/// A Gen4 link of this width.
pub const fn gen4(width: u8) -> PcieSpeed {
    speed(4, width)
}

/// A Gen5 link of this width.
pub const fn gen5(width: u8) -> PcieSpeed {
    speed(5, width)
}

/// A link of this generation and width.
pub const fn speed(generation: u8, width: u8) -> PcieSpeed {
    PcieSpeed {
        generation: PcieGeneration(generation),
        width,
    }
}

/// A CPU socket with one NUMA node of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket(u32);

/// A port that one device or switch can be plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(usize);

/// A PCIe switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(usize);

/// A bridge as the builder remembers it.
struct Port {
    address: PciAddress,
    /// The path of its directory below `/sys/devices`.
    path: String,
    /// The bus behind it.
    bus: u8,
    /// Devices on that bus so far.
    devices: u8,
    socket: Socket,
    maximum: PcieSpeed,
}

/// A machine under construction.
pub struct Fixture {
    observations: BTreeMap<String, Observation>,
    ports: Vec<Port>,
    sockets: u32,
    domain: u32,
    next_bus: u8,
    cpu: (&'static str, u32, u32, &'static str),
    gpus: Vec<PciAddress>,
    next_block_number: u32,
    /// Where each partition is recorded.
    partitions: BTreeMap<String, String>,
}

/// Directories that a snapshot lists.
const LISTED: [&str; 6] = [
    "/sys/block",
    "/sys/bus/pci/devices",
    "/sys/class/infiniband",
    "/sys/class/net",
    "/sys/class/nvme",
    "/sys/devices/system/node",
];
/// CPUs of each socket.
const CORES: u32 = 32;

impl Default for Fixture {
    fn default() -> Self {
        Self::new()
    }
}

impl Fixture {
    /// A machine with a Sapphire Rapids board and nothing on it.
    pub fn new() -> Self {
        let mut machine = Self {
            observations: BTreeMap::new(),
            ports: Vec::new(),
            sockets: 0,
            domain: 0,
            next_bus: devices::FIRST_BUS,
            cpu: ("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Platinum 8480C"),
            gpus: Vec::new(),
            next_block_number: 0,
            partitions: BTreeMap::new(),
        };
        machine.text("uname:release", "6.12.0-generic");
        machine.text("uname:machine", "x86_64");
        machine.text("/sys/class/dmi/id/sys_vendor", "Example Computers");
        machine
    }

    /// Changes the processor: vendor, family and model as in `/proc/cpuinfo`, and its name. Comes
    /// before the first socket.
    pub fn processor(
        &mut self,
        vendor: &'static str,
        family: u32,
        model: u32,
        name: &'static str,
    ) -> &mut Self {
        self.cpu = (vendor, family, model, name);
        self
    }

    /// Adds a socket with its memory: 512 GiB on one NUMA node.
    pub fn socket(&mut self) -> Socket {
        let socket = Socket(self.sockets);
        self.sockets += 1;
        let node = format!("/sys/devices/system/node/node{}", socket.0);
        let first = socket.0 * CORES;
        let kilobytes = Bytes::gib(512).0 / 1024;
        self.text(
            format!("{node}/cpulist"),
            format!("{first}-{}", first + CORES - 1),
        );
        self.text(
            format!("{node}/meminfo"),
            format!("Node {} MemTotal:       {kilobytes} kB", socket.0),
        );
        self.text(
            format!("/sys/devices/system/cpu/cpu{first}/topology/physical_package_id"),
            socket.0.to_string(),
        );
        for node in 0..self.sockets {
            let distances: Vec<_> = (0..self.sockets)
                .map(|other| if other == node { "10" } else { "21" })
                .collect();
            self.text(
                format!("/sys/devices/system/node/node{node}/distance"),
                distances.join(" "),
            );
        }
        let (vendor, family, model, name) = self.cpu;
        let cpuinfo: String = (0..self.sockets)
            .map(|socket| {
                format!(
                    "processor\t: {}\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
                     model name\t: {name}\nphysical id\t: {socket}\nflags\t\t: fpu sse2 avx2\n\n",
                    socket * CORES
                )
            })
            .collect();
        self.text("/proc/cpuinfo", cpuinfo.trim_end());
        socket
    }

    /// Records a text, replacing what was there.
    pub fn text(&mut self, key: impl Into<String>, text: impl Into<String>) -> &mut Self {
        self.observe(key, Observation::text(text))
    }

    /// Records a link.
    pub fn link(&mut self, key: impl Into<String>, target: impl Into<String>) -> &mut Self {
        self.observe(key, Observation::Value(Value::Link(target.into())))
    }

    /// Records any observation, replacing what was there.
    pub fn observe(&mut self, key: impl Into<String>, observation: Observation) -> &mut Self {
        self.observations.insert(key.into(), observation);
        self
    }

    /// Forgets everything at or below a key, as if nobody had looked.
    pub fn forget(&mut self, key: &str) -> &mut Self {
        let below = format!("{key}/");
        self.observations
            .retain(|k, _| k != key && !k.starts_with(&below));
        self
    }

    /// What was recorded so far at or below a key.
    fn keys_below(&self, key: &str) -> Vec<String> {
        let below = format!("{key}/");
        self.observations
            .range(below.clone()..)
            .map(|(k, _)| k.clone())
            .take_while(|k| k.starts_with(&below))
            .collect()
    }

    /// Everything as a snapshot.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new("fixture", "2026-01-01T00:00:00Z");
        for (key, observation) in &self.observations {
            snapshot.record(key.clone(), observation.clone());
        }
        for directory in LISTED {
            if snapshot.get(directory).is_none() {
                let names = Value::List(self.names_below(directory));
                snapshot.record(directory, Observation::Value(names));
            }
        }
        snapshot
    }

    fn names_below(&self, directory: &str) -> Vec<String> {
        let below = format!("{directory}/");
        let keys = self.observations.range(below.clone()..);
        let names: BTreeSet<&str> = keys
            .map_while(|(key, _)| key.strip_prefix(&below))
            .filter_map(|rest| rest.split('/').next())
            .collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// The snapshot, decoded.
    pub fn topology(&self) -> Topology {
        Topology::from_snapshot(&self.snapshot())
    }
}
