//! NUMA nodes, from `/sys/devices/system/node/nodeN/{cpulist,meminfo,distance}` and
//! `/sys/devices/system/cpu/cpuN/topology/physical_package_id`.

use super::numbered;
use crate::snapshot::Snapshot;
use crate::topology::NumaInfo;
use crate::units::{Bytes, NumaNode};

const NODES: &str = "/sys/devices/system/node";

pub(super) fn decode(snapshot: &Snapshot) -> Vec<NumaInfo> {
    numbered(snapshot, NODES, "node")
        .into_iter()
        .map(|number| {
            let text = |file: &str| snapshot.text(&format!("{NODES}/node{number}/{file}"));
            let cpus = text("cpulist").unwrap_or_default();
            NumaInfo {
                node: NumaNode(number),
                cpus: cpus.to_owned(),
                socket: first_cpu(cpus).and_then(|cpu| package_of(snapshot, cpu)),
                memory: text("meminfo").and_then(total_memory),
                distances: text("distance")
                    .unwrap_or_default()
                    .split_whitespace()
                    .filter_map(|d| d.parse().ok())
                    .collect(),
            }
        })
        .collect()
}

/// The first number of a list such as `0-31,64-95`.
fn first_cpu(cpus: &str) -> Option<u32> {
    cpus.split(['-', ',']).next()?.trim().parse().ok()
}

/// The package of a CPU; the kernel says -1 where the firmware told it nothing.
pub(super) fn package_of(snapshot: &Snapshot, cpu: u32) -> Option<u32> {
    snapshot.number(&format!(
        "/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
    ))
}

/// `Node 0 MemTotal:       527942792 kB`
fn total_memory(meminfo: &str) -> Option<Bytes> {
    let (_, rest) = meminfo.split_once("MemTotal:")?;
    let kilobytes: u64 = rest.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024).map(Bytes)
}
