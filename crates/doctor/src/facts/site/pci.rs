//! Places from `lspci -t`.

use super::{CpuMaker, MAX_GPUS, MAX_NICS, Nearness, Reach, Site, is_amd_root};
use crate::evidence::lspci::{LspciTree, TreeFunction};
use crate::finding::Quote;
use crate::verdict::PairKind;

pub(super) fn of_tree(tree: &LspciTree) -> Site {
    let source = tree.functions.first().map(|f| f.cite.source.to_string());
    let mut site = Site::new(source.unwrap_or_default());
    if tree.functions.iter().any(|f| is_amd_root(&f.name)) {
        site.cpu = CpuMaker::Amd;
    }
    let gpus: Vec<&TreeFunction> = tree
        .functions
        .iter()
        .filter(|f| is_gpu(&f.name))
        .take(MAX_GPUS)
        .collect();
    let nics: Vec<&TreeFunction> = tree
        .functions
        .iter()
        .filter(|f| is_nic(&f.name))
        .take(MAX_NICS)
        .collect();
    site.amd_gpus = gpus.iter().any(|gpu| gpu.name.contains("Instinct"));
    site.gpus = gpus.iter().map(|gpu| gpu.address.to_string()).collect();
    site.nics = nics.iter().map(|nic| nic.address.to_string()).collect();
    for (at, a) in gpus.iter().enumerate() {
        let others = gpus
            .iter()
            .skip(at + 1)
            .map(|b| (PairKind::GpuGpu, b))
            .chain(nics.iter().map(|b| (PairKind::GpuNic, b)));
        for (kind, b) in others {
            site.reaches.push(Reach {
                kind,
                gpu: a.address.to_string(),
                other: b.address.to_string(),
                nearness: between(a, b),
                through: None,
                quote: Quote::from(&b.cite),
            });
        }
    }
    // NVLink does not show in a PCI tree, so boards that have it leave those pairs open.
    site.links_unknown = gpus.iter().any(|gpu| may_have_links(&gpu.name));
    if site.links_unknown {
        site.reaches.retain(|reach| reach.kind != PairKind::GpuGpu);
    }
    site
}

fn between(a: &TreeFunction, b: &TreeFunction) -> Nearness {
    let shared = a
        .above
        .iter()
        .zip(&b.above)
        .take_while(|(x, y)| x == y)
        .count();
    let root = |f: &TreeFunction| {
        let top = f.above.first().unwrap_or(&f.address);
        (top.domain, top.bus)
    };
    if shared > 0 {
        // Below the shared bridge, a switch has one port on each side.
        let beyond = a.above.len().max(b.above.len()) - shared;
        if beyond <= 1 {
            Nearness::Pix
        } else {
            Nearness::Pxb
        }
    } else if root(a) == root(b) {
        Nearness::Phb
    } else {
        Nearness::Node
    }
}

pub(crate) fn is_gpu(name: &str) -> bool {
    let other = [
        "Audio", "USB", "Switch", "switch", "UCSI", "Serial", "Bridge", "bridge",
    ];
    let nvidia = name.contains("NVIDIA") && !other.iter().any(|word| name.contains(word));
    let named_chip = name.contains('[') || name.contains("Device");
    (nvidia && named_chip) || name.contains("Instinct")
}

pub(crate) fn is_nic(name: &str) -> bool {
    let rdma = [
        "ConnectX",
        "BlueField",
        "InfiniBand",
        "Infiniband",
        "Omni-Path",
        "Elastic Fabric",
    ];
    rdma.iter().any(|word| name.contains(word)) && !name.contains("DMA controller")
}

/// Whether a GPU of this name may have NVLink or xGMI.
pub(crate) fn may_have_links(name: &str) -> bool {
    [
        "SXM", "NVL", "HGX", "GB200", "GB300", "H100", "H200", "B200", "A100", "V100", "P100",
        "Instinct",
    ]
    .iter()
    .any(|word| name.contains(word))
}
