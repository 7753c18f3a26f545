//! What two ends tell each other under certificates before the requests begin: how the fabric is
//! reached, and who of those that come there it is.

use super::message::VERSION;
use crate::fabric::Incarnation;
use crate::fabric::fields::{Reader, Writer};

const MAGIC: [u8; 4] = *b"CFSV";

/// The server's word.
pub(crate) struct Welcome {
    /// The key of its fabric.
    pub key: [u8; 32],
    /// The port of its fabric, on the same host.
    pub port: u16,
    /// Who it is there.
    pub incarnation: Incarnation,
}

impl Welcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(&MAGIC)
            .u16(VERSION)
            .raw(&self.key)
            .u16(self.port)
            .raw(self.incarnation.as_bytes());
        out.finish()
    }

    /// Reads what was received; the version when it is another one.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut fields = Reader::new(bytes);
        if fields.array() != Some(MAGIC) {
            return Err("it is no server of crowfly's");
        }
        if fields.u16() != Some(VERSION) {
            return Err("it speaks another version");
        }
        let mut read = || {
            let welcome = Self {
                key: fields.array()?,
                port: fields.u16()?,
                incarnation: Incarnation::from_bytes(fields.array()?),
            };
            fields.is_done().then_some(welcome)
        };
        read().ok_or("a malformed welcome")
    }
}

/// The client's word.
pub(crate) struct Join {
    /// Who it is on the fabric.
    pub incarnation: Incarnation,
}

impl Join {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(&MAGIC)
            .u16(VERSION)
            .raw(self.incarnation.as_bytes());
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        (fields.array()? == MAGIC && fields.u16()? == VERSION).then_some(())?;
        let incarnation = Incarnation::from_bytes(fields.array()?);
        fields.is_done().then_some(Self { incarnation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_words_read_back_and_what_is_cut_is_refused() {
        let incarnation = Incarnation::from_bytes([7; 16]);
        let bytes = Welcome {
            key: [1; 32],
            port: 99,
            incarnation,
        }
        .encode();
        let read = Welcome::decode(&bytes).map(|w| (w.key, w.port, w.incarnation));
        assert_eq!(read, Ok(([1; 32], 99, incarnation)));
        let join = Join { incarnation }.encode();
        assert_eq!(
            Join::decode(&join).map(|j| j.incarnation),
            Some(incarnation)
        );
        for cut in 0..bytes.len() {
            assert!(Welcome::decode(&bytes[..cut]).is_err());
            assert!(Join::decode(&join[..cut.min(join.len() - 1)]).is_none());
        }
        let mut other = bytes;
        other[4] = 9;
        assert_eq!(
            Welcome::decode(&other).map(drop),
            Err("it speaks another version")
        );
    }
}
