//! How two processes agree on their rails, over a fresh control connection.
//!
//! The dialer says who it is and which NICs it offers; the acceptor answers with who it is and the
//! NIC it pairs with each offer; the dialer joins what it can and says which; the acceptor joins
//! those and says which. Rails that only one end joined are closed.

use std::time::Instant;

use super::descriptor::{MAX_NIC_NAME, path_number, path_of};
use super::error::FabricError;
use super::fields::{Reader, Writer};
use super::handshake::{Agreed, protocol, unreachable};
use super::identity::Incarnation;
use super::provider::MAX_ENDPOINT;
use super::socket::Socket;
use super::wire::{HEADER, Kind, Lane};
use crowfly_route::receipt::Path;

/// The most rails to one peer.
pub(crate) const MAX_RAILS: usize = 32;
/// The longest reason for declining an offer, in bytes.
const MAX_WHY: usize = 256;

/// A NIC that one end offers, or pairs with the other's offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The number of the offer it is about.
    pub index: u16,
    pub path: Path,
    pub nic: String,
    pub endpoint: Vec<u8>,
}

/// An offer that one end has no NIC for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declined {
    /// The number of the offer.
    pub index: u16,
    pub why: String,
}

/// Who one end is, its offers, and what it declined of the other's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub incarnation: Incarnation,
    pub offers: Vec<Offer>,
    pub declined: Vec<Declined>,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(self.incarnation.as_bytes())
            .u16(u16::try_from(self.offers.len()).unwrap_or(u16::MAX));
        for offer in &self.offers {
            out.u16(offer.index)
                .u8(path_number(offer.path))
                .bytes(offer.nic.as_bytes())
                .bytes(&offer.endpoint);
        }
        out.u16(u16::try_from(self.declined.len()).unwrap_or(u16::MAX));
        for declined in &self.declined {
            let why = shortened(&declined.why);
            out.u16(declined.index).bytes(why.as_bytes());
        }
        out.finish()
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(body);
        let incarnation = Incarnation::from_bytes(fields.array()?);
        let count = usize::from(fields.u16()?);
        if count > MAX_RAILS {
            return None;
        }
        let mut offers = Vec::with_capacity(count);
        for _ in 0..count {
            offers.push(Offer {
                index: fields.u16()?,
                path: path_of(fields.u8()?)?,
                nic: fields.text(MAX_NIC_NAME)?.to_owned(),
                endpoint: fields.bytes(MAX_ENDPOINT)?.to_vec(),
            });
        }
        let count = usize::from(fields.u16()?);
        if count > MAX_RAILS {
            return None;
        }
        let mut declined = Vec::with_capacity(count);
        for _ in 0..count {
            declined.push(Declined {
                index: fields.u16()?,
                why: fields
                    .text(MAX_WHY)
                    .filter(|text| is_printable(text))?
                    .to_owned(),
            });
        }
        fields.is_done().then_some(Self {
            incarnation,
            offers,
            declined,
        })
    }
}

/// As much of a reason as is told.
fn shortened(why: &str) -> &str {
    let mut end = why.len().min(MAX_WHY);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    &why[..end]
}

/// Whether a peer's words can be shown on a terminal.
fn is_printable(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// The numbers of the rails that were joined.
pub(crate) fn encode_joined(joined: &[u16]) -> Vec<u8> {
    let mut out = Writer::default();
    joined.iter().for_each(|index| {
        out.u16(*index);
    });
    out.finish()
}

pub(crate) fn decode_joined(body: &[u8]) -> Option<Vec<u16>> {
    let mut fields = Reader::new(body);
    let mut joined = Vec::new();
    while !fields.is_done() {
        joined.push(fields.u16()?);
        if joined.len() > MAX_RAILS {
            return None;
        }
    }
    Some(joined)
}

/// A control connection before the reactor watches it.
pub(crate) struct Talk {
    pub socket: Socket,
    pub sending: Lane,
    pub receiving: Lane,
    pub address: String,
    pub deadline: Instant,
}

impl Talk {
    pub(crate) fn new(socket: Socket, agreed: Agreed, address: String, deadline: Instant) -> Self {
        Self {
            socket,
            sending: agreed.sending,
            receiving: agreed.receiving,
            address,
            deadline,
        }
    }

    pub(crate) fn say(&mut self, kind: Kind, body: &[u8]) -> Result<(), FabricError> {
        let frame = self.sending.seal(kind, 0, 0, body, 0);
        self.socket
            .write_all(&frame, self.deadline)
            .map_err(|error| unreachable(&self.address, error))
    }

    pub(crate) fn hear(&mut self, kind: Kind) -> Result<Vec<u8>, FabricError> {
        let failed = |error| unreachable(&self.address, error);
        let violated = |what| protocol(&self.address, what);
        let mut head = [0; HEADER];
        self.socket
            .read_all(&mut head, self.deadline)
            .map_err(failed)?;
        let header = Lane::peek(&head).map_err(|violation| violated(violation.0))?;
        let mut body = vec![0; usize::from(header.body)];
        self.socket
            .read_all(&mut body, self.deadline)
            .map_err(failed)?;
        self.receiving
            .open(&head, &body)
            .map_err(|violation| violated(violation.0))?;
        if header.kind != kind || header.payload != 0 {
            return Err(violated("another frame than its turn was"));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_readers_panic_and_what_they_read_is_what_was_written(
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Some(hello) = Hello::decode(&body) {
                prop_assert_eq!(hello.encode(), body.clone());
            }
            if let Some(joined) = decode_joined(&body) {
                prop_assert_eq!(encode_joined(&joined), body);
            }
        }
    }
}
