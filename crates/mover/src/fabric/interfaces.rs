//! The network interfaces of this machine and their addresses.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::FabricError;

/// How different a name may be to be suggested instead of a mistyped one.
const SIMILAR: f64 = 0.7;

/// The first address of each interface that is up, by name.
pub(crate) fn addresses() -> io::Result<BTreeMap<String, Vec<IpAddr>>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call fills the pointer with a list that is freed below, exactly once.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let mut next = list;
    // SAFETY: the list is a valid chain of entries until it is freed; names are C strings, and an
    // address is of the type that its family says.
    unsafe {
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            let name = CStr::from_ptr(entry.ifa_name).to_string_lossy();
            let known = found.entry(name.into_owned()).or_default();
            let Some(address) = entry.ifa_addr.as_ref() else {
                continue;
            };
            match i32::from(address.sa_family) {
                libc::AF_INET => {
                    let v4 = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    let bits = u32::from_be(v4.sin_addr.s_addr);
                    known.push(IpAddr::V4(Ipv4Addr::from(bits)));
                }
                libc::AF_INET6 => {
                    let v6 = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    known.push(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)));
                }
                _ => {}
            }
        }
        libc::freeifaddrs(list);
    }
    Ok(found)
}

/// The interface with this address, or the address where none has it any more.
pub(crate) fn name_of(address: IpAddr) -> String {
    let known = addresses().unwrap_or_default();
    let mut named = known.into_iter();
    named
        .find(|(_, addresses)| addresses.contains(&address))
        .map_or_else(|| address.to_string(), |(name, _)| name)
}

/// The address to use an interface by.
///
/// # Errors
/// [`FabricError::NoSuchNic`] when there is none of this name, or none with an address: a name that
/// was mistyped must not end in a detour.
pub(crate) fn address_of(name: &str) -> Result<IpAddr, FabricError> {
    let known = addresses().map_err(|e| FabricError::setup("listing the interfaces", e))?;
    let usable = |address: &&IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    if let Some(address) = known.get(name).and_then(|all| all.iter().find(usable)) {
        return Ok(*address);
    }
    let known: Vec<String> = known.into_keys().collect();
    let likeness = |other: &String| strsim::jaro_winkler(name, other);
    let suggestion = known
        .iter()
        .filter(|other| *other != name && likeness(other) >= SIMILAR)
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
        .cloned();
    Err(FabricError::NoSuchNic {
        name: name.to_owned(),
        known,
        suggestion,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_known_by_its_name_and_by_its_address() {
        let address = address_of("lo").expect("every machine has one");
        assert!(address.is_loopback());
        assert_eq!(name_of(address), "lo");
    }

    #[test]
    fn a_mistyped_name_is_an_error_that_says_what_there_is() {
        match address_of("lo0") {
            Err(FabricError::NoSuchNic {
                name,
                known,
                suggestion,
            }) => {
                assert_eq!(name, "lo0");
                assert!(known.iter().any(|nic| nic == "lo"));
                assert_eq!(suggestion.as_deref(), Some("lo"));
            }
            other => panic!("{other:?}"),
        }
    }
}
