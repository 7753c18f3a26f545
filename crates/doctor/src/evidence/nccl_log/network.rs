//! Networks, NICs and interfaces in use.

use serde::Serialize;

/// A network interface and its address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Its address, as printed and without the port.
    pub address: String,
}

/// The link under an RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    RoCe,
    /// Neither word was printed.
    Other,
}

/// One port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct IbPort {
    /// Device name.
    pub name: String,
    /// Port number.
    pub port: u32,
    /// The link.
    pub layer: LinkLayer,
    /// Whether it was listed as able to use SHARP.
    pub sharp: bool,
}

/// A NIC as NCCL numbers it: one port, or several merged into one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct IbDevice {
    /// Number, as in `NET/IB/0`.
    pub index: u32,
    /// Its ports.
    pub ports: Vec<IbPort>,
}

/// A line `NET/IB : Using …`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct IbUse {
    /// The NICs.
    pub devices: Vec<IbDevice>,
    /// `[RO]`: relaxed ordering is on.
    pub relaxed_ordering: bool,
    /// The interface for connection set-up.
    pub out_of_band: Option<Interface>,
    /// The list ended in the middle of a NIC: NCCL's own line buffer was full.
    pub clipped: bool,
}

/// A line `NET/Socket : Using …` (or FastSocket and the like).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SocketUse {
    /// Name of the network.
    pub network: String,
    /// The interfaces.
    pub interfaces: Vec<Interface>,
}
