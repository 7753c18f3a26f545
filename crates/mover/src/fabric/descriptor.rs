//! What a peer needs to know of a region to reach it: its bytes travel by whatever way the
//! application likes (a message, a file, etcd) and are read as untrusted input.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, Weak};

use crowfly_route::place::Place;
use crowfly_route::receipt::Path;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::FabricError;
use super::fields::{Reader, Writer};
use super::identity::{Capability, Incarnation, hex, unhex_all};
use super::region::Access;

/// The most bytes a descriptor may have.
pub const MAX_DESCRIPTOR: usize = 4096;
/// The most NICs that a descriptor may have keys for.
pub const MAX_GRANTS: usize = 64;
/// The longest name of a NIC, in bytes.
pub const MAX_NIC_NAME: usize = 64;
/// The longest key of a NIC, in bytes.
pub const MAX_NIC_KEY: usize = 64;
/// The longest name of a place, in bytes.
const MAX_PLACE: usize = 64;
/// The version that this build writes and reads.
pub const DESCRIPTOR_VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"CFRD";
const CHECKSUM: usize = 8;

/// What one NIC needs to reach a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The engine path that the NIC belongs to.
    pub path: Path,
    /// The NIC's name on the region's host.
    pub nic: String,
    /// The region's first byte as that NIC counts.
    pub address: u64,
    /// The NIC's key, [`MAX_NIC_KEY`] bytes at most.
    pub key: Vec<u8>,
}

/// A region as its peers see it. Whoever has it, and the fabric's key, can do what its access
/// allows: treat it as a secret. Clones share it.
#[derive(Clone, PartialEq, Eq)]
pub struct RegionDescriptor(Arc<Described>);

#[derive(PartialEq, Eq)]
struct Described {
    owner: Incarnation,
    len: u64,
    access: Access,
    place: Place,
    capability: Capability,
    grants: Vec<Grant>,
}

/// Which descriptor is meant. No other one has the same identity while this is kept.
pub(crate) struct DescriptorId(Weak<Described>);

impl DescriptorId {
    pub(crate) fn is_of(&self, descriptor: &RegionDescriptor) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&descriptor.0))
    }
}

/// Why bytes are not a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadDescriptor {
    /// More bytes than a descriptor may have.
    #[error("a descriptor has {MAX_DESCRIPTOR} bytes at most; these are {0}")]
    TooLong(usize),
    /// Not a descriptor at all.
    #[error("these bytes are no region descriptor")]
    NotOne,
    /// Written by another version.
    #[error("the descriptor has version {0}; this build reads version {DESCRIPTOR_VERSION}")]
    Version(u16),
    /// Some bytes were lost or changed.
    #[error("the descriptor is damaged: {0}")]
    Damaged(&'static str),
}

impl BadDescriptor {
    /// A stable code for JSON output.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooLong(_) => "descriptor-too-long",
            Self::NotOne => "no-descriptor",
            Self::Version(_) => "descriptor-version",
            Self::Damaged(_) => "descriptor-damaged",
        }
    }
}

impl RegionDescriptor {
    pub(crate) fn new(
        owner: Incarnation,
        len: u64,
        access: Access,
        place: Place,
        capability: Capability,
        grants: Vec<Grant>,
    ) -> Self {
        Self(Arc::new(Described {
            owner,
            len,
            access,
            place,
            capability,
            grants,
        }))
    }

    /// Tells this one from all others, as long as it is held.
    pub(crate) fn identity(&self) -> DescriptorId {
        DescriptorId(Arc::downgrade(&self.0))
    }

    /// Whose region it is.
    pub fn owner(&self) -> Incarnation {
        self.0.owner
    }

    /// Bytes of the region.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// What peers may do.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Where the bytes are on their host.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// The keys by NIC.
    pub fn grants(&self) -> &[Grant] {
        &self.0.grants
    }

    /// What the named NIC needs to reach the region.
    pub fn grant(&self, path: Path, nic: &str) -> Option<&Grant> {
        let mut grants = self.0.grants.iter();
        grants.find(|grant| grant.path == path && grant.nic == nic)
    }

    pub(crate) fn capability(&self) -> Capability {
        self.0.capability
    }

    /// A part of the region, in bytes from its start.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    pub fn slice(&self, range: Range<u64>) -> Result<RemoteSlice, FabricError> {
        check(&range, self.0.len)?;
        Ok(RemoteSlice {
            region: self.clone(),
            range,
        })
    }

    /// The whole region.
    pub fn whole(&self) -> RemoteSlice {
        RemoteSlice {
            region: self.clone(),
            range: 0..self.0.len,
        }
    }

    /// The bytes to send.
    ///
    /// # Errors
    /// [`BadDescriptor::TooLong`] when there are more NICs than fit.
    pub fn to_bytes(&self) -> Result<Vec<u8>, BadDescriptor> {
        let mut out = Writer::default();
        out.raw(&MAGIC)
            .u16(DESCRIPTOR_VERSION)
            .raw(self.0.owner.as_bytes())
            .u64(self.0.len)
            .u8(self.0.access.to_bits())
            .bytes(self.0.place.to_string().as_bytes())
            .raw(self.0.capability.as_bytes())
            .u16(u16::try_from(self.0.grants.len()).unwrap_or(u16::MAX));
        for grant in &self.0.grants {
            out.u8(path_number(grant.path))
                .bytes(grant.nic.as_bytes())
                .u64(grant.address)
                .bytes(&grant.key);
        }
        let mut bytes = out.finish();
        bytes.extend_from_slice(&checksum(&bytes));
        if bytes.len() > MAX_DESCRIPTOR {
            return Err(BadDescriptor::TooLong(bytes.len()));
        }
        Ok(bytes)
    }

    /// Reads received bytes; they may come from anyone.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadDescriptor> {
        if bytes.len() > MAX_DESCRIPTOR {
            return Err(BadDescriptor::TooLong(bytes.len()));
        }
        let mut front = Reader::new(bytes);
        if front.array() != Some(MAGIC) {
            return Err(BadDescriptor::NotOne);
        }
        let version = front.u16().ok_or(BadDescriptor::Damaged("it ends early"))?;
        if version != DESCRIPTOR_VERSION {
            return Err(BadDescriptor::Version(version));
        }
        let (body, sum) = bytes
            .split_last_chunk::<CHECKSUM>()
            .ok_or(BadDescriptor::Damaged("it ends early"))?;
        if checksum(body) != *sum {
            return Err(BadDescriptor::Damaged("the checksum does not match"));
        }
        let mut fields = Reader::new(&body[MAGIC.len() + 2..]);
        Self::fields(&mut fields)
            .filter(|_| fields.is_done())
            .ok_or(BadDescriptor::Damaged("a field is out of range"))
    }

    fn fields(fields: &mut Reader<'_>) -> Option<Self> {
        let owner = Incarnation::from_bytes(fields.array()?);
        let len = fields.u64()?;
        let access = Access::from_bits(fields.u8()?)?;
        let place = fields.text(MAX_PLACE)?.parse().ok()?;
        let capability = Capability::from_bytes(fields.array()?);
        let count = usize::from(fields.u16()?);
        if count > MAX_GRANTS {
            return None;
        }
        let mut grants = Vec::with_capacity(count);
        for _ in 0..count {
            grants.push(Grant {
                path: path_of(fields.u8()?)?,
                nic: fields.text(MAX_NIC_NAME)?.to_owned(),
                address: fields.u64()?,
                key: fields.bytes(MAX_NIC_KEY)?.to_vec(),
            });
        }
        Some(Self::new(owner, len, access, place, capability, grants))
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let hash = blake3::hash(bytes);
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&hash.as_bytes()[..CHECKSUM]);
    sum
}

/// The number of a path on the wire.
pub(crate) const fn path_number(path: Path) -> u8 {
    match path {
        Path::Shm => 1,
        Path::Tcp => 2,
        Path::Verbs => 3,
        Path::Cma => 4,
        _ => 0,
    }
}

/// The path with this number.
pub(crate) const fn path_of(number: u8) -> Option<Path> {
    match number {
        1 => Some(Path::Shm),
        2 => Some(Path::Tcp),
        3 => Some(Path::Verbs),
        4 => Some(Path::Cma),
        _ => None,
    }
}

pub(crate) fn check(range: &Range<u64>, len: u64) -> Result<(), FabricError> {
    if range.start <= range.end && range.end <= len {
        return Ok(());
    }
    Err(FabricError::OutOfBounds {
        start: range.start,
        end: range.end,
        len,
    })
}

impl fmt::Debug for RegionDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the capability: whoever reads it in a log could use it.
        f.debug_struct("RegionDescriptor")
            .field("owner", &self.0.owner)
            .field("len", &self.0.len)
            .field("access", &self.0.access)
            .field("place", &self.0.place)
            .field("nics", &self.0.grants.len())
            .finish_non_exhaustive()
    }
}

/// Written as hexadecimal digits in texts.
impl fmt::Display for RegionDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.to_bytes().map_err(|_| fmt::Error)?))
    }
}

impl FromStr for RegionDescriptor {
    type Err = BadDescriptor;

    fn from_str(text: &str) -> Result<Self, BadDescriptor> {
        if text.len() > 2 * MAX_DESCRIPTOR {
            return Err(BadDescriptor::TooLong(text.len() / 2));
        }
        Self::from_bytes(&unhex_all(text.trim()).ok_or(BadDescriptor::NotOne)?)
    }
}

impl Serialize for RegionDescriptor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.to_bytes().map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&hex(&bytes))
    }
}

impl<'de> Deserialize<'de> for RegionDescriptor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A range of a peer's region.
#[derive(Clone, Debug)]
pub struct RemoteSlice {
    pub(crate) region: RegionDescriptor,
    pub(crate) range: Range<u64>,
}

impl RemoteSlice {
    /// Bytes of the range.
    pub const fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether the range has none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn descriptor(nics: usize) -> RegionDescriptor {
        let grants = (0..nics).map(|index| Grant {
            path: Path::Verbs,
            nic: format!("mlx5_{index}"),
            address: 0x7f00_0000_0000 + index as u64,
            key: vec![index as u8; 4],
        });
        RegionDescriptor::new(
            Incarnation::from_bytes([7; 16]),
            1 << 40,
            Access::READ_WRITE,
            Place::Gpu(3),
            Capability::from_bytes([9; 16]),
            grants.collect(),
        )
    }

    #[test]
    fn a_descriptor_reads_back_as_it_was_written_in_bytes_text_and_json() {
        let written = descriptor(8);
        let bytes = written.to_bytes().expect("fits");
        assert_eq!(RegionDescriptor::from_bytes(&bytes), Ok(written.clone()));
        assert_eq!(written.to_string().parse(), Ok(written.clone()));
        let json = serde_json::to_string(&written).expect("json");
        assert_eq!(
            serde_json::from_str::<RegionDescriptor>(&json).ok(),
            Some(written)
        );
    }

    #[test]
    fn another_version_says_so_even_though_its_checksum_cannot_be_known() {
        let mut bytes = descriptor(1).to_bytes().expect("fits");
        bytes[4] = 9;
        assert_eq!(
            RegionDescriptor::from_bytes(&bytes),
            Err(BadDescriptor::Version(9))
        );
    }

    #[test]
    fn too_many_bytes_are_refused_on_both_sides() {
        let error = descriptor(MAX_GRANTS * 4).to_bytes().expect_err("too many");
        assert_eq!(error.code(), "descriptor-too-long");
        let long = vec![0; MAX_DESCRIPTOR + 1];
        assert_eq!(
            RegionDescriptor::from_bytes(&long),
            Err(BadDescriptor::TooLong(MAX_DESCRIPTOR + 1))
        );
    }

    #[test]
    fn a_slice_outside_of_the_region_is_refused_with_the_numbers() {
        let error = descriptor(0).slice(5..(1 << 40) + 1).expect_err("too far");
        assert_eq!(error.code(), "out-of-bounds");
        #[expect(clippy::reversed_empty_ranges, reason = "the refusal is the point")]
        let backwards = descriptor(0).slice(5..4);
        assert!(backwards.is_err());
    }

    #[test]
    fn the_capability_is_in_no_debug_output() {
        assert!(!format!("{:?}", descriptor(1)).contains("9, 9"));
    }

    proptest! {
        #[test]
        fn any_damage_is_noticed(at in 0usize..200, bit in 0u8..8) {
            let bytes = descriptor(4).to_bytes().expect("fits");
            let mut damaged = bytes.clone();
            let at = at % bytes.len();
            damaged[at] ^= 1 << bit;
            prop_assert!(RegionDescriptor::from_bytes(&damaged).is_err());
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut sealed = MAGIC.to_vec();
            sealed.extend_from_slice(&DESCRIPTOR_VERSION.to_le_bytes());
            sealed.extend_from_slice(&bytes);
            let sum = checksum(&sealed);
            sealed.extend_from_slice(&sum);
            if let Ok(read) = RegionDescriptor::from_bytes(&sealed) {
                prop_assert_eq!(read.to_bytes().expect("was short enough"), sealed);
            }
        }
    }
}
