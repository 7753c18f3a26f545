//! Telling that the other end is a process of this host, whatever network namespace it is in.
//!
//! Bytes between two containers of a host go by a network that is made of memory. Congestion control
//! that paces what it sends, as BBR does, slows them down there and protects nobody.

use crate::fabric::identity::SharedKey;

/// Bytes of a mark.
const MARK: usize = 16;
/// Where the kernel says which of its lives this is; a random number that all its containers see.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// What all processes of one host say that share a key, and nobody can tell from it which host that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostMark(pub [u8; MARK]);

impl HostMark {
    /// This host's; `None` where the kernel does not say.
    pub(super) fn of_this_host(key: &SharedKey) -> Option<Self> {
        let boot = std::fs::read_to_string(BOOT).ok()?;
        Self::of(key, boot.trim())
    }

    fn of(key: &SharedKey, boot: &str) -> Option<Self> {
        if boot.is_empty() {
            return None;
        }
        let mut hasher = blake3::Hasher::new_keyed(key.as_bytes());
        hasher.update(b"crowfly host mark").update(boot.as_bytes());
        let mut mark = [0; MARK];
        hasher.finalize_xof().fill(&mut mark);
        Some(Self(mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_host_and_one_key_have_the_same_mark_and_no_others() {
        let (key, other) = (SharedKey::derive("one"), SharedKey::derive("other"));
        let mark = HostMark::of(&key, "a boot").expect("a mark");
        assert_eq!(HostMark::of(&key, "a boot"), Some(mark));
        assert_ne!(HostMark::of(&key, "another boot"), Some(mark));
        assert_ne!(HostMark::of(&other, "a boot"), Some(mark));
        assert_eq!(
            HostMark::of(&key, ""),
            None,
            "nobody is where nothing is said"
        );
    }
}
