//! The 128 bytes that NCCL carries from the rank that listens to the one that connects.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crowfly_mover::fabric::{Incarnation, Reader, Writer};

use crate::abi::HANDLE;
use crate::error::NetError;
use crate::records::TICKET;

const MAGIC: [u8; 4] = *b"CFNH";
const VERSION: u8 = 1;
/// The most addresses of one handle.
pub(crate) const MAX_ADDRESSES: usize = 3;
/// Where the end that connects notes which of its attempts this is: NCCL calls `connect` again and
/// again with the same bytes.
const ATTEMPT: std::ops::Range<usize> = HANDLE - size_of::<u64>()..HANDLE;

/// Where a rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    /// Which of the rank's listening comms.
    pub ticket: [u8; TICKET],
    /// Which life of which process.
    pub listener: Incarnation,
    /// Where it can be reached, the likeliest first; [`MAX_ADDRESSES`] at most.
    pub addresses: Vec<IpAddr>,
    pub port: u16,
}

impl Handle {
    pub(crate) fn encode(&self) -> [u8; HANDLE] {
        let mut out = Writer::default();
        let addresses = self.addresses.get(..MAX_ADDRESSES);
        let addresses = addresses.unwrap_or(&self.addresses);
        out.raw(&MAGIC)
            .u8(VERSION)
            .raw(&self.ticket)
            .raw(self.listener.as_bytes())
            .u16(self.port)
            .u8(addresses.len() as u8);
        for address in addresses {
            let v6 = match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => *v6,
            };
            out.raw(&v6.octets());
        }
        let mut bytes = [0; HANDLE];
        for (to, from) in bytes.iter_mut().zip(out.finish()) {
            *to = from;
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HANDLE]) -> Result<Self, NetError> {
        let mut fields = Reader::new(bytes);
        if fields.array() != Some(MAGIC) {
            return Err(NetError::Handle("another network of NCCL wrote it"));
        }
        if fields.u8() != Some(VERSION) {
            return Err(NetError::Handle("another version of this plugin wrote it"));
        }
        let mut rest = || {
            let ticket = fields.array()?;
            let listener = Incarnation::from_bytes(fields.array()?);
            let (port, count) = (fields.u16()?, usize::from(fields.u8()?));
            let mut addresses = Vec::new();
            for _ in 0..count {
                let address = Ipv6Addr::from(fields.array::<16>()?);
                addresses.push(address.to_canonical());
            }
            (count <= MAX_ADDRESSES).then_some(Self {
                ticket,
                listener,
                addresses,
                port,
            })
        };
        rest().ok_or(NetError::Handle("its addresses make no sense"))
    }

    /// Where to connect to, the likeliest first.
    pub(crate) fn targets(&self) -> Vec<SocketAddr> {
        let addresses = self.addresses.iter();
        addresses
            .map(|address| SocketAddr::new(*address, self.port))
            .collect()
    }
}

/// Which attempt to connect the bytes belong to; 0 before the first.
pub(crate) fn attempt(bytes: &[u8; HANDLE]) -> usize {
    let number = bytes.get(ATTEMPT).and_then(|b| b.first_chunk());
    number.map_or(0, |number| usize::from_le_bytes(*number))
}

/// Notes which attempt the bytes belong to.
pub(crate) fn note_attempt(bytes: &mut [u8; HANDLE], number: usize) {
    if let Some(place) = bytes.get_mut(ATTEMPT) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handle(addresses: &[&str]) -> Handle {
        let parsed = addresses
            .iter()
            .map(|text| text.parse().expect("an address"));
        Handle {
            ticket: [3; TICKET],
            listener: Incarnation::from_bytes([5; 16]),
            addresses: parsed.collect(),
            port: 40_000,
        }
    }

    #[test]
    fn a_handle_reads_back_as_it_was_written_and_the_attempt_stands_beside_it() {
        let written = handle(&["10.1.0.1", "fd00::1", "192.168.0.1"]);
        let mut bytes = written.encode();
        assert_eq!(attempt(&bytes), 0);
        note_attempt(&mut bytes, 0x1234);
        assert_eq!(attempt(&bytes), 0x1234);
        assert_eq!(Handle::decode(&bytes).expect("a handle"), written);
        assert_eq!(written.targets()[1].to_string(), "[fd00::1]:40000");
    }

    #[test]
    fn addresses_beyond_what_fits_are_left_out() {
        let many = handle(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        let read = Handle::decode(&many.encode()).expect("a handle");
        assert_eq!(read.addresses, many.addresses[..MAX_ADDRESSES]);
    }

    #[test]
    fn the_handle_of_another_network_or_version_is_none() {
        assert_eq!(
            Handle::decode(&[0; HANDLE]).expect_err("none").code(),
            "bad-handle"
        );
        let mut bytes = handle(&["10.1.0.1"]).encode();
        bytes[4] = 9;
        assert!(Handle::decode(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::array::uniform32(any::<u8>())) {
            let mut all = handle(&["10.1.0.1"]).encode();
            all[5..37].copy_from_slice(&bytes);
            all[37] = bytes[0];
            all[39] = bytes[1];
            let _ = Handle::decode(&all);
        }
    }
}
