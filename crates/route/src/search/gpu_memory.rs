//! What a GPU and its driver allow: whether programs can use it at all, whether other devices can
//! reach its memory, and whether the RDMA stack may register it.

use super::World;
use super::peer::{Ruling, sysfs};
use super::seen::{Truth, version};
use crate::obstacle::{Code, Confidence, Evidence, Fix, Obstacle};
use crate::snapshot::{Observation, Value};
use crate::topology::{Gpu, GpuVendor};

/// Drivers that take a GPU away from its maker's runtime.
const OTHER_DRIVERS: [&str; 3] = ["vfio-pci", "nouveau", "pci-stub"];
/// Where the peer-memory clients of NVIDIA's driver show themselves, old ones included.
const NVIDIA_CLIENTS: [&str; 4] = [
    "/sys/module/nvidia_peermem",
    "/sys/module/nv_peer_mem",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
];
/// Where AMD's does.
const AMD_CLIENTS: [&str; 4] = [
    "/sys/kernel/mm/memory_peers/amdkfd/version",
    "/sys/kernel/memory_peers/amdkfd/version",
    "/sys/memory_peers/amdkfd/version",
    "kallsyms:ib_register_peer_memory_client",
];
const NVIDIA_VERSION: &str = "/proc/driver/nvidia/version";
/// The first kernel whose RDMA stack registers dma-bufs.
const DMABUF_KERNEL: (u32, u32) = (5, 12);

impl World<'_> {
    pub(super) fn gpu(&self, index: usize) -> Option<&Gpu> {
        self.topology.gpus.get(index)
    }

    /// Who decides whether others may reach a GPU's memory.
    pub(super) fn ruling(&self, gpu: usize) -> Ruling {
        match self.gpu(gpu).map(|gpu| gpu.vendor) {
            Some(GpuVendor::Nvidia) => Ruling::Driver,
            _ => Ruling::Kernel,
        }
    }

    /// Whether programs can use the GPU.
    pub(super) fn gpu_runtime(&self, index: usize) -> Vec<Obstacle> {
        let Some(gpu) = self.gpu(index) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        if let Some(address) = gpu.address {
            let key = sysfs(address, "driver");
            let other = self
                .seen
                .0
                .and_then(|snapshot| snapshot.link_name(&key))
                .filter(|driver| OTHER_DRIVERS.contains(driver));
            let what = match (self.seen.exists(&key), other) {
                (_, Some(driver)) => Some(format!("the driver {driver}")),
                (Truth::No, _) => Some("no driver".into()),
                _ => None,
            };
            if let Some(what) = what.filter(|_| gpu.vendor != GpuVendor::StandIn) {
                found.push(
                    Obstacle::blocks(
                        Code::NoGpuRuntime,
                        format!(
                            "gpu{index} ({}) is bound to {what}; no program can use it.",
                            gpu.name
                        ),
                    )
                    .proved_by([self.seen.quote(key)])
                    .fixed_by(Fix::by_hand(
                        "Install and load the driver of the GPU's maker.",
                    )),
                );
            }
        }
        let libraries: &[&str] = match gpu.vendor {
            GpuVendor::Nvidia => &["library:libcuda.so.1"],
            GpuVendor::Amd => &["library:libamdhip64.so.7", "library:libamdhip64.so.6"],
            _ => &[],
        };
        let failed = |key: &&str| {
            let seen = self.seen.get(key);
            matches!(seen, Some(Observation::Absent | Observation::Error(_)))
        };
        if !libraries.is_empty() && libraries.iter().all(failed) {
            let names = libraries
                .iter()
                .map(|key| key.trim_start_matches("library:"))
                .collect::<Vec<_>>();
            found.push(
                Obstacle::blocks(
                    Code::NoGpuRuntime,
                    format!("The runtime of gpu{index} does not load: {}.", names.join(", ")),
                )
                .proved_by(libraries.iter().map(|key| self.seen.quote(*key)))
                .fixed_by(Fix::by_hand(
                    "Install the driver's user-space libraries; in a container, start it with the GPU runtime.",
                )),
            );
        }
        found
    }

    /// Whether other devices can reach the GPU's memory.
    pub(super) fn peer_access(&self, index: usize) -> Vec<Obstacle> {
        let Some(gpu) = self.gpu(index) else {
            return Vec::new();
        };
        let mut found = self.gpu_runtime(index);
        let at = gpu
            .address
            .map_or_else(|| format!("gpu{index}"), |address| address.to_string());
        if gpu.name.contains("GeForce") {
            found.push(
                Obstacle::blocks(
                    Code::GpuWithoutPeerAccess,
                    format!(
                        "gpu{index} is a {}: NVIDIA's driver opens the memory of data-center and professional GPUs to other devices, not that of GeForce.",
                        gpu.name
                    ),
                )
                .seen(at.as_str(), gpu.name.as_str())
                .fixed_by(Fix::by_hand("Use a data-center or professional GPU.")),
            );
        }
        if let (Some(bar), Some(memory)) = (gpu.bar, gpu.memory)
            && bar < memory
        {
            let key = gpu.address.map_or(at, |address| sysfs(address, "resource"));
            found.push(
                Obstacle::slows(
                    Code::SmallBar,
                    format!(
                        "Other devices reach {bar} of the {memory} of gpu{index} at a time: large buffers cannot be registered whole."
                    ),
                )
                .seen(key, format!("largest BAR {bar}"))
                .with_confidence(Confidence::Likely)
                .fixed_by(
                    Fix::by_hand("Switch on Above 4G Decoding and Resizable BAR in the firmware.")
                        .checked_by("nvidia-smi -q -d MEMORY | grep -A3 BAR1"),
                ),
            );
        }
        found
    }

    /// Whether the RDMA stack may register the GPU's memory, by a peer-memory client or dma-buf.
    pub(super) fn rdma_client(&self, index: usize) -> Vec<Obstacle> {
        let Some(gpu) = self.gpu(index) else {
            return Vec::new();
        };
        let mut found = self.peer_access(index);
        match gpu.vendor {
            GpuVendor::Nvidia => found.extend(self.nvidia_client(index)),
            GpuVendor::Amd => found.extend(self.amd_client(index)),
            GpuVendor::StandIn => found.push(
                Obstacle::blocks(
                    Code::NoPeerMemoryClient,
                    format!("gpu{index} stands in for a GPU: the RDMA stack cannot register published PCIe memory."),
                )
                .seen(format!("gpu{index}"), gpu.name.as_str()),
            ),
            GpuVendor::Intel | GpuVendor::Other => found.push(
                Obstacle::unproven(
                    Code::NoPeerMemoryClient,
                    format!("Whether the driver of gpu{index} exports its memory as dma-buf is not known."),
                )
                .seen(format!("gpu{index}"), gpu.name.as_str()),
            ),
        }
        found
    }

    fn nvidia_client(&self, index: usize) -> Option<Obstacle> {
        let peermem = self.seen.any_exists(&NVIDIA_CLIENTS);
        let dmabuf = match (
            self.open_nvidia_driver(),
            self.seen.kernel_at_least(DMABUF_KERNEL.0, DMABUF_KERNEL.1),
        ) {
            (Truth::No, _) | (_, Truth::No) => Truth::No,
            (Truth::Yes, Truth::Yes) => Truth::Yes,
            _ => Truth::Open,
        };
        let evidence = NVIDIA_CLIENTS
            .into_iter()
            .take(1)
            .chain([NVIDIA_VERSION])
            .map(|key| self.seen.quote(key));
        self.no_client(
            peermem.or(dmabuf),
            format!(
                "NVIDIA's driver offers the RDMA stack no way to the memory of gpu{index}: nvidia-peermem is \
                 not loaded, and dma-buf needs the open kernel modules and Linux 5.12."
            ),
            evidence.collect(),
        )
        .map(|obstacle| {
            obstacle.fixed_by(
                Fix::run(
                    "Load nvidia-peermem, after the RDMA drivers.",
                    "sudo modprobe nvidia-peermem",
                )
                .checked_by("ls /sys/module/nvidia_peermem"),
            )
            .fixed_by(Fix::by_hand(
                "Or install the open kernel modules (nvidia-open), which export dma-buf.",
            ))
        })
    }

    fn amd_client(&self, index: usize) -> Option<Obstacle> {
        let client = self.seen.any_exists(&AMD_CLIENTS);
        let option = |name: &str| self.kernel_option(name);
        let dmabuf = match (
            option("CONFIG_PCI_P2PDMA"),
            option("CONFIG_DMABUF_MOVE_NOTIFY"),
        ) {
            (Truth::No, _) | (_, Truth::No) => Truth::No,
            (Truth::Yes, Truth::Yes) => Truth::Yes,
            _ => Truth::Open,
        };
        let evidence = [
            AMD_CLIENTS[0],
            "kconfig:CONFIG_PCI_P2PDMA",
            "kconfig:CONFIG_DMABUF_MOVE_NOTIFY",
        ]
        .map(|key| self.seen.quote(key));
        self.no_client(
            client.or(dmabuf),
            format!(
                "The RDMA stack has no way to the memory of gpu{index}: no peer-memory client of amdgpu, and \
                 dma-buf needs a kernel with PCI_P2PDMA and DMABUF_MOVE_NOTIFY."
            ),
            evidence.to_vec(),
        )
        .map(|obstacle| {
            obstacle.fixed_by(Fix::by_hand(
                "Install amdgpu-dkms with its peer-memory support, or a kernel with both options.",
            ))
        })
    }

    fn no_client(&self, has: Truth, summary: String, evidence: Vec<Evidence>) -> Option<Obstacle> {
        let obstacle = match has {
            Truth::Yes => return None,
            Truth::No => Obstacle::blocks(Code::NoPeerMemoryClient, summary),
            Truth::Open => Obstacle::unproven(
                Code::NoPeerMemoryClient,
                "Whether the RDMA stack can register GPU memory (nvidia-peermem, amdgpu, dma-buf) was not all looked at.",
            ),
        };
        Some(obstacle.proved_by(evidence))
    }

    /// Whether NVIDIA's kernel modules are the open ones.
    pub(super) fn open_nvidia_driver(&self) -> Truth {
        let text = self.seen.text(NVIDIA_VERSION);
        Truth::of(text.map(|text| text.contains("Open Kernel Module")))
    }

    /// The version of NVIDIA's driver, with where it was seen.
    pub(super) fn nvidia_driver(&self) -> Option<(&'static str, (u32, u32))> {
        ["nvml:driver_version", "/sys/module/nvidia/version"]
            .into_iter()
            .find_map(|key| Some((key, version(self.seen.text(key)?)?)))
    }

    /// Whether the kernel was built with an option.
    pub(super) fn kernel_option(&self, option: &str) -> Truth {
        match self.seen.get(&format!("kconfig:{option}")) {
            Some(Observation::Value(Value::Text(value))) => {
                Truth::of(Some(value == "y" || value == "m"))
            }
            Some(Observation::Absent) => Truth::No,
            _ => Truth::Open,
        }
    }

    /// Whether the kernel has peer-to-peer DMA: by its configuration, by a symbol of that code, or
    /// because something published memory for it.
    pub(super) fn kernel_p2pdma(&self) -> Option<Obstacle> {
        let published = self.topology.pci.values().any(|f| f.peer_memory.is_some());
        let has = self
            .kernel_option("CONFIG_PCI_P2PDMA")
            .or(self.seen.exists("kallsyms:p2pdma_pgmap_ops"));
        let keys = ["kconfig:CONFIG_PCI_P2PDMA", "kallsyms:p2pdma_pgmap_ops"];
        let said_no = self.kernel_option("CONFIG_PCI_P2PDMA") == Truth::No;
        let obstacle = match has {
            _ if published => return None,
            Truth::Yes => return None,
            _ if said_no => Obstacle::blocks(
                Code::KernelWithoutP2pdma,
                "The kernel was built without PCI_P2PDMA: no device can be given the address of another's memory.",
            ),
            Truth::No => Obstacle::blocks(
                Code::KernelWithoutP2pdma,
                "The kernel has no peer-to-peer DMA.",
            ),
            Truth::Open => Obstacle::unproven(
                Code::KernelWithoutP2pdma,
                "Whether the kernel has peer-to-peer DMA (PCI_P2PDMA) was not looked at.",
            ),
        };
        Some(
            obstacle
                .proved_by(keys.map(|key| self.seen.quote(key)))
                .fixed_by(
                    Fix::by_hand("Start a kernel built with CONFIG_PCI_P2PDMA=y.")
                        .checked_by("grep PCI_P2PDMA /boot/config-$(uname -r)"),
                ),
        )
    }
}
