//! Reduction of numbers that lie in memory as bytes.
//!
//! The loops have no branch, so that the compiler turns them into SIMD; they are there for any
//! processor and for one with wider registers. Tests hold them against one number at a time.
//!
//! Results do not depend on which operand came first: a NaN that comes of a NaN is always the same
//! one, and of two zeros the minimum is the negative one. Integers wrap. The mean is the sum
//! divided once at the end; that of integers is cut towards zero.

mod half;
mod kernel;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::element::Element;
use crate::fabric::Everywhere;
pub(crate) use half::{narrow, widen};
use kernel::Scalar;
pub(crate) use kernel::With;

/// How numbers of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// Their sum; integers wrap.
    Sum,
    /// The least; NaN if any is.
    Min,
    /// The greatest; NaN if any is.
    Max,
    /// Their sum divided by the number of ranks.
    Mean,
    /// Their product; integers wrap.
    Product,
    /// The bits that all have; of integers.
    And,
    /// The bits that any has; of integers.
    Or,
    /// The bits that an odd number of them has; of integers.
    Xor,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Sum,
        Self::Min,
        Self::Max,
        Self::Mean,
        Self::Product,
        Self::And,
        Self::Or,
        Self::Xor,
    ];

    /// The word used in options, tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Mean => "mean",
            Self::Product => "product",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
        }
    }

    /// Whether numbers of a kind can be reduced so: the bits of a float are no number's.
    pub const fn suits(self, element: Element) -> bool {
        let bits = matches!(self, Self::And | Self::Or | Self::Xor);
        let float = matches!(element, Element::F32 | Element::F64) || element.is_half();
        !(bits && float)
    }

    pub(crate) fn number(self) -> u8 {
        let at = Self::ALL.iter().position(|known| *known == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
    }

    pub(crate) fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no reduction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no reduction; choose sum, min, max, mean, product, and, or, xor")]
pub struct UnknownReduction(pub String);

impl FromStr for Reduction {
    type Err = UnknownReduction;

    fn from_str(text: &str) -> Result<Self, UnknownReduction> {
        let named = Self::ALL.into_iter().find(|known| known.as_str() == text);
        named.ok_or_else(|| UnknownReduction(text.to_owned()))
    }
}

macro_rules! each {
    ($element:expr, $call:ident::<_>($($argument:expr),*)) => {
        match $element {
            Element::F32 => $call::<f32, 4>($($argument),*),
            Element::F64 => $call::<f64, 8>($($argument),*),
            Element::F16 => $call::<half::F16, 2>($($argument),*),
            Element::Bf16 => $call::<half::Bf16, 2>($($argument),*),
            Element::I8 => $call::<i8, 1>($($argument),*),
            Element::I16 => $call::<i16, 2>($($argument),*),
            Element::I32 => $call::<i32, 4>($($argument),*),
            Element::I64 => $call::<i64, 8>($($argument),*),
            Element::U8 => $call::<u8, 1>($($argument),*),
        }
    };
}

/// Takes the numbers of `with` into those of `into`, as many as both have.
pub(crate) fn fold(element: Element, reduction: Reduction, into: &mut [u8], with: With<'_>) {
    each!(element, fold_as::<_>(reduction, into, with));
}

/// What is left to do when the last rank's numbers are in: the division of a mean over `ranks`.
pub(crate) fn finish(element: Element, reduction: Reduction, numbers: &mut [u8], ranks: usize) {
    if reduction == Reduction::Mean && ranks > 1 {
        each!(element, divide_as::<_>(numbers, ranks));
    }
}

/// Takes the numbers of all places together, in their order, finishes them as of `ranks` ranks, and puts the
/// result in every place.
pub(crate) fn fold_everywhere(
    element: Element,
    reduction: Reduction,
    all: Everywhere<'_>,
    ranks: usize,
) {
    each!(element, fold_everywhere_as::<_>(reduction, all, ranks));
}

fn fold_everywhere_as<T: Scalar<N>, const N: usize>(
    reduction: Reduction,
    all: Everywhere<'_>,
    ranks: usize,
) {
    let same = |number| number;
    match reduction {
        Reduction::Sum => kernel::fold_everywhere::<T, N>(all, T::add, same),
        Reduction::Mean => {
            kernel::fold_everywhere::<T, N>(all, T::add, |sum: T| sum.divide(ranks));
        }
        Reduction::Min => kernel::fold_everywhere::<T, N>(all, T::least, same),
        Reduction::Max => kernel::fold_everywhere::<T, N>(all, T::greatest, same),
        Reduction::Product => kernel::fold_everywhere::<T, N>(all, T::multiply, same),
        Reduction::And => kernel::fold_bits_everywhere::<N>(all, |one, other| one & other),
        Reduction::Or => kernel::fold_bits_everywhere::<N>(all, |one, other| one | other),
        Reduction::Xor => kernel::fold_bits_everywhere::<N>(all, |one, other| one ^ other),
    }
}

fn fold_as<T: Scalar<N>, const N: usize>(reduction: Reduction, into: &mut [u8], with: With<'_>) {
    match reduction {
        Reduction::Sum | Reduction::Mean => kernel::fold::<T, N>(into, with, T::add),
        Reduction::Min => kernel::fold::<T, N>(into, with, T::least),
        Reduction::Max => kernel::fold::<T, N>(into, with, T::greatest),
        Reduction::Product => kernel::fold::<T, N>(into, with, T::multiply),
        Reduction::And => kernel::fold_bits::<N>(into, with, |one, other| one & other),
        Reduction::Or => kernel::fold_bits::<N>(into, with, |one, other| one | other),
        Reduction::Xor => kernel::fold_bits::<N>(into, with, |one, other| one ^ other),
    }
}

fn divide_as<T: Scalar<N>, const N: usize>(numbers: &mut [u8], ranks: usize) {
    for bytes in numbers.as_chunks_mut::<N>().0 {
        *bytes = T::load(*bytes).divide(ranks).store();
    }
}
