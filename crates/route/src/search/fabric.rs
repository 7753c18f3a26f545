//! Routes over network adapters: between this server and the wire, a peer of the same shape, a
//! network file system or an object store.

use super::World;
use super::adapters::line;
use super::draft::Draft;
use super::legs::{host, remote, turned_round, wire};
use super::rates::lower;
use crate::hop::{Carrier, CpuWork, Crossing, Hop, HostUse, LinkKind, Stop};
use crate::obstacle::{Code, Fix, Obstacle};
use crate::topology::Device;
use crate::units::NumaNode;

/// How data passes between an adapter and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The adapter's DMA reaches the memory itself.
    Straight,
    /// The adapter's DMA reaches host RAM; a GPU's copy engine does the rest.
    Rdma,
    /// Through the kernel's network stack.
    Sockets,
}

/// The memory at this server's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Host(Option<NumaNode>),
    Gpu(usize),
}

impl<'a> World<'a> {
    pub(super) fn nic_stop(&self, index: usize) -> Stop {
        Stop::Nic {
            name: self.topology.name_of(Device::Nic(index)),
        }
    }

    /// Between the wire behind an adapter and memory, from the wire in.
    pub(super) fn wire_to(&self, nic: usize, end: End, outgoing: bool) -> Vec<Draft> {
        self.ways(end)
            .into_iter()
            .map(|(name, how)| {
                let mut hops = vec![self.wire_hop(nic, how, Stop::Network)];
                hops.extend(self.off_nic(nic, end, how));
                Draft::new(name, hops).with(self.way_open(nic, end, how, outgoing))
            })
            .collect()
    }

    /// From memory here to memory of a peer of the same shape.
    pub(super) fn server_to_server(&self, here: End, there: End) -> Vec<Draft> {
        let mut drafts = Vec::new();
        for (name, how) in self.ways_between(here, there) {
            let nics = self.nics_for(here, how);
            if nics.is_empty() {
                drafts.push(Draft::missing(name, self.no_nic(how)));
            }
            // The peer goes by the adapter nearest to its own memory.
            let far = self.nics_for(there, how).last().copied();
            for nic in nics {
                let far = if here == there {
                    nic
                } else {
                    far.unwrap_or(nic)
                };
                let mut hops = turned_round(self.off_nic(nic, here, how));
                hops.push(self.cable(nic, far, how));
                hops.extend(self.off_nic(far, there, how).into_iter().map(remote));
                let draft = Draft::new(name, hops)
                    .with(self.way_open(nic, here, how, true))
                    .with(self.way_open(far, there, how, false));
                drafts.push(draft);
            }
        }
        drafts
    }

    /// The cable between an adapter here and one of the peer: as fast as the slower of the two.
    fn cable(&self, nic: usize, far: usize, how: How) -> Hop {
        let hop = self.wire_hop(nic, how, self.nic_stop(nic));
        let there = self.wire_hop(far, how, self.nic_stop(far));
        Hop {
            to: Stop::Remote {
                stop: Box::new(there.to),
            },
            capacity: lower(hop.capacity, there.capacity),
            ..hop
        }
    }

    fn ways(&self, end: End) -> Vec<(&'static str, How)> {
        match end {
            End::Gpu(_) => vec![
                ("gpudirect-rdma", How::Straight),
                ("rdma", How::Rdma),
                ("sockets", How::Sockets),
            ],
            End::Host(_) => vec![("rdma", How::Rdma), ("sockets", How::Sockets)],
        }
    }

    fn ways_between(&self, here: End, there: End) -> Vec<(&'static str, How)> {
        match here {
            End::Gpu(_) => self.ways(here),
            End::Host(_) => self.ways(there),
        }
    }

    /// From an adapter into memory.
    pub(super) fn off_nic(&self, nic: usize, end: End, how: How) -> Vec<Hop> {
        let at_nic = self.nic_stop(nic);
        match (end, how) {
            (End::Gpu(gpu), How::Straight) => {
                let (a, b) = (Device::Nic(nic), Device::Gpu(gpu));
                vec![self.dma_to_peer(a, b, at_nic, self.gpu_stop(gpu))]
            }
            (End::Gpu(gpu), _) => {
                let numa = self.node_of(Device::Gpu(gpu));
                let bounce = || host(HostUse::Bounce, numa);
                let mut hops = self.off_nic_to_ram(nic, bounce(), how);
                hops.push(self.dma_from_host(Device::Gpu(gpu), bounce(), self.gpu_stop(gpu)));
                hops
            }
            (End::Host(numa), _) => {
                let numa = numa.or_else(|| self.node_of(Device::Nic(nic)));
                self.off_nic_to_ram(nic, host(HostUse::Application, numa), how)
            }
        }
    }

    /// From an adapter into host RAM; by sockets with a stop in the kernel's own buffers.
    pub(super) fn off_nic_to_ram(&self, nic: usize, to: Stop, how: How) -> Vec<Hop> {
        if how != How::Sockets {
            return vec![self.nic_dma(nic, to)];
        }
        let numa = match &to {
            Stop::Host { numa, .. } => *numa,
            _ => None,
        };
        let socket = host(HostUse::SocketBuffer, numa);
        vec![
            self.nic_dma(nic, socket.clone()),
            self.cpu(CpuWork::KernelCopy, socket, to),
        ]
    }

    fn nic_dma(&self, nic: usize, to: Stop) -> Hop {
        let hop = self.dma_to_host(Device::Nic(nic), self.nic_stop(nic), to);
        if self.nic(nic).is_some_and(|nic| nic.address.is_some()) {
            return hop;
        }
        // A software adapter has no DMA: the CPU moves what it sends and receives.
        Hop {
            carrier: Carrier::Cpu {
                work: CpuWork::KernelCopy,
            },
            capacity: Some(self.measured.cpu(CpuWork::KernelCopy)),
            ..hop
        }
    }

    /// The cable between an adapter and what is behind it, into the adapter.
    pub(super) fn wire_hop(&self, nic: usize, how: How, from: Stop) -> Hop {
        let to = self.nic_stop(nic);
        let (fabric, link, rate) = self.nic(nic).map_or_else(
            || ("network".into(), "an adapter".into(), None),
            |nic| line(nic, how),
        );
        let crossing = Crossing {
            link,
            kind: LinkKind::Network,
            rate,
            degraded: false,
        };
        wire(from, to, fabric, crossing)
    }

    /// What stands between an adapter and memory.
    pub(super) fn way_open(&self, nic: usize, end: End, how: How, outgoing: bool) -> Vec<Obstacle> {
        let mut found = match how {
            How::Sockets => self.interface_up(nic),
            How::Straight | How::Rdma => self.rdma_port_up(nic),
        };
        if how != How::Sockets {
            found.extend(self.read_requests(nic, outgoing));
            found.extend(self.memlock());
        }
        if let End::Gpu(gpu) = end {
            if how == How::Straight {
                found.extend(self.rdma_client(gpu));
                found.extend(self.nic_reaches(nic, gpu));
            } else {
                found.extend(self.gpu_runtime(gpu));
            }
        }
        found
    }

    pub(super) fn nic_reaches(&self, nic: usize, gpu: usize) -> Vec<Obstacle> {
        let device = Device::Nic(nic);
        if self.nic(nic).is_some_and(|nic| nic.address.is_none()) {
            let name = self.topology.name_of(device);
            return vec![
                Obstacle::blocks(
                    Code::NoRdmaDevice,
                    format!("{name} is a software adapter: it has no DMA that could reach a GPU."),
                )
                .seen(format!("/sys/class/infiniband/{name}"), "no PCI function")
                .fixed_by(Fix::by_hand("Use an RDMA adapter.")),
            ];
        }
        let ruling = self.ruling(gpu);
        self.between_peers(device, Device::Gpu(gpu), ruling)
    }
}
