//! What one end of a link tells the other: untrusted, bounded, versioned.

use crowfly_machine::verbs::{GidKind, Mtu, PSN_MASK, PortGid};

use super::super::fields::{Reader, Writer};
use super::super::provider::MAX_ENDPOINT;
use super::MAX_LANES;

/// The version that this build writes and reads.
const VERSION: u8 = 1;
/// The most addresses that are told.
pub(super) const MAX_ADDRESSES: usize = 32;
/// The longest name of a NIC.
const MAX_NAME: usize = super::super::MAX_NIC_NAME;
/// Queue pair numbers have 24 bits.
const MAX_QP: u32 = 0x00ff_ffff;

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The NIC's name on its host.
    pub nic: String,
    /// Whether the port is an InfiniBand one.
    pub infiniband: bool,
    pub lid: u16,
    pub mtu: Mtu,
    /// Reads it answers at a time, and reads it may ask for.
    pub reads_answered: u8,
    pub reads_asked: u8,
    /// Queue pair numbers and the packet sequence numbers they start with.
    pub lanes: Vec<(u32, u32)>,
    /// Addresses, best first; their places in the table and interfaces stay at home.
    pub addresses: Vec<PortGid>,
}

impl Hello {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(VERSION)
            .bytes(self.nic.as_bytes())
            .u8(u8::from(self.infiniband))
            .u16(self.lid)
            .u8(self.mtu.code())
            .u8(self.reads_answered)
            .u8(self.reads_asked)
            .u8(u8::try_from(self.lanes.len()).unwrap_or(u8::MAX));
        for (number, psn) in &self.lanes {
            out.u32(*number).u32(*psn);
        }
        out.u8(u8::try_from(self.addresses.len()).unwrap_or(u8::MAX));
        for address in &self.addresses {
            out.u8(kind_number(address.kind)).raw(&address.address);
        }
        out.finish()
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > MAX_ENDPOINT {
            return Err("its greeting is too long");
        }
        let mut fields = Reader::new(bytes);
        match fields.u8() {
            Some(VERSION) => {}
            Some(_) => return Err("its greeting for verbs has another version"),
            None => return Err("its greeting is empty"),
        }
        let hello = Self::fields(&mut fields).filter(|_| fields.is_done());
        hello.ok_or("a field of its greeting is out of range")
    }

    fn fields(fields: &mut Reader<'_>) -> Option<Self> {
        let nic = fields.text(MAX_NAME)?.to_owned();
        let infiniband = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let lid = fields.u16()?;
        let mtu = Mtu::from_code(fields.u8()?)?;
        let (reads_answered, reads_asked) = (fields.u8()?, fields.u8()?);
        let count = usize::from(fields.u8()?);
        if count == 0 || count > MAX_LANES {
            return None;
        }
        let mut lanes = Vec::with_capacity(count);
        for _ in 0..count {
            let (number, psn) = (fields.u32()?, fields.u32()?);
            if number > MAX_QP || psn > PSN_MASK {
                return None;
            }
            lanes.push((number, psn));
        }
        let count = usize::from(fields.u8()?);
        if count > MAX_ADDRESSES {
            return None;
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            addresses.push(PortGid {
                index: 0,
                kind: kind_of(fields.u8()?)?,
                address: fields.array()?,
                interface: None,
            });
        }
        Some(Self {
            nic,
            infiniband,
            lid,
            mtu,
            reads_answered,
            reads_asked,
            lanes,
            addresses,
        })
    }
}

const fn kind_number(kind: GidKind) -> u8 {
    match kind {
        GidKind::InfiniBand => 0,
        GidKind::RoceV1 => 1,
        GidKind::RoceV2 => 2,
    }
}

const fn kind_of(number: u8) -> Option<GidKind> {
    match number {
        0 => Some(GidKind::InfiniBand),
        1 => Some(GidKind::RoceV1),
        2 => Some(GidKind::RoceV2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello() -> Hello {
        Hello {
            nic: "mlx5_0:1".into(),
            infiniband: false,
            lid: 0,
            mtu: Mtu::from_code(5).expect("4096 bytes"),
            reads_answered: 16,
            reads_asked: 16,
            lanes: vec![(0x1234, 7), (0x1235, PSN_MASK)],
            addresses: vec![PortGid {
                index: 0,
                address: [9; 16],
                kind: GidKind::RoceV2,
                interface: None,
            }],
        }
    }

    #[test]
    fn a_greeting_reads_back_as_it_was_written() {
        assert_eq!(Hello::from_bytes(&hello().to_bytes()), Ok(hello()));
    }

    #[test]
    fn another_version_and_numbers_out_of_range_are_refused() {
        let mut bytes = hello().to_bytes();
        bytes[0] = 2;
        let error = Hello::from_bytes(&bytes).expect_err("another version");
        assert!(error.contains("version"));
        let no_lanes = Hello {
            lanes: Vec::new(),
            ..hello()
        };
        assert!(Hello::from_bytes(&no_lanes.to_bytes()).is_err());
        let many = Hello {
            lanes: vec![(1, 1); MAX_LANES + 1],
            ..hello()
        };
        assert!(Hello::from_bytes(&many.to_bytes()).is_err());
        let wide = Hello {
            lanes: vec![(MAX_QP + 1, 1)],
            ..hello()
        };
        assert!(Hello::from_bytes(&wide.to_bytes()).is_err());
        assert!(Hello::from_bytes(&vec![1; MAX_ENDPOINT + 1]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(read) = Hello::from_bytes(&bytes) {
                prop_assert_eq!(read.to_bytes(), bytes);
            }
        }
    }
}
