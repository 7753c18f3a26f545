//! One movement of the data ([`Hop`]), what it crosses and what it can carry; a way from place to place
//! ([`Route`]) is hops in a row.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{BytesPerSecond, NumaNode, PciAddress};

mod route;

pub use route::{Candidate, Ceiling, Class, Counters, Route, Standing};

/// Where a number comes from. A link rate is not a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "from")]
pub enum Provenance {
    /// Measured on this machine; how.
    Measured(String),
    /// The rate a link negotiated or is rated for, after encoding; which.
    LinkRate(String),
    /// A published figure; which.
    Catalogue(String),
    /// Nobody knows better; why this value.
    Assumed(String),
    /// Worked out from other numbers; by which model or formula.
    Computed(String),
}

impl Provenance {
    /// One word for tables: `measured`, `link rate`, `catalogue`, `assumed`, `computed`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Measured(_) => "measured",
            Self::LinkRate(_) => "link rate",
            Self::Catalogue(_) => "catalogue",
            Self::Assumed(_) => "assumed",
            Self::Computed(_) => "computed",
        }
    }

    /// What the number was measured by, read off, published in or assumed for.
    pub fn detail(&self) -> &str {
        match self {
            Self::Measured(detail)
            | Self::LinkRate(detail)
            | Self::Catalogue(detail)
            | Self::Assumed(detail)
            | Self::Computed(detail) => detail,
        }
    }
}

/// A rate together with where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// Bytes per second in one direction.
    pub rate: BytesPerSecond,
    /// Where the rate comes from.
    pub provenance: Provenance,
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.rate, self.provenance.word())
    }
}

/// What a link is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// A PCI Express link between two ports.
    Pcie,
    /// From one root port to another through the CPU's host bridge.
    HostBridge,
    /// Between CPU sockets (UPI, xGMI between EPYCs, …).
    Socket,
    /// NVLink or NVSwitch between GPUs.
    NvLink,
    /// xGMI (Infinity Fabric) between AMD GPUs.
    Xgmi,
    /// A network cable and the fabric behind it.
    Network,
    /// The chip-to-chip link of a coherent CPU–GPU package.
    ChipToChip,
}

/// A named link that a hop crosses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crossing {
    /// For a person: `0000:3a:00.0–0000:3b:00.0 Gen4 x8`.
    pub link: String,
    /// What the link is made of.
    pub kind: LinkKind,
    /// Its rate in one direction after encoding, when known.
    pub rate: Option<BytesPerSecond>,
    /// Whether it runs below the best both ends could do.
    pub degraded: bool,
}

/// What host RAM is used for at a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostUse {
    /// The caller's own buffer: the end of the journey, or its start.
    Application,
    /// The kernel's page cache.
    PageCache,
    /// A pinned bounce buffer that exists only because the data cannot go straight.
    Bounce,
    /// A kernel network buffer.
    SocketBuffer,
}

/// A point where a hop starts or ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "at")]
pub enum Stop {
    /// Host RAM.
    Host {
        /// What the RAM is used for.
        use_: HostUse,
        /// The NUMA node, when known.
        numa: Option<NumaNode>,
    },
    /// GPU memory, by index.
    Gpu {
        /// The GPU's index in PCI address order.
        index: u32,
    },
    /// Memory published for peer-to-peer DMA.
    Peer {
        /// The function whose BAR it is.
        address: PciAddress,
    },
    /// The blocks of a drive.
    Drive {
        /// Its name.
        name: String,
    },
    /// A network adapter; data passes through it, it is no memory.
    Nic {
        /// Its name.
        name: String,
    },
    /// A store reached over the network.
    Store {
        /// Its URL or mount source.
        name: String,
    },
    /// Whatever is at the other end of an adapter's cable.
    Network,
    /// The same stop on the remote server.
    Remote {
        /// What it is there.
        stop: Box<Stop>,
    },
}

impl Stop {
    /// Whether data arriving here lies in a memory, lasting or not (and so was copied).
    pub fn is_memory(&self) -> bool {
        match self {
            Self::Host { .. } | Self::Gpu { .. } | Self::Peer { .. } => true,
            Self::Drive { .. } | Self::Store { .. } => true,
            Self::Nic { .. } | Self::Network => false,
            Self::Remote { stop } => stop.is_memory(),
        }
    }

    fn host_use(&self) -> Option<HostUse> {
        match self {
            Self::Host { use_, .. } => Some(*use_),
            Self::Remote { stop } => stop.host_use(),
            _ => None,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { use_, numa } => {
                f.write_str(match use_ {
                    HostUse::Application => "host memory",
                    HostUse::PageCache => "page cache",
                    HostUse::Bounce => "bounce buffer",
                    HostUse::SocketBuffer => "socket buffer",
                })?;
                numa.map_or(Ok(()), |node| write!(f, " ({node})"))
            }
            Self::Gpu { index } => write!(f, "gpu{index}"),
            Self::Peer { address } => write!(f, "peer memory of {address}"),
            Self::Drive { name } | Self::Nic { name } | Self::Store { name } => f.write_str(name),
            Self::Network => f.write_str("the network"),
            Self::Remote { stop } => write!(f, "remote {stop}"),
        }
    }
}

/// Who moves the bytes of a hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "by")]
pub enum Carrier {
    /// A device's DMA engine.
    Dma {
        /// The device.
        device: String,
    },
    /// A CPU core.
    Cpu {
        /// What the core does with the bytes.
        work: CpuWork,
    },
    /// A cable.
    Wire {
        /// The fabric: `InfiniBand`, `RoCE v2`, `Ethernet`, …
        fabric: String,
    },
}

/// What a CPU core does with the bytes of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuWork {
    /// The kernel copies between its buffers and the caller's.
    KernelCopy,
    /// The application copies.
    UserCopy,
    /// Decryption or encryption: TLS, dm-crypt.
    Crypto,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dma { device } => write!(f, "DMA by {device}"),
            Self::Cpu { work } => f.write_str(match work {
                CpuWork::KernelCopy => "kernel copy",
                CpuWork::UserCopy => "user copy",
                CpuWork::Crypto => "cryptography on the CPU",
            }),
            Self::Wire { fabric } => f.write_str(fabric),
        }
    }
}

/// One movement of the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hop {
    /// Where the data is before.
    pub from: Stop,
    /// Where the data is after.
    pub to: Stop,
    /// Who moves it.
    pub carrier: Carrier,
    /// The links it crosses, in order.
    pub crosses: Vec<Crossing>,
    /// The most it can carry; `None` when nothing is known about it.
    pub capacity: Option<Capacity>,
}

impl Hop {
    /// A hop across nothing that is known by name or rate.
    pub const fn bare(from: Stop, to: Stop, carrier: Carrier) -> Self {
        Self {
            from,
            to,
            carrier,
            crosses: Vec::new(),
            capacity: None,
        }
    }

    /// Reads plus writes of host RAM that this hop costs per byte.
    pub fn host_ram_passes(&self) -> u32 {
        u32::from(self.from.host_use().is_some()) + u32::from(self.to.host_use().is_some())
    }
}
