//! From a machine's own observations to the graph.

use std::collections::BTreeSet;

use super::{Oddity, Topology};
use crate::snapshot::Snapshot;

mod gpu_links;
mod gpus;
mod host;
mod mounts;
mod nics;
mod numa;
mod pci;
mod storage;

impl Topology {
    /// Decodes a machine's observations. Total: what cannot be decoded becomes an [`Oddity`].
    pub fn from_snapshot(snapshot: &Snapshot) -> Self {
        let mut oddities = Vec::new();
        let numa = numa::decode(snapshot);
        let pci = pci::decode(snapshot, &mut oddities);
        let gpus = gpus::decode(snapshot, &pci);
        let nics = nics::decode(snapshot, &pci);
        let gpu_links = gpu_links::decode(snapshot, &gpus, &mut oddities);
        let (drives, blocks) = storage::decode(snapshot, &pci);
        Self {
            host: host::decode(snapshot, &numa),
            mounts: mounts::decode(snapshot, &blocks, &mut oddities),
            numa,
            pci,
            gpus,
            nics,
            drives,
            blocks,
            gpu_links,
            oddities,
        }
    }
}

/// Whose GPU or other accelerator a function is; `None` when it is none.
pub(super) use gpus::vendor as gpu_vendor;
/// How device names sort: `mlx5_10` behind `mlx5_9`.
pub(super) use nics::natural;

impl Oddity {
    pub(super) fn new(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            at: at.into(),
            what: what.into(),
        }
    }
}

/// The names of a directory's entries: as listed, or else as the keys below it tell.
fn entries<'a>(snapshot: &'a Snapshot, directory: &str) -> Vec<&'a str> {
    let listed = snapshot.list(directory);
    if !listed.is_empty() {
        return listed.iter().map(String::as_str).collect();
    }
    let prefix = format!("{directory}/");
    let name = |(key, _): (&'a str, _)| {
        let rest = key.get(prefix.len()..)?;
        rest.split('/').next().filter(|name| !name.is_empty())
    };
    let names: BTreeSet<&str> = snapshot.under(&prefix).filter_map(name).collect();
    names.into_iter().collect()
}

/// The numbered entries of a directory, such as `node0` and `node1`, in number order.
fn numbered(snapshot: &Snapshot, directory: &str, prefix: &str) -> Vec<u32> {
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u32> = entries(snapshot, directory)
        .into_iter()
        .filter_map(number)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
