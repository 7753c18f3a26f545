//! Whom to connect to: an address, and where that is known, which life of which process is meant.

use super::identity::Incarnation;
use super::rendezvous::Entry;

/// Whom to connect to. An address alone (`host:port`) is whoever answers there; an [`Entry`] of a directory is
/// the process that wrote it, and nobody who took its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whom {
    /// Where it listens, as `host:port`.
    pub address: String,
    /// Which life of it is meant; `None` for whoever answers.
    pub life: Option<Incarnation>,
}

impl From<&str> for Whom {
    fn from(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            life: None,
        }
    }
}

impl From<&String> for Whom {
    fn from(address: &String) -> Self {
        address.as_str().into()
    }
}

impl From<&Self> for Whom {
    fn from(whom: &Self) -> Self {
        whom.clone()
    }
}

impl From<&Entry> for Whom {
    fn from(entry: &Entry) -> Self {
        Self {
            address: entry.address.clone(),
            life: Some(entry.incarnation),
        }
    }
}
