//! A topology as the tree that people draw: memory, switches, devices. Ports are folded into the
//! switches they belong to, and bridges that lead to no device are left out.

use std::collections::BTreeMap;

use crowfly_route::topology::{Device, PciDevice, PortKind, RootComplex, Topology};
use crowfly_route::units::{NumaNode, PciAddress};

/// What a branch stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A NUMA node.
    Node(NumaNode),
    /// Where the firmware does not say which node it is.
    UnknownNode,
    /// A host bridge with several things below; one with a single thing is not worth a branch.
    HostBridge(RootComplex),
    /// A switch, by its upstream port, or another bridge.
    Switch(PciAddress),
    /// A GPU, adapter or drive.
    Device(Device),
}

/// A part of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// What it is.
    pub what: What,
    /// What is below it.
    pub below: Vec<Branch>,
}

/// The tree of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// NUMA nodes in order, those without devices included.
    pub nodes: Vec<Branch>,
    /// Devices that hang off no PCI function.
    pub elsewhere: Vec<Device>,
}

#[derive(Default)]
struct Tree(BTreeMap<What, Tree>);

impl Outline {
    /// The tree of a topology.
    pub fn new(topology: &Topology) -> Self {
        let mut tree = Tree::default();
        let mut elsewhere = Vec::new();
        for node in &topology.numa {
            tree.0.entry(What::Node(node.node)).or_default();
        }
        for device in topology.devices() {
            let function = topology
                .address_of(device)
                .and_then(|address| topology.pci.get(&address));
            match function {
                Some(function) => tree.insert(&steps(topology, function), device),
                None => elsewhere.push(device),
            }
        }
        Self {
            nodes: tree.branches(),
            elsewhere,
        }
    }
}

/// The way from the memory down to a function.
fn steps(topology: &Topology, function: &PciDevice) -> Vec<What> {
    let node = topology.numa_of(function.address);
    let mut steps = vec![node.map_or(What::UnknownNode, What::Node)];
    steps.extend(function.root.map(What::HostBridge));
    let above: Vec<&PciDevice> = topology.above(function.address).collect();
    let worth_showing =
        |bridge: &&&PciDevice| !matches!(bridge.port, Some(PortKind::Root | PortKind::Downstream));
    let switches = above.iter().rev().filter(worth_showing);
    steps.extend(switches.map(|bridge| What::Switch(bridge.address)));
    steps
}

impl Tree {
    fn insert(&mut self, steps: &[What], device: Device) {
        let mut at = self;
        for step in steps.iter().copied().chain([What::Device(device)]) {
            at = at.0.entry(step).or_default();
        }
    }

    fn branches(self) -> Vec<Branch> {
        let branch = |(what, tree): (What, Self)| {
            let below = tree.branches();
            match (what, below.len()) {
                (What::HostBridge(_), 1) => below,
                _ => vec![Branch { what, below }],
            }
        };
        self.0.into_iter().flat_map(branch).collect()
    }
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::{Fixture, NicModel, gen4, machines};

    use super::*;

    fn shape(topology: &Topology, branches: &[Branch]) -> String {
        let one = |branch: &Branch| {
            let name = match branch.what {
                What::Node(node) => node.to_string(),
                What::UnknownNode => "?".into(),
                What::HostBridge(root) => root.to_string(),
                What::Switch(_) => "switch".into(),
                What::Device(device) => topology.name_of(device),
            };
            match branch.below.as_slice() {
                [] => name,
                below => format!("{name}({})", shape(topology, below)),
            }
        };
        branches.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn outline(machine: &Fixture) -> String {
        let topology = machine.topology();
        shape(&topology, &Outline::new(&topology).nodes)
    }

    #[test]
    fn ports_fold_into_switches_and_lone_host_bridges_into_what_is_below_them() {
        assert_eq!(
            outline(&machines::pcie_box()),
            "numa0(switch(gpu0 gpu1 mlx5_0 nvme0)) numa1(gpu2 gpu3)"
        );
        assert_eq!(
            outline(&machines::laptop()),
            "numa0(pci0000:10(enp1s0 nvme0))"
        );
    }

    #[test]
    fn devices_without_a_function_or_a_node_are_kept() {
        let mut machine = machines::pcie_box();
        machine.link(
            "/sys/class/infiniband/rxe0",
            "../../devices/virtual/infiniband/rxe0",
        );
        let socket = machine.socket();
        let slot = machine.root_port(socket, gen4(4));
        let nic = machine.nic(slot, "eth9", &NicModel::X550);
        let port = machine.port_above(nic);
        for function in [nic, port] {
            machine.text(format!("/sys/bus/pci/devices/{function}/numa_node"), "-1");
        }
        let topology = machine.topology();
        let outline = Outline::new(&topology);
        assert_eq!(
            shape(&topology, &outline.nodes),
            "numa0(switch(gpu0 gpu1 mlx5_0 nvme0)) numa1(gpu2 gpu3) numa2 ?(eth9)"
        );
        assert_eq!(outline.elsewhere, [topology.find("rxe0").expect("there")]);
    }
}
