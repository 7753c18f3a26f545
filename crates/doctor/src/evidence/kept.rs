//! Texts that another part of crowfly reads: kept whole, up to a limit.

use serde::Serialize;

use super::cite::Cite;

/// Most of such a text that is kept, in bytes.
pub const MAX_KEPT_BYTES: usize = 16 << 20;

/// A text for another reader.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptText {
    /// The text, lines joined with `\n`.
    pub text: String,
    /// Its first line.
    pub cite: Cite,
    /// Whether all of it is here: not longer than [`MAX_KEPT_BYTES`] and not cut off.
    pub complete: bool,
}
