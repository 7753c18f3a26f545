//! Devices and ports as a listing names them, whichever tool made it.

use std::collections::BTreeMap;

use super::{Gid, LinkLayer, PortState, RdmaDevice, RdmaDevices, RdmaPort};
use crate::evidence::line::Line;

/// Most devices of one listing; a server with SR-IOV has some hundreds.
const MAX_DEVICES: usize = 4_096;
/// Most ports of one device, and most entries of its other lists.
const MAX_ENTRIES: usize = 1_024;

/// A listing being read. What a line says belongs to the device and port named last.
#[derive(Debug, Default)]
pub(super) struct Listing {
    found: RdmaDevices,
    device: Option<usize>,
    port: Option<usize>,
}

impl Listing {
    pub(super) fn is_empty(&self) -> bool {
        self.found.devices.is_empty()
    }

    pub(super) fn into_found(self) -> RdmaDevices {
        self.found
    }

    /// Turns to a device, a new one if it was not named before.
    pub(super) fn turn_to(&mut self, name: &str, line: &Line<'_>) {
        self.port = None;
        // Tables name the device in every line.
        if self.device().is_some_and(|device| device.name == name) {
            return;
        }
        self.device = self.found.devices.iter().position(|d| d.name == name);
        if self.device.is_none() && !name.is_empty() && self.found.devices.len() < MAX_DEVICES {
            self.found.devices.push(RdmaDevice {
                name: name.to_owned(),
                cite: line.cite(),
                firmware: None,
                model: None,
                part: None,
                attributes: BTreeMap::new(),
                ports: Vec::new(),
            });
            self.device = Some(self.found.devices.len() - 1);
        }
    }

    /// Turns to a port of the device.
    pub(super) fn turn_to_port(&mut self, number: u32, line: &Line<'_>) {
        let Some(device) = self.device() else { return };
        let mut at = device.ports.iter().position(|p| p.number == number);
        if at.is_none() && device.ports.len() < MAX_ENTRIES {
            device.ports.push(RdmaPort {
                number,
                cite: line.cite(),
                state: None,
                physical: None,
                rate_gbps: None,
                layer: None,
                active_mtu: None,
                max_mtu: None,
                netdev: None,
                gids: Vec::new(),
            });
            at = Some(device.ports.len() - 1);
        }
        self.port = at;
    }

    pub(super) fn device(&mut self) -> Option<&mut RdmaDevice> {
        self.found.devices.get_mut(self.device?)
    }

    pub(super) fn port(&mut self) -> Option<&mut RdmaPort> {
        let port = self.port?;
        self.device()?.ports.get_mut(port)
    }

    /// Keeps an attribute that has no field of its own.
    pub(super) fn attribute(&mut self, key: &str, value: &str, line: &Line<'_>) {
        if let Some(device) = self.device()
            && device.attributes.len() < MAX_ENTRIES
        {
            device
                .attributes
                .entry(key.to_owned())
                .or_insert_with(|| line.cite().of(value.to_owned()));
        }
    }

    pub(super) fn state(&mut self, value: &str, line: &Line<'_>) {
        if let Some(port) = self.port() {
            port.state = Some(line.cite().of(PortState::parse(value)));
        }
    }

    pub(super) fn layer(&mut self, value: &str, line: &Line<'_>) {
        if let Some(port) = self.port() {
            port.layer = Some(line.cite().of(match value.trim() {
                "InfiniBand" => LinkLayer::InfiniBand,
                "Ethernet" => LinkLayer::RoCe,
                _ => LinkLayer::Other,
            }));
        }
    }

    /// A rate in Gb/s at the front of a text.
    pub(super) fn rate(&mut self, value: &str, line: &Line<'_>) {
        let rate = value
            .split_whitespace()
            .next()
            .and_then(|n| n.parse::<f64>().ok());
        if let (Some(rate), Some(port)) = (rate.filter(|r| r.is_finite()), self.port()) {
            port.rate_gbps = Some(line.cite().of(rate));
        }
    }

    pub(super) fn gid(&mut self, gid: Gid, line: &Line<'_>) {
        if let Some(port) = self.port()
            && port.gids.len() < MAX_ENTRIES
        {
            port.gids.push(line.cite().of(gid));
        }
    }
}

impl Gid {
    /// An address and what it says of itself: `::ffff:a.b.c.d` stands for an IPv4 address.
    pub(super) fn new(index: u32, gid: &str, ipv4: Option<&str>, roce: Option<u8>) -> Self {
        Self {
            index,
            gid: gid.to_owned(),
            ipv4: ipv4.map(str::to_owned).or_else(|| contained_ipv4(gid)),
            roce,
        }
    }
}

/// The IPv4 address in the last two groups of a mapped address, written in full or dotted.
fn contained_ipv4(gid: &str) -> Option<String> {
    let (_, tail) = gid.rsplit_once("ffff:")?;
    if tail.parse::<std::net::Ipv4Addr>().is_ok() {
        return Some(tail.to_owned());
    }
    let (high, low) = tail.split_once(':')?;
    let group = |text: &str| u16::from_str_radix(text, 16).ok().map(u16::to_be_bytes);
    let ([a, b], [c, d]) = (group(high)?, group(low)?);
    Some(format!("{a}.{b}.{c}.{d}"))
}

/// Whether a word has the shape of an address in full.
pub(super) fn is_gid(word: &str) -> bool {
    word.len() >= 15
        && word.bytes().filter(|b| *b == b':').count() >= 2
        && word
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_tells_its_ipv4_address() {
        assert_eq!(
            contained_ipv4("0000:0000:0000:0000:0000:ffff:0a0a:0a01").as_deref(),
            Some("10.10.10.1")
        );
        assert_eq!(
            contained_ipv4("::ffff:10.0.0.7").as_deref(),
            Some("10.0.0.7")
        );
        assert_eq!(
            contained_ipv4("fe80:0000:0000:0000:ba59:9fff:fe1a:e3ea"),
            None
        );
    }
}
