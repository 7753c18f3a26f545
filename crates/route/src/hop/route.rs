//! A way from place to place: its hops, and what is counted along them.
//!
//! The four counters of a [`Route`] are *derived* from its hops, so they cannot disagree with them:
//!
//! * **copies**: hops that leave the data in another memory, a drive's or a store's included. The
//!   arrival itself counts, so the straightest route has one either way. A NIC, a switch or the
//!   network behind them is no memory.
//! * **CPU touches**: hops whose bytes a CPU core moves or transforms (kernel copy, user copy, TLS).
//! * **PCIe hops**: PCIe links crossed. Drive and GPU behind one switch: two. The same pair by way
//!   of host RAM: every link up to the root complex and every link down again.
//! * **host-RAM passes**: reads plus writes of host RAM per byte. A DMA in is one, a DMA out is
//!   one, a CPU copy from RAM to RAM is two.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Capacity, Carrier, CpuWork, Crossing, Hop, HostUse, LinkKind, Stop};
use crate::obstacle::{Effect, Obstacle};
use crate::place::Place;

/// The four counters of a route, per byte carried. See the module's text for their definitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Hops that leave the data in another memory.
    pub copies: u32,
    /// Hops whose bytes a CPU core moves or transforms.
    pub cpu_touches: u32,
    /// PCIe links crossed.
    pub pcie_hops: u32,
    /// Reads plus writes of host RAM.
    pub host_ram_passes: u32,
}

/// How straight a route is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Devices move the bytes from place to place; no buffer in between. A single copy by a CPU
    /// core from one process's host memory into another's is direct as well: there is nothing
    /// straighter to be had.
    Direct,
    /// Bounced through a buffer in host RAM, or copied by a CPU.
    Staged,
    /// Through the kernel's network stack.
    Socket,
}

impl Class {
    /// The word used in tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Staged => "staged",
            Self::Socket => "socket",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The slowest hop of a route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Index into [`Route::hops`] of the hop that binds.
    pub hop: usize,
    /// What that hop can carry.
    pub capacity: Capacity,
    /// Hops about whose rate nothing is known: the real ceiling may be lower.
    pub unknown_hops: usize,
}

/// The hops from one place to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// A stable short name: `gpudirect-storage`, `page-cache`, `o-direct`, `gpudirect-rdma`, …
    pub name: String,
    /// Where the data starts.
    pub from: Place,
    /// Where the data ends.
    pub to: Place,
    /// The movements, in order.
    pub hops: Vec<Hop>,
}

impl Route {
    /// The four counters, summed over the hops.
    pub fn counters(&self) -> Counters {
        self.hops
            .iter()
            .fold(Counters::default(), |sum, hop| Counters {
                copies: sum.copies + u32::from(hop.to.is_memory()),
                cpu_touches: sum.cpu_touches
                    + u32::from(matches!(hop.carrier, Carrier::Cpu { .. })),
                pcie_hops: sum.pcie_hops
                    + hop
                        .crosses
                        .iter()
                        .filter(|c| c.kind == LinkKind::Pcie)
                        .count() as u32,
                host_ram_passes: sum.host_ram_passes + hop.host_ram_passes(),
            })
    }

    /// The four counters after each hop; the last are those of the whole route.
    pub fn counters_along(&self) -> Vec<Counters> {
        let until = |end: usize| Self {
            hops: self.hops.iter().take(end).cloned().collect(),
            ..self.clone()
        };
        (1..=self.hops.len())
            .map(|end| until(end).counters())
            .collect()
    }

    /// The PCIe links that the route crosses more than once, each named once: up and down again.
    /// One transfer uses each direction of such a link once; transfers both ways at once get half
    /// of it each.
    pub fn shared_links(&self) -> Vec<&Crossing> {
        let mut seen = BTreeSet::new();
        let mut shared: Vec<&Crossing> = Vec::new();
        let crossed = self.hops.iter().flat_map(|hop| &hop.crosses);
        for crossing in crossed.filter(|c| c.kind == LinkKind::Pcie) {
            let again = !seen.insert(&crossing.link);
            if again && !shared.iter().any(|known| known.link == crossing.link) {
                shared.push(crossing);
            }
        }
        shared
    }

    /// The class, by what the data passes on its way.
    pub fn class(&self) -> Class {
        let stops = || {
            let between = self.hops.iter().map(|hop| &hop.to);
            between.take(self.hops.len().saturating_sub(1))
        };
        let by_cpu = |hop: &Hop| matches!(hop.carrier, Carrier::Cpu { .. });
        let in_use = |stop: &Stop| stop.host_use() == Some(HostUse::Application);
        let one_copy = match self.hops.as_slice() {
            [hop] => {
                let copied = matches!(
                    hop.carrier,
                    Carrier::Cpu {
                        work: CpuWork::UserCopy | CpuWork::KernelCopy
                    }
                );
                copied && in_use(&hop.from) && in_use(&hop.to)
            }
            _ => false,
        };
        if one_copy {
            Class::Direct
        } else if stops().any(|stop| stop.host_use() == Some(HostUse::SocketBuffer)) {
            Class::Socket
        } else if stops().any(|stop| stop.is_memory()) || self.hops.iter().any(by_cpu) {
            Class::Staged
        } else {
            Class::Direct
        }
    }

    /// The slowest hop whose rate is known; `None` when no rate is known at all.
    pub fn ceiling(&self) -> Option<Ceiling> {
        let known = |(index, hop): (usize, &Hop)| hop.capacity.clone().map(|c| (index, c));
        let (hop, capacity) = self
            .hops
            .iter()
            .enumerate()
            .filter_map(known)
            .min_by(|a, b| a.1.rate.0.total_cmp(&b.1.rate.0))?;
        let unknown_hops = self
            .hops
            .iter()
            .filter(|hop| hop.capacity.is_none())
            .count();
        Some(Ceiling {
            hop,
            capacity,
            unknown_hops,
        })
    }
}

/// A route considered between two places, with what stands in its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The route.
    pub route: Route,
    /// What blocks it, slows it or could not be looked at; empty on an open road.
    pub obstacles: Vec<Obstacle>,
}

/// Whether a candidate can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Nothing blocks it.
    Open,
    /// Nothing that was seen blocks it, but something that matters could not be looked at.
    Unproven,
    /// At least one obstacle blocks it.
    Blocked,
}

impl Candidate {
    /// The worst of its obstacles' effects.
    pub fn standing(&self) -> Standing {
        let any = |effect| self.obstacles.iter().any(|o| o.effect == effect);
        if any(Effect::Blocks) {
            Standing::Blocked
        } else if any(Effect::Unproven) {
            Standing::Unproven
        } else {
            Standing::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::Provenance;
    use crate::units::BytesPerSecond;

    fn pcie(link: &str) -> Crossing {
        Crossing {
            link: link.into(),
            kind: LinkKind::Pcie,
            rate: Some(BytesPerSecond::gb(31.5)),
            degraded: false,
        }
    }

    fn dma(from: Stop, to: Stop, links: &[&str], gb: Option<f64>) -> Hop {
        Hop {
            from,
            to,
            carrier: Carrier::Dma {
                device: "nvme0".into(),
            },
            crosses: links.iter().map(|l| pcie(l)).collect(),
            capacity: gb.map(|gb| Capacity {
                rate: BytesPerSecond::gb(gb),
                provenance: Provenance::LinkRate("test".into()),
            }),
        }
    }

    fn host(use_: HostUse) -> Stop {
        Stop::Host { use_, numa: None }
    }

    fn drive() -> Stop {
        Stop::Drive {
            name: "nvme0".into(),
        }
    }

    fn route(hops: Vec<Hop>) -> Route {
        Route {
            name: "test".into(),
            from: Place::Drive("nvme0".into()),
            to: Place::Gpu(0),
            hops,
        }
    }

    #[test]
    fn counters_grow_hop_by_hop_to_those_of_the_route() {
        let bounced = route(vec![
            dma(drive(), host(HostUse::Bounce), &["a", "b"], None),
            dma(
                host(HostUse::Bounce),
                Stop::Gpu { index: 0 },
                &["b", "c"],
                None,
            ),
        ]);
        let after = |copies, pcie_hops, host_ram_passes| Counters {
            copies,
            cpu_touches: 0,
            pcie_hops,
            host_ram_passes,
        };
        assert_eq!(bounced.counters_along(), [after(1, 2, 1), after(2, 4, 2)]);
        assert_eq!(bounced.counters_along().last(), Some(&bounced.counters()));
        assert!(route(Vec::new()).counters_along().is_empty());
    }

    #[test]
    fn given_drive_and_gpu_behind_one_switch_the_direct_route_has_one_copy_and_two_pcie_hops() {
        let direct = route(vec![dma(
            drive(),
            Stop::Gpu { index: 0 },
            &["a", "b"],
            Some(7.0),
        )]);
        let expected = Counters {
            copies: 1,
            cpu_touches: 0,
            pcie_hops: 2,
            host_ram_passes: 0,
        };
        assert_eq!(direct.counters(), expected);
        assert_eq!(direct.class(), Class::Direct);
    }

    #[test]
    fn given_a_page_cache_detour_every_pass_through_host_ram_is_counted() {
        let cpu = Hop {
            carrier: Carrier::Cpu {
                work: CpuWork::KernelCopy,
            },
            ..dma(
                host(HostUse::PageCache),
                host(HostUse::Bounce),
                &[],
                Some(9.0),
            )
        };
        let staged = route(vec![
            dma(drive(), host(HostUse::PageCache), &["a", "b"], Some(7.0)),
            cpu,
            dma(
                host(HostUse::Bounce),
                Stop::Gpu { index: 0 },
                &["c", "d"],
                None,
            ),
        ]);
        let expected = Counters {
            copies: 3,
            cpu_touches: 1,
            pcie_hops: 4,
            host_ram_passes: 4,
        };
        assert_eq!(staged.counters(), expected);
        assert_eq!(staged.class(), Class::Staged);
        let ceiling = staged.ceiling().expect("two hops are known");
        assert_eq!((ceiling.hop, ceiling.unknown_hops), (0, 1));
    }

    #[test]
    fn given_two_processes_on_a_host_one_copy_between_their_memories_is_direct_and_a_second_is_not()
    {
        let copy = |from, to| Hop {
            carrier: Carrier::Cpu {
                work: CpuWork::UserCopy,
            },
            ..dma(from, to, &[], None)
        };
        let theirs = || Stop::Remote {
            stop: Box::new(host(HostUse::Application)),
        };
        let once = route(vec![copy(host(HostUse::Application), theirs())]);
        assert_eq!(once.class(), Class::Direct);
        assert_eq!(once.counters().cpu_touches, 1);
        let twice = route(vec![
            copy(host(HostUse::Application), host(HostUse::Bounce)),
            copy(host(HostUse::Bounce), theirs()),
        ]);
        assert_eq!(twice.class(), Class::Staged);
    }

    #[test]
    fn given_no_known_rate_there_is_no_ceiling_rather_than_a_zero_one() {
        assert_eq!(
            route(vec![dma(drive(), drive(), &[], None)]).ceiling(),
            None
        );
        assert_eq!(route(vec![]).ceiling(), None);
    }
}
