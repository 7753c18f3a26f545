//! Places from `nvidia-smi topo -m` and `rocm-smi --showtopo`.

use super::{MAX_GPUS, MAX_NICS, Nearness, Reach, Site};
use crate::evidence::rocm::{RocmLink, RocmTopology};
use crate::evidence::topo_matrix::{TopoDevice, TopoLink, TopoMatrix, TopoRow};
use crate::finding::Quote;
use crate::verdict::PairKind;

pub(super) fn of_matrix(matrix: &TopoMatrix) -> Site {
    let source = matrix
        .header
        .as_ref()
        .or_else(|| matrix.rows.first().map(|row| &row.cite))
        .map(|cite| cite.source.to_string());
    let mut site = Site::new(source.unwrap_or_default());
    let mut gpus = matrix.gpus();
    site.clipped = matrix.clipped || gpus.len() > MAX_GPUS;
    gpus.truncate(MAX_GPUS);
    site.gpus = gpus.iter().map(ToString::to_string).collect();
    site.nics = matrix
        .nics()
        .iter()
        .map(|nic| matrix.name(nic).unwrap_or_default().to_owned())
        .zip(matrix.nics())
        .map(|(name, nic)| {
            if name.is_empty() {
                nic.to_string()
            } else {
                name
            }
        })
        .collect();
    site.coherent = matrix
        .rows
        .iter()
        .filter(|row| matches!(row.device, TopoDevice::Gpu(_)))
        .filter(|row| has_memory_node(matrix, row) || is_on_grace(row))
        .map(|row| row.device.to_string())
        .collect();
    for (at, a) in gpus.iter().enumerate() {
        for b in gpus.iter().skip(at + 1) {
            if let Some(found) = matrix.link(a, b)
                && let Some(nearness) = nearness(&found.value)
            {
                site.reaches.push(Reach {
                    kind: PairKind::GpuGpu,
                    gpu: a.to_string(),
                    other: b.to_string(),
                    nearness,
                    through: None,
                    quote: Quote::from(&found.cite),
                });
            }
        }
        for reach in matrix.nic_reach(a).into_iter().take(MAX_NICS) {
            let Some(nearness) = nearness(&reach.link) else {
                continue;
            };
            site.reaches.push(Reach {
                kind: PairKind::GpuNic,
                gpu: a.to_string(),
                other: reach.name.unwrap_or_else(|| reach.nic.to_string()),
                nearness,
                through: reach.through.map(|t| t.to_string()),
                quote: Quote::from(&reach.cite),
            });
        }
    }
    site
}

fn nearness(link: &TopoLink) -> Option<Nearness> {
    Some(match link {
        TopoLink::Same => return None,
        TopoLink::NvLink(count) => Nearness::Link(*count),
        TopoLink::Pix => Nearness::Pix,
        TopoLink::Pxb => Nearness::Pxb,
        TopoLink::Phb => Nearness::Phb,
        TopoLink::Node => Nearness::Node,
        TopoLink::Sys => Nearness::Sys,
    })
}

/// Whether the row is that of a GPU with NVLink beside all the cores of one Grace, which has 72: the
/// two are then joined chip to chip.
fn is_on_grace(row: &TopoRow) -> bool {
    const CORES: u32 = 72;
    let linked = row
        .cells
        .iter()
        .any(|cell| matches!(cell, Some(TopoLink::NvLink(_))));
    let range = row.cpus.as_deref().and_then(|cpus| {
        let (first, last) = cpus.split_once('-')?;
        Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?))
    });
    linked
        && range.is_some_and(|(first, last)| {
            first % CORES == 0 && last.checked_sub(first) == Some(CORES - 1)
        })
}

/// Whether the column `GPU NUMA ID` names a node: the GPU's memory is part of the system's, as on
/// Grace. A row that is shorter than its columns says nothing.
fn has_memory_node(matrix: &TopoMatrix, row: &TopoRow) -> bool {
    const AFFINITY_COLUMNS: usize = 3;
    let heading = matrix
        .header
        .as_ref()
        .is_some_and(|cite| cite.quote.trim_end().ends_with("GPU NUMA ID"));
    let words: Vec<&str> = row.cite.quote.split_whitespace().collect();
    let behind = words.len().saturating_sub(1 + matrix.columns.len());
    heading
        && behind >= AFFINITY_COLUMNS
        && words
            .last()
            .is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit()))
}

pub(super) fn of_rocm(topology: &RocmTopology) -> Site {
    let source = topology
        .links
        .first()
        .map(|row| row.cite.source.to_string());
    let mut site = Site::new(source.unwrap_or_default());
    site.amd_gpus = true;
    site.clipped = topology.links.len() > MAX_GPUS;
    site.gpus = topology
        .links
        .iter()
        .take(MAX_GPUS)
        .map(|row| format!("GPU{}", row.gpu))
        .collect();
    for row in topology.links.iter().take(MAX_GPUS) {
        for (other, cell) in (0u32..).zip(row.cells.iter().take(MAX_GPUS)) {
            let (true, Some(link)) = (other > row.gpu, cell) else {
                continue;
            };
            let nearness = match link {
                RocmLink::Xgmi => Nearness::Link(0),
                // The tables do not tell bridges from sockets; NUMA nodes do.
                RocmLink::Pcie if numa(topology, row.gpu) == numa(topology, other) => {
                    Nearness::Node
                }
                RocmLink::Pcie => Nearness::Sys,
            };
            site.reaches.push(Reach {
                kind: PairKind::GpuGpu,
                gpu: format!("GPU{}", row.gpu),
                other: format!("GPU{other}"),
                nearness,
                through: None,
                quote: Quote::from(&row.cite),
            });
        }
    }
    site
}

fn numa(topology: &RocmTopology, gpu: u32) -> Option<i32> {
    let found = topology.numa.iter().find(|n| n.value.0 == gpu)?;
    Some(found.value.1)
}
