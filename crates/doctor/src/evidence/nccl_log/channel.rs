//! Channel lines: which transport a connection was given.

use serde::Serialize;

/// The side of a network connection that wrote a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The sender.
    Send,
    /// The receiver.
    Receive,
}

/// How two GPUs of one machine (or one NVLink domain) reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum P2pMethod {
    /// Both GPUs belong to one process.
    DirectPointer,
    /// CUDA or HIP inter-process handles.
    Ipc,
    /// `cuMem` handles.
    CuMem,
    /// Multi-node NVLink.
    Mnnvl,
    /// Both ends are one GPU.
    SameDevice,
    /// Through another GPU.
    Indirect,
}

/// Who copies on one side of a shared-memory connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShmSide {
    /// The GPU's own threads.
    Direct,
    /// The copy engine.
    CopyEngine,
}

/// The transport of one connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// GPU to GPU.
    P2p {
        /// By which means.
        method: P2pMethod,
        /// The receiver reads, instead of the sender writing.
        read: bool,
        /// The copy engine moves the data.
        copy_engine: bool,
    },
    /// Through host memory shared by two processes.
    Shm {
        /// The sending side.
        send: ShmSide,
        /// The receiving side.
        receive: ShmSide,
    },
    /// Through a NIC.
    Net {
        /// Name of the network (`IB`, `IBext_v10`, `Socket`, `AWS Libfabric`).
        network: String,
        /// Number of the NIC within that network.
        device: u32,
        /// The rank whose NIC is used (PXN), when it is another's.
        proxy: Option<u32>,
        /// `/GDRDMA`: the NIC reads or writes GPU memory itself.
        gdr: bool,
        /// `(PCI)`: over PCIe although the GPU has a chip-to-chip link to the CPU.
        pci: bool,
        /// `/Shared`: buffers shared between connections.
        shared: bool,
    },
    /// Through a NIC with in-network reduction.
    CollNet {
        /// Name of the network.
        network: String,
        /// Number of the NIC within that network.
        device: u32,
        /// `/GDRDMA`.
        gdr: bool,
    },
}

/// Channels of one network, direction and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetTotal {
    /// Name of the network.
    pub network: String,
    /// Sending or receiving side.
    pub direction: Direction,
    /// With `/GDRDMA`.
    pub gdr: bool,
    /// Channel lines.
    pub channels: u64,
}

/// Channel lines of a whole log by transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransportTotals {
    /// GPU to GPU.
    pub p2p: u64,
    /// Shared host memory.
    pub shm: u64,
    /// Networks.
    pub net: Vec<NetTotal>,
    /// In-network reduction with `/GDRDMA`.
    pub collnet_gdr: u64,
    /// In-network reduction without.
    pub collnet_plain: u64,
}

impl TransportTotals {
    /// Network channels with (`true`) or without (`false`) `/GDRDMA`, both directions.
    pub fn net_channels(&self, gdr: bool) -> u64 {
        self.net
            .iter()
            .filter(|t| t.gdr == gdr)
            .map(|t| t.channels)
            .sum()
    }
}
