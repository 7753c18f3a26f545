//! Places from a machine's decoded topology.

use crowfly_route::topology::{Device, Drive, DriveTransport, GpuVendor, Relation};

use super::pci::may_have_links;
use super::{CpuMaker, MAX_GPUS, MAX_NICS, Nearness, Reach, Site};
use crate::case::Machine;
use crate::finding::Quote;
use crate::verdict::PairKind;

pub(crate) fn of_machine(machine: &Machine) -> Site {
    let topology = &machine.topology;
    let mut site = Site::new(machine.source.to_string());
    site.cpu = match topology.host.cpu_vendor.as_deref() {
        Some("GenuineIntel") => CpuMaker::Intel,
        Some("AuthenticAMD") => CpuMaker::Amd,
        Some(_) => CpuMaker::Other,
        None => CpuMaker::Unknown,
    };
    let gpus: Vec<usize> = (0..topology.gpus.len())
        .filter(|at| {
            topology
                .gpus
                .get(*at)
                .is_some_and(|gpu| is_compute(gpu.vendor, &gpu.name))
        })
        .take(MAX_GPUS)
        .collect();
    let nics: Vec<usize> = (0..topology.nics.len())
        .filter(|at| {
            topology
                .nics
                .get(*at)
                .is_some_and(|nic| !nic.ports.is_empty())
        })
        .take(MAX_NICS)
        .collect();
    let drives: Vec<usize> = (0..topology.drives.len())
        .filter(|at| topology.drives.get(*at).is_some_and(is_nvme))
        .take(MAX_NICS)
        .collect();
    let name = |device| topology.name_of(device);
    site.gpus = gpus.iter().map(|at| name(Device::Gpu(*at))).collect();
    site.nics = nics.iter().map(|at| name(Device::Nic(*at))).collect();
    for at in &gpus {
        let Some(gpu) = topology.gpus.get(*at) else {
            continue;
        };
        site.amd_gpus |= gpu.vendor == GpuVendor::Amd;
        if ["GB200", "GB300", "GH200", "GB10"]
            .iter()
            .any(|n| gpu.name.contains(n))
        {
            site.coherent.push(name(Device::Gpu(*at)));
        }
    }
    // Without the driver's library or a file that tells links, NVLink does not show.
    site.links_unknown = topology.gpu_links.is_empty()
        && gpus.len() > 1
        && !machine.has("nvml:0/name")
        && gpus
            .iter()
            .filter_map(|at| topology.gpus.get(*at))
            .any(|gpu| may_have_links(&gpu.name));
    if topology
        .host
        .machine
        .as_deref()
        .is_some_and(|name| name.starts_with("ppc64"))
    {
        // POWER reaches GPUs over NVLink, so PCIe distances say nothing.
        site.coherent.clone_from(&site.gpus);
    }
    for (place, a) in gpus.iter().enumerate() {
        let from = Device::Gpu(*a);
        let others = gpus
            .iter()
            .skip(place + 1)
            .map(|b| (PairKind::GpuGpu, Device::Gpu(*b)))
            .chain(nics.iter().map(|b| (PairKind::GpuNic, Device::Nic(*b))))
            .chain(
                drives
                    .iter()
                    .map(|b| (PairKind::GpuDrive, Device::Drive(*b))),
            );
        for (kind, to) in others {
            let distance = topology.distance(from, to);
            let Some(nearness) = nearness(distance.relation) else {
                continue;
            };
            let (gpu, other) = (name(from), name(to));
            let shows = format!("{gpu} to {other}: {}", distance.relation);
            site.reaches.push(Reach {
                kind,
                quote: Quote::device(machine.source.clone(), format!("{gpu}–{other}"), &shows),
                gpu,
                other,
                nearness,
                through: None,
            });
        }
    }
    if site.links_unknown {
        site.reaches.retain(|reach| reach.kind != PairKind::GpuGpu);
    }
    site
}

/// GPUs that data is moved to, not the graphics of a processor or a management controller.
pub(crate) fn is_compute(vendor: GpuVendor, name: &str) -> bool {
    match vendor {
        GpuVendor::Nvidia | GpuVendor::StandIn => true,
        GpuVendor::Amd => !name.contains("Radeon Graphics") && !name.contains("Raphael"),
        GpuVendor::Intel => ["Data Center", "Max", "Flex", "Gaudi", "Habana"]
            .iter()
            .any(|word| name.contains(word)),
        GpuVendor::Other => false,
    }
}

fn is_nvme(drive: &Drive) -> bool {
    drive.transport == DriveTransport::NvmePcie
}

fn nearness(relation: Relation) -> Option<Nearness> {
    Some(match relation {
        Relation::Same | Relation::Unknown => return None,
        Relation::NvLink(count) | Relation::Xgmi(count) => Nearness::Link(count),
        Relation::Pix => Nearness::Pix,
        Relation::Pxb => Nearness::Pxb,
        Relation::Phb => Nearness::Phb,
        Relation::Node => Nearness::Node,
        Relation::Sys => Nearness::Sys,
    })
}
