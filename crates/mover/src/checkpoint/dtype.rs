//! Element types of the safetensors format and the size of a tensor of each.

use std::fmt;

/// Writes the enum and its table once, so that a type cannot be added to one and not the other.
macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal,)*) => {
        /// One element type that a safetensors header may name.
        ///
        /// The list is the one of the safetensors crate 0.8; anything else is refused, because a
        /// size cannot be checked against a type of unknown width.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, non_camel_case_types)]
        pub enum Dtype {
            $($variant,)*
        }

        impl Dtype {
            /// Every element type, in the format's order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name as it stands in a header.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Bits of one element; four and six for the sub-byte types, which are packed.
            pub const fn bits(self) -> u64 {
                match self {
                    $(Self::$variant => $bits,)*
                }
            }

            /// The type with exactly this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    Bool "BOOL" 8,
    F4 "F4" 4,
    F6_E2M3 "F6_E2M3" 6,
    F6_E3M2 "F6_E3M2" 6,
    U8 "U8" 8,
    I8 "I8" 8,
    F8_E5M2 "F8_E5M2" 8,
    F8_E4M3 "F8_E4M3" 8,
    F8_E8M0 "F8_E8M0" 8,
    F8_E4M3FNUZ "F8_E4M3FNUZ" 8,
    F8_E5M2FNUZ "F8_E5M2FNUZ" 8,
    I16 "I16" 16,
    U16 "U16" 16,
    F16 "F16" 16,
    BF16 "BF16" 16,
    I32 "I32" 32,
    U32 "U32" 32,
    F32 "F32" 32,
    C64 "C64" 64,
    F64 "F64" 64,
    I64 "I64" 64,
    U64 "U64" 64,
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
            .iter()
            .copied()
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
        if bits.is_multiple_of(8) {
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
        for &dtype in Dtype::ALL {
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
