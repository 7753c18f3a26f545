//! The network interfaces of this machine: their addresses, and what they are.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// What stands behind an interface's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A device, or several in one: a bond, a team, a VLAN on top of one.
    Card,
    /// It never leaves the host.
    Loopback,
    /// Software made it; in the kernel's word for its type where there is one.
    Virtual(String),
}

/// An address and how many of its first bits are its subnet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub ip: IpAddr,
    pub prefix: u8,
}

impl Address {
    /// Whether another address is of the same subnet.
    pub(crate) fn reaches(&self, other: IpAddr) -> bool {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        let ((ours, width), (theirs, other)) = (bits(self.ip), bits(other));
        let shift = 128 - u32::from(self.prefix.min(width));
        width == other && ours.checked_shr(shift) == theirs.checked_shr(shift)
    }
}

/// A network interface.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub name: String,
    /// Whether it is up and has a carrier.
    pub up: bool,
    pub kind: Kind,
    pub virtual_function: bool,
    /// Bytes per second, where its driver says.
    pub rate: Option<f64>,
    /// Bytes of its largest packet.
    pub mtu: Option<u32>,
    pub addresses: Vec<Address>,
}

impl Interface {
    /// The address to use it by.
    pub(crate) fn usable(&self) -> Option<Address> {
        let mut addresses = self.addresses.iter().copied();
        addresses.find(|address| match address.ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        })
    }
}

/// The interfaces of this process's network namespace, by name.
pub(crate) fn survey() -> io::Result<Vec<Interface>> {
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    for (name, flags, address) in entries()? {
        let set = |flag: libc::c_int| flags & flag.cast_unsigned() != 0;
        let interface = found.entry(name.clone()).or_insert_with(|| {
            let facts = Facts::of(&name);
            Interface {
                up: set(libc::IFF_UP) && set(libc::IFF_RUNNING),
                kind: match set(libc::IFF_LOOPBACK) {
                    true => Kind::Loopback,
                    false => facts.kind(),
                },
                virtual_function: facts.has("device/physfn"),
                rate: facts.rate(),
                mtu: facts.number("mtu").and_then(|mtu| u32::try_from(mtu).ok()),
                addresses: Vec::new(),
                name,
            }
        });
        interface.addresses.extend(address);
    }
    Ok(found.into_values().collect())
}

/// An interface by which others can reach this machine.
#[derive(Clone, Debug)]
pub struct Reachable {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Bytes per second, where its driver says.
    pub rate: Option<f64>,
}

/// The interfaces that are up and have an address, those first by which other machines are likely to
/// get here: cards, the fastest first, then what software made, then the loopback.
///
/// # Errors
/// When the kernel does not list its interfaces.
pub fn reachable() -> io::Result<Vec<Reachable>> {
    let mut up: Vec<Interface> = survey()?.into_iter().filter(|i| i.up).collect();
    let far = |interface: &Interface| match interface.kind {
        Kind::Card => 0,
        Kind::Virtual(_) => 1,
        Kind::Loopback => 2,
    };
    up.sort_by(|a, b| {
        let rates = b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0));
        far(a).cmp(&far(b)).then(rates)
    });
    let found = up.into_iter().filter_map(|interface| {
        Some(Reachable {
            address: interface.usable()?.ip,
            name: interface.name,
            rate: interface.rate,
        })
    });
    Ok(found.collect())
}

/// What the system says of the rate of a network interface.
#[derive(Clone, Debug, PartialEq)]
pub enum LineRate {
    /// Bytes per second that its card negotiated.
    Negotiated(f64),
    /// It never leaves the host.
    Loopback,
    /// Software made it, in the kernel's word for its kind; a rate that it shows is made up as well.
    Virtual(String),
    /// Its driver does not say.
    Unsaid,
    /// There is no such interface.
    Absent,
}

impl LineRate {
    /// That of the interface of this name.
    pub fn of(name: &str) -> Self {
        let all = survey().unwrap_or_default();
        let found = all.into_iter().find(|interface| interface.name == name);
        found.map_or(Self::Absent, |interface| Self::of_interface(&interface))
    }

    fn of_interface(interface: &Interface) -> Self {
        match (&interface.kind, interface.rate) {
            (Kind::Loopback, _) => Self::Loopback,
            (Kind::Virtual(kind), _) => Self::Virtual(kind.clone()),
            (Kind::Card, Some(rate)) => Self::Negotiated(rate),
            (Kind::Card, None) => Self::Unsaid,
        }
    }
}

/// The interface with this address, or the address where none has it any more.
pub(crate) fn name_of(address: IpAddr) -> String {
    let known = entries().unwrap_or_default();
    let mut named = known.into_iter();
    named
        .find(|(_, _, has)| has.is_some_and(|has| has.ip == address))
        .map_or_else(|| address.to_string(), |(name, ..)| name)
}

/// Each interface with its flags and one of its addresses, if it has any.
fn entries() -> io::Result<Vec<(String, u32, Option<Address>)>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call fills the pointer with a list that is freed below, exactly once.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: the list is a valid chain of entries until it is freed; names are C strings, and
    // addresses and masks are null or of the type that their family says.
    unsafe {
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            let name = CStr::from_ptr(entry.ifa_name).to_string_lossy();
            let address = ip(entry.ifa_addr).map(|ip| Address {
                ip,
                prefix: self::ip(entry.ifa_netmask).map_or(u8::MAX, prefix),
            });
            found.push((name.into_owned(), entry.ifa_flags, address));
        }
        libc::freeifaddrs(list);
    }
    Ok(found)
}

/// # Safety
/// The pointer is null or to an address of the type that its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = &*address.cast::<libc::sockaddr_in>();
                let bits = u32::from_be(v4.sin_addr.s_addr);
                Some(IpAddr::V4(Ipv4Addr::from(bits)))
            }
            libc::AF_INET6 => {
                let v6 = &*address.cast::<libc::sockaddr_in6>();
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

fn prefix(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(v4) => v4.to_bits().leading_ones(),
        IpAddr::V6(v6) => v6.to_bits().leading_ones(),
    };
    u8::try_from(ones).unwrap_or(u8::MAX)
}

/// What the kernel says of an interface below `/sys/class/net`.
struct Facts(Option<PathBuf>);

impl Facts {
    fn of(name: &str) -> Self {
        let at = PathBuf::from("/sys/class/net").join(name);
        let facts = Self(Some(at));
        // The folders are those of the network namespace that /sys was mounted in: another one's
        // interface of the same name has another number.
        let index = std::ffi::CString::new(name).map_or(0, |name| {
            // SAFETY: the name is a C string that lives until the call returns.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        });
        match facts.number("ifindex") {
            Some(number) if number == u64::from(index) => facts,
            _ => Self(None),
        }
    }

    fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.0.as_ref()?.join(file)).ok()
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.text(file)?.trim().parse().ok()
    }

    fn has(&self, file: &str) -> bool {
        self.0.as_ref().is_some_and(|at| at.join(file).exists())
    }

    /// The speed is in megabits per second, and -1 where nobody knows.
    fn rate(&self) -> Option<f64> {
        let megabits = self.number("speed").filter(|speed| *speed > 0)?;
        Some(megabits as f64 * 1e6 / 8.0)
    }

    fn kind(&self) -> Kind {
        let uevent = self.text("uevent").unwrap_or_default();
        let mut lines = uevent.lines();
        let declared = lines.find_map(|line| line.strip_prefix("DEVTYPE="));
        match declared {
            Some("bond" | "team" | "vlan") => Kind::Card,
            _ if self.has("device") => Kind::Card,
            Some(what) => Kind::Virtual(what.to_owned()),
            None if self.0.is_none() => Kind::Virtual("of another network namespace".into()),
            None => Kind::Virtual("no device".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_cards_own_and_nothing_that_software_made_up() {
        let of = |kind, rate| {
            LineRate::of_interface(&Interface {
                name: "x".into(),
                up: true,
                kind,
                virtual_function: false,
                rate,
                mtu: None,
                addresses: Vec::new(),
            })
        };
        assert_eq!(of(Kind::Card, Some(1.25e9)), LineRate::Negotiated(1.25e9));
        assert_eq!(of(Kind::Card, None), LineRate::Unsaid);
        let veth = Kind::Virtual("veth".into());
        assert_eq!(of(veth, Some(1.25e9)), LineRate::Virtual("veth".into()));
        assert_eq!(LineRate::of("lo"), LineRate::Loopback);
        assert_eq!(LineRate::of("no such"), LineRate::Absent);
    }

    fn address(text: &str, prefix: u8) -> Address {
        Address {
            ip: text.parse().expect("an address"),
            prefix,
        }
    }

    #[test]
    fn the_loopback_interface_is_known_by_its_name_by_its_address_and_as_what_it_is() {
        let all = survey().expect("interfaces");
        let lo = all.iter().find(|interface| interface.name == "lo");
        let lo = lo.expect("every machine has one");
        assert_eq!(lo.kind, Kind::Loopback);
        let at = lo.usable().expect("it has an address").ip;
        assert!(at.is_loopback());
        assert_eq!(name_of(at), "lo");
    }

    #[test]
    fn the_loopback_is_the_last_way_to_reach_a_machine_by() {
        let all = reachable().expect("interfaces");
        let last = all.last().expect("every machine has a loopback that is up");
        assert!(last.address.is_loopback(), "{all:?}");
        let others = &all[..all.len() - 1];
        assert!(others.iter().all(|r| !r.address.is_loopback()), "{all:?}");
    }

    #[test]
    fn addresses_are_of_one_subnet_when_their_first_bits_are_the_same() {
        let ours = address("10.1.2.3", 24);
        assert!(ours.reaches("10.1.2.250".parse().expect("an address")));
        assert!(!ours.reaches("10.1.3.3".parse().expect("an address")));
        assert!(!ours.reaches("::1".parse().expect("an address")));
        assert!(address("10.1.2.3", 0).reaches("99.9.9.9".parse().expect("an address")));
        assert!(!address("10.1.2.3", 32).reaches("10.1.2.2".parse().expect("an address")));
        let v6 = address("fd00::1", 64);
        assert!(v6.reaches("fd00::2".parse().expect("an address")));
        assert!(!v6.reaches("fd01::2".parse().expect("an address")));
    }

    #[test]
    fn an_address_of_the_link_alone_is_not_one_to_be_reached_by() {
        let interface = Interface {
            name: "eth0".into(),
            up: true,
            kind: Kind::Card,
            virtual_function: false,
            rate: None,
            mtu: None,
            addresses: vec![address("fe80::1", 64), address("10.0.0.1", 8)],
        };
        assert_eq!(interface.usable(), Some(address("10.0.0.1", 8)));
    }
}
