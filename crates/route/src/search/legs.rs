//! Building hops: who moves the data, from where to where, over which links.
//!
//! Routes are built in one direction, towards the GPU or the network, and turned round for the
//! other: the links and counters are the same both ways.

use super::World;
use super::rates::{lower, slowest};
use crate::hop::{Carrier, CpuWork, Crossing, Hop, HostUse, LinkKind, Stop};
use crate::topology::Device;
use crate::units::NumaNode;

/// Host RAM on a NUMA node.
pub(super) const fn host(use_: HostUse, numa: Option<NumaNode>) -> Stop {
    Stop::Host { use_, numa }
}

impl World<'_> {
    /// A device's DMA into host RAM.
    pub(super) fn dma_to_host(&self, device: Device, from: Stop, to: Stop) -> Hop {
        let crosses = self.topology.path_to_host(device, numa_of(&to)).crossings;
        self.dma(device, from, to, crosses)
    }

    /// A device's DMA out of host RAM.
    pub(super) fn dma_from_host(&self, device: Device, from: Stop, to: Stop) -> Hop {
        reversed(self.dma_to_host(device, to, from))
    }

    /// A device's DMA straight into or out of the memory of another, over PCIe.
    pub(super) fn dma_to_peer(&self, mover: Device, other: Device, from: Stop, to: Stop) -> Hop {
        let crosses = self.topology.pcie_distance(mover, other).path.crossings;
        self.dma(mover, from, to, crosses)
    }

    fn dma(&self, mover: Device, from: Stop, to: Stop, crosses: Vec<Crossing>) -> Hop {
        let device = self.topology.name_of(mover);
        Hop {
            from,
            to,
            carrier: Carrier::Dma { device },
            capacity: slowest(&crosses),
            crosses,
        }
    }

    /// A CPU core's work from one buffer in host RAM to another.
    pub(super) fn cpu(&self, work: CpuWork, from: Stop, to: Stop) -> Hop {
        let crosses: Vec<Crossing> = match (numa_of(&from), numa_of(&to)) {
            (Some(a), Some(b)) if a != b => vec![self.between(a, b)],
            _ => Vec::new(),
        };
        Hop {
            from,
            to,
            carrier: Carrier::Cpu { work },
            crosses,
            capacity: Some(self.measured.cpu(work)),
        }
    }

    /// A CPU core's stores from host RAM into a device's published memory. Read back across PCIe
    /// (`reading`), the rate is a matter of round trips, which no observation tells.
    pub(super) fn cpu_to_device(&self, device: Device, from: Stop, to: Stop, reading: bool) -> Hop {
        let mut crosses = self.topology.path_to_host(device, numa_of(&from)).crossings;
        crosses.reverse();
        let limit = slowest(&crosses);
        let copy = self.cpu(CpuWork::KernelCopy, from, to);
        Hop {
            crosses,
            capacity: lower(copy.capacity.clone(), limit).filter(|_| !reading),
            ..copy
        }
    }

    fn between(&self, a: NumaNode, b: NumaNode) -> Crossing {
        let sockets = (self.topology.socket_of(a), self.topology.socket_of(b));
        let one_socket = matches!(sockets, (Some(a), Some(b)) if a == b);
        Crossing {
            link: format!("{a}–{b}"),
            kind: if one_socket {
                LinkKind::HostBridge
            } else {
                LinkKind::Socket
            },
            rate: None,
            degraded: false,
        }
    }
}

/// A cable between two stops.
pub(super) fn wire(from: Stop, to: Stop, fabric: String, crossing: Crossing) -> Hop {
    Hop {
        from,
        to,
        carrier: Carrier::Wire { fabric },
        capacity: slowest(std::slice::from_ref(&crossing)),
        crosses: vec![crossing],
    }
}

fn numa_of(stop: &Stop) -> Option<NumaNode> {
    match stop {
        Stop::Host { numa, .. } => *numa,
        _ => None,
    }
}

/// The same movement the other way.
pub(super) fn reversed(hop: Hop) -> Hop {
    let mut crosses = hop.crosses;
    crosses.reverse();
    Hop {
        from: hop.to,
        to: hop.from,
        crosses,
        ..hop
    }
}

/// The same way from its end to its start.
pub(super) fn turned_round(hops: Vec<Hop>) -> Vec<Hop> {
    hops.into_iter().rev().map(reversed).collect()
}

/// The same movement inside the remote server, which is taken to have the shape of this one.
pub(super) fn remote(hop: Hop) -> Hop {
    let far = |stop| Stop::Remote {
        stop: Box::new(stop),
    };
    let crosses = hop.crosses.into_iter().map(|crossing| Crossing {
        link: format!("remote {}", crossing.link),
        ..crossing
    });
    Hop {
        from: far(hop.from),
        to: far(hop.to),
        carrier: match hop.carrier {
            Carrier::Dma { device } => Carrier::Dma {
                device: format!("remote {device}"),
            },
            same => same,
        },
        crosses: crosses.collect(),
        capacity: hop.capacity,
    }
}
