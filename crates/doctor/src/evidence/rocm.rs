//! `rocm-smi --showtopo` and `amd-smi topology`.

mod reader;

use serde::Serialize;

pub(crate) use self::reader::RocmReader;
use super::cite::{Cite, Located};

/// The tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RocmTopology {
    /// `Weight between two GPUs`.
    pub weights: Vec<RocmRow<u32>>,
    /// `Hops between two GPUs`.
    pub hops: Vec<RocmRow<u32>>,
    /// `Link Type between two GPUs`.
    pub links: Vec<RocmRow<RocmLink>>,
    /// NUMA node of each GPU, -1 where the system does not say.
    pub numa: Vec<Located<(u32, i32)>>,
    /// Affinity of each GPU, as printed.
    pub affinity: Vec<Located<(u32, i32)>>,
}

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RocmRow<T> {
    /// GPU of the row; `amd-smi` names GPUs by their PCI functions, counted here in its order.
    pub gpu: u32,
    /// Cells, by GPU number; `None` on the diagonal and where a cell could not be read.
    pub cells: Vec<Option<T>>,
    /// The line.
    pub cite: Cite,
}

/// How two GPUs are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RocmLink {
    /// `XGMI`.
    Xgmi,
    /// `PCIE`.
    Pcie,
}
