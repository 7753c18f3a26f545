//! Half precision: worked out in single precision and rounded to nearest, ties to even.

use super::kernel::Scalar;
use crate::collective::element::Element;

/// IEEE half precision, as its bits.
#[derive(Clone, Copy)]
pub(super) struct F16(u16);

/// The upper half of a single, as its bits.
#[derive(Clone, Copy)]
pub(super) struct Bf16(u16);

/// The NaN that every NaN of half precision becomes.
const F16_NAN: u16 = 0x7e00;
/// The same of bfloat16.
const BF16_NAN: u16 = 0x7fc0;

impl F16 {
    #[inline]
    pub(super) fn to_f32(self) -> f32 {
        // The exponent is moved into place and corrected by a multiplication, which turns
        // subnormals into normal numbers by itself: 2^(127-15) brings the bias to that of a single.
        const REBIAS: f32 = f32::from_bits((254 - 15) << 23);
        let magnitude = u32::from(self.0 & 0x7fff) << 13;
        let scaled = f32::from_bits(magnitude) * REBIAS;
        let special = 0x7f80_0000 | magnitude;
        let bits = if magnitude >= 0x7c00 << 13 {
            special
        } else {
            scaled.to_bits()
        };
        f32::from_bits(bits | u32::from(self.0 & 0x8000) << 16)
    }

    #[inline]
    pub(super) fn of_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        // Below the least normal number, 2^-14: adding 0.5 puts the last place of a half's
        // subnormals, 2^-24, at the last place of the sum, and the addition rounds.
        let small = (f32::from_bits(magnitude) + 0.5)
            .to_bits()
            .wrapping_sub(0.5f32.to_bits());
        // Otherwise: bias corrected, half of the last place (less one unless odd) added, cut off.
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude
            .wrapping_sub((127 - 15) << 23)
            .wrapping_add(0xfff + odd)
            >> 13;
        let finite = if magnitude < (127 - 14) << 23 {
            small
        } else {
            normal
        };
        // 65520, half way between the largest number and what would come next, rounds to infinity.
        let bounded = if magnitude >= 0x477f_f000 {
            0x7c00
        } else {
            finite
        };
        let half = if magnitude > 0x7f80_0000 {
            u32::from(F16_NAN)
        } else {
            bounded | sign
        };
        Self(half as u16)
    }
}

impl Bf16 {
    #[inline]
    pub(super) fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline]
    pub(super) fn of_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let odd = (bits >> 16) & 1;
        let rounded = (bits.wrapping_add(0x7fff + odd) >> 16) as u16;
        Self(if value.is_nan() { BF16_NAN } else { rounded })
    }
}

macro_rules! halves {
    ($($kind:ty),*) => {$(
        impl Scalar<2> for $kind {
            #[inline]
            fn load(bytes: [u8; 2]) -> Self {
                Self(u16::from_le_bytes(bytes))
            }

            #[inline]
            fn store(self) -> [u8; 2] {
                self.0.to_le_bytes()
            }

            #[inline]
            fn add(self, other: Self) -> Self {
                Self::of_f32(self.to_f32() + other.to_f32())
            }

            #[inline]
            fn multiply(self, other: Self) -> Self {
                Self::of_f32(self.to_f32() * other.to_f32())
            }

            #[inline]
            fn least(self, other: Self) -> Self {
                Self::of_f32(Scalar::<4>::least(self.to_f32(), other.to_f32()))
            }

            #[inline]
            fn greatest(self, other: Self) -> Self {
                Self::of_f32(Scalar::<4>::greatest(self.to_f32(), other.to_f32()))
            }

            #[inline]
            fn divide(self, by: usize) -> Self {
                Self::of_f32(self.to_f32() / by as f32)
            }
        }
    )*};
}

halves!(F16, Bf16);

/// Half precision as single precision, as many numbers as `to` has room for.
pub(crate) fn widen(element: Element, from: &[u8], to: &mut [u8]) {
    let (from, to) = (from.as_chunks::<2>().0, to.as_chunks_mut::<4>().0);
    let pairs = from.iter().zip(to);
    match element {
        Element::F16 => pairs.for_each(|(from, to)| *to = F16::load(*from).to_f32().store()),
        _ => pairs.for_each(|(from, to)| *to = Bf16::load(*from).to_f32().store()),
    }
}

/// Single precision rounded to half precision, as many numbers as `to` has room for.
pub(crate) fn narrow(element: Element, from: &[u8], to: &mut [u8]) {
    let (from, to) = (from.as_chunks::<4>().0, to.as_chunks_mut::<2>().0);
    let pairs = from.iter().zip(to);
    match element {
        Element::F16 => pairs.for_each(|(from, to)| *to = F16::of_f32(f32::load(*from)).store()),
        _ => pairs.for_each(|(from, to)| *to = Bf16::of_f32(f32::load(*from)).store()),
    }
}
