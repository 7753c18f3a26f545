//! The kinds of numbers that collectives work on.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// The kind of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F64,
        Self::F16,
        Self::Bf16,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
    ];

    /// The word used in options, tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }

    /// Bytes of one.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Whether sums can be worked out in single precision and rounded once.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// The number by which peers name it to each other.
    pub(crate) fn number(self) -> u8 {
        let at = Self::ALL.iter().position(|known| *known == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
    }

    pub(crate) fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no kind of number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no kind of number; choose f32, f64, f16, bf16, i8, i16, i32, i64 or u8")]
pub struct UnknownElement(pub String);

impl FromStr for Element {
    type Err = UnknownElement;

    fn from_str(text: &str) -> Result<Self, UnknownElement> {
        let named = Self::ALL.into_iter().find(|known| known.as_str() == text);
        named.ok_or_else(|| UnknownElement(text.to_owned()))
    }
}
