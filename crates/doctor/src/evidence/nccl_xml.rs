//! The XML that NCCL and RCCL read and write: topologies and channel graphs.

mod reader;

use crowfly_route::units::{NumaNode, PciAddress};
use serde::Serialize;

pub(crate) use self::reader::{NcclGraphReader, NcclTopologyReader};
use super::cite::{Cite, Located};

/// A topology.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NcclTopology {
    /// CPUs (NUMA nodes) in order.
    pub cpus: Vec<XmlCpu>,
    /// PCI functions; bridges come before what is behind them.
    pub functions: Vec<XmlFunction>,
    /// GPUs.
    pub gpus: Vec<XmlGpu>,
    /// Networks.
    pub nets: Vec<XmlNet>,
    /// The text ended before the document did.
    pub clipped: bool,
}

/// Place of an element in its list of [`NcclTopology`].
pub type Index = usize;

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XmlCpu {
    /// Its number.
    pub numa: Option<NumaNode>,
    /// Architecture (`x86_64`).
    pub arch: String,
    /// Vendor (`GenuineIntel`).
    pub vendor: String,
    /// Family number.
    pub family: Option<u32>,
    /// Model number.
    pub model: Option<u32>,
    /// The line.
    pub cite: Cite,
}

/// One PCI function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XmlFunction {
    /// Its address. Addresses on bus `ffff:ff` are made up by whoever wrote the file.
    pub address: Option<PciAddress>,
    /// Its class (`0x030200`).
    pub class: u32,
    /// Vendor and device numbers, where written.
    pub ids: Option<(u16, u16)>,
    /// The CPU above it.
    pub cpu: Option<Index>,
    /// The function above it.
    pub parent: Option<Index>,
    /// Speed of its link in gigatransfers per second; absent for virtual PCI (`""`).
    ///
    /// NCCL writes the *maximum* here, so a link that came up slower cannot be seen.
    pub gigatransfers: Option<f64>,
    /// Lanes of its link; absent for virtual PCI (`0`).
    pub lanes: Option<u32>,
    /// The line.
    pub cite: Cite,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XmlGpu {
    /// Device number.
    pub device: u32,
    /// Rank, where written.
    pub rank: Option<u32>,
    /// Compute capability (`90`), NVIDIA only.
    pub sm: Option<u32>,
    /// `gcn` architecture, AMD only.
    pub gcn: Option<String>,
    /// `gdr`: whether GPUDirect RDMA is possible with it.
    pub gdr: Option<bool>,
    /// Its function.
    pub function: Option<Index>,
    /// Links to other devices.
    pub links: Vec<XmlLink>,
    /// The line.
    pub cite: Cite,
}

/// Links from a GPU to one other device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XmlLink {
    /// `nvlink`, `xgmi` or `c2c`.
    pub kind: LinkKind,
    /// The other device; absent for a link to the CPU.
    pub target: Option<PciAddress>,
    /// How many.
    pub count: u32,
    /// Class of the other device (`0x068000` is an NVSwitch), where written.
    pub target_class: Option<u32>,
}

/// Kind of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// NVLink.
    NvLink,
    /// xGMI.
    Xgmi,
    /// Chip-to-chip, to the CPU.
    C2c,
}

/// One network device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XmlNet {
    /// Its name.
    pub name: String,
    /// Its number.
    pub device: Option<u32>,
    /// Its speed in Mb/s.
    pub speed_mbps: Option<u64>,
    /// `gdr`: whether GPUDirect RDMA is possible with it.
    pub gdr: Option<bool>,
    /// `coll`: whether it reduces in the network.
    pub coll: Option<bool>,
    /// Its function; absent when NCCL found none.
    pub function: Option<Index>,
    /// The CPU above it.
    pub cpu: Option<Index>,
    /// The line.
    pub cite: Cite,
}

impl NcclTopology {
    /// Functions above one, nearest first.
    pub fn above(&self, function: Index) -> Vec<Index> {
        let mut chain = Vec::new();
        let mut next = self.functions.get(function).and_then(|f| f.parent);
        while let Some(at) = next {
            chain.push(at);
            // A parent comes before its children, so this ends.
            next = self
                .functions
                .get(at)
                .and_then(|f| f.parent)
                .filter(|p| *p < at);
        }
        chain
    }
}

/// Channel graphs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NcclGraph {
    /// The graphs.
    pub graphs: Vec<Located<XmlGraph>>,
    /// The text ended before the document did.
    pub clipped: bool,
}

/// One graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct XmlGraph {
    /// 0 ring, 1 tree, 2 CollNet, 3 NVLS.
    pub id: u32,
    /// Pattern number.
    pub pattern: Option<u32>,
    /// Whether channels may leave by one NIC and come back by another.
    pub cross_nic: Option<bool>,
    /// Channels.
    pub channels: u32,
    /// GB/s inside the node.
    pub speed_intra: Option<f64>,
    /// GB/s between nodes.
    pub speed_inter: Option<f64>,
    /// Worst path between GPUs (`NVL`, `PIX`).
    pub type_intra: Option<String>,
    /// Worst path between GPU and NIC (`PIX`, `PHB`).
    pub type_inter: Option<String>,
    /// NIC numbers in use.
    pub nets: Vec<String>,
    /// GPU numbers in use.
    pub gpus: Vec<String>,
}
