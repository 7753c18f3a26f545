//! nccl-tests and rccl-tests.

mod reader;

use crowfly_route::units::Bytes;
use serde::Serialize;

pub(crate) use self::reader::NcclTestsReader;
use super::cite::Located;
use super::nccl_log::LibraryVersion;

/// A run's output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NcclTests {
    /// The program, where its name was pasted (`all_reduce_perf`).
    pub program: Option<Located<String>>,
    /// The header's parameters in order (`nThread` 1, `nGpus` 1, `minBytes` …).
    pub parameters: Vec<Located<(String, String)>>,
    /// The ranks and their devices, from the header.
    pub devices: Vec<Located<TestDevice>>,
    /// The library's version, where printed among the output.
    pub library: Option<Located<LibraryVersion>>,
    /// The results, one for each size.
    pub rows: Vec<Located<TestRow>>,
    /// Rows after the limit, not kept.
    pub rows_beyond_limit: u64,
    /// `Out of bounds values`: how many, and whether the tool called it `OK`.
    pub out_of_bounds: Option<Located<(u64, bool)>>,
    /// `Avg bus bandwidth` in GB/s.
    pub average_bus: Option<Located<f64>>,
    /// Lines that say a test failed.
    pub failures: Vec<Located<String>>,
}

/// A line `Rank 0 Group 0 Pid 1 on host device 0 [0x1a] NVIDIA H100`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestDevice {
    /// Rank.
    pub rank: u32,
    /// Host name.
    pub host: String,
    /// Device number on that host.
    pub device: u32,
    /// PCI bus, as printed in brackets.
    pub bus: Option<String>,
    /// Name of the GPU.
    pub gpu: String,
}

/// The results of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestRow {
    /// Size of the operation.
    pub size: Bytes,
    /// Elements.
    pub count: u64,
    /// Element type as printed (`float`).
    pub element: String,
    /// Reduction as printed (`sum`, `none`), where there is one.
    pub reduction: Option<String>,
    /// Root rank as printed, -1 for none; absent in old versions.
    pub root: Option<i64>,
    /// Separate source and destination.
    pub out_of_place: Option<Timing>,
    /// The same buffer for both.
    pub in_place: Option<Timing>,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Microseconds.
    pub time_us: f64,
    /// GB/s as the application sees it.
    pub algorithm_gb: f64,
    /// GB/s as the busiest link sees it.
    pub bus_gb: f64,
    /// The check of the result.
    pub check: Check,
}

/// The last column of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// `N/A`: not checked.
    NotChecked,
    /// `#wrong`: how many elements are wrong.
    Wrong(u64),
    /// `error` of old versions: the largest deviation.
    Deviation(f64),
}
