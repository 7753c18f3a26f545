//! The graph decoded from a snapshot: NUMA nodes, root complexes, PCIe switches and links, GPUs,
//! NICs, drives, file systems, NVLink and xGMI.
//!
//! Decoding is pure and total: one odd device becomes an [`Oddity`], never an early exit.
//!
//! [`Topology::from_snapshot`] decodes a machine's own observations; `topology/decode/` has one
//! file per kind of device, each of which lists the keys it reads. [`Topology::from_any`] takes
//! hwloc's and NCCL's files as well.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, BytesPerSecond, NumaNode, PciAddress};

mod config_space;
mod decode;
mod device;
mod distance;
mod file;
mod gpu_links;
mod hierarchy;
mod hwloc;
mod links;
mod nccl;
pub mod pcie;
mod storage;
mod xml;

pub use device::Device;
pub use distance::{Distance, Path, Relation};
pub use file::TopologyError;
pub use links::LinkState;

pub use pcie::{
    AcsState, AerTotals, PciDevice, PcieGeneration, PcieLink, PcieSpeed, PeerMemory, PortKind,
    RootComplex,
};

/// The graph of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// The processor, kernel and hypervisor, as far as known.
    pub host: Host,
    /// NUMA nodes in number order.
    pub numa: Vec<NumaInfo>,
    /// Every PCI function, by address.
    pub pci: BTreeMap<PciAddress, PciDevice>,
    /// GPUs in PCI address order; the position is the index in `gpu:N`.
    pub gpus: Vec<Gpu>,
    /// RDMA devices and physical network interfaces.
    pub nics: Vec<Nic>,
    /// Drives.
    pub drives: Vec<Drive>,
    /// Block devices by name, with what they are made of.
    pub blocks: BTreeMap<String, BlockDevice>,
    /// Mounted file systems that can be reached by their path, in mount order. Mounts that later
    /// ones cover are left out.
    pub mounts: Vec<Mount>,
    /// Links between GPUs that are not PCIe.
    pub gpu_links: Vec<GpuLink>,
    /// What could not be decoded, and why; nothing was silently left out.
    pub oddities: Vec<Oddity>,
}

/// The processor, kernel and hypervisor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// CPU vendor as in `/proc/cpuinfo`: `GenuineIntel`, `AuthenticAMD`, …
    pub cpu_vendor: Option<String>,
    /// CPU family.
    pub cpu_family: Option<u32>,
    /// CPU model.
    pub cpu_model: Option<u32>,
    /// Marketing name.
    pub cpu_name: Option<String>,
    /// Number of sockets.
    pub sockets: Option<u32>,
    /// Kernel release, `6.12.38-generic`.
    pub kernel: Option<String>,
    /// Architecture, `x86_64`.
    pub machine: Option<String>,
    /// The hypervisor, when this is a virtual machine.
    pub hypervisor: Option<String>,
    /// The container runtime, when this is a container.
    pub container: Option<String>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumaInfo {
    /// Its number.
    pub node: NumaNode,
    /// Its CPUs in the kernel's list form, `0-31,64-95`; empty for memory-only nodes.
    pub cpus: String,
    /// The CPU package it is part of; `None` for memory-only nodes and where nobody said.
    pub socket: Option<u32>,
    /// Its memory.
    pub memory: Option<Bytes>,
    /// Distances to the nodes in number order, 10 being local.
    pub distances: Vec<u32>,
}

/// A GPU or other accelerator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its PCI function; `None` where the source does not say (some XML files).
    pub address: Option<PciAddress>,
    /// `NVIDIA H100 80GB HBM3`, or the name from the PCI id list.
    pub name: String,
    /// Who made it.
    pub vendor: GpuVendor,
    /// Memory of the device, when its driver says.
    pub memory: Option<Bytes>,
    /// Size of the BAR through which peers reach its memory.
    pub bar: Option<Bytes>,
    /// Compute capability (NVIDIA), `9.0`.
    pub compute_capability: Option<String>,
    /// Performance state (NVIDIA): 0 is the fastest, 8 and more are idle.
    pub performance_state: Option<u8>,
}

/// Who made a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuVendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel, Habana included.
    Intel,
    /// Anyone else.
    Other,
    /// Not a GPU: a device whose published memory stands in for one in tests.
    StandIn,
}

/// A network adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// RDMA device name (`mlx5_0`) where there is one, else the interface's name (`eth0`).
    pub name: String,
    /// Its PCI function; `None` for software devices.
    pub address: Option<PciAddress>,
    /// The model's name.
    pub model: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// Ports of the RDMA device; empty when it is a plain network interface.
    pub ports: Vec<RdmaPort>,
    /// Network interfaces of the same function.
    pub interfaces: Vec<Interface>,
    /// Whether this is a virtual function.
    pub virtual_function: bool,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// From 1.
    pub number: u32,
    /// Whether the state is ACTIVE; `None` when it could not be read.
    pub active: Option<bool>,
    /// The state in the kernel's words, `4: ACTIVE`.
    pub state: Option<String>,
    /// `InfiniBand` or `Ethernet` (RoCE, iWARP).
    pub link_layer: Option<String>,
    /// Line rate in bytes per second, one direction.
    pub rate: Option<BytesPerSecond>,
    /// GIDs with their types, `RoCE v2`, in index order; zero GIDs left out.
    pub gids: Vec<Gid>,
}

/// A global identifier of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Index in the port's table.
    pub index: u32,
    /// The identifier, possibly a stand-in.
    pub gid: String,
    /// `IB/RoCE v1`, `RoCE v2`.
    pub kind: Option<String>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// `eth0`.
    pub name: String,
    /// `up`, `down`, `unknown`.
    pub state: Option<String>,
    /// Line rate in bytes per second, one direction; `None` when unknown or down.
    pub rate: Option<BytesPerSecond>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
}

/// A drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drive {
    /// NVMe controller (`nvme0`) or block device (`sda`, `vda`).
    pub name: String,
    /// Its PCI function (for NVMe, the controller's own; else the host adapter's).
    pub address: Option<PciAddress>,
    /// Model.
    pub model: Option<String>,
    /// How it is attached.
    pub transport: DriveTransport,
    /// Its namespaces as block device names.
    pub blocks: Vec<String>,
}

/// How a drive is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriveTransport {
    /// NVMe on PCIe: its DMA can address peers.
    NvmePcie,
    /// NVMe over fabrics.
    NvmeFabrics,
    /// A paravirtual disk of a hypervisor.
    Virtio,
    /// SATA or SAS behind a host adapter.
    Scsi,
    /// Anything else.
    Other,
}

/// A block device and what it is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockDevice {
    /// `259:0`.
    pub number: Option<String>,
    /// What kind: `disk`, `partition`, `md raid0`, `dm lvm`, `dm crypt`, `dm multipath`,
    /// `dm partition`, `dm`, `loop`, `virtual`.
    pub kind: String,
    /// Device-mapper name: `vg-data` of `/dev/mapper/vg-data`.
    pub mapped_name: Option<String>,
    /// The block devices directly below; empty for a disk.
    pub below: Vec<String>,
    /// Size.
    pub size: Option<Bytes>,
    /// Logical block size, the alignment that O_DIRECT needs.
    pub logical_block: Option<u32>,
    /// The largest request the queue takes.
    pub max_request: Option<Bytes>,
    /// The most segments a request may have.
    pub max_segments: Option<u32>,
    /// Whether it joins several paths to one drive (NVMe native multipath, dm-multipath).
    pub multipath: bool,
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where.
    pub point: String,
    /// `ext4`, `xfs`, `lustre`, `nfs4`, `overlay`, …
    pub fs_type: String,
    /// The device or server it comes from.
    pub source: String,
    /// Mount and superblock options.
    pub options: Vec<String>,
    /// Device number of its files, `253:1`; empty where the source does not say.
    pub device: String,
    /// The block devices, by name, of a file system that says itself which it lies on (btrfs, whose
    /// number is no block device's); empty for others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
}

/// A link between two GPUs that is not PCIe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuLink {
    /// Index of one GPU.
    pub a: u32,
    /// Index of the other.
    pub b: u32,
    /// What it is.
    pub kind: GpuLinkKind,
    /// How many links are bonded, the number in `NV18`.
    pub count: u32,
    /// Rate of all of them in one direction, when known.
    pub rate: Option<BytesPerSecond>,
}

/// The kind of a link between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuLinkKind {
    /// NVLink, directly or through NVSwitch.
    NvLink,
    /// AMD's xGMI.
    Xgmi,
}

/// Something that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oddity {
    /// Where it was seen.
    pub at: String,
    /// What was odd, and what was assumed instead.
    pub what: String,
}
