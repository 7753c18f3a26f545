//! NCCL and RCCL debug output, versions 2.4 to 2.30, of any number of interleaved ranks.
//!
//! The channel suffix (`via NET/IB/0/GDRDMA`) is the primary evidence of which way bytes go;
//! everything else in a log is a hint. A suffix that another writer's text cut short is kept apart
//! as [`NcclLog::cut`] and says nothing about the transport.
//!
//! A log of many ranks repeats itself, so facts are kept as [`Sighting`]s: once each, with the
//! first line, a count and the processes that said it. All lists are limited; see [`limits`].

pub mod channel;
pub mod completion;
mod connections;
pub mod distance;
mod gdr;
mod members;
pub mod network;
mod paths;
mod prefix;
mod reader;
pub mod version;

use serde::Serialize;

pub use self::channel::{Direction, P2pMethod, ShmSide, Transport, TransportTotals};
pub use self::completion::CompletionError;
pub use self::distance::{PathType, Reach};
pub use self::network::{IbDevice, IbUse, Interface, LinkLayer, SocketUse};
pub(crate) use self::reader::NcclReader;
pub use self::version::{Library, LibraryVersion, Release};
use super::cite::Cite;
pub use super::sighting::{ProcessId, Sighting};

/// How much of a log is kept; what is beyond is counted only.
pub mod limits {
    /// Processes told apart.
    pub const PROCESSES: usize = 16_384;
    /// Distinct connections (process, pair of ranks, direction, transport).
    pub const CONNECTIONS: usize = 32_768;
    /// Ranks of communicators.
    pub const MEMBERS: usize = 32_768;
    /// Distinct facts of any other kind.
    pub const FACTS: usize = 2_048;
    /// Distinct warnings, numbers set aside.
    pub const WARNINGS: usize = 512;
}

/// Everything that one log says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NcclLog {
    /// The processes that wrote it; a [`ProcessId`] counts into this list.
    pub processes: Vec<Process>,
    /// Library versions, as printed. More than one is a finding of its own.
    pub versions: Vec<Sighting<LibraryVersion>>,
    /// Settings that the library said it took over, and from where.
    pub settings: Vec<Sighting<Setting>>,
    /// Interfaces that carry the bootstrap.
    pub bootstrap: Vec<Sighting<Vec<Interface>>>,
    /// Networks that communicators use (`Using network IB`).
    pub networks: Vec<Sighting<String>>,
    /// What happened to plugins.
    pub plugins: Vec<Sighting<PluginNote>>,
    /// RDMA devices in use (`NET/IB : Using …`).
    pub ib: Vec<Sighting<IbUse>>,
    /// Sockets in use (`NET/Socket : Using …`).
    pub sockets: Vec<Sighting<SocketUse>>,
    /// GPUDirect RDMA decided for one GPU and one NIC, with the distance.
    pub gdr_pairs: Vec<Sighting<GdrPair>>,
    /// How each GPU reaches other GPUs and NICs, by name. Printed with `NCCL_DEBUG_SUBSYS=GRAPH`.
    pub paths: Vec<Sighting<GraphPath>>,
    /// GPUDirect RDMA found supported, or not, for one NIC.
    pub gdr_nics: Vec<Sighting<GdrNic>>,
    /// Remarks with a meaning of their own.
    pub notes: Vec<Sighting<Note>>,
    /// Connections and the transport that each was given; `count` is the number of channels.
    pub connections: Vec<Sighting<Connection>>,
    /// Channels by transport, complete even where [`NcclLog::connections`] is not.
    pub totals: TransportTotals,
    /// Channel lines whose suffix was cut short: evidence of nothing.
    pub cut: Option<Sighting<()>>,
    /// What each rank said once its rings were connected.
    pub rings: Vec<Sighting<RingSummary>>,
    /// Ranks of communicators, from initialisation to the end.
    pub members: Vec<Member>,
    /// Work completions that failed.
    pub completions: Vec<Sighting<CompletionError>>,
    /// Warnings, one for each wording; numbers do not tell them apart.
    pub warnings: Vec<Sighting<Warning>>,
    /// Lines that said something new after a limit was reached.
    pub beyond_limits: u64,
    /// Lines of this log.
    pub lines: u64,
}

/// One process, as the log's prefixes name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Process {
    /// Host name; absent when the prefix was not pasted.
    pub host: Option<String>,
    /// Process number on that host.
    pub pid: Option<u32>,
    /// The device number in brackets after the prefix.
    pub device: Option<u32>,
    /// The task that the launcher's tag names (`7: ` of `srun -l`, `[1,7]<stdout>:` of mpirun).
    pub task: Option<u32>,
    /// Its rank in the largest communicator that it joined.
    pub rank: Option<u32>,
}

/// A setting and where the library took it from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Setting {
    /// Name of the variable.
    pub name: String,
    /// Its value, without the full stop that NCCL puts after numbers.
    pub value: String,
    /// Where it came from.
    pub origin: SettingOrigin,
}

/// Where the library took a setting from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingOrigin {
    /// `set by environment to`, `set to`: the environment or a configuration file.
    Environment,
    /// A plugin set it for this process.
    Plugin,
}

/// What a log says of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PluginNote {
    /// A plugin's interface was loaded: name and interface version.
    Loaded {
        /// The plugin's own name.
        name: String,
        /// Version of the interface (`v10`), where printed.
        interface: Option<String>,
    },
    /// The library file.
    Path(String),
    /// No plugin was found; NCCL's own network is used.
    NotFound,
    /// A network plugin wrote lines of its own under this name (`NET/FasTrak`).
    Speaks(String),
    /// A network was initialised.
    Initialized(String),
    /// A network failed to initialise.
    Failed(String),
    /// The version of aws-ofi-nccl.
    OfiPlugin(String),
    /// The version of libfabric.
    Libfabric(String),
    /// The libfabric provider and the number of NICs found.
    OfiProvider {
        /// Name of the provider (`efa`).
        provider: String,
        /// NICs found, where printed.
        nics: Option<u32>,
    },
    /// The protocol of aws-ofi-nccl (`RDMA`, `SENDRECV`).
    OfiProtocol(String),
    /// The cloud instance type that a plugin detected.
    Platform(String),
}

/// A decision about GPUDirect RDMA for one GPU and one NIC.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GdrPair {
    /// Whether it is enabled.
    pub enabled: bool,
    /// The GPU as printed: a bus id before 2.24, a rank since.
    pub gpu: String,
    /// The NIC as printed: its number.
    pub nic: String,
    /// Distance and limit.
    pub reach: Reach,
    /// `read 1`: for sending, where the NIC reads GPU memory; `read 0`: for receiving.
    pub read: Option<bool>,
}

/// How a GPU reaches another device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GraphPath {
    /// The GPU as printed (`GPU/0-1b000`, a bus id).
    pub from: String,
    /// The other device as printed (`NET/0-0`, `GPU/0-43000`).
    pub to: String,
    /// Links on the way.
    pub hops: u32,
    /// The distance.
    pub kind: PathType,
}

/// GPUDirect RDMA support of one NIC.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GdrNic {
    /// Whether it is supported.
    pub enabled: bool,
    /// How (`nvidia-peermem`, `DMABUF`), where printed.
    pub method: Option<String>,
    /// Number of the NIC.
    pub index: u32,
    /// Name of the NIC.
    pub name: String,
    /// The reason in parentheses after the name (`no module`), where printed.
    pub reason: Option<String>,
}

/// Remarks with a meaning of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Note {
    /// `DMA-BUF is available`: a generic test, no proof of use.
    DmaBufAvailable,
    /// RCCL: dma-buf is off without `NCCL_DMABUF_ENABLE=1`.
    DmaBufDisabled,
    /// RCCL: the kernel lacks what dma-buf needs.
    DmaBufKernelUnsupported,
    /// A plugin said whether it registers dma-buf memory.
    PluginDmaBuf(bool),
    /// A plugin switched GPUDirect RDMA off, with its words.
    PluginDisablesGdr(String),
    /// RCCL: no peer memory module was found, so GPUDirect RDMA is off.
    GdrModuleMissing,
    /// RCCL: where the peer memory module was found.
    GdrModuleFound(String),
    /// PXN is off because of the plugin's interface version.
    PxnDisabled(String),
    /// NVLink SHARP multicast, whether available.
    Nvls(bool),
    /// `NET/IB : No device found.`
    NoIbDevice,
    /// CollNet or SHARP is connected.
    CollNetConnected,
    /// NVLS is connected.
    NvlsConnected,
    /// RCCL: `iommu=pt` is missing from the kernel's command line.
    IommuPtMissing,
    /// RCCL: automatic NUMA balancing is on.
    NumaBalancing,
    /// The driver's CUDA version, as printed (`12060`).
    CudaDriver(u32),
    /// The kernel's version, as RCCL prints it.
    KernelVersion(String),
    /// Peer access between two GPUs was refused by the driver.
    PeerAccessRefused(String),
    /// A data-direct function of a NIC was found.
    DataDirect(String),
    /// A hint that NCCL printed after a failed completion.
    Hint(String),
    /// An internal call returned this result code on the way out of an error (`net.cc:753 -> 6`).
    ErrorTrace(u32),
}

/// One connection of a rank and the transport it was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Connection {
    /// The process that said so.
    pub by: ProcessId,
    /// Rank that sends.
    pub from: u32,
    /// Rank that receives; absent for CollNet.
    pub to: Option<u32>,
    /// The side that the process is on, for networks.
    pub direction: Option<Direction>,
    /// The transport.
    pub transport: Transport,
}

/// What a rank said once its rings were connected.
///
/// `GDR 1` is also printed when there is no network connection at all, and `GDR 0` when a single
/// one lacks it, so neither is evidence alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RingSummary {
    /// `use ring PXN n`; printed since 2.24.
    pub pxn: Option<bool>,
    /// `GDR n`; printed since 2.24.
    pub gdr: Option<bool>,
}

/// One rank of one communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The process.
    pub process: ProcessId,
    /// Address of the communicator in that process, as printed.
    pub communicator: String,
    /// Identity of the communicator across processes (`commId`), where printed.
    pub group: Option<String>,
    /// Its rank.
    pub rank: u32,
    /// Ranks in the communicator.
    pub ranks: u32,
    /// Nodes that the communicator spans, where printed.
    pub nodes: Option<u32>,
    /// Ranks on this node, where printed.
    pub local_ranks: Option<u32>,
    /// Multi-node NVLink, where printed.
    pub mnnvl: Option<bool>,
    /// CUDA or HIP device number.
    pub device: Option<u32>,
    /// PCI bus id as printed (`8a000`, domain and function squeezed).
    pub bus_id: Option<String>,
    /// Where initialisation began.
    pub started: Option<Cite>,
    /// Where it was said to be complete.
    pub completed: Option<Cite>,
    /// How and where it ended.
    pub ended: Option<(Ending, Cite)>,
}

/// How a rank left its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// `Destroy COMPLETE`.
    Destroyed,
    /// `Abort COMPLETE` or `Abort START`.
    Aborted,
    /// `Revoke COMPLETE` or `Revoke START`.
    Revoked,
}

/// A line that NCCL wrote as a warning.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Warning {
    /// Source file and line or function that warned, where printed.
    pub site: Option<String>,
    /// Its words at the first sighting.
    pub text: String,
}

impl NcclLog {
    /// The process behind an id.
    pub fn process(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(id.0 as usize)
    }

    /// The one release that all processes agree on; `None` without a version line or with several.
    pub fn release(&self) -> Option<Release> {
        let first = self.versions.first()?.what.release;
        let agreed = self.versions.iter().all(|v| v.what.release == first);
        agreed.then_some(first)
    }
}
