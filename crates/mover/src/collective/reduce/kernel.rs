//! One number, and the loop over many.

use crate::fabric::{Backing, Everywhere, merge, zip_slices};

/// A number of `N` bytes.
pub(super) trait Scalar<const N: usize>: Copy {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    fn divide(self, by: usize) -> Self;
}

/// Where the numbers are that are taken into others.
#[derive(Clone, Copy)]
pub(crate) enum With<'a> {
    /// In this process's own memory.
    Slice(&'a [u8]),
    /// From an offset on in memory that other ranks write into.
    Shared(&'a Backing, usize),
}

#[inline]
pub(super) fn fold<T: Scalar<N>, const N: usize>(
    into: &mut [u8],
    with: With<'_>,
    of: impl Fn(T, T) -> T,
) {
    zip(into, with, |one, other| {
        of(T::load(one), T::load(other)).store()
    });
}

/// The same of bits, whatever number they are.
#[inline]
pub(super) fn fold_bits<const N: usize>(
    into: &mut [u8],
    with: With<'_>,
    of: impl Fn(u8, u8) -> u8,
) {
    zip(into, with, bitwise::<N>(of));
}

fn bitwise<const N: usize>(of: impl Fn(u8, u8) -> u8) -> impl Fn([u8; N], [u8; N]) -> [u8; N] {
    move |one, other| {
        let mut bytes = one;
        for (byte, other) in bytes.iter_mut().zip(other) {
            *byte = of(*byte, other);
        }
        bytes
    }
}

/// Takes the numbers of all places together, in their order, and puts `last` of that in each of them.
#[inline]
pub(super) fn fold_everywhere<T: Scalar<N>, const N: usize>(
    all: Everywhere<'_>,
    of: impl Fn(T, T) -> T,
    last: impl Fn(T) -> T,
) {
    // Where a memory is shorter than the group laid it out nothing is done, as in `zip`.
    merge::<N>(
        all,
        |one, other| of(T::load(one), T::load(other)).store(),
        |number| last(T::load(number)).store(),
    );
}

/// The same of bits.
#[inline]
pub(super) fn fold_bits_everywhere<const N: usize>(all: Everywhere<'_>, of: impl Fn(u8, u8) -> u8) {
    merge::<N>(all, bitwise::<N>(of), |bytes| bytes);
}

#[inline]
fn zip<const N: usize>(into: &mut [u8], with: With<'_>, of: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    match with {
        With::Slice(with) => zip_slices::<N>(into, with, of),
        // Where the memory is shorter than the group laid it out nothing is taken from it.
        With::Shared(memory, offset) => {
            memory.zip_into::<N>(offset, into, of);
        }
    }
}

macro_rules! integers {
    ($($kind:ty: $size:literal),*) => {$(
        impl Scalar<$size> for $kind {
            #[inline]
            fn load(bytes: [u8; $size]) -> Self {
                Self::from_le_bytes(bytes)
            }

            #[inline]
            fn store(self) -> [u8; $size] {
                self.to_le_bytes()
            }

            #[inline]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline]
            fn divide(self, by: usize) -> Self {
                // More ranks than the kind can say make every quotient zero.
                Self::try_from(by).map_or(0, |by| self.wrapping_div(by))
            }
        }
    )*};
}

integers!(i8: 1, i16: 2, i32: 4, i64: 8, u8: 1);

macro_rules! floats {
    ($($kind:ty: $size:literal),*) => {$(
        impl Scalar<$size> for $kind {
            #[inline]
            fn load(bytes: [u8; $size]) -> Self {
                Self::from_le_bytes(bytes)
            }

            #[inline]
            fn store(self) -> [u8; $size] {
                self.to_le_bytes()
            }

            #[inline]
            fn add(self, other: Self) -> Self {
                let sum = self + other;
                // The processor passes the first operand's NaN on; which rank's that is would
                // depend on the algorithm.
                if sum.is_nan() { Self::NAN } else { sum }
            }

            #[inline]
            fn multiply(self, other: Self) -> Self {
                let product = self * other;
                if product.is_nan() { Self::NAN } else { product }
            }

            #[inline]
            fn least(self, other: Self) -> Self {
                let less = self < other || (self == other && self.is_sign_negative());
                let least = if less { self } else { other };
                if self.is_nan() || other.is_nan() { Self::NAN } else { least }
            }

            #[inline]
            fn greatest(self, other: Self) -> Self {
                let more = self > other || (self == other && self.is_sign_positive());
                let greatest = if more { self } else { other };
                if self.is_nan() || other.is_nan() { Self::NAN } else { greatest }
            }

            #[inline]
            fn divide(self, by: usize) -> Self {
                self / by as Self
            }
        }
    )*};
}

floats!(f32: 4, f64: 8);
