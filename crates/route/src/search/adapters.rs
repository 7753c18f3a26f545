//! Network adapters: which one to go by, and whether it is fit to carry data.

use super::World;
use super::fabric::{End, How};
use super::peer::{list, sysfs};
use super::seen::Truth;
use crate::obstacle::{Code, Confidence, Fix, Obstacle};
use crate::topology::{Device, Interface, Nic, RdmaPort, Relation};
use crate::units::{Bytes, BytesPerSecond};

const INFINIBAND: &str = "InfiniBand";
const RDMA_CLASS: &str = "/sys/class/infiniband";
const NET_CLASS: &str = "/sys/class/net";
/// A read request of this size or less makes an adapter wait for many answers a packet.
const SMALL_READ_REQUEST: u32 = 512;
const AMD_VENDOR: &str = "AuthenticAMD";

impl<'a> World<'a> {
    pub(super) fn nic(&self, index: usize) -> Option<&'a Nic> {
        self.topology.nics.get(index)
    }

    /// The adapters to use: the nearest, and if that cannot carry anything, the nearest that can
    /// as well.
    pub(super) fn nics_for(&self, end: End, how: How) -> Vec<usize> {
        let mut able: Vec<usize> = (0..self.topology.nics.len())
            .filter(|index| self.serves(*index, how) != Truth::No)
            .collect();
        able.sort_by_cached_key(|index| {
            (
                self.serves(*index, how) != Truth::Yes,
                self.away(*index, end),
                self.slowness(*index, how),
                *index,
            )
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
            .filter(|index| self.serves(*index, How::Sockets) != Truth::No)
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

    /// Whether an adapter takes part: by its ports in RDMA, by its interfaces in sockets. A file of
    /// PCI functions alone shows neither, which is not the same as having none.
    fn serves(&self, nic: usize, how: How) -> Truth {
        let Some(nic) = self.nic(nic) else {
            return Truth::No;
        };
        let (has, class) = match how {
            How::Sockets => (!nic.interfaces.is_empty(), NET_CLASS),
            How::Straight | How::Rdma => (!nic.ports.is_empty(), RDMA_CLASS),
        };
        match has {
            true => Truth::Yes,
            false if self.seen.looked_below(class) => Truth::No,
            false => Truth::Open,
        }
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

    pub(super) fn rdma_port_up(&self, index: usize) -> Vec<Obstacle> {
        let Some(nic) = self.nic(index) else {
            return Vec::new();
        };
        let name = &nic.name;
        if nic.ports.is_empty() {
            let obstacle = match self.serves(index, How::Rdma) {
                Truth::No => {
                    Obstacle::blocks(Code::NoRdmaDevice, format!("{name} is no RDMA device."))
                }
                _ => Obstacle::unproven(
                    Code::NoRdmaDevice,
                    format!("Whether {name} is an RDMA device was not looked at."),
                ),
            };
            return vec![
                obstacle
                    .proved_by([self.seen.quote(RDMA_CLASS)])
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
            let state = port.state.clone().unwrap_or_else(|| "not looked at".into());
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

    pub(super) fn interface_up(&self, index: usize) -> Vec<Obstacle> {
        let Some(nic) = self.nic(index) else {
            return Vec::new();
        };
        if nic.interfaces.iter().any(up) {
            return Vec::new();
        }
        let names: Vec<&str> = nic.interfaces.iter().map(|i| i.name.as_str()).collect();
        if names.is_empty() {
            let obstacle = match self.serves(index, How::Sockets) {
                Truth::No => Obstacle::blocks(
                    Code::PortDown,
                    format!("{} has no network interface for sockets.", nic.name),
                ),
                _ => Obstacle::unproven(
                    Code::PortDown,
                    format!(
                        "Which network interfaces {} has was not looked at.",
                        nic.name
                    ),
                ),
            };
            return vec![obstacle.proved_by([self.seen.quote(NET_CLASS)])];
        }
        let unread = nic.interfaces.iter().any(|i| i.state.is_none());
        let obstacle = if unread {
            Obstacle::unproven(
                Code::PortDown,
                format!("Whether {} is up could not be read.", list(&names)),
            )
        } else {
            Obstacle::blocks(Code::PortDown, format!("{} is not up.", list(&names)))
        };
        let obstacle = obstacle.proved_by(nic.interfaces.iter().map(|interface| {
            let key = format!("{NET_CLASS}/{}/operstate", interface.name);
            let state = interface.state.clone();
            self.seen
                .quote_or(key, state.unwrap_or_else(|| "not looked at".into()))
        }));
        let first = names.first().copied().unwrap_or("IFACE");
        vec![
            obstacle.fixed_by(
                Fix::run("Bring it up.", format!("sudo ip link set {first} up"))
                    .checked_by(format!("ip link show {first}")),
            ),
        ]
    }

    /// How an adapter reads memory, which is what sending does.
    pub(super) fn read_requests(&self, nic: usize, outgoing: bool) -> Vec<Obstacle> {
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

    pub(super) fn memlock(&self) -> Option<Obstacle> {
        let bytes: u64 = self.seen.text("limit:memlock")?.parse().ok()?;
        Some(
            Obstacle::slows(
                Code::MemlockTooSmall,
                format!(
                    "At most {} can be registered with the adapter at a time.",
                    Bytes(bytes)
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
        let (class, code, what) = match how {
            How::Sockets => (NET_CLASS, Code::PortDown, "network adapter"),
            How::Straight | How::Rdma => (RDMA_CLASS, Code::NoRdmaDevice, "RDMA device"),
        };
        let obstacle = if self.seen.looked_below(class) {
            Obstacle::blocks(code, format!("The machine has no {what}."))
        } else {
            Obstacle::unproven(
                code,
                format!("No {what} was seen, and nobody looked for one."),
            )
        };
        let obstacle = obstacle.proved_by([self.seen.quote(class)]);
        match how {
            How::Sockets => obstacle,
            How::Straight | How::Rdma => obstacle.fixed_by(
                Fix::by_hand("Fit an RDMA adapter (InfiniBand or RoCE), or load its driver.")
                    .checked_by("ls /sys/class/infiniband"),
            ),
        }
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
pub(super) fn line(nic: &Nic, how: How) -> (String, String, Option<BytesPerSecond>) {
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
            (fabric.into(), cable_name(&interface.name, rate), rate)
        }
        (_, Some(port), _) => {
            let fabric = if infiniband {
                INFINIBAND.into()
            } else {
                let kinds = port.gids.iter().filter_map(|gid| gid.kind.clone());
                kinds.max().unwrap_or_else(|| "RDMA over Ethernet".into())
            };
            let name = format!("{} port {}", nic.name, port.number);
            (fabric, cable_name(&name, port.rate), port.rate)
        }
        _ => ("network".into(), cable_name(&nic.name, None), None),
    }
}

fn cable_name(name: &str, rate: Option<BytesPerSecond>) -> String {
    match rate {
        Some(rate) => format!("{name} {:.0} Gb/s", rate.0 * 8.0 / 1e9),
        None => format!("{name} of unknown speed"),
    }
}
