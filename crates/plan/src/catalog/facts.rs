//! The facts of each kind of entry. Suffixes are units: `_gb` 1e9 B, `_gib` 2^30 B, `_tb` 1e12 B,
//! `_gbs` 1e9 B/s, `_tbs` 1e12 B/s, `_gbps` 1e9 bit/s. What is not known is absent.

use std::fmt;

use serde::{Deserialize, Serialize};

mod summary;

/// What an entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An accelerator.
    Gpu,
    /// Host memory.
    Memory,
    /// A server or cloud shape.
    Server,
    /// A network adapter.
    Nic,
    /// A switch.
    Switch,
    /// A generation of PCI Express, sixteen lanes, one direction.
    Pcie,
    /// A storage system or tier.
    Storage,
    /// A fabric that exists or is a published design.
    Fabric,
    /// A model.
    Model,
    /// A price, a power or a share, for planning.
    Price,
    /// How often training was interrupted, or an accelerator fails.
    Reliability,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Gpu,
        Self::Memory,
        Self::Server,
        Self::Nic,
        Self::Switch,
        Self::Pcie,
        Self::Storage,
        Self::Fabric,
        Self::Model,
        Self::Price,
        Self::Reliability,
    ];

    /// The word used in files, options and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Memory => "memory",
            Self::Server => "server",
            Self::Nic => "nic",
            Self::Switch => "switch",
            Self::Pcie => "pcie",
            Self::Storage => "storage",
            Self::Fabric => "fabric",
            Self::Model => "model",
            Self::Price => "price",
            Self::Reliability => "reliability",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Facts of one kind.
pub trait Facts {
    /// The kind.
    const KIND: Kind;
    /// The facts that matter, on one line.
    fn summary(&self) -> String;
}

/// An accelerator. Bandwidths of links are of both directions together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// How drivers name it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Memory in 1e9 B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hbm_gb: Option<f64>,
    /// Memory in 2^30 B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hbm_gib: Option<f64>,
    /// Memory bandwidth in 1e12 B/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hbm_tbs: Option<f64>,
    /// The least that was announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hbm_tbs_low: Option<f64>,
    /// NVLink, both directions, in 1e9 B/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_gbs: Option<f64>,
    /// Generation of NVLink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_gen: Option<u8>,
    /// Cards that share NVLink where that is not the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_domain: Option<u32>,
    /// Another fabric between the GPUs of a server, both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaleup_gbs: Option<f64>,
    /// One link between two GPUs, one direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p2p_gbs_per_dir: Option<f64>,
    /// Link to the CPU of the same package, both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub c2c_gbs: Option<f64>,
    /// Generation of the PCIe link to the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_gen: Option<u8>,
    /// Dense bf16 rate in 1e12 FLOP/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_tflops: Option<f64>,
    /// Dense fp8 rate in 1e12 FLOP/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp8_tflops: Option<f64>,
    /// Power.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tdp_w: Option<f64>,
    /// Ethernet ports on the chip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eth_ports: Option<u32>,
    /// Rate of one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eth_port_gbps: Option<f64>,
    /// All of them, one direction, in 1e9 B/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eth_gbs_per_dir: Option<f64>,
    /// Interconnect between TPU chips, both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ici_gbs_bidir: Option<f64>,
    /// Data-center network per TPU chip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dcn_gbps_per_chip: Option<f64>,
    /// Chips of a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_chips: Option<u32>,
    /// Chips of the largest slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slice_chips: Option<u32>,
}

/// Host memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The part that the peak is of, where not a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// Sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Channels per socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Transfers per second and channel, in 1e6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mts: Option<f64>,
    /// Modules per channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dimms_per_channel: Option<u32>,
    /// Theoretical peak in 1e9 B/s.
    pub peak_gbs: f64,
}

/// A server or cloud shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Its accelerator.
    pub gpu: String,
    /// How many.
    pub gpus: u32,
    /// GPUs that share one NVLink fabric, other servers' included; those of the server where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_domain: Option<u32>,
    /// GPUs of a tray.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tray_gpus: Option<u32>,
    /// Trays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trays: Option<u32>,
    /// Adapters of the GPU fabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nics: Option<u32>,
    /// Line rate of one, in 1e9 bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic_gbps: Option<f64>,
    /// Which adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// What carries GPU traffic to other servers.
    pub transport: Transport,
    /// Its host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// How many of that there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memories: Option<u32>,
    /// GPU and adapter pairs behind one PCIe uplink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs_per_uplink: Option<u32>,
    /// Adapters of the storage network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_nics: Option<u32>,
    /// Ports of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_ports_per_nic: Option<u32>,
    /// Drives in the server, 1e12 B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_nvme_tb: Option<f64>,
    /// Host memory, 1e12 B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_ram_tb: Option<f64>,
    /// Power.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_kw: Option<f64>,
    /// All networks of the machine together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_total_gbps: Option<f64>,
    /// The cloud that rents it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud: Option<CloudProvider>,
}

/// A network adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Line rate in 1e9 bit/s.
    pub gbps: f64,
    /// Who makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Its InfiniBand generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ib: Option<String>,
    /// Whether it does Ethernet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eth: Option<bool>,
    /// Whether GPUDirect RDMA works with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gdr: Option<bool>,
    /// Generation of the slot it is made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_gen: Option<u8>,
    /// Lanes of that slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_lanes: Option<u8>,
    /// What one instance gets of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_instance_gbps: Option<f64>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Ports.
    pub ports: u32,
    /// Rate of one, in 1e9 bit/s.
    pub port_gbps: f64,
    /// Its InfiniBand generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ib: Option<String>,
    /// Ports when cut otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alt_ports: Option<u32>,
    /// Rate of one of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alt_gbps: Option<f64>,
    /// All ports, one direction, in 1e12 bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tbps: Option<f64>,
}

/// A generation of PCI Express, sixteen lanes, one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// The generation.
    pub generation: u8,
    /// Transfers per second and lane, in 1e9.
    pub gts: f64,
    /// After line coding, in 1e9 B/s.
    pub raw_gbs: f64,
    /// What transfers reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usable_gbs: Option<f64>,
}

/// A storage system or tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageSystem {
    /// What kind of storage.
    pub class: StorageClass,
    /// Whether GPUDirect Storage is documented for it.
    pub direct: StorageDirect,
    /// Whole system, reading, in 1e9 B/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbs: Option<f64>,
    /// Whole system, writing, where another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_gbs: Option<f64>,
    /// Its peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_gbs: Option<f64>,
    /// The least that can be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_gbs: Option<f64>,
    /// The most that can be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_gbs: Option<f64>,
    /// One client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_gbs: Option<f64>,
    /// Drives inside a server, reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_server_gbs: Option<f64>,
    /// The same, writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_server_write_gbs: Option<f64>,
    /// Throughput bought with each TiB, 1e6 B/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbps_per_tib: Option<f64>,
    /// Least capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_gib: Option<f64>,
    /// Steps of capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_gib: Option<f64>,
    /// Most capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_gib: Option<f64>,
    /// Its capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_tib: Option<f64>,
}

/// A fabric that exists or is a published design. Lists go together, one column a size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<u32>,
    /// GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
    /// Leaf switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaf: Vec<u32>,
    /// Spine switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spine: Vec<u32>,
    /// Core switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub core: Vec<u32>,
    /// Ports of its switches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub radix: Option<u32>,
    /// Tiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiers: Option<u32>,
    /// Ports down per port up at its narrowest tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oversubscription: Option<f64>,
    /// Its switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// All parameters.
    pub params: f64,
    /// Those that one token uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_params: Option<f64>,
    /// Transformer layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// Width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<u32>,
    /// Tokens of its vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<u32>,
    /// Tokens of a training sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u32>,
    /// Layers with experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moe_layers: Option<u32>,
    /// Experts per such layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<u32>,
    /// Experts that one token visits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts_per_token: Option<u32>,
}

/// A price, a power or a share, for planning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// US dollars a piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// The dearest offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_high: Option<f64>,
    /// A share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// Power.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// When.
    pub date: String,
}

/// How often training was interrupted, or an accelerator fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reliability {
    /// GPUs observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// For how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days: Option<f64>,
    /// Unexpected interruptions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unexpected: Option<u32>,
    /// Interruptions per thousand servers and day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_1000_node_days: Option<f64>,
    /// Mean time to failure of one accelerator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator_mttf_h: Option<f64>,
    /// Mean time to interruption of the job observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtti_h: Option<f64>,
}

/// What carries GPU traffic between servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// InfiniBand.
    Infiniband,
    /// RDMA over Converged Ethernet.
    Roce,
    /// AWS's Elastic Fabric Adapter.
    Efa,
    /// Google's GPUDirect path over TCP, first form.
    Tcpx,
    /// The same, second form.
    Tcpxo,
    /// TCP by the kernel; nothing direct.
    Tcp,
}

impl Transport {
    /// The word used in files and options.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Infiniband => "infiniband",
            Self::Roce => "roce",
            Self::Efa => "efa",
            Self::Tcpx => "tcpx",
            Self::Tcpxo => "tcpxo",
            Self::Tcp => "tcp",
        }
    }

    /// The direct path that it gives GPU memory; `None` where there is none.
    pub const fn direct_path(self) -> Option<&'static str> {
        match self {
            Self::Infiniband => Some("GPUDirect RDMA over InfiniBand"),
            Self::Roce => Some("RDMA over RoCE"),
            Self::Efa => Some("RDMA over EFA (SRD)"),
            Self::Tcpx => Some("GPUDirect-TCPX"),
            Self::Tcpxo => Some("GPUDirect-TCPXO"),
            Self::Tcp => None,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Who rents a shape out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CloudProvider {
    /// Google Cloud.
    Gcp,
    /// Amazon Web Services.
    Aws,
    /// Microsoft Azure.
    Azure,
    /// Oracle Cloud.
    Oci,
}

impl CloudProvider {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gcp => "gcp",
            Self::Aws => "aws",
            Self::Azure => "azure",
            Self::Oci => "oci",
        }
    }
}

/// A kind of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageClass {
    /// An object store: HTTP, so the CPU and host RAM take part.
    Object,
    /// A parallel file system.
    Parallel,
    /// Drives inside the servers.
    Local,
}

impl StorageClass {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Parallel => "parallel",
            Self::Local => "local",
        }
    }
}

/// Whether GPUDirect Storage is documented for a storage system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StorageDirect {
    /// It is.
    #[serde(rename = "yes")]
    Yes,
    /// There is no standard path.
    #[serde(rename = "no")]
    No,
    /// Its documents do not say.
    #[serde(rename = "not documented")]
    NotDocumented,
}

impl StorageDirect {
    /// The words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::NotDocumented => "not documented",
        }
    }
}
