//! `nvidia-smi topo -m`, `-mp` and `-p2p`.

mod reader;

use std::fmt;

use crowfly_route::units::NumaNode;
use serde::Serialize;

pub(crate) use self::reader::MatrixReader;
use super::cite::{Cite, Located};

/// How two devices are connected, in the words of `nvidia-smi`; nearest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopoLink {
    /// The same device.
    Same,
    /// This many NVLinks.
    NvLink(u32),
    /// At most one PCIe bridge.
    Pix,
    /// Several PCIe bridges, no host bridge.
    Pxb,
    /// A PCIe host bridge.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    Sys,
}

impl TopoLink {
    /// Reads a cell; `SOC` is what old drivers call `SYS`.
    pub(crate) fn parse(cell: &str) -> Option<Self> {
        Some(match cell {
            "X" => Self::Same,
            "PIX" => Self::Pix,
            "PXB" => Self::Pxb,
            "PHB" => Self::Phb,
            "NODE" => Self::Node,
            "SYS" | "SOC" => Self::Sys,
            _ => Self::NvLink(cell.strip_prefix("NV")?.parse().ok()?),
        })
    }
}

impl fmt::Display for TopoLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.pad("X"),
            Self::NvLink(links) => f.pad(&format!("NV{links}")),
            Self::Pix => f.pad("PIX"),
            Self::Pxb => f.pad("PXB"),
            Self::Phb => f.pad("PHB"),
            Self::Node => f.pad("NODE"),
            Self::Sys => f.pad("SYS"),
        }
    }
}

/// What a row or column of the matrix stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopoDevice {
    /// `GPUn`.
    Gpu(u32),
    /// `NICn`, named by a legend.
    Nic(u32),
    /// `DDn`: the data-direct function of a NIC, named by a legend.
    DataDirect(u32),
    /// A NIC by its own name, as older drivers print.
    Named(String),
}

impl fmt::Display for TopoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(n) => f.pad(&format!("GPU{n}")),
            Self::Nic(n) => f.pad(&format!("NIC{n}")),
            Self::DataDirect(n) => f.pad(&format!("DD{n}")),
            Self::Named(name) => f.pad(name),
        }
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopoRow {
    /// What the row stands for.
    pub device: TopoDevice,
    /// Its cells in column order; shorter than the columns when the paste was clipped, `None`
    /// where a cell could not be read.
    pub cells: Vec<Option<TopoLink>>,
    /// CPUs, as printed; absent when blank, which a restricted cpuset also causes.
    pub cpus: Option<String>,
    /// NUMA node; absent when blank or `N/A`.
    pub numa: Option<NumaNode>,
    /// The line.
    pub cite: Cite,
}

/// A line of the NIC legend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopoName {
    /// The label in the matrix.
    pub device: TopoDevice,
    /// RDMA device name (`mlx5_0`).
    pub name: String,
}

/// The matrix. EFA NICs never appear in it, so a missing NIC proves nothing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopoMatrix {
    /// The columns, from the header; empty when the head was clipped.
    pub columns: Vec<TopoDevice>,
    /// The header.
    pub header: Option<Cite>,
    /// The rows.
    pub rows: Vec<TopoRow>,
    /// Names of NICs. A data-direct function may appear once for each NIC that it serves.
    pub names: Vec<Located<TopoName>>,
    /// Rows or columns are missing: the matrix is not square.
    pub clipped: bool,
}

/// How a GPU reaches a NIC.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NicReach {
    /// The NIC's label.
    pub nic: TopoDevice,
    /// The NIC's name, where the legend or the label gives it.
    pub name: Option<String>,
    /// The better of the NIC's own cell and its data-direct function's.
    pub link: TopoLink,
    /// The data-direct function, when that is the better one.
    pub through: Option<TopoDevice>,
    /// The row that says so.
    pub cite: Cite,
}

impl TopoMatrix {
    /// The GPUs, in matrix order.
    pub fn gpus(&self) -> Vec<TopoDevice> {
        self.devices(|d| matches!(d, TopoDevice::Gpu(_)))
    }

    /// The NICs, in matrix order; data-direct functions are not NICs of their own.
    pub fn nics(&self) -> Vec<TopoDevice> {
        self.devices(|d| matches!(d, TopoDevice::Nic(_) | TopoDevice::Named(_)))
    }

    fn devices(&self, wanted: impl Fn(&TopoDevice) -> bool) -> Vec<TopoDevice> {
        let mut found: Vec<TopoDevice> = Vec::new();
        for device in self
            .columns
            .iter()
            .chain(self.rows.iter().map(|r| &r.device))
        {
            if wanted(device) && !found.contains(device) {
                found.push(device.clone());
            }
        }
        found
    }

    /// The cell of two devices, from either of their rows.
    pub fn link(&self, a: &TopoDevice, b: &TopoDevice) -> Option<Located<TopoLink>> {
        self.cell(a, b).or_else(|| self.cell(b, a))
    }

    fn cell(&self, row: &TopoDevice, column: &TopoDevice) -> Option<Located<TopoLink>> {
        let at = self.columns.iter().position(|c| c == column)?;
        let row = self.rows.iter().find(|r| r.device == *row)?;
        let link = row.cells.get(at)?.clone()?;
        Some(row.cite.of(link))
    }

    /// The name behind a label: the label itself, or what the legend says.
    pub fn name<'a>(&'a self, device: &'a TopoDevice) -> Option<&'a str> {
        match device {
            TopoDevice::Named(name) => Some(name),
            _ => Some(
                self.names
                    .iter()
                    .find(|n| n.value.device == *device)?
                    .value
                    .name
                    .as_str(),
            ),
        }
    }

    /// How a GPU reaches each NIC, the data-direct function counted in; in matrix order.
    pub fn nic_reach(&self, gpu: &TopoDevice) -> Vec<NicReach> {
        let mut reached = Vec::new();
        for nic in self.nics() {
            let Some(own) = self.link(gpu, &nic) else {
                continue;
            };
            let name = self.name(&nic).map(str::to_owned);
            let mut best = NicReach {
                nic,
                link: own.value,
                through: None,
                cite: own.cite,
                name,
            };
            for direct in self.data_direct_of(best.name.as_deref()) {
                if let Some(link) = self.link(gpu, &direct)
                    && link.value < best.link
                {
                    best.link = link.value;
                    best.cite = link.cite;
                    best.through = Some(direct);
                }
            }
            reached.push(best);
        }
        reached
    }

    fn data_direct_of(&self, nic: Option<&str>) -> Vec<TopoDevice> {
        self.names
            .iter()
            .filter(|n| matches!(n.value.device, TopoDevice::DataDirect(_)))
            .filter(|n| Some(n.value.name.as_str()) == nic)
            .map(|n| n.value.device.clone())
            .collect()
    }
}

/// A cell of `nvidia-smi topo -p2p`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum P2pStatus {
    /// The same device.
    Same,
    /// `OK`.
    Ok,
    /// `CNS`: the chipset does not support it.
    ChipsetNotSupported,
    /// `GNS`: the GPU does not support it.
    GpuNotSupported,
    /// `TNS`: the topology does not support it.
    TopologyNotSupported,
    /// `NS`: not supported.
    NotSupported,
    /// `DR`: disabled by a registry key of the driver.
    DisabledByDriver,
    /// `U`: unknown.
    Unknown,
}

/// `nvidia-smi topo -p2p`: what the driver allows between GPUs, whatever the PCIe topology.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct P2pMatrix {
    /// The capability asked for (`r` read, `w` write, `n` NVLink, `a` atomics, `p` PCI), where the
    /// command line was pasted.
    pub capability: Option<char>,
    /// GPU numbers of the columns.
    pub columns: Vec<u32>,
    /// GPU number and cells of each row.
    pub rows: Vec<Located<(u32, Vec<Option<P2pStatus>>)>>,
}
