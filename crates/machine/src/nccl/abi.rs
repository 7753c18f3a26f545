//! What `nccl.h` says, of versions 2.14 and later.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;

/// `ncclComm_t`
pub(super) type Handle = *mut c_void;

/// `ncclSuccess`
pub(super) const SUCCESS: c_int = 0;
/// `ncclRemoteError`: another process has gone, or the network to it.
pub(super) const REMOTE_ERROR: c_int = 6;
/// `ncclInProgress`: of a call of a communicator that does not block.
pub(super) const IN_PROGRESS: c_int = 7;

/// `NCCL_UNIQUE_ID_BYTES`
pub(super) const UNIQUE_ID_BYTES: usize = 128;
/// What begins every configuration.
const CONFIG_MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_VERSION(2, 14, 0)`: the first version that had configurations, with what is set here.
const CONFIG_VERSION: c_uint = 21_400;

/// `ncclUniqueId`: what the ranks of a communicator find each other by. Who has it can join.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub(super) [u8; UNIQUE_ID_BYTES]);

impl UniqueId {
    /// One without meaning, to be overwritten.
    pub const ZERO: Self = Self([0; UNIQUE_ID_BYTES]);

    /// Its bytes, to be given to the other ranks.
    pub const fn bytes(&self) -> &[u8; UNIQUE_ID_BYTES] {
        &self.0
    }

    /// The same, to be overwritten by what another rank gave.
    pub const fn bytes_mut(&mut self) -> &mut [u8; UNIQUE_ID_BYTES] {
        &mut self.0
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

/// `ncclConfig_t` as version 2.14 has it; later versions know by its size and version what is not
/// there.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    pub(super) const NON_BLOCKING: Self = Self {
        size: size_of::<Self>(),
        magic: CONFIG_MAGIC,
        version: CONFIG_VERSION,
        blocking: 0,
    };
}

/// `ncclDataType_t`: a kind of number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// Signed, 8 bits.
    I8 = 0,
    /// Unsigned, 8 bits.
    U8 = 1,
    /// Signed, 32 bits.
    I32 = 2,
    /// Signed, 64 bits.
    I64 = 4,
    /// IEEE half precision.
    F16 = 6,
    /// IEEE single precision.
    F32 = 7,
    /// IEEE double precision.
    F64 = 8,
    /// The upper half of a single.
    Bf16 = 9,
}

impl Kind {
    /// Bytes of one.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }
}

/// `ncclRedOp_t`: how numbers become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Operation {
    /// Their sum.
    Sum = 0,
    /// Their product.
    Product = 1,
    /// The greatest.
    Max = 2,
    /// The least.
    Min = 3,
    /// Their sum divided by the number of ranks.
    Mean = 4,
}

pub(super) type Text = *const c_char;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_laid_out_as_version_2_14_has_it() {
        assert_eq!(size_of::<Config>(), 24);
        assert_eq!(std::mem::offset_of!(Config, magic), 8);
        assert_eq!(std::mem::offset_of!(Config, version), 12);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(size_of::<UniqueId>(), 128);
    }
}
