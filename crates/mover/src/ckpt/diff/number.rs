//! Elements as numbers.

use crate::checkpoint::dtype::Dtype;

/// Reads the elements of one type.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    size: usize,
    read: Read,
}

#[derive(Clone, Copy)]
enum Read {
    Signed,
    Unsigned,
    F64,
    F32,
    /// Exponent bits and mantissa bits of a small float, and how its largest exponent is used.
    Small(u32, u32, Top),
}

/// What the largest exponent of a float stands for.
#[derive(Clone, Copy, PartialEq)]
enum Top {
    /// Infinity and what is no number, as in IEEE 754.
    Ieee,
    /// Numbers, all but the largest mantissa (OCP 8-bit formats, `e4m3fn`).
    Finite,
}

impl Reader {
    /// `None` for types that are no single number, or that are rare and written nowhere exactly.
    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        let read = match dtype {
            Dtype::F64 => Read::F64,
            Dtype::F32 => Read::F32,
            Dtype::F16 => Read::Small(5, 10, Top::Ieee),
            Dtype::BF16 => Read::Small(8, 7, Top::Ieee),
            Dtype::F8_E5M2 => Read::Small(5, 2, Top::Ieee),
            Dtype::F8_E4M3 => Read::Small(4, 3, Top::Finite),
            Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => Read::Signed,
            Dtype::Bool | Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => Read::Unsigned,
            _ => return None,
        };
        let size = (dtype.bits() / 8) as usize;
        Some(Self { size, read })
    }

    /// Bytes of an element.
    pub(super) const fn size(self) -> usize {
        self.size
    }

    /// The absolute difference of two elements; not finite when one of them is not.
    pub(super) fn distance(self, one: &[u8], other: &[u8]) -> f64 {
        let (one, other) = (bits(one), bits(other));
        match self.read {
            // Whole numbers first, so that large ones that differ by little do so here too.
            Read::Unsigned => one.abs_diff(other) as f64,
            Read::Signed => {
                let unused = 64 - 8 * self.size as u32;
                let signed = |bits: u64| ((bits << unused) as i64) >> unused;
                signed(one).abs_diff(signed(other)) as f64
            }
            _ => (self.float(one) - self.float(other)).abs(),
        }
    }

    fn float(self, bits: u64) -> f64 {
        match self.read {
            Read::F64 => f64::from_bits(bits),
            Read::F32 => f32::from_bits(bits as u32).into(),
            Read::Small(exponent, mantissa, top) => small(bits, exponent, mantissa, top),
            Read::Signed | Read::Unsigned => f64::NAN,
        }
    }
}

/// Little-endian bytes as a number.
fn bits(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The value of a float of this many exponent and mantissa bits (IEEE 754, section 3.4).
fn small(bits: u64, exponent_bits: u32, mantissa_bits: u32, top: Top) -> f64 {
    let mantissa_mask = (1 << mantissa_bits) - 1;
    let exponent_mask = (1 << exponent_bits) - 1;
    let mantissa = bits & mantissa_mask;
    let exponent = bits >> mantissa_bits & exponent_mask;
    let negative = bits >> (mantissa_bits + exponent_bits) & 1 == 1;
    let bias = exponent_mask as i32 >> 1;
    let scale = f64::from(1u32 << mantissa_bits);
    let fraction = mantissa as f64 / scale;
    let special = exponent == exponent_mask;
    let value = match top {
        Top::Ieee if special && mantissa == 0 => f64::INFINITY,
        Top::Ieee if special => f64::NAN,
        Top::Finite if special && mantissa == mantissa_mask => f64::NAN,
        _ if exponent == 0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent as i32 - bias),
    };
    if negative { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(dtype: Dtype, bytes: &[u8]) -> f64 {
        Reader::of(dtype).expect("a number").float(bits(bytes))
    }

    #[test]
    fn small_floats_are_what_their_formats_say() {
        let cases: [(Dtype, &[u8], f64); 12] = [
            (Dtype::F16, &[0x00, 0x3c], 1.0),
            (Dtype::F16, &[0xff, 0x7b], 65504.0),
            (Dtype::F16, &[0x01, 0x00], 5.960_464_477_539_063e-8),
            (Dtype::F16, &[0x00, 0xfc], f64::NEG_INFINITY),
            (Dtype::BF16, &[0x80, 0x3f], 1.0),
            (Dtype::BF16, &[0x49, 0xc0], -3.140_625),
            (Dtype::F8_E4M3, &[0x7e], 448.0),
            (Dtype::F8_E4M3, &[0x01], 0.001_953_125),
            (Dtype::F8_E5M2, &[0x7b], 57344.0),
            (Dtype::F8_E5M2, &[0x7c], f64::INFINITY),
            (Dtype::F32, &[0x00, 0x00, 0x80, 0x3f], 1.0),
            (Dtype::F64, &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f], 1.0),
        ];
        for (dtype, bytes, expected) in cases {
            assert_eq!(float(dtype, bytes), expected, "{dtype} {bytes:?}");
        }
        for (dtype, bytes) in [(Dtype::F16, [0x01, 0x7c]), (Dtype::BF16, [0xc0, 0x7f])] {
            assert!(float(dtype, &bytes).is_nan());
        }
        assert!(float(Dtype::F8_E4M3, &[0x7f]).is_nan());
    }

    #[test]
    fn every_bfloat16_is_the_upper_half_of_a_float() {
        for bits in 0..=u16::MAX {
            let wide = f64::from(f32::from_bits(u32::from(bits) << 16));
            let read = float(Dtype::BF16, &bits.to_le_bytes());
            assert!(
                read == wide || (read.is_nan() && wide.is_nan()),
                "{bits:04x}"
            );
        }
    }

    #[test]
    fn whole_numbers_are_subtracted_before_they_lose_digits() {
        let reader = Reader::of(Dtype::I64).expect("a number");
        let (one, other) = (i64::MAX.to_le_bytes(), (i64::MAX - 3).to_le_bytes());
        assert_eq!(reader.distance(&one, &other), 3.0);
        let reader = Reader::of(Dtype::I8).expect("a number");
        assert_eq!(reader.distance(&[0x80], &[0x7f]), 255.0);
        assert!(Reader::of(Dtype::C64).is_none());
    }
}
