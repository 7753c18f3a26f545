//! Element types of the safetensors format and the size of a tensor of each.

use std::fmt;

/// One element type that a safetensors header may name.
///
/// The list is the one of the safetensors crate 0.8; anything else is refused, because a size
/// cannot be checked against a type of unknown width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, non_camel_case_types)]
pub enum Dtype {
    Bool,
    F4,
    F6_E2M3,
    F6_E3M2,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    F8_E4M3FNUZ,
    F8_E5M2FNUZ,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

/// Why a dtype and a shape have no size in whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeFault {
    /// The bits of all dimensions together do not fit in 64 bits.
    Overflow,
    /// The tensor ends in the middle of a byte.
    Misaligned {
        /// Bits the tensor takes.
        bits: u64,
    },
}

impl Dtype {
    /// Every element type, in the format's order.
    pub const ALL: [Self; 22] = [
        Self::Bool,
        Self::F4,
        Self::F6_E2M3,
        Self::F6_E3M2,
        Self::U8,
        Self::I8,
        Self::F8_E5M2,
        Self::F8_E4M3,
        Self::F8_E8M0,
        Self::F8_E4M3FNUZ,
        Self::F8_E5M2FNUZ,
        Self::I16,
        Self::U16,
        Self::F16,
        Self::BF16,
        Self::I32,
        Self::U32,
        Self::F32,
        Self::C64,
        Self::F64,
        Self::I64,
        Self::U64,
    ];

    /// The name as it stands in a header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::F4 => "F4",
            Self::F6_E2M3 => "F6_E2M3",
            Self::F6_E3M2 => "F6_E3M2",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::F8_E5M2 => "F8_E5M2",
            Self::F8_E4M3 => "F8_E4M3",
            Self::F8_E8M0 => "F8_E8M0",
            Self::F8_E4M3FNUZ => "F8_E4M3FNUZ",
            Self::F8_E5M2FNUZ => "F8_E5M2FNUZ",
            Self::I16 => "I16",
            Self::U16 => "U16",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::I32 => "I32",
            Self::U32 => "U32",
            Self::F32 => "F32",
            Self::C64 => "C64",
            Self::F64 => "F64",
            Self::I64 => "I64",
            Self::U64 => "U64",
        }
    }

    /// Bits of one element; four and six for the sub-byte types, which are packed.
    pub const fn bits(self) -> u64 {
        match self {
            Self::F4 => 4,
            Self::F6_E2M3 | Self::F6_E3M2 => 6,
            Self::Bool
            | Self::U8
            | Self::I8
            | Self::F8_E5M2
            | Self::F8_E4M3
            | Self::F8_E8M0
            | Self::F8_E4M3FNUZ
            | Self::F8_E5M2FNUZ => 8,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 16,
            Self::I32 | Self::U32 | Self::F32 => 32,
            Self::C64 | Self::F64 | Self::I64 | Self::U64 => 64,
        }
    }

    /// The type with exactly this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The type most likely meant by a name that is not one, for a hint.
    pub fn nearest(name: &str) -> Option<Self> {
        const LONGEST_WORTH_COMPARING: usize = 24;
        if name.len() > LONGEST_WORTH_COMPARING {
            return None;
        }
        let upper = spelled_out(&name.to_ascii_uppercase());
        let distance = |dtype: Self| strsim::damerau_levenshtein(&upper, dtype.name());
        // Beyond a third of the letters a guess would mislead more than help.
        let worth_naming = (upper.len() / 3).max(1);
        Self::ALL
            .into_iter()
            .min_by_key(|&dtype| distance(dtype))
            .filter(|&dtype| distance(dtype) <= worth_naming)
    }

    /// Bytes that a tensor of this type and shape takes.
    ///
    /// Zero dimensions are left out of the product before it is checked, so that `[2^62, 2^62, 0]`
    /// is refused whatever the order of its dimensions.
    pub fn bytes_of(self, shape: &[u64]) -> Result<u64, SizeFault> {
        let bits = shape
            .iter()
            .filter(|&&dim| dim != 0)
            .try_fold(self.bits(), |bits, &dim| bits.checked_mul(dim))
            .ok_or(SizeFault::Overflow)?;
        if shape.contains(&0) {
            return Ok(0);
        }
        if bits % 8 == 0 {
            Ok(bits / 8)
        } else {
            Err(SizeFault::Misaligned { bits })
        }
    }
}

/// Turns the long names of the frameworks (`FLOAT16`, `BFLOAT16`, `UINT8`) into the short ones.
fn spelled_out(upper: &str) -> String {
    upper
        .replace("FLOAT", "F")
        .replace("UINT", "U")
        .replace("INT", "I")
        .replace("COMPLEX", "C")
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_type() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(Dtype::from_name("f32"), None);
    }

    #[test]
    fn sizes_are_counted_in_bits_and_must_end_on_a_byte() {
        assert_eq!(Dtype::F32.bytes_of(&[3, 5]), Ok(60));
        assert_eq!(Dtype::F32.bytes_of(&[]), Ok(4));
        assert_eq!(Dtype::F4.bytes_of(&[2, 3]), Ok(3));
        assert_eq!(Dtype::F6_E2M3.bytes_of(&[4]), Ok(3));
        assert_eq!(
            Dtype::F4.bytes_of(&[3]),
            Err(SizeFault::Misaligned { bits: 12 })
        );
        assert_eq!(
            Dtype::F6_E3M2.bytes_of(&[]),
            Err(SizeFault::Misaligned { bits: 6 })
        );
    }

    #[test]
    fn a_zero_dimension_empties_a_tensor_but_excuses_no_overflow() {
        assert_eq!(Dtype::F64.bytes_of(&[0, 1 << 40]), Ok(0));
        assert_eq!(Dtype::F4.bytes_of(&[0, 3]), Ok(0));
        for huge in [[0, 1 << 40, 1 << 40], [1 << 40, 1 << 40, 0]] {
            assert_eq!(Dtype::U8.bytes_of(&huge), Err(SizeFault::Overflow));
        }
        assert_eq!(Dtype::U8.bytes_of(&[1 << 61]), Err(SizeFault::Overflow));
    }

    #[test]
    fn the_nearest_name_is_offered_only_when_it_is_near() {
        assert_eq!(Dtype::nearest("float32"), Some(Dtype::F32));
        assert_eq!(Dtype::nearest("bfloat16"), Some(Dtype::BF16));
        assert_eq!(Dtype::nearest("F8_E4M3FN"), Some(Dtype::F8_E4M3));
        assert_eq!(Dtype::nearest("quantised-block"), None);
        assert_eq!(Dtype::nearest(""), None);
    }
}
