//! The addresses of a port, and which of them two ports should use.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::abi;

/// What carries packets to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet frames of their own type: stays within one layer-2 network.
    RoceV1,
    /// UDP: can be routed, and its packets spread over parallel links.
    RoceV2,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGid {
    /// Its place in the port's table.
    pub index: u8,
    /// The address.
    pub address: [u8; 16],
    /// What carries packets to it.
    pub kind: GidKind,
    /// The network interface it belongs to.
    pub interface: Option<String>,
}

/// An address's family, from the most to the least useful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
    LinkLocal,
}

impl PortGid {
    /// An entry of a port's table; `None` when the entry is unused.
    pub(super) fn new(
        index: u32,
        address: [u8; 16],
        kind: GidKind,
        interface: Option<String>,
    ) -> Option<Self> {
        // A queue pair names its own address by an 8-bit index.
        let index = u8::try_from(index).ok()?;
        // An unused entry has no interface identifier; its subnet prefix may be the default one.
        (address[8..] != [0; 8]).then_some(Self {
            index,
            address,
            kind,
            interface,
        })
    }

    pub(super) fn from_entry(entry: &abi::GidEntry, interface: Option<String>) -> Option<Self> {
        let kind = match entry.gid_type {
            abi::GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            abi::GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::InfiniBand,
        };
        Self::new(entry.gid_index, entry.gid.raw, kind, interface)
    }

    fn family(&self) -> Family {
        let address = Ipv6Addr::from(self.address);
        if address.to_ipv4_mapped().is_some() {
            Family::V4
        } else if address.is_unicast_link_local() {
            Family::LinkLocal
        } else {
            Family::V6
        }
    }

    /// The IPv4 address that is written into it.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.address).to_ipv4_mapped()
    }

    /// Leading bits that two addresses have in common.
    fn shared_bits(&self, other: &[u8; 16]) -> u32 {
        let ours = u128::from_be_bytes(self.address);
        (ours ^ u128::from_be_bytes(*other)).leading_zeros()
    }
}

impl fmt::Display for PortGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.address))?;
        if let Some(interface) = &self.interface {
            write!(f, " on {interface}")?;
        }
        Ok(())
    }
}

/// Which of a port's addresses may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GidFilter {
    /// Any.
    #[default]
    Any,
    /// The one at this place in the table.
    Index(u8),
    /// Those of this network interface, such as a VLAN's.
    Interface(String),
}

impl GidFilter {
    fn admits(&self, gid: &PortGid) -> bool {
        match self {
            Self::Any => true,
            Self::Index(index) => gid.index == *index,
            Self::Interface(name) => gid.interface.as_ref() == Some(name),
        }
    }
}

impl fmt::Display for GidFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any address"),
            Self::Index(index) => write!(f, "GID index {index}"),
            Self::Interface(name) => write!(f, "an address of {name}"),
        }
    }
}

/// The addresses to offer to a peer, best first: RoCE v2 before v1 (it can be routed), IPv4 before
/// IPv6 before link-local, and the order of the table among equals. An address on a VLAN comes
/// after the same kind of address on the untagged interface (the one of the first entry), unless
/// the filter names the VLAN.
pub fn ranked(gids: &[PortGid], filter: &GidFilter) -> Vec<PortGid> {
    let untagged = gids.iter().find_map(|gid| gid.interface.clone());
    let mut usable: Vec<PortGid> = gids.iter().filter(|g| filter.admits(g)).cloned().collect();
    usable.sort_by_key(|gid| {
        let kind = u8::from(gid.kind == GidKind::RoceV1);
        let tagged = gid.interface.is_some() && gid.interface != untagged;
        (kind, gid.family(), tagged, gid.index)
    });
    usable
}

/// The pair of addresses by which two ports reach each other, as places in the two lists, which
/// are ranked. Both ends compute it from the same two lists, so they agree: RoCE v2 before v1, IPv4
/// before IPv6 before link-local, then the two addresses that are nearest to each other.
pub fn meeting(dialer: &[PortGid], acceptor: &[PortGid]) -> Option<(usize, usize)> {
    let all = (0..dialer.len()).flat_map(|at| (0..acceptor.len()).map(move |to| (at, to)));
    // The first of equals, in the order of the dialer's ranking.
    all.filter(|(at, to)| {
        let (ours, theirs) = (&dialer[*at], &acceptor[*to]);
        ours.kind == theirs.kind && ours.family() == theirs.family()
    })
    .min_by_key(|(at, to)| {
        let ours = &dialer[*at];
        let apart = 128 - ours.shared_bits(&acceptor[*to].address);
        (ours.kind == GidKind::RoceV1, ours.family(), apart)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, kind: GidKind, interface: &str) -> PortGid {
        let v6 = match address.parse::<Ipv4Addr>() {
            Ok(v4) => v4.to_ipv6_mapped(),
            Err(_) => address.parse().expect("an address"),
        };
        PortGid {
            index,
            address: v6.octets(),
            kind,
            interface: Some(interface.into()),
        }
    }

    /// What a RoCE port with one VLAN shows.
    fn table() -> Vec<PortGid> {
        use GidKind::{RoceV1, RoceV2};
        vec![
            gid(0, "fe80::1", RoceV1, "eth0"),
            gid(1, "fe80::1", RoceV2, "eth0"),
            gid(2, "10.0.0.5", RoceV1, "eth0"),
            gid(3, "10.0.0.5", RoceV2, "eth0"),
            gid(4, "10.7.0.5", RoceV2, "eth0.7"),
            gid(5, "2001:db8::5", RoceV2, "eth0"),
        ]
    }

    fn indexes(gids: &[PortGid]) -> Vec<u8> {
        gids.iter().map(|g| g.index).collect()
    }

    #[test]
    fn given_a_roce_port_v2_over_ipv4_on_the_untagged_interface_comes_first() {
        let ranked = ranked(&table(), &GidFilter::Any);
        assert_eq!(indexes(&ranked), [3, 4, 5, 1, 2, 0]);
    }

    #[test]
    fn given_a_filter_only_what_it_names_is_left() {
        let vlan = GidFilter::Interface("eth0.7".into());
        assert_eq!(indexes(&ranked(&table(), &vlan)), [4]);
        assert_eq!(indexes(&ranked(&table(), &GidFilter::Index(0))), [0]);
        assert!(ranked(&table(), &GidFilter::Index(9)).is_empty());
    }

    #[test]
    fn two_ports_meet_on_their_common_subnet_whoever_dials() {
        let ours = ranked(&table(), &GidFilter::Any);
        let meet = |peer: PortGid| {
            let pair = meeting(&ours, std::slice::from_ref(&peer));
            let back = meeting(std::slice::from_ref(&peer), &ours);
            assert_eq!(pair, back.map(|(a, b)| (b, a)));
            pair.map(|(at, _)| ours[at].index)
        };
        assert_eq!(meet(gid(3, "10.0.0.9", GidKind::RoceV2, "x")), Some(3));
        assert_eq!(meet(gid(3, "10.7.0.9", GidKind::RoceV2, "x")), Some(4));
        assert_eq!(meet(gid(3, "2001:db8::9", GidKind::RoceV2, "x")), Some(5));
        assert_eq!(meet(gid(3, "2001:db8::9", GidKind::RoceV1, "x")), None);
        assert_eq!(meet(gid(0, "fe80::9", GidKind::InfiniBand, "x")), None);
        let all = meeting(&ours, &ours).map(|(a, b)| (ours[a].index, ours[b].index));
        assert_eq!(all, Some((3, 3)));
    }

    #[test]
    fn unused_entries_are_no_addresses() {
        let mut prefix_only = [0; 16];
        prefix_only[0] = 0xfe;
        prefix_only[1] = 0x80;
        assert_eq!(
            PortGid::new(3, prefix_only, GidKind::InfiniBand, None),
            None
        );
        assert_eq!(PortGid::new(300, [1; 16], GidKind::InfiniBand, None), None);
    }
}
