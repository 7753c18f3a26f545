//! Routes between GPUs, between a GPU and host memory, and within host memory.

use super::World;
use super::draft::Draft;
use super::legs::host;
use crate::hop::{Carrier, CpuWork, Hop, HostUse, Stop};
use crate::obstacle::{Code, Fix, Obstacle};
use crate::topology::{Device, GpuVendor, Relation};
use crate::units::{NumaNode, PciAddress};

impl World<'_> {
    /// From host memory into a GPU.
    pub(super) fn host_to_gpu(&self, numa: Option<NumaNode>, gpu: usize) -> Vec<Draft> {
        let device = Device::Gpu(gpu);
        let numa = numa.or_else(|| self.node_of(device));
        let own = || host(HostUse::Application, numa);
        let end = self.gpu_stop(gpu);
        let pinned = vec![self.dma_from_host(device, own(), end.clone())];
        let bounce = host(HostUse::Bounce, numa);
        let pageable = vec![
            self.cpu(CpuWork::UserCopy, own(), bounce.clone()),
            self.dma_from_host(device, bounce, end),
        ];
        [("pinned", pinned), ("pageable", pageable)]
            .into_iter()
            .map(|(name, hops)| Draft::new(name, hops).with(self.gpu_runtime(gpu)))
            .collect()
    }

    /// From host memory to host memory.
    pub(super) fn host_to_host(&self, from: Option<NumaNode>, to: Option<NumaNode>) -> Vec<Draft> {
        let stop = |numa| host(HostUse::Application, numa);
        let copy = self.cpu(CpuWork::UserCopy, stop(from), stop(to));
        vec![Draft::new("copy", vec![copy])]
    }

    /// From host memory into memory that a device publishes.
    pub(super) fn host_to_peer(
        &self,
        numa: Option<NumaNode>,
        address: PciAddress,
        reading: bool,
    ) -> Vec<Draft> {
        let numa = numa.or_else(|| self.topology.numa_of(address));
        let device = self.peer_device(address);
        let own = host(HostUse::Application, numa);
        let copy = self.cpu_to_device(device, own, Stop::Peer { address }, reading);
        let slow = reading.then(|| self.cpu_reads(address));
        vec![
            Draft::new("copy", vec![copy])
                .with(self.peer_memory(address))
                .with(slow),
        ]
    }

    /// From one GPU to another.
    pub(super) fn gpu_to_gpu(&self, from: usize, to: usize) -> Vec<Draft> {
        let (a, b) = (Device::Gpu(from), Device::Gpu(to));
        let runtime = || [self.gpu_runtime(from), self.gpu_runtime(to)].concat();
        let mut drafts: Vec<Draft> = self.by_gpu_link(from, to).into_iter().collect();
        let straight = self.dma_to_peer(a, b, self.gpu_stop(from), self.gpu_stop(to));
        drafts.push(
            Draft::new("gpu-peer-to-peer", vec![straight])
                .with(self.peers_allowed(from, to))
                .with(self.between_peers(a, b, self.ruling(from))),
        );
        let bounce = host(HostUse::Bounce, self.node_of(a));
        let staged = vec![
            self.dma_to_host(a, self.gpu_stop(from), bounce.clone()),
            self.dma_from_host(b, bounce, self.gpu_stop(to)),
        ];
        drafts.push(Draft::new("host-staged", staged).with(runtime()));
        drafts
    }

    /// By NVLink or xGMI; why not, where both GPUs are of a maker that has such links.
    fn by_gpu_link(&self, from: usize, to: usize) -> Option<Draft> {
        let distance = self.topology.distance(Device::Gpu(from), Device::Gpu(to));
        let name = match distance.relation {
            Relation::NvLink(_) => "nvlink",
            Relation::Xgmi(_) => "xgmi",
            _ => return self.without_gpu_link(from, to),
        };
        let capacity = super::rates::slowest(&distance.path.crossings);
        let hop = Hop {
            from: self.gpu_stop(from),
            to: self.gpu_stop(to),
            carrier: Carrier::Dma {
                device: format!("gpu{from}"),
            },
            crosses: distance.path.crossings,
            capacity,
        };
        let runtime = [self.gpu_runtime(from), self.gpu_runtime(to)].concat();
        Some(Draft::new(name, vec![hop]).with(runtime))
    }

    fn without_gpu_link(&self, from: usize, to: usize) -> Option<Draft> {
        let vendors = (self.gpu(from)?.vendor, self.gpu(to)?.vendor);
        let (name, what) = match vendors {
            (GpuVendor::Nvidia, GpuVendor::Nvidia) => ("nvlink", "NVLink"),
            (GpuVendor::Amd, GpuVendor::Amd) => ("xgmi", "xGMI"),
            _ => return None,
        };
        let key = self.nvml_index(from).map_or_else(
            || format!("gpu{from}"),
            |index| format!("nvml:{index}/nvlink/0/state"),
        );
        let evidence = self.seen.quote_or(key, format!("no {what} to gpu{to}"));
        Some(Draft::missing(
            name,
            Obstacle::blocks(
                Code::NoGpuLink,
                format!("No {what} joins gpu{from} and gpu{to}."),
            )
            .proved_by([evidence]),
        ))
    }

    /// What the driver says of the two GPUs as peers, or else what is known of their models.
    fn peers_allowed(&self, from: usize, to: usize) -> Vec<Obstacle> {
        let answer = || {
            let (a, b) = (self.nvml_index(from)?, self.nvml_index(to)?);
            let key = format!("nvml:{a}/p2p/{b}/read");
            Some((self.seen.text(&key)?, key))
        };
        let both = || [self.peer_access(from), self.peer_access(to)].concat();
        match answer() {
            None => both(),
            Some(("ok", _)) => both()
                .into_iter()
                .filter(|obstacle| obstacle.code != Code::GpuWithoutPeerAccess)
                .collect(),
            Some((_, key)) => vec![
                Obstacle::blocks(
                    Code::GpuWithoutPeerAccess,
                    format!("NVIDIA's driver does not let gpu{from} reach gpu{to}."),
                )
                .proved_by([self.seen.quote(key)])
                .fixed_by(
                    Fix::by_hand("Look at the chipset, the driver and its settings.")
                        .checked_by("nvidia-smi topo -p2p r"),
                ),
            ],
        }
    }

    /// NVML's own number of a GPU.
    fn nvml_index(&self, gpu: usize) -> Option<u32> {
        let address = self.gpu(gpu)?.address?;
        self.seen.0?.under("nvml:").find_map(|(key, _)| {
            let index = key.strip_prefix("nvml:")?.strip_suffix("/bus_id")?;
            let at: PciAddress = self.seen.text(key)?.parse().ok()?;
            (at == address).then(|| index.parse().ok())?
        })
    }
}
