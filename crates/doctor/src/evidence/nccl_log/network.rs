//! Networks, NICs and interfaces in use.

use serde::Serialize;

/// Most NICs or interfaces of one list.
const MAX_LIST: usize = 64;

/// A network interface and its address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Its address, as printed and without the port.
    pub address: String,
}

/// The link under an RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    RoCe,
    /// Neither word was printed.
    Other,
}

/// One port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct IbPort {
    /// Device name.
    pub name: String,
    /// Port number.
    pub port: u32,
    /// The link.
    pub layer: LinkLayer,
    /// Whether it was listed as able to use SHARP.
    pub sharp: bool,
}

/// A NIC as NCCL numbers it: one port, or several merged into one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct IbDevice {
    /// Number, as in `NET/IB/0`.
    pub index: u32,
    /// Its ports.
    pub ports: Vec<IbPort>,
}

/// A line `NET/IB : Using …`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct IbUse {
    /// The NICs.
    pub devices: Vec<IbDevice>,
    /// `[RO]`: relaxed ordering is on.
    pub relaxed_ordering: bool,
    /// The interface for connection set-up.
    pub out_of_band: Option<Interface>,
    /// The list ended in the middle of a NIC: NCCL's own line buffer was full.
    pub clipped: bool,
}

/// A line `NET/Socket : Using …` (or FastSocket and the like).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SocketUse {
    /// Name of the network.
    pub network: String,
    /// The interfaces.
    pub interfaces: Vec<Interface>,
}

impl IbUse {
    /// Reads what follows `Using` in `NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]… [RO]; OOB ib0:10.0.0.1<0>`.
    pub(crate) fn parse(text: &str) -> Self {
        let (list, tail) = match text.rsplit_once("; OOB ") {
            Some((list, tail)) => (list, Some(tail)),
            None => (text, None),
        };
        let (devices, clipped) = devices(list);
        Self {
            devices,
            relaxed_ordering: list.trim_end().ends_with("[RO]"),
            out_of_band: tail.and_then(|t| Interface::parse(t.trim())),
            clipped,
        }
    }
}

/// The NICs of a list, and whether the list ends inside one.
fn devices(list: &str) -> (Vec<IbDevice>, bool) {
    let list = list.trim_end();
    let list = list.strip_suffix("[RO]").unwrap_or(list);
    let mut found = Vec::new();
    let mut rest = list;
    let mut clipped = false;
    while let Some((index, after)) = next_index(rest) {
        let merged = after
            .strip_prefix("={")
            .map(|inside| match inside.split_once('}') {
                Some((inside, after)) => (inside, after, true),
                None => (inside, "", false),
            });
        let (ports, after, complete) = match merged {
            Some((inside, after, closed)) => {
                let ports: Vec<IbPort> = inside.split(',').filter_map(merged_port).collect();
                (ports, after, closed)
            }
            None => {
                let end = after.find(" [").unwrap_or(after.len());
                let (word, after) = after.split_at(end);
                let port = IbPort::parse(word.trim());
                let complete = port.is_some();
                (port.into_iter().collect(), after, complete)
            }
        };
        clipped |= !complete;
        if !ports.is_empty() && found.len() < MAX_LIST {
            found.push(IbDevice { index, ports });
        }
        rest = after;
    }
    (found, clipped)
}

/// The number in the next brackets and what follows them.
fn next_index(text: &str) -> Option<(u32, &str)> {
    let (_, inside) = text.split_once('[')?;
    let (index, after) = inside.split_once(']')?;
    Some((index.parse().ok()?, after))
}

fn merged_port(part: &str) -> Option<IbPort> {
    let part = part.trim();
    IbPort::parse(next_index(part).map_or(part, |(_, name)| name).trim())
}

impl IbPort {
    /// Reads `mlx5_0:1/IB/SHARP`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (name, port) = parts.next()?.rsplit_once(':')?;
        let layer = match parts.next()? {
            "IB" => LinkLayer::InfiniBand,
            "RoCE" => LinkLayer::RoCe,
            _ => LinkLayer::Other,
        };
        (!name.is_empty()).then_some(())?;
        Some(Self {
            name: name.to_owned(),
            port: port.parse().ok()?,
            layer,
            sharp: parts.next() == Some("SHARP"),
        })
    }
}

impl Interface {
    /// Reads `ib0:10.0.0.1<0>`, with a number in brackets before it or not.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text
            .strip_prefix('[')
            .and_then(|t| t.split_once(']'))
            .map_or(text, |(_, t)| t);
        let (name, address) = text.split_once(':')?;
        let address = address
            .split_once('<')
            .map_or(address, |(address, _)| address);
        let sane = !name.is_empty() && !name.contains(' ') && !address.is_empty();
        sane.then(|| Self {
            name: name.to_owned(),
            address: address.to_owned(),
        })
    }

    /// Reads `[0]ib0:10.0.0.1<0> [1]ib1:10.0.0.2<0>`.
    pub(crate) fn parse_list(text: &str) -> Vec<Self> {
        text.split_whitespace()
            .filter_map(Self::parse)
            .take(MAX_LIST)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, layer: LinkLayer, sharp: bool) -> IbPort {
        IbPort {
            name: name.into(),
            port: 1,
            layer,
            sharp,
        }
    }

    #[test]
    fn the_nics_in_use_read_with_their_link_and_sharp() {
        let used =
            IbUse::parse(" [0]mlx5_0:1/IB/SHARP [1]mlx5_2:1/RoCE [RO]; OOB eno1:10.0.0.1<0>");
        assert_eq!(
            used.devices,
            [
                IbDevice {
                    index: 0,
                    ports: vec![port("mlx5_0", LinkLayer::InfiniBand, true)]
                },
                IbDevice {
                    index: 1,
                    ports: vec![port("mlx5_2", LinkLayer::RoCe, false)]
                },
            ]
        );
        assert!(used.relaxed_ordering && !used.clipped);
        assert_eq!(
            used.out_of_band.map(|i| (i.name, i.address)),
            Some(("eno1".into(), "10.0.0.1".into()))
        );
    }

    #[test]
    fn merged_nics_keep_all_their_ports() {
        let used = IbUse::parse(
            " [0]={[0] roce0:1/RoCE, [1] roce1:1/RoCE} [1]={[2] roce2:1/RoCE} ; OOB e:1.2.3.4<0>",
        );
        assert_eq!(used.devices.len(), 2);
        assert_eq!(used.devices[0].ports.len(), 2);
        assert_eq!(
            used.devices[0].ports[1],
            port("roce1", LinkLayer::RoCe, false)
        );
        assert_eq!(used.devices[1].index, 1);
    }

    #[test]
    fn a_list_that_ends_inside_a_nic_is_clipped() {
        let used = IbUse::parse(" [0]mlx5_0:1/IB [1]mlx");
        assert_eq!(used.devices.len(), 1);
        assert!(used.clipped);
        assert!(IbUse::parse(" [0]={[0] roce0:1/RoCE, [1] ro").clipped);
        assert_eq!(IbUse::parse(" [RO]; OOB net1:10.0.0.19<0>").devices, []);
    }

    #[test]
    fn interfaces_read_with_and_without_numbers() {
        let read = |text| {
            Interface::parse_list(text)
                .into_iter()
                .map(|i| (i.name, i.address))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            read("[0]ib0:10.0.0.1<0> [1]ib1:fe80::1%ib1<0>"),
            [
                ("ib0".into(), "10.0.0.1".into()),
                ("ib1".into(), "fe80::1%ib1".into())
            ]
        );
        assert_eq!(
            read("eth0:10.0.0.7<0>"),
            [("eth0".into(), "10.0.0.7".into())]
        );
        assert_eq!(read(""), []);
    }
}
