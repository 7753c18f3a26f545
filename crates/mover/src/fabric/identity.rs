//! Who a process on the fabric is: drawn by lot at its start, so a process started anew is
//! somebody else.

use std::fmt;
use std::str::FromStr;

use super::error::FabricError;

/// One life of one process on the fabric: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation([u8; 16]);

impl Incarnation {
    /// Draws a new one.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn draw() -> Result<Self, FabricError> {
        random().map(Self)
    }

    /// From bytes that were received.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes to send.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex(&self.0))
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The key that all processes of one fabric share. Whoever knows it may connect; regions have
/// capability keys of their own. Never printed.
#[derive(Clone)]
pub struct SharedKey([u8; 32]);

impl SharedKey {
    /// A new random key.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn generate() -> Result<Self, FabricError> {
        random().map(Self)
    }

    /// From its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Made from a secret text of any length, such as a job's identifier.
    pub fn derive(secret: &str) -> Self {
        Self(blake3::derive_key(
            "crowfly fabric shared key 1",
            secret.as_bytes(),
        ))
    }

    /// The 64 hexadecimal digits to put into a file that only its owner can read.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey(…)")
    }
}

/// The text is not a key of 64 hexadecimal digits. It is not quoted: it may be a mistyped secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 hexadecimal digits; this text of {length} bytes is not")]
pub struct BadKey {
    /// Its length.
    pub length: usize,
}

impl FromStr for SharedKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let text = text.trim();
        unhex(text).map(Self).ok_or(BadKey { length: text.len() })
    }
}

/// What a peer must present to reach a region: 128 random bits, known only from its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Capability([u8; 16]);

impl Capability {
    pub(crate) fn draw() -> Result<Self, FabricError> {
        random().map(Self)
    }

    pub(crate) const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(…)")
    }
}

/// Random bytes of the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], FabricError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(FabricError::setup("drawing random bytes", error)),
        }
    }
    Ok(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly `N` bytes of hexadecimal digits.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let bytes = unhex_all(text)?;
    bytes.try_into().ok()
}

pub(crate) fn unhex_all(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| (*byte as char).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_as_it_is_written_and_is_never_shown() {
        let key = SharedKey::generate().expect("random bytes");
        let read: SharedKey = key.to_hex().parse().expect("64 digits");
        assert_eq!(read.as_bytes(), key.as_bytes());
        assert!(!format!("{key:?}").contains(&key.to_hex()[..8]));
        for bad in ["", "00", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert_eq!(
                bad.parse::<SharedKey>().err(),
                Some(BadKey { length: bad.len() })
            );
        }
    }

    #[test]
    fn two_lives_are_never_the_same() {
        let (a, b) = (Incarnation::draw(), Incarnation::draw());
        assert_ne!(a.expect("random"), b.expect("random"));
    }
}
