//! How far NICs are from where memory can be, by the topology.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crowfly_route::place::{Memory, Place};
use crowfly_route::topology::{Device, Relation, Topology};

/// How far a NIC is from memory: nearer ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Near {
    /// It makes no difference, or nobody knows the machine.
    Anyhow,
    /// Nothing but PCIe switches lies in between.
    Switch,
    /// They are of one NUMA node.
    Node,
    /// They are of different NUMA nodes.
    Socket,
    /// The topology does not say where it is.
    Unknown,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anyhow => "as near as any to",
            Self::Switch => "below one switch with",
            Self::Node => "of one NUMA node with",
            Self::Socket => "of another NUMA node than",
            Self::Unknown => "nobody knows how far from",
        })
    }
}

/// How far one NIC is from where memory can be.
#[derive(Default)]
pub(crate) struct Nearness {
    machine: Option<(Arc<Topology>, Option<Device>)>,
    known: Mutex<HashMap<Place, Near>>,
}

impl fmt::Debug for Nearness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nearness({:?})", self.machine.as_ref().map(|m| m.1))
    }
}

impl Nearness {
    /// Of the NIC with this name (`mlx5_0:1`, `eth0`) in a machine, if the machine is known.
    pub(crate) fn of(nic: &str, topology: Option<&Arc<Topology>>) -> Self {
        Self {
            machine: topology.map(|t| (Arc::clone(t), t.find(device(nic)))),
            known: Mutex::default(),
        }
    }

    /// From memory at a place; from none for a transfer of no bytes.
    pub(crate) fn to(&self, place: Option<&Place>) -> Near {
        let (Some((topology, nic)), Some(place)) = (&self.machine, place) else {
            return Near::Anyhow;
        };
        if *place == Place::Host(None) {
            return Near::Anyhow;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(near) = known.get(place) {
            return *near;
        }
        let near = nic.map_or(Near::Unknown, |nic| between(topology, nic, place));
        known.insert(place.clone(), near);
        near
    }
}

/// The device that a NIC's name begins with: `mlx5_0` of `mlx5_0:1`.
fn device(nic: &str) -> &str {
    nic.split_once(':').map_or(nic, |(device, _)| device)
}

fn between(topology: &Topology, nic: Device, place: &Place) -> Near {
    match place {
        Place::Host(Some(node)) | Place::Remote(Memory::Host(Some(node))) => {
            let own = topology.address_of(nic).and_then(|at| topology.numa_of(at));
            match own {
                Some(own) if own == *node => Near::Node,
                Some(_) => Near::Socket,
                None => Near::Unknown,
            }
        }
        Place::Gpu(gpu) => {
            let gpu = Device::Gpu(usize::try_from(*gpu).unwrap_or(usize::MAX));
            match topology.pcie_distance(nic, gpu).relation {
                Relation::Same | Relation::Pix | Relation::Pxb => Near::Switch,
                Relation::Phb | Relation::Node => Near::Node,
                Relation::Sys => Near::Socket,
                _ => Near::Unknown,
            }
        }
        _ => Near::Anyhow,
    }
}

/// What the links between a NIC and the CPU carry at their present speed and width, bytes per second.
pub(super) fn slot_rate(topology: &Topology, nic: &str) -> Option<f64> {
    let found = topology.find(device(nic))?;
    let path = topology.path_to_host(found, None);
    let rates = path.crossings.iter().filter_map(|c| c.rate);
    rates.map(|rate| rate.0).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::{gen5, machines::dgx_h100};
    use crowfly_route::units::NumaNode;

    use super::*;

    fn near(nic: &str, place: &Place) -> Near {
        let machine = Arc::new(dgx_h100().topology());
        Nearness::of(nic, Some(&machine)).to(Some(place))
    }

    #[test]
    fn given_gpu_memory_then_the_nic_below_its_switch_is_nearest_and_the_other_sockets_farthest() {
        assert_eq!(near("mlx5_5:1", &Place::Gpu(5)), Near::Switch);
        assert_eq!(near("mlx5_6:1", &Place::Gpu(5)), Near::Node);
        assert_eq!(near("mlx5_0:1", &Place::Gpu(5)), Near::Socket);
        assert_eq!(near("rxe0:1", &Place::Gpu(5)), Near::Unknown);
        assert_eq!(near("mlx5_0:1", &Place::Gpu(99)), Near::Unknown);
    }

    #[test]
    fn given_host_memory_then_its_numa_node_counts_and_without_one_all_are_as_near() {
        let node = |node| Place::Host(Some(NumaNode(node)));
        assert_eq!(near("mlx5_0:1", &node(0)), Near::Node);
        assert_eq!(near("mlx5_0:1", &node(1)), Near::Socket);
        assert_eq!(near("eno1", &node(0)), Near::Node);
        assert_eq!(near("mlx5_0:1", &Place::Host(None)), Near::Anyhow);
        let unknown = Nearness::of("mlx5_0:1", None);
        assert_eq!(unknown.to(Some(&node(1))), Near::Anyhow);
        assert_eq!(unknown.to(None), Near::Anyhow);
    }

    #[test]
    fn a_slot_that_runs_below_its_width_is_what_the_nic_can_carry() {
        let mut machine = dgx_h100();
        let whole = slot_rate(&machine.topology(), "mlx5_3:1").expect("a PCIe device");
        let topology = machine.topology();
        let device = topology.find("mlx5_3").expect("it is there");
        let address = topology.address_of(device).expect("a function");
        machine.degrade(address, gen5(4));
        let left = slot_rate(&machine.topology(), "mlx5_3:1").expect("a PCIe device");
        assert!(
            (left - whole / 4.0).abs() < 1e-6 * whole,
            "{left} of {whole}"
        );
        assert_eq!(slot_rate(&machine.topology(), "rxe0:1"), None);
    }
}
