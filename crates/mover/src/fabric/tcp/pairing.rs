//! What a dialer tells of an interface, so that the other end can pair it with one of its own, and of
//! the host that it is on.

use std::net::IpAddr;

use crate::fabric::fields::{Reader, Writer};
use crate::fabric::interfaces::Address;

use super::host::HostMark;

/// The longest address in text.
const MAX_ADDRESS: usize = 64;

/// The interface that a rail is to go out by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Its address, and whether the user named it; `None` where the kernel chooses.
    pub named: Option<(Address, bool)>,
    /// Which host that is; `None` where that is not told.
    pub host: Option<HostMark>,
}

impl Source {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(u8::from(self.named.is_some()));
        if let Some((address, asked)) = self.named {
            out.bytes(address.ip.to_string().as_bytes())
                .u8(address.prefix)
                .u8(u8::from(asked));
        }
        if let Some(host) = self.host {
            out.raw(&host.0);
        }
        out.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self {
                named: None,
                host: None,
            });
        }
        let mut fields = Reader::new(bytes);
        let named = match truth(&mut fields)? {
            false => None,
            true => {
                let ip: IpAddr = fields.text(MAX_ADDRESS)?.parse().ok()?;
                let prefix = fields.u8()?;
                Some((Address { ip, prefix }, truth(&mut fields)?))
            }
        };
        let host = match fields.is_done() {
            true => None,
            false => Some(HostMark(fields.array()?)),
        };
        fields.is_done().then_some(Self { named, host })
    }
}

fn truth(fields: &mut Reader<'_>) -> Option<bool> {
    match fields.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
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
            is_named in any::<bool>(),
            host in any::<Option<[u8; 16]>>(),
            noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let address = Address { ip: IpAddr::from(v4), prefix };
            let source = Source {
                named: is_named.then_some((address, asked)),
                host: host.map(HostMark),
            };
            prop_assert_eq!(Source::decode(&source.encode()), Some(source));
            let _ = Source::decode(&noise);
        }
    }
}
