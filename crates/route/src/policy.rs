//! What the caller asks of a transfer's route.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How far a transfer may stray from the straight route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Only a direct route will do: fails at set-up, before the first byte, with the obstacles.
    Require,
    /// The best available route; every detour is named in the receipt.
    #[default]
    Prefer,
    /// Through host RAM on purpose, to compare or to work round a fault.
    Staged,
    /// Through the kernel's network stack on purpose.
    Socket,
}

impl Policy {
    /// All policies, in the order they are documented.
    pub const ALL: [Self; 4] = [Self::Require, Self::Prefer, Self::Staged, Self::Socket];

    /// The word used in flags, JSON and receipts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::Staged => "staged",
            Self::Socket => "socket",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a policy; choose require, prefer, staged or socket")]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|p| p.as_str() == text)
            .ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}
