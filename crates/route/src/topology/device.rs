//! The devices of a topology by one handle, whatever they are.

use super::{Drive, Gpu, Nic, Topology};
use crate::units::{NumaNode, PciAddress};

/// A device of a topology: an index into its lists, or a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// Index into [`Topology::gpus`].
    Gpu(usize),
    /// Index into [`Topology::nics`].
    Nic(usize),
    /// Index into [`Topology::drives`].
    Drive(usize),
    /// Any PCI function.
    Function(PciAddress),
}

impl Topology {
    /// Every GPU, adapter and drive, in this order.
    pub fn devices(&self) -> impl Iterator<Item = Device> {
        let gpus = (0..self.gpus.len()).map(Device::Gpu);
        let nics = (0..self.nics.len()).map(Device::Nic);
        let drives = (0..self.drives.len()).map(Device::Drive);
        gpus.chain(nics).chain(drives)
    }

    /// The device with this name: `gpu0`, `mlx5_0`, an interface such as `eth0`, `nvme0`, a block
    /// device of a drive such as `nvme0n1`, or a PCI address.
    pub fn find(&self, name: &str) -> Option<Device> {
        let number = name.strip_prefix("gpu").and_then(|n| n.parse().ok());
        if let Some(index) = number.filter(|index| *index < self.gpus.len()) {
            return Some(Device::Gpu(index));
        }
        let nic = |nic: &Nic| nic.name == name || nic.interfaces.iter().any(|i| i.name == name);
        let drive = |drive: &Drive| drive.name == name || drive.blocks.iter().any(|b| b == name);
        let nic = self.nics.iter().position(nic).map(Device::Nic);
        let drive = || self.drives.iter().position(drive).map(Device::Drive);
        nic.or_else(drive).or_else(|| {
            let address = name.parse().ok()?;
            let at = |device: &Device| self.address_of(*device) == Some(address);
            let function = || {
                self.pci
                    .contains_key(&address)
                    .then_some(Device::Function(address))
            };
            self.devices().find(at).or_else(function)
        })
    }

    /// A device's name, as [`Topology::find`] takes it.
    pub fn name_of(&self, device: Device) -> String {
        let nameless = || "nothing".to_owned();
        match device {
            Device::Gpu(index) => format!("gpu{index}"),
            Device::Nic(index) => self
                .nics
                .get(index)
                .map_or_else(nameless, |n| n.name.clone()),
            Device::Drive(index) => self
                .drives
                .get(index)
                .map_or_else(nameless, |d| d.name.clone()),
            Device::Function(address) => address.to_string(),
        }
    }

    /// The PCI function that a device is, or hangs off.
    pub fn address_of(&self, device: Device) -> Option<PciAddress> {
        match device {
            Device::Gpu(index) => self.gpus.get(index).and_then(|gpu: &Gpu| gpu.address),
            Device::Nic(index) => self.nics.get(index).and_then(|nic| nic.address),
            Device::Drive(index) => self.drives.get(index).and_then(|drive| drive.address),
            Device::Function(address) => Some(address),
        }
    }

    /// The NUMA node that a function is local to. Where the firmware does not say it of the
    /// function, that of a bridge above stands for it: all below one host bridge is as near.
    pub fn numa_of(&self, address: PciAddress) -> Option<NumaNode> {
        let function = self.pci.get(&address)?;
        function
            .numa
            .or_else(|| self.above(address).find_map(|bridge| bridge.numa))
            .or_else(|| self.only_node())
    }

    /// The one NUMA node of a machine that has no other.
    fn only_node(&self) -> Option<NumaNode> {
        match (self.numa.as_slice(), self.host.sockets) {
            ([only], None | Some(1)) => Some(only.node),
            ([], Some(1)) => Some(NumaNode(0)),
            _ => None,
        }
    }

    /// The CPU socket that a NUMA node is part of.
    pub fn socket_of(&self, node: NumaNode) -> Option<u32> {
        self.numa.iter().find(|n| n.node == node)?.socket
    }
}
