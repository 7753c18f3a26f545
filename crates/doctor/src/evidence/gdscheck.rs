//! `gdscheck -p`.
//!
//! A driver's `Supported` is no verdict: the platform can fail verification beside it.

mod reader;

use serde::Serialize;

pub(crate) use self::reader::GdsCheckReader;
use super::cite::{Cite, Located};

/// The report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GdsCheck {
    /// Release of GPUDirect Storage.
    pub release: Option<Located<String>>,
    /// Version of the loaded nvidia-fs module. Absent when it is not loaded.
    pub nvidia_fs: Option<Located<String>>,
    /// `nvidia_fs minimum version`: what is printed when the module is not loaded.
    pub nvidia_fs_minimum: Option<Located<String>>,
    /// Version of libcufile.
    pub libcufile: Option<Located<String>>,
    /// Storage drivers and whether each is supported.
    pub drivers: Vec<Located<DriverState>>,
    /// Details of userspace RDMA, without the leading dashes.
    pub rdma: Vec<Located<(String, String)>>,
    /// Configuration in force.
    pub config: Vec<Located<(String, String)>>,
    /// GPUs.
    pub gpus: Vec<Located<GdsGpu>>,
    /// `No GPU found in the system`.
    pub no_gpu: Option<Cite>,
    /// `IOMMU:` of the platform section.
    pub iommu: Option<Located<String>>,
    /// `Nvidia Driver Info Status:`.
    pub driver_status: Option<Located<String>>,
    /// `Cuda Driver Version Installed:`.
    pub cuda_driver: Option<Located<String>>,
    /// `Platform:` with architecture and kernel.
    pub platform: Option<Located<String>>,
    /// The verdict of the tool itself.
    pub verification: Option<Located<Verification>>,
    /// Error sentences.
    pub errors: Vec<Located<String>>,
}

/// Whether a storage driver is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// `Supported`.
    Supported,
    /// `Unsupported`.
    Unsupported,
    /// `compat`: through POSIX reads and host memory.
    Compat,
}

/// One storage driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriverState {
    /// Its name (`NVMe`, `NVMe P2PDMA`, `NFS`).
    pub name: String,
    /// Whether it is supported.
    pub support: Support,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GdsGpu {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Size of BAR 1 in MiB.
    pub bar1_mib: Option<u64>,
    /// Whether GPUDirect Storage supports it.
    pub supported: bool,
    /// State of the IOMMU for it, where printed.
    pub iommu: Option<String>,
}

/// The last word of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verification {
    /// `Platform verification succeeded`.
    Succeeded,
    /// `Platform verification failed`.
    Failed,
}

impl GdsCheck {
    /// Whether a storage driver is supported, by its printed name, case set aside.
    pub fn driver(&self, name: &str) -> Option<&Located<DriverState>> {
        self.drivers
            .iter()
            .find(|d| d.value.name.eq_ignore_ascii_case(name))
    }

    /// A configuration value by its full key (`properties.use_compat_mode`).
    pub fn config(&self, key: &str) -> Option<Located<&str>> {
        let found = self.config.iter().find(|c| c.value.0 == key)?;
        Some(found.cite.of(found.value.1.as_str()))
    }
}
