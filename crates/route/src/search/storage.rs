//! Routes out of drives and local files. Into them is the same the other way round.

use std::collections::BTreeMap;

use super::World;
use super::draft::Draft;
use super::legs::host;
use super::peer::{Ruling, list, sysfs};
use super::rates::{lower, slowest};
use super::store::{Holder, Store};
use crate::hop::{Capacity, Carrier, CpuWork, Crossing, Hop, HostUse, Provenance, Stop};
use crate::obstacle::{Code, Confidence, Fix, Obstacle};
use crate::topology::{Device, DriveTransport, GpuVendor};
use crate::units::{BytesPerSecond, NumaNode, PciAddress};

impl<'a> World<'a> {
    /// Into host memory.
    pub(super) fn storage_to_host(
        &self,
        store: &Store<'a>,
        numa: Option<NumaNode>,
        write: bool,
    ) -> Vec<Draft> {
        let numa = numa.or_else(|| self.near(store));
        let here = |use_| host(use_, numa);
        if matches!(store.holder, Holder::Ram) {
            let copy = self.cpu(
                CpuWork::KernelCopy,
                here(HostUse::PageCache),
                here(HostUse::Application),
            );
            return vec![Draft::new("page-cache", vec![copy])];
        }
        let mut cached = self.out_of(store, here(HostUse::PageCache), write);
        let mapped = Draft::new("page-cache-mapped", cached.clone());
        cached.push(self.cpu(
            CpuWork::KernelCopy,
            here(HostUse::PageCache),
            here(HostUse::Application),
        ));
        let direct = self.out_of(store, here(HostUse::Application), write);
        vec![
            Draft::new("o-direct", direct).with(self.direct_io(store)),
            mapped,
            Draft::new("page-cache", cached),
        ]
    }

    /// Into a GPU's memory.
    pub(super) fn storage_to_gpu(&self, store: &Store<'a>, gpu: usize, write: bool) -> Vec<Draft> {
        let device = Device::Gpu(gpu);
        let numa = self.node_of(device);
        let here = |use_| host(use_, numa);
        let to_gpu = || self.dma_from_host(device, here(HostUse::Bounce), self.gpu_stop(gpu));
        let cached = match store.holder {
            Holder::Ram => Vec::new(),
            _ => self.out_of(store, here(HostUse::PageCache), write),
        };
        let copy = self.cpu(
            CpuWork::KernelCopy,
            here(HostUse::PageCache),
            here(HostUse::Bounce),
        );
        let cached = [cached, vec![copy, to_gpu()]].concat();
        let cached = Draft::new("page-cache", cached).with(self.gpu_runtime(gpu));
        let mut drafts = self.straight_to_gpu(store, gpu, write);
        if !matches!(store.holder, Holder::Ram) {
            let staged = self.out_of(store, here(HostUse::Bounce), write);
            drafts.push(
                Draft::new("o-direct", [staged, vec![to_gpu()]].concat())
                    .with(self.direct_io(store))
                    .with(self.gpu_runtime(gpu)),
            );
        }
        drafts.push(cached);
        drafts
    }

    fn straight_to_gpu(&self, store: &Store<'a>, gpu: usize, write: bool) -> Vec<Draft> {
        let device = Device::Gpu(gpu);
        let straight = |name: &'static str| {
            let hops = match &store.holder {
                Holder::Drives(drives) => {
                    vec![self.drives_to_peer(store, drives, device, self.gpu_stop(gpu), write)]
                }
                _ => Vec::new(),
            };
            Draft::new(name, hops)
                .with(self.peer_access(gpu))
                .with(self.reachable(store))
        };
        let ruled = |draft: Draft, ruling| draft.with(self.drives_reach(store, device, ruling));
        let vendor = self.gpu(gpu).map(|gpu| gpu.vendor);
        if !matches!(store.holder, Holder::Drives(_) | Holder::Unknown(_)) {
            // Without a drive nothing else matters.
            let name = match vendor {
                Some(GpuVendor::Nvidia) => "gpudirect-storage",
                Some(GpuVendor::Amd) => "hipfile",
                _ => "peer-to-peer",
            };
            return vec![Draft::new(name, Vec::new()).with(self.reachable(store))];
        }
        match vendor {
            Some(GpuVendor::Nvidia) => {
                let by_module = straight("gpudirect-storage")
                    .with(self.nvidia_fs(store))
                    .with(self.placed_by_cufile(store))
                    .with(self.layers_for_nvidia_fs(store));
                let by_kernel = straight("gpudirect-storage-p2pdma")
                    .with(self.cufile_p2pdma(gpu))
                    .with(self.placed_by_cufile(store))
                    .with(self.layers_for_kernel(store));
                vec![
                    ruled(by_module, Ruling::Driver),
                    ruled(by_kernel, Ruling::Kernel),
                ]
            }
            Some(GpuVendor::Amd) => {
                let draft = straight("hipfile")
                    .with(self.kernel_p2pdma())
                    .with(self.placed_by_cufile(store))
                    .with(self.layers_for_kernel(store));
                vec![ruled(draft, Ruling::Kernel)]
            }
            Some(GpuVendor::StandIn) => {
                let draft = straight("peer-to-peer")
                    .with(self.kernel_p2pdma())
                    .with(self.placed_by_kernel(store))
                    .with(self.layers_for_kernel(store));
                vec![ruled(draft, Ruling::Kernel)]
            }
            Some(GpuVendor::Intel | GpuVendor::Other) => {
                let unknown = Obstacle::unproven(
                    Code::GpuWithoutPeerAccess,
                    format!("Whether a drive can be given the memory of gpu{gpu} is not known for its maker."),
                )
                .seen(
                    format!("gpu{gpu}"),
                    self.gpu(gpu).map_or("", |gpu| gpu.name.as_str()),
                );
                let draft = straight("peer-to-peer")
                    .with([unknown])
                    .with(self.kernel_p2pdma())
                    .with(self.layers_for_kernel(store));
                vec![ruled(draft, Ruling::Kernel)]
            }
            None => Vec::new(),
        }
    }

    /// Into memory that a device publishes.
    pub(super) fn storage_to_peer(
        &self,
        store: &Store<'a>,
        address: PciAddress,
        write: bool,
    ) -> Vec<Draft> {
        let device = self.peer_device(address);
        let numa = self.topology.numa_of(address);
        let end = Stop::Peer { address };
        let straight = match &store.holder {
            Holder::Drives(drives) => {
                vec![self.drives_to_peer(store, drives, device, end.clone(), write)]
            }
            _ => Vec::new(),
        };
        let straight = Draft::new("peer-to-peer", straight)
            .with(self.peer_memory(address))
            .with(self.kernel_p2pdma())
            .with(self.reachable(store))
            .with(self.placed_by_kernel(store))
            .with(self.layers_for_kernel(store))
            .with(self.drives_reach(store, device, Ruling::Kernel));
        let cache = host(HostUse::PageCache, numa);
        let mut cached = match store.holder {
            Holder::Ram => Vec::new(),
            Holder::Servers(servers) => self.servers_to_cache(servers, cache.clone()),
            _ => self.out_of(store, cache.clone(), write),
        };
        cached.push(self.cpu_to_device(device, cache, end, write));
        let cached = Draft::new("page-cache", cached).with(self.peer_memory(address));
        let slow = write.then(|| self.cpu_reads(address));
        vec![straight, cached.with(slow)]
    }

    /// The NUMA node nearest to where a store's bytes come in.
    fn near(&self, store: &Store<'_>) -> Option<NumaNode> {
        match &store.holder {
            Holder::Drives(drives) => drives.first().and_then(|drive| self.node_of(*drive)),
            _ => None,
        }
    }

    pub(super) fn node_of(&self, device: Device) -> Option<NumaNode> {
        self.topology.numa_of(self.topology.address_of(device)?)
    }

    pub(super) fn gpu_stop(&self, gpu: usize) -> Stop {
        Stop::Gpu {
            index: u32::try_from(gpu).unwrap_or(u32::MAX),
        }
    }

    /// The hops out of a store into host RAM. dm-crypt adds one: a core decrypts what the drive
    /// brought. It does so in place on reads and into other pages on writes; RAM is read and
    /// written once more either way, so both count the same.
    pub(super) fn out_of(&self, store: &Store<'_>, to: Stop, write: bool) -> Vec<Hop> {
        let encrypted = store.layers().any(|(_, block)| block.kind == "dm crypt");
        if !encrypted {
            return vec![self.drives_to_host(store, to, write)];
        }
        let numa = match &to {
            Stop::Host { numa, .. } => *numa,
            _ => None,
        };
        let before = host(HostUse::Bounce, numa);
        vec![
            self.drives_to_host(store, before.clone(), write),
            self.cpu(CpuWork::Crypto, before, to),
        ]
    }

    fn drives_to_host(&self, store: &Store<'_>, to: Stop, write: bool) -> Hop {
        let from = self.store_stop(store);
        match &store.holder {
            Holder::Drives(drives) => {
                let numa = match &to {
                    Stop::Host { numa, .. } => *numa,
                    _ => None,
                };
                let paths = drives
                    .iter()
                    .map(|drive| self.topology.path_to_host(*drive, numa).crossings);
                self.by_drives(store, drives, paths.collect(), from, to, write)
            }
            Holder::Daemon => Hop {
                from: host(HostUse::Application, None),
                ..self.cpu(CpuWork::KernelCopy, from, to)
            },
            Holder::Hypervisor => bare(from, to, "the hypervisor"),
            _ => bare(from, to, "an unknown drive"),
        }
    }

    fn drives_to_peer(
        &self,
        store: &Store<'_>,
        drives: &[Device],
        other: Device,
        to: Stop,
        write: bool,
    ) -> Hop {
        let paths = drives
            .iter()
            .map(|drive| self.topology.pcie_distance(*drive, other).path.crossings);
        let from = self.store_stop(store);
        self.by_drives(store, drives, paths.collect(), from, to, write)
    }

    fn store_stop(&self, store: &Store<'_>) -> Stop {
        let name = match &store.holder {
            Holder::Drives(drives) => {
                let names: Vec<String> = drives.iter().map(|d| self.topology.name_of(*d)).collect();
                match store.layers().find(|(_, block)| block.below.len() > 1) {
                    Some((layer, _)) => format!("{layer} ({})", list(&names)),
                    None => list(&names),
                }
            }
            Holder::Unknown(_) => "an unknown drive".into(),
            _ => {
                let source = store.mount.map(|mount| mount.source.clone());
                return Stop::Store {
                    name: source.unwrap_or_else(|| store.name.clone()),
                };
            }
        };
        Stop::Drive { name }
    }

    /// One movement by one or several drives. A byte goes by one of them: the links of the first
    /// stand for all, and a stripe carries the sum of what its drives bring, as far as the links
    /// they share let it through.
    fn by_drives(
        &self,
        store: &Store<'_>,
        drives: &[Device],
        paths: Vec<Vec<Crossing>>,
        from: Stop,
        to: Stop,
        write: bool,
    ) -> Hop {
        let names: Vec<String> = drives.iter().map(|d| self.topology.name_of(*d)).collect();
        let each: Option<Vec<Capacity>> = drives
            .iter()
            .zip(&paths)
            .map(|(drive, path)| self.one_drive(*drive, path, write))
            .collect();
        let capacity = each.and_then(|each| {
            let slowest = each.iter().min_by(|a, b| a.rate.0.total_cmp(&b.rate.0))?;
            if !store.striped() || each.len() < 2 {
                return Some(slowest.clone());
            }
            let rate = together(&each, &paths);
            Some(Capacity {
                rate,
                provenance: same_kind(&slowest.provenance, format!("the sum of {}", list(&names))),
            })
        });
        Hop {
            from,
            to,
            carrier: Carrier::Dma {
                device: list(&names),
            },
            crosses: paths.into_iter().next().unwrap_or_default(),
            capacity,
        }
    }

    fn one_drive(&self, drive: Device, path: &[Crossing], write: bool) -> Option<Capacity> {
        let measured = self.measured.drive(&self.topology.name_of(drive), write);
        match self.transport_of(drive) {
            DriveTransport::NvmePcie => lower(slowest(path), measured),
            // The links of a host adapter or of the network say nothing of the drives behind.
            _ => measured,
        }
    }

    pub(super) fn peer_device(&self, address: PciAddress) -> Device {
        let at = |device: &Device| self.topology.address_of(*device) == Some(address);
        self.topology
            .devices()
            .find(at)
            .unwrap_or(Device::Function(address))
    }

    pub(super) fn peer_memory(&self, address: PciAddress) -> Option<Obstacle> {
        let key = sysfs(address, "p2pmem/available");
        match self.topology.pci.get(&address)?.peer_memory {
            None => Some(
                Obstacle::blocks(
                    Code::NoPeerMemory,
                    format!("{address} publishes no memory for peer-to-peer DMA."),
                )
                .proved_by([self.seen.quote_or(sysfs(address, "p2pmem/size"), "absent")])
                .fixed_by(Fix::by_hand(
                    "Only the driver of a device can publish its memory; NVMe drives with a controller memory buffer do.",
                )),
            ),
            Some(memory) if memory.available.0 == 0 => Some(
                Obstacle::blocks(
                    Code::PeerMemoryExhausted,
                    format!("All {} of the peer memory of {address} are handed out.", memory.size),
                )
                .proved_by([self.seen.quote_or(key.as_str(), "0")])
                .fixed_by(
                    Fix::by_hand("End the programs that hold it.").checked_by(format!("cat {key}")),
                ),
            ),
            Some(_) => None,
        }
    }

    pub(super) fn cpu_reads(&self, address: PciAddress) -> Obstacle {
        Obstacle::slows(
            Code::CpuReadsDevice,
            format!("A core reads the memory of {address} across PCIe, one small request after the other."),
        )
        .seen(sysfs(address, "p2pmem/size"), "the mapping is of device memory")
        .with_confidence(Confidence::Likely)
    }

    /// Whether drives hold the bytes, and whether they can address their peers.
    fn reachable(&self, store: &Store<'_>) -> Vec<Obstacle> {
        let drives = match &store.holder {
            Holder::Drives(drives) => drives,
            Holder::Unknown(why) => {
                let obstacle = Obstacle::unproven(
                    Code::FileUnresolved,
                    format!("Which drive holds {} is not known: {why}.", store.name),
                );
                let evidence = self
                    .mount_evidence(store)
                    .unwrap_or_else(|| self.seen.quote("/proc/self/mountinfo"));
                return vec![obstacle.proved_by([evidence])];
            }
            _ => {
                let what = match store.holder {
                    Holder::Servers(_) => "on servers, and arrives by a network adapter",
                    Holder::Ram => "in host RAM",
                    Holder::Hypervisor => "with the hypervisor, which hands it over in host RAM",
                    _ => "with a program in user space, which hands it over in host RAM",
                };
                let obstacle = Obstacle::blocks(
                    Code::DriveNotOnPcie,
                    format!(
                        "{} lies {what}: there is no drive whose DMA could reach another device.",
                        store.name
                    ),
                );
                return vec![
                    obstacle
                        .proved_by(self.mount_evidence(store))
                        .fixed_by(Fix::by_hand("Keep the data on a local NVMe drive.")),
                ];
            }
        };
        drives
            .iter()
            .filter_map(|drive| {
                let what = match self.transport_of(*drive) {
                    DriveTransport::NvmePcie => return None,
                    DriveTransport::NvmeFabrics => "a drive reached over the network",
                    DriveTransport::Virtio => "a paravirtual disk that the hypervisor serves",
                    DriveTransport::Scsi => "a drive behind a host adapter",
                    DriveTransport::Other => "no PCIe drive",
                };
                let name = self.topology.name_of(*drive);
                let key = [format!("/sys/class/nvme/{name}/transport"), format!("/sys/block/{name}")]
                    .into_iter()
                    .find(|key| self.seen.get(key).is_some())
                    .unwrap_or_else(|| name.clone());
                Some(
                    Obstacle::blocks(
                        Code::DriveNotOnPcie,
                        format!("{name} is {what}: its data arrives in host RAM."),
                    )
                    .proved_by([self.seen.quote_or(key, what)])
                    .fixed_by(Fix::by_hand(
                        "Keep the data on a local NVMe drive, behind the GPU's PCIe switch if there is one.",
                    )),
                )
            })
            .collect()
    }

    /// The path between each drive and a device. What is the same for several drives is said once.
    fn drives_reach(&self, store: &Store<'_>, device: Device, ruling: Ruling) -> Vec<Obstacle> {
        let Holder::Drives(drives) = &store.holder else {
            return Vec::new();
        };
        let mut found: Vec<Obstacle> = Vec::new();
        for drive in drives {
            if self.transport_of(*drive) != DriveTransport::NvmePcie {
                continue;
            }
            for obstacle in self.between_peers(*drive, device, ruling) {
                let same = found
                    .iter_mut()
                    .find(|known| known.code == obstacle.code && known.effect == obstacle.effect);
                match same {
                    Some(known) => merge(known, obstacle, &self.topology.name_of(*drive)),
                    None => found.push(obstacle),
                }
            }
        }
        found
    }
}

fn bare(from: Stop, to: Stop, device: &str) -> Hop {
    Hop {
        from,
        to,
        carrier: Carrier::Dma {
            device: device.into(),
        },
        crosses: Vec::new(),
        capacity: None,
    }
}

fn same_kind(provenance: &Provenance, detail: String) -> Provenance {
    match provenance {
        Provenance::Measured(_) => Provenance::Measured(detail),
        Provenance::LinkRate(_) => Provenance::LinkRate(detail),
        Provenance::Catalogue(_) => Provenance::Catalogue(detail),
        Provenance::Assumed(_) => Provenance::Assumed(detail),
        Provenance::Computed(_) => Provenance::Computed(detail),
    }
}

/// What drives bring together, given that links which several of them cross carry no more than
/// their rate. The drives behind such a link are slowed in the same proportion.
fn together(each: &[Capacity], paths: &[Vec<Crossing>]) -> BytesPerSecond {
    let mut load: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (capacity, path) in each.iter().zip(paths) {
        for crossing in path {
            let Some(rate) = crossing.rate else { continue };
            let entry = load.entry(&crossing.link).or_insert((0.0, rate.0));
            entry.0 += capacity.rate.0;
        }
    }
    let slowed = each.iter().zip(paths).map(|(capacity, path)| {
        let shares = path.iter().filter_map(|crossing| {
            let (asked, rate) = load.get(crossing.link.as_str())?;
            (*asked > 0.0).then(|| rate / asked)
        });
        capacity.rate.0 * shares.fold(1.0, f64::min)
    });
    BytesPerSecond(slowed.sum())
}

fn merge(known: &mut Obstacle, more: Obstacle, drive: &str) {
    let also = format!(" The same holds for {drive}.");
    if known.summary.contains(&also) {
        return;
    }
    known.summary.push_str(&also);
    for evidence in more.evidence {
        if !known.evidence.contains(&evidence) {
            known.evidence.push(evidence);
        }
    }
    for fix in more.fix {
        if !known.fix.contains(&fix) {
            known.fix.push(fix);
        }
    }
}
