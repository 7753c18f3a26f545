//! What a dialer tells of an interface, so that the other end can pair it with one of its own.

use std::net::IpAddr;

use crate::fabric::fields::{Reader, Writer};
use crate::fabric::interfaces::Address;

/// The longest address in text.
const MAX_ADDRESS: usize = 64;

/// The interface that a rail is to go out by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Its address, and whether the user named it; `None` where the kernel chooses.
    pub named: Option<(Address, bool)>,
}

impl Source {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Writer::default();
        if let Some((address, asked)) = self.named {
            out.bytes(address.ip.to_string().as_bytes())
                .u8(address.prefix)
                .u8(u8::from(asked));
        }
        out.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self { named: None });
        }
        let mut fields = Reader::new(bytes);
        let ip: IpAddr = fields.text(MAX_ADDRESS)?.parse().ok()?;
        let prefix = fields.u8()?;
        let asked = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let named = Some((Address { ip, prefix }, asked));
        fields.is_done().then_some(Self { named })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_interface_reads_back_as_it_was_told_and_no_bytes_make_the_reader_panic(
            v4 in any::<[u8; 4]>(),
            prefix in any::<u8>(),
            asked in any::<bool>(),
            noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let address = Address { ip: IpAddr::from(v4), prefix };
            let source = Source { named: Some((address, asked)) };
            prop_assert_eq!(Source::decode(&source.encode()), Some(source));
            let _ = Source::decode(&noise);
        }
    }
}
