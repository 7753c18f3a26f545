//! hwloc's distance matrices: latencies between NUMA nodes, bandwidths of NVLink and xGMI.

use std::collections::BTreeMap;

use roxmltree::Node;

use super::super::gpu_links::{self, LinkEnds};
use super::super::{Gpu, GpuLink, GpuLinkKind, NumaInfo, Oddity};
use crate::units::{BytesPerSecond, PciAddress};

/// The most objects of a matrix that is read.
const MAX_OBJECTS: usize = 1024;
/// The most links of a GPU that are believed.
const MAX_LINKS: u64 = 64;

/// PCI functions by the numbers that matrices name objects with.
#[derive(Default)]
pub(super) struct ByIndex {
    functions: BTreeMap<u64, PciAddress>,
    os_devices: BTreeMap<u64, PciAddress>,
}

impl ByIndex {
    pub(super) fn function(&mut self, index: u64, address: PciAddress) {
        self.functions.insert(index, address);
    }

    pub(super) fn os_device(&mut self, index: u64, address: PciAddress) {
        self.os_devices.insert(index, address);
    }

    fn find(&self, index: u64) -> Option<PciAddress> {
        let of = |map: &BTreeMap<u64, PciAddress>| map.get(&index).copied();
        of(&self.os_devices).or_else(|| of(&self.functions))
    }
}

/// A square matrix and the numbers of its objects.
struct Matrix {
    objects: Vec<u64>,
    values: Vec<u64>,
}

impl Matrix {
    fn read(node: Node<'_, '_>) -> Option<Self> {
        // `802` or, where kinds are mixed, `OSDev:802`.
        let number = |word: &str| word.rsplit(':').next()?.parse().ok();
        let words = |name: &str, most: usize| {
            node.children()
                .filter(|n| n.has_tag_name(name))
                .filter_map(|n| n.text())
                .flat_map(str::split_whitespace)
                .take(most)
                .map(number)
                .collect::<Option<Vec<u64>>>()
        };
        let objects = words("indexes", MAX_OBJECTS)?;
        let values = words("u64values", MAX_OBJECTS * MAX_OBJECTS)?;
        (values.len() == objects.len() * objects.len()).then_some(Self { objects, values })
    }

    fn rows(&self) -> impl Iterator<Item = (u64, &[u64])> {
        let rows = self.values.chunks(self.objects.len().max(1));
        self.objects.iter().copied().zip(rows)
    }
}

fn matrices<'a>(file: Node<'a, 'a>, name: &'a str) -> impl Iterator<Item = Matrix> {
    file.children()
        .filter(|n| n.has_tag_name("distances2") || n.has_tag_name("distances2hetero"))
        .filter(move |n| n.attribute("name") == Some(name))
        .filter_map(Matrix::read)
}

/// Sets the distances between NUMA nodes where the file tells all of them.
pub(super) fn latencies(file: Node<'_, '_>, numa: &mut [NumaInfo]) {
    for matrix in matrices(file, "NUMALatency") {
        let known: Vec<u64> = numa.iter().map(|n| u64::from(n.node.0)).collect();
        if matrix.objects != known {
            continue;
        }
        for (node, (_, row)) in numa.iter_mut().zip(matrix.rows()) {
            let distance = |value: &u64| u32::try_from(*value).unwrap_or(u32::MAX);
            node.distances = row.iter().map(distance).collect();
        }
    }
}

/// Links between GPUs from the matrices of megabytes per second.
pub(super) fn between_gpus(
    file: Node<'_, '_>,
    by_index: &ByIndex,
    gpus: &[Gpu],
    oddities: &mut Vec<Oddity>,
) -> Vec<GpuLink> {
    let index: BTreeMap<PciAddress, u32> = (0u32..)
        .zip(gpus)
        .filter_map(|(index, gpu)| Some((gpu.address?, index)))
        .collect();
    let mut all = Vec::new();
    for (name, kind) in [
        ("NVLinkBandwidth", GpuLinkKind::NvLink),
        ("XGMIBandwidth", GpuLinkKind::Xgmi),
    ] {
        for matrix in matrices(file, name) {
            let gpu_of = |object| index.get(&by_index.find(object)?).copied();
            let one = rate_of_one(&matrix, kind, gpus);
            let mut ends: BTreeMap<u32, LinkEnds> = BTreeMap::new();
            for (from, row) in matrix.rows() {
                let Some(from) = gpu_of(from) else {
                    continue;
                };
                let ends = ends.entry(from).or_default();
                for (object, bandwidth) in matrix.objects.iter().zip(row) {
                    let count = (bandwidth / one).min(MAX_LINKS) as u32;
                    match gpu_of(*object) {
                        Some(to) if to != from => ends.add_gpu_links(to, kind, count),
                        // A GPU to itself: hwloc writes a large number there.
                        Some(_) => {}
                        None => ends.add_switch_links(count),
                    }
                }
            }
            let rate = |_, _| Some(BytesPerSecond(one as f64 * 1e6));
            all.extend(gpu_links::join(&ends, rate, oddities));
        }
    }
    all
}

/// Megabytes per second of one link, never zero. NVLinks come in the rates NVIDIA publishes for
/// the GPU; of xGMI the smallest bandwidth between two GPUs is taken as that of one link.
fn rate_of_one(matrix: &Matrix, kind: GpuLinkKind, gpus: &[Gpu]) -> u64 {
    let has = |models: &[&str]| {
        let name = gpus
            .first()
            .map(|gpu| gpu.name.as_str())
            .unwrap_or_default();
        models.iter().any(|model| name.contains(model))
    };
    match kind {
        GpuLinkKind::NvLink if has(&["P100"]) => 20_000,
        GpuLinkKind::NvLink if has(&["B100", "B200", "B300"]) => 50_000,
        GpuLinkKind::NvLink => 25_000,
        GpuLinkKind::Xgmi => {
            let bandwidths = matrix.values.iter().copied().filter(|v| *v > 0);
            bandwidths.min().unwrap_or(1)
        }
    }
}
