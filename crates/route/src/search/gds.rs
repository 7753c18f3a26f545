//! What GPUDirect Storage needs in its two modes: NVIDIA's kernel module nvidia-fs, and cuFile's
//! P2PDMA mode, which needs no module but much else to be so.

use super::World;
use super::seen::Truth;
use super::store::{Holder, Store};
use crate::obstacle::{Code, Evidence, Fix, Obstacle};
use crate::topology::{Device, DriveTransport};

const MODULE: [&str; 2] = ["/sys/module/nvidia_fs", "/proc/driver/nvidia-fs/version"];
/// The hook that nvidia-fs needs in the NVMe driver, by version of its interface.
const NVME_HOOKS: [&str; 2] = [
    "kallsyms:nvme_v1_register_nvfs_dma_ops",
    "kallsyms:nvme_v2_register_nvfs_dma_ops",
];
const CUFILE: &str = "library:libcufile.so.0";
const CUFILE_CONFIG: &str = "/etc/cufile.json";
const MULTIPATH: &str = "/sys/module/nvme_core/parameters/multipath";
const NVIDIA_PARAMS: &str = "/proc/driver/nvidia/params";
/// The first kernel and driver with which cuFile's P2PDMA mode works.
const P2PDMA_KERNEL: (u32, u32) = (6, 2);
const P2PDMA_DRIVER: (u32, u32) = (565, 0);
/// The first compute capability that it works with.
const P2PDMA_CAPABILITY: (u32, u32) = (8, 0);
/// Driver settings that it needs on x86.
const REGISTRY: [&str; 2] = ["RMForceStaticBar1=1", "RmForceDisableIomapWC=1"];

/// Conditions that have to hold together, sorted by what is known of each.
#[derive(Default)]
struct Conditions {
    missing: Vec<(String, Evidence, Fix)>,
    open: Vec<(String, Evidence)>,
}

impl Conditions {
    fn need(&mut self, what: &str, truth: Truth, evidence: Evidence, fix: Fix) {
        match truth {
            Truth::Yes => {}
            Truth::No => self.missing.push((what.to_owned(), evidence, fix)),
            Truth::Open => self.open.push((what.to_owned(), evidence)),
        }
    }

    fn obstacles(self, mode: &str) -> Vec<Obstacle> {
        let words = |names: Vec<&str>| super::peer::list(&names);
        let mut found = Vec::new();
        if !self.missing.is_empty() {
            let names = self.missing.iter().map(|(what, ..)| what.as_str());
            let mut obstacle = Obstacle::blocks(
                Code::NoStorageDriver,
                format!("{mode} needs {}.", words(names.collect())),
            );
            for (_, evidence, fix) in self.missing {
                obstacle = obstacle.proved_by([evidence]).fixed_by(fix);
            }
            found.push(obstacle);
        }
        if !self.open.is_empty() {
            let names = self.open.iter().map(|(what, _)| what.as_str());
            let obstacle = Obstacle::unproven(
                Code::NoStorageDriver,
                format!(
                    "{mode} needs {}, which could not be looked at.",
                    words(names.collect())
                ),
            );
            found.push(obstacle.proved_by(self.open.into_iter().map(|(_, evidence)| evidence)));
        }
        found
    }
}

impl World<'_> {
    /// Whether nvidia-fs is loaded, knows the driver that serves the bytes, and has its library.
    pub(super) fn nvidia_fs(&self, store: &Store<'_>) -> Vec<Obstacle> {
        let mut needs = Conditions::default();
        let loaded = self.seen.any_exists(&MODULE);
        needs.need(
            "the module nvidia-fs",
            loaded,
            self.seen.quote(MODULE[0]),
            Fix::run("Load nvidia-fs.", "sudo modprobe nvidia-fs")
                .checked_by("cat /proc/driver/nvidia-fs/version"),
        );
        let drives = match &store.holder {
            Holder::Drives(drives) => drives.as_slice(),
            _ => &[],
        };
        let nvme = |drive: &Device| self.transport_of(*drive) == DriveTransport::NvmePcie;
        if loaded != Truth::No && drives.iter().any(nvme) {
            needs.need(
                "an NVMe driver with its hook",
                self.seen.any_exists(&NVME_HOOKS),
                self.seen.quote(NVME_HOOKS[1]),
                Fix::by_hand(
                    "Install the NVMe driver of the network vendor's kit built with GPUDirect Storage, and rebuild the initramfs.",
                )
                .checked_by("gdscheck -p | grep NVMe"),
            );
        }
        self.need_cufile(&mut needs);
        needs.obstacles("GPUDirect Storage by nvidia-fs")
    }

    /// Whether nvidia-fs and the client of a network file system know each other.
    pub(super) fn nvidia_fs_client(&self, hooks: &[&str], client: &str) -> Vec<Obstacle> {
        let mut needs = Conditions::default();
        let loaded = self.seen.any_exists(&MODULE);
        needs.need(
            "the module nvidia-fs",
            loaded,
            self.seen.quote(MODULE[0]),
            Fix::run("Load nvidia-fs.", "sudo modprobe nvidia-fs")
                .checked_by("cat /proc/driver/nvidia-fs/version"),
        );
        if loaded != Truth::No {
            let first = hooks.first().copied().unwrap_or(MODULE[1]);
            needs.need(
                &format!("a {client} client with its hook"),
                self.seen.any_exists(hooks),
                self.seen.quote(first),
                Fix::by_hand(format!(
                    "Install a {client} client that supports GPUDirect Storage."
                ))
                .checked_by("gdscheck -p"),
            );
        }
        self.need_cufile(&mut needs);
        needs.obstacles("GPUDirect Storage by nvidia-fs")
    }

    fn need_cufile(&self, needs: &mut Conditions) {
        // A program can bring its own copy, as Python wheels do: absent here is not absent there.
        if self.seen.exists(CUFILE) == Truth::No {
            needs.open.push((
                "libcufile.so.0 where the loader finds it, or a program that brings it".into(),
                self.seen.quote(CUFILE),
            ));
        }
    }

    /// Whether cuFile's P2PDMA mode has all it needs.
    pub(super) fn cufile_p2pdma(&self, gpu: usize) -> Vec<Obstacle> {
        let mut needs = Conditions::default();
        let kernel = self.seen.kernel().map_or("uname:release", |(key, _)| key);
        needs.need(
            "Linux 6.2 or later",
            self.seen.kernel_at_least(P2PDMA_KERNEL.0, P2PDMA_KERNEL.1),
            self.seen.quote(kernel),
            Fix::by_hand("Start a newer kernel.").checked_by("uname -r"),
        );
        needs.need(
            "NVIDIA's open kernel modules",
            self.open_nvidia_driver(),
            self.seen.quote("/proc/driver/nvidia/version"),
            Fix::by_hand("Install nvidia-open.").checked_by("cat /proc/driver/nvidia/version"),
        );
        let driver = self.nvidia_driver();
        let driver_key = driver.map_or("nvml:driver_version", |(key, _)| key);
        needs.need(
            "NVIDIA's driver 565 or later",
            Truth::of(driver.map(|(_, version)| version >= P2PDMA_DRIVER)),
            self.seen.quote(driver_key),
            Fix::by_hand("Install a newer driver.").checked_by("nvidia-smi"),
        );
        let capability = self
            .gpu(gpu)
            .and_then(|gpu| gpu.compute_capability.as_deref());
        needs.need(
            "an Ampere GPU or later",
            Truth::of(
                capability
                    .and_then(super::seen::version)
                    .map(|version| version >= P2PDMA_CAPABILITY),
            ),
            Evidence::new(
                format!("gpu{gpu}"),
                capability.map_or("compute capability not known".into(), |c| {
                    format!("compute capability {c}")
                }),
            ),
            Fix::by_hand("Use a newer GPU."),
        );
        if self.topology.host.machine.as_deref() == Some("x86_64") {
            let params = self.seen.text(NVIDIA_PARAMS);
            needs.need(
                "the driver settings RMForceStaticBar1=1;RmForceDisableIomapWC=1",
                Truth::of(params.map(|text| REGISTRY.iter().all(|entry| text.contains(entry)))),
                self.registry_evidence(params),
                Fix::run(
                    "Set them and load the driver again.",
                    "echo 'options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"' | sudo tee /etc/modprobe.d/nvidia-gds.conf",
                )
                .checked_by("grep RegistryDwords /proc/driver/nvidia/params"),
            );
        }
        needs.need(
            "NVMe multipath off",
            Truth::of(self.seen.text(MULTIPATH).map(|text| text == "N")),
            self.seen.quote(MULTIPATH),
            Fix::by_hand("Add nvme_core.multipath=N to the kernel's command line.")
                .checked_by(format!("cat {MULTIPATH}")),
        );
        let (config, on) = self.p2pdma_switch();
        needs.need(
            "use_pci_p2pdma in cuFile's configuration",
            on,
            config,
            Fix::by_hand(format!(
                "Set properties.use_pci_p2pdma to true in {CUFILE_CONFIG}."
            ))
            .checked_by("gdscheck -p | grep use_pci_p2pdma"),
        );
        self.need_cufile(&mut needs);
        let mut found = needs.obstacles("cuFile's P2PDMA mode");
        found.extend(self.kernel_p2pdma());
        found
    }

    fn registry_evidence(&self, params: Option<&str>) -> Evidence {
        let line = params.and_then(|text| {
            text.lines()
                .find(|line| line.starts_with("RegistryDwords:"))
        });
        match (line, params) {
            (Some(line), _) => Evidence::new(NVIDIA_PARAMS, line),
            (None, Some(_)) => Evidence::new(NVIDIA_PARAMS, "no RegistryDwords"),
            (None, None) => self.seen.quote(NVIDIA_PARAMS),
        }
    }

    /// Whether cuFile's configuration switches the mode on. The file is JSON with comments.
    fn p2pdma_switch(&self) -> (Evidence, Truth) {
        let key = self
            .seen
            .text("env:CUFILE_ENV_PATH_JSON")
            .unwrap_or(CUFILE_CONFIG);
        let Some(text) = self.seen.text(key) else {
            return (self.seen.quote(key), self.seen.exists(key));
        };
        let line = text
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("\"use_pci_p2pdma\""));
        let on = line.is_some_and(|line| {
            let value = line.split_once(':').map(|(_, value)| value.trim());
            value.is_some_and(|value| value.starts_with("true"))
        });
        let shows = line.unwrap_or("use_pci_p2pdma not set, which means false");
        (Evidence::new(key, shows), Truth::of(Some(on)))
    }

    /// Whether cuFile (and AMD's hipFile, which checks the same) places data of this file system.
    pub(super) fn placed_by_cufile(&self, store: &Store<'_>) -> Option<Obstacle> {
        let mount = store.mount?;
        let fs = mount.fs_type.as_str();
        let journal = mount
            .options
            .iter()
            .find_map(|option| option.strip_prefix("data="));
        let (summary, fix) = match (fs, journal) {
            // Ordered is what ext4 does unless told otherwise, and is not listed then.
            ("xfs", _) | ("ext4", None | Some("ordered")) => return None,
            ("ext4", Some(mode)) => (
                format!(
                    "ext4 at {} is mounted with data={mode}; data has to be ordered.",
                    mount.point
                ),
                Fix::by_hand(format!("Mount {} with data=ordered.", mount.point))
                    .checked_by(format!("grep ' {} ' /proc/mounts", mount.point)),
            ),
            ("overlay", _) => (
                format!(
                    "{} lies on an overlay file system, which hides the real one.",
                    store.name
                ),
                Fix::by_hand("Mount the file system that holds the data into the container."),
            ),
            _ => (
                format!(
                    "GPUDirect Storage does not know {fs} at {}; of local file systems it knows xfs and ext4.",
                    mount.point
                ),
                Fix::by_hand("Keep the data on xfs or ext4."),
            ),
        };
        Some(
            Obstacle::blocks(Code::FileSystemUnsupported, summary)
                .proved_by(self.mount_evidence(store))
                .fixed_by(fix),
        )
    }
}
