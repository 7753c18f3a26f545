//! Routes over network adapters: between this server and the wire, a peer of the same shape, a
//! network file system or an object store.

use super::World;
use super::draft::Draft;
use super::legs::{host, remote, turned_round, wire};
use super::peer::{list, sysfs};
use super::rates::lower;
use super::seen::Truth;
use crate::hop::{Carrier, CpuWork, Crossing, Hop, HostUse, LinkKind, Stop};
use crate::obstacle::{Code, Confidence, Evidence, Fix, Obstacle};
use crate::topology::{Device, Interface, Nic, RdmaPort, Relation};
use crate::units::NumaNode;

const INFINIBAND: &str = "InfiniBand";
/// A read request of this size or less makes an adapter wait for many answers a packet.
const SMALL_READ_REQUEST: u32 = 512;
const AMD_VENDOR: &str = "AuthenticAMD";

/// How data passes between an adapter and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The adapter's DMA reaches the memory itself.
    Straight,
    /// The adapter's DMA reaches host RAM; a GPU's copy engine does the rest.
    Rdma,
    /// Through the kernel's network stack.
    Sockets,
}

/// The memory at this server's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Host(Option<NumaNode>),
    Gpu(usize),
}

impl<'a> World<'a> {
    pub(super) fn nic(&self, index: usize) -> Option<&'a Nic> {
        self.topology.nics.get(index)
    }

    pub(super) fn nic_stop(&self, index: usize) -> Stop {
        Stop::Nic {
            name: self.topology.name_of(Device::Nic(index)),
        }
    }

    /// Between the wire behind an adapter and memory, from the wire in.
    pub(super) fn wire_to(&self, nic: usize, end: End, outgoing: bool) -> Vec<Draft> {
        self.ways(end)
            .into_iter()
            .map(|(name, how)| {
                let mut hops = vec![self.wire_hop(nic, how, Stop::Network)];
                hops.extend(self.off_nic(nic, end, how));
                Draft::new(name, hops).with(self.way_open(nic, end, how, outgoing))
            })
            .collect()
    }

    /// From memory here to memory of a peer of the same shape.
    pub(super) fn server_to_server(&self, here: End, there: End) -> Vec<Draft> {
        let mut drafts = Vec::new();
        for (name, how) in self.ways_between(here, there) {
            let nics = self.nics_for(here, how);
            if nics.is_empty() {
                drafts.push(Draft::missing(name, self.no_nic(how)));
            }
            // The peer goes by the adapter nearest to its own memory.
            let far = self.nics_for(there, how).last().copied();
            for nic in nics {
                let far = if here == there {
                    nic
                } else {
                    far.unwrap_or(nic)
                };
                let mut hops = turned_round(self.off_nic(nic, here, how));
                hops.push(self.cable(nic, far, how));
                hops.extend(self.off_nic(far, there, how).into_iter().map(remote));
                let draft = Draft::new(name, hops)
                    .with(self.way_open(nic, here, how, true))
                    .with(self.way_open(far, there, how, false));
                drafts.push(draft);
            }
        }
        drafts
    }

    /// The cable between an adapter here and one of the peer: as fast as the slower of the two.
    fn cable(&self, nic: usize, far: usize, how: How) -> Hop {
        let hop = self.wire_hop(nic, how, self.nic_stop(nic));
        let there = self.wire_hop(far, how, self.nic_stop(far));
        Hop {
            to: Stop::Remote {
                stop: Box::new(there.to),
            },
            capacity: lower(hop.capacity, there.capacity),
            ..hop
        }
    }

    fn ways(&self, end: End) -> Vec<(&'static str, How)> {
        match end {
            End::Gpu(_) => vec![
                ("gpudirect-rdma", How::Straight),
                ("rdma", How::Rdma),
                ("sockets", How::Sockets),
            ],
            End::Host(_) => vec![("rdma", How::Rdma), ("sockets", How::Sockets)],
        }
    }

    fn ways_between(&self, here: End, there: End) -> Vec<(&'static str, How)> {
        match here {
            End::Gpu(_) => self.ways(here),
            End::Host(_) => self.ways(there),
        }
    }

    /// The adapters to use: the nearest, and if that cannot carry anything, the nearest that can
    /// as well.
    pub(super) fn nics_for(&self, end: End, how: How) -> Vec<usize> {
        let mut able: Vec<usize> = (0..self.topology.nics.len())
            .filter(|index| self.nic(*index).is_some_and(|nic| serves(nic, how)))
            .collect();
        able.sort_by_cached_key(|index| {
            (self.away(*index, end), self.slowness(*index, how), *index)
        });
        let up = |index: &usize| self.nic(*index).is_some_and(|nic| carries(nic, how));
        let Some(nearest) = able.first().copied() else {
            return Vec::new();
        };
        if up(&nearest) {
            return vec![nearest];
        }
        let next = able.iter().copied().find(up);
        std::iter::once(nearest).chain(next).collect()
    }

    /// The adapter towards the outside world: a fast one of Ethernet that is up, near the memory.
    pub(super) fn nic_outside(&self, end: End) -> Option<usize> {
        (0..self.topology.nics.len())
            .filter(|index| {
                self.nic(*index)
                    .is_some_and(|nic| serves(nic, How::Sockets))
            })
            .min_by_key(|index| {
                let nic = self.nic(*index);
                (
                    !nic.is_some_and(|nic| carries(nic, How::Sockets)),
                    nic.is_some_and(over_infiniband),
                    self.slowness(*index, How::Sockets),
                    self.away(*index, end),
                    *index,
                )
            })
    }

    /// How far an adapter is from memory; adapters that are no PCI device come last.
    fn away(&self, nic: usize, end: End) -> (Relation, bool) {
        let device = Device::Nic(nic);
        match end {
            End::Gpu(gpu) => {
                let distance = self.topology.pcie_distance(device, Device::Gpu(gpu));
                (distance.relation, false)
            }
            End::Host(numa) => {
                let placed = self.topology.address_of(device).is_some();
                let relation = if placed {
                    Relation::Phb
                } else {
                    Relation::Unknown
                };
                let elsewhere = numa.is_some() && self.node_of(device) != numa;
                (relation, elsewhere)
            }
        }
    }

    /// Sorts faster adapters first: kilobytes per second less than the most that fits.
    fn slowness(&self, nic: usize, how: How) -> u64 {
        let rate = self.nic(nic).and_then(|nic| line(nic, how).2);
        rate.map_or(u64::MAX, |rate| u64::MAX - (rate.0 / 1e3) as u64)
    }

    /// From an adapter into memory.
    pub(super) fn off_nic(&self, nic: usize, end: End, how: How) -> Vec<Hop> {
        let at_nic = self.nic_stop(nic);
        match (end, how) {
            (End::Gpu(gpu), How::Straight) => {
                let (a, b) = (Device::Nic(nic), Device::Gpu(gpu));
                vec![self.dma_to_peer(a, b, at_nic, self.gpu_stop(gpu))]
            }
            (End::Gpu(gpu), _) => {
                let numa = self.node_of(Device::Gpu(gpu));
                let bounce = || host(HostUse::Bounce, numa);
                let mut hops = self.off_nic_to_ram(nic, bounce(), how);
                hops.push(self.dma_from_host(Device::Gpu(gpu), bounce(), self.gpu_stop(gpu)));
                hops
            }
            (End::Host(numa), _) => {
                let numa = numa.or_else(|| self.node_of(Device::Nic(nic)));
                self.off_nic_to_ram(nic, host(HostUse::Application, numa), how)
            }
        }
    }

    /// From an adapter into host RAM; by sockets with a stop in the kernel's own buffers.
    pub(super) fn off_nic_to_ram(&self, nic: usize, to: Stop, how: How) -> Vec<Hop> {
        if how != How::Sockets {
            return vec![self.nic_dma(nic, to)];
        }
        let numa = match &to {
            Stop::Host { numa, .. } => *numa,
            _ => None,
        };
        let socket = host(HostUse::SocketBuffer, numa);
        vec![
            self.nic_dma(nic, socket.clone()),
            self.cpu(CpuWork::KernelCopy, socket, to),
        ]
    }

    fn nic_dma(&self, nic: usize, to: Stop) -> Hop {
        let hop = self.dma_to_host(Device::Nic(nic), self.nic_stop(nic), to);
        if self.nic(nic).is_some_and(|nic| nic.address.is_some()) {
            return hop;
        }
        // A software adapter has no DMA: the CPU moves what it sends and receives.
        Hop {
            carrier: Carrier::Cpu {
                work: CpuWork::KernelCopy,
            },
            capacity: Some(self.measured.cpu(CpuWork::KernelCopy)),
            ..hop
        }
    }

    /// The cable between an adapter and what is behind it, into the adapter.
    pub(super) fn wire_hop(&self, nic: usize, how: How, from: Stop) -> Hop {
        let to = self.nic_stop(nic);
        let (fabric, link, rate) = self.nic(nic).map_or_else(
            || ("network".into(), "an adapter".into(), None),
            |nic| line(nic, how),
        );
        let crossing = Crossing {
            link,
            kind: LinkKind::Network,
            rate,
            degraded: false,
        };
        wire(from, to, fabric, crossing)
    }

    /// What stands between an adapter and memory.
    pub(super) fn way_open(&self, nic: usize, end: End, how: How, outgoing: bool) -> Vec<Obstacle> {
        let mut found = match how {
            How::Sockets => self.interface_up(nic),
            How::Straight | How::Rdma => self.rdma_port_up(nic),
        };
        if how != How::Sockets {
            found.extend(self.read_requests(nic, outgoing));
            found.extend(self.memlock());
        }
        if let End::Gpu(gpu) = end {
            if how == How::Straight {
                found.extend(self.rdma_client(gpu));
                found.extend(self.nic_reaches(nic, gpu));
            } else {
                found.extend(self.gpu_runtime(gpu));
            }
        }
        found
    }

    pub(super) fn nic_reaches(&self, nic: usize, gpu: usize) -> Vec<Obstacle> {
        let device = Device::Nic(nic);
        if self.nic(nic).is_some_and(|nic| nic.address.is_none()) {
            let name = self.topology.name_of(device);
            return vec![
                Obstacle::blocks(
                    Code::NoRdmaDevice,
                    format!("{name} is a software adapter: it has no DMA that could reach a GPU."),
                )
                .seen(format!("/sys/class/infiniband/{name}"), "no PCI function")
                .fixed_by(Fix::by_hand("Use an RDMA adapter.")),
            ];
        }
        let ruling = self.ruling(gpu);
        self.between_peers(device, Device::Gpu(gpu), ruling)
    }

    fn rdma_port_up(&self, nic: usize) -> Vec<Obstacle> {
        let Some(nic) = self.nic(nic) else {
            return Vec::new();
        };
        let name = &nic.name;
        if nic.ports.is_empty() {
            return vec![
                Obstacle::blocks(Code::NoRdmaDevice, format!("{name} is no RDMA device."))
                    .proved_by([self.seen.quote("/sys/class/infiniband")])
                    .fixed_by(Fix::by_hand(
                        "Use an RDMA adapter, or load its RDMA driver.",
                    )),
            ];
        }
        let mut found = Vec::new();
        if self.seen.exists("/dev/infiniband") == Truth::No {
            found.push(
                Obstacle::blocks(
                    Code::NoRdmaDevice,
                    format!("{name} exists, but programs here cannot open it: /dev/infiniband is missing."),
                )
                .proved_by([self.seen.quote("/dev/infiniband")])
                .fixed_by(Fix::by_hand(
                    "Load ib_uverbs; in a container, pass the devices through (--device /dev/infiniband, or a device plugin).",
                )),
            );
        }
        let states = nic.ports.iter().map(|port| port.active);
        let active = states.fold(Truth::No, |truth, port| truth.or(Truth::of(port)));
        let evidence = nic.ports.iter().map(|port| {
            let key = format!("/sys/class/infiniband/{name}/ports/{}/state", port.number);
            let state = port.state.clone().unwrap_or_else(|| "not readable".into());
            self.seen.quote_or(key, state)
        });
        let fix = Fix::by_hand(
            "Look at the cable and the far end; on InfiniBand, at the subnet manager.",
        )
        .checked_by(format!("cat /sys/class/infiniband/{name}/ports/1/state"));
        let obstacle = match active {
            Truth::Yes => return found,
            Truth::No => Obstacle::blocks(Code::PortDown, format!("No port of {name} is active.")),
            Truth::Open => Obstacle::unproven(
                Code::PortDown,
                format!("Whether a port of {name} is active could not be read."),
            ),
        };
        found.push(obstacle.proved_by(evidence).fixed_by(fix));
        found
    }

    fn interface_up(&self, nic: usize) -> Vec<Obstacle> {
        let Some(nic) = self.nic(nic) else {
            return Vec::new();
        };
        if nic.interfaces.iter().any(up) {
            return Vec::new();
        }
        let names: Vec<&str> = nic.interfaces.iter().map(|i| i.name.as_str()).collect();
        let obstacle = if names.is_empty() {
            Obstacle::blocks(
                Code::PortDown,
                format!("{} has no network interface for sockets.", nic.name),
            )
            .proved_by([self.seen.quote("/sys/class/net")])
        } else {
            Obstacle::blocks(Code::PortDown, format!("{} is not up.", list(&names))).proved_by(
                nic.interfaces.iter().map(|interface| {
                    let key = format!("/sys/class/net/{}/operstate", interface.name);
                    let state = interface.state.clone();
                    self.seen
                        .quote_or(key, state.unwrap_or_else(|| "not readable".into()))
                }),
            )
        };
        let first = names.first().copied().unwrap_or("IFACE");
        vec![
            obstacle.fixed_by(
                Fix::run("Bring it up.", format!("sudo ip link set {first} up"))
                    .checked_by(format!("ip link show {first}")),
            ),
        ]
    }

    /// How an adapter reads memory, which is what sending does.
    fn read_requests(&self, nic: usize, outgoing: bool) -> Vec<Obstacle> {
        let Some(address) = self.topology.address_of(Device::Nic(nic)) else {
            return Vec::new();
        };
        let Some(function) = self.topology.pci.get(&address) else {
            return Vec::new();
        };
        let name = self.topology.name_of(Device::Nic(nic));
        let mut found = Vec::new();
        if let Some(bytes) = function
            .max_read_request
            .filter(|bytes| outgoing && *bytes <= SMALL_READ_REQUEST)
        {
            found.push(
                Obstacle::slows(
                    Code::SmallReadRequests,
                    format!("{name} reads memory in requests of at most {bytes} bytes; 4096 keep a fast link full."),
                )
                .seen(sysfs(address, "config"), format!("MaxReadReq {bytes}"))
                .with_confidence(Confidence::Possible)
                .fixed_by(
                    Fix::run(
                        "Allow 4096 bytes, until the next boot.",
                        format!("sudo setpci -s {address} CAP_EXP+8.w=5000:7000"),
                    )
                    .checked_by(format!("sudo lspci -s {address} -vv | grep MaxReadReq")),
                ),
            );
        }
        let amd = self.topology.host.cpu_vendor.as_deref() == Some(AMD_VENDOR);
        if amd && function.relaxed_ordering == Some(false) {
            found.push(
                Obstacle::slows(
                    Code::RelaxedOrderingOff,
                    format!("{name} may not let its writes overtake each other, which costs much on AMD's processors."),
                )
                .seen(sysfs(address, "config"), "relaxed ordering off")
                .with_confidence(Confidence::Likely)
                .fixed_by(
                    Fix::run(
                        "Allow relaxed ordering, until the next boot.",
                        format!("sudo setpci -s {address} CAP_EXP+8.w=0010:0010"),
                    )
                    .checked_by(format!("sudo lspci -s {address} -vv | grep RlxdOrd")),
                ),
            );
        }
        found
    }

    fn memlock(&self) -> Option<Obstacle> {
        let bytes: u64 = self.seen.text("limit:memlock")?.parse().ok()?;
        Some(
            Obstacle::slows(
                Code::MemlockTooSmall,
                format!(
                    "At most {} can be registered with the adapter at a time.",
                    crate::units::Bytes(bytes)
                ),
            )
            .proved_by([self.seen.quote("limit:memlock")])
            .with_confidence(Confidence::Likely)
            .fixed_by(
                Fix::run(
                    "Lift the limit where the program starts.",
                    "ulimit -l unlimited",
                )
                .checked_by("ulimit -l"),
            ),
        )
    }

    /// Why there is no adapter to go by.
    pub(super) fn no_nic(&self, how: How) -> Obstacle {
        if how == How::Sockets {
            return Obstacle::blocks(Code::PortDown, "The machine has no network adapter.")
                .proved_by([self.seen.quote("/sys/class/net")]);
        }
        let key = "/sys/class/infiniband";
        let fix = Fix::by_hand("Fit an RDMA adapter (InfiniBand or RoCE), or load its driver.")
            .checked_by("ls /sys/class/infiniband");
        let obstacle = if self.seen.get(key).is_some() || !self.topology.nics.is_empty() {
            Obstacle::blocks(Code::NoRdmaDevice, "The machine has no RDMA device.")
        } else {
            Obstacle::unproven(
                Code::NoRdmaDevice,
                "No RDMA device was seen, and nobody looked for one.",
            )
        };
        let evidence = match self.seen.get(key) {
            Some(_) => self.seen.quote(key),
            None => Evidence::new(
                key,
                format!("none among {} adapters", self.topology.nics.len()),
            ),
        };
        obstacle.proved_by([evidence]).fixed_by(fix)
    }
}

fn serves(nic: &Nic, how: How) -> bool {
    match how {
        How::Sockets => !nic.interfaces.is_empty(),
        How::Straight | How::Rdma => !nic.ports.is_empty(),
    }
}

fn carries(nic: &Nic, how: How) -> bool {
    match how {
        How::Sockets => nic.interfaces.iter().any(up),
        How::Straight | How::Rdma => nic.ports.iter().any(|port| port.active != Some(false)),
    }
}

/// The kernel says `unknown` of interfaces whose driver does not tell.
fn up(interface: &Interface) -> bool {
    matches!(interface.state.as_deref(), Some("up" | "unknown"))
}

fn over_infiniband(nic: &Nic) -> bool {
    let layer = |port: &RdmaPort| port.link_layer.as_deref() == Some(INFINIBAND);
    nic.ports.iter().any(layer)
}

/// Fabric, name and rate of the cable at an adapter: of the port or interface that carries.
fn line(nic: &Nic, how: How) -> (String, String, Option<crate::units::BytesPerSecond>) {
    let port = nic
        .ports
        .iter()
        .find(|port| port.active == Some(true))
        .or(nic.ports.first());
    let interface = nic
        .interfaces
        .iter()
        .find(|interface| up(interface))
        .or(nic.interfaces.first());
    let port_rate = port.and_then(|port| port.rate);
    let infiniband = over_infiniband(nic);
    match (how, port, interface) {
        (How::Sockets, _, Some(interface)) => {
            let fabric = if infiniband {
                "IP over InfiniBand"
            } else {
                "Ethernet"
            };
            let rate = interface.rate.or(port_rate);
            (fabric.into(), cable(&interface.name, rate), rate)
        }
        (_, Some(port), _) => {
            let fabric = if infiniband {
                INFINIBAND.into()
            } else {
                let kinds = port.gids.iter().filter_map(|gid| gid.kind.clone());
                kinds.max().unwrap_or_else(|| "RDMA over Ethernet".into())
            };
            let name = format!("{} port {}", nic.name, port.number);
            (fabric, cable(&name, port.rate), port.rate)
        }
        _ => ("network".into(), cable(&nic.name, None), None),
    }
}

fn cable(name: &str, rate: Option<crate::units::BytesPerSecond>) -> String {
    match rate {
        Some(rate) => format!("{name} {:.0} Gb/s", rate.0 * 8.0 / 1e9),
        None => format!("{name} of unknown speed"),
    }
}
