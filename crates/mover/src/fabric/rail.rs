//! A rail to a peer as the scheduler sees it: its link, its load, its totals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;
use crowfly_route::units::Bytes;

use super::provider::{FlightId, Imm, Link, OpId, Segment};

/// A rail as it is told to the scheduler.
pub(crate) struct Rail {
    pub path: Path,
    pub nic: String,
    /// Share of the load, relative to the other rails.
    pub weight: f64,
    pub link: Arc<dyn Link>,
}

/// What went by one rail so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RailTotals {
    /// Bytes written to the peer.
    pub written: Bytes,
    /// Bytes read from the peer.
    pub read: Bytes,
    /// Ops that ended well.
    pub ops: u64,
    /// Ops that ended badly.
    pub failed_ops: u64,
}

/// The running totals of one rail.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RailReport {
    /// The engine path.
    pub path: Path,
    /// The NIC on this host.
    pub nic: String,
    /// Why it is down, if it is.
    pub down: Option<String>,
    /// What went by it.
    pub totals: RailTotals,
}

/// What the scheduler knows of a rail.
pub(crate) struct RailState {
    pub rail: Rail,
    pub class: Class,
    pub down: Option<String>,
    pub ops: HashMap<OpId, InFlight>,
    pub bytes: u64,
    pub full: bool,
    pub totals: RailTotals,
}

impl RailState {
    /// Whether another op of any size could be posted.
    pub(crate) fn has_room(&self) -> bool {
        let limits = self.rail.link.limits();
        self.down.is_none()
            && !self.full
            && self.ops.len() < limits.ops
            && (self.ops.is_empty() || self.bytes < limits.bytes)
    }

    pub(crate) fn moved(&self) -> u64 {
        self.totals.written.0 + self.totals.read.0
    }
}

/// An op that a link has and that has not ended.
pub(crate) struct InFlight {
    pub flight: FlightId,
    pub segments: Vec<Segment>,
    pub imm: Option<Imm>,
    pub bytes: u64,
    /// Since when its memory is waited for.
    pub leaving: Option<Duration>,
}

/// Whether a policy allows rails of a class.
pub(crate) const fn allows(policy: Policy, class: Class) -> bool {
    match policy {
        Policy::Require => matches!(class, Class::Direct),
        Policy::Staged => matches!(class, Class::Staged),
        Policy::Socket => matches!(class, Class::Socket),
        Policy::Prefer => true,
    }
}

/// Which path is straighter: smaller is better.
pub(crate) const fn rank(path: Path) -> u8 {
    match path {
        Path::Shm => 0,
        Path::Verbs => 1,
        _ => 2,
    }
}

pub(crate) fn asked_for(rail: &Rail, policy: Policy) -> Obstacle {
    Obstacle::blocks(
        Code::AskedFor,
        format!(
            "policy `{policy}` was asked for, which rules out {} of {}",
            rail.path, rail.nic
        ),
    )
    .seen("policy", policy.as_str())
    .fixed_by(Fix::by_hand("Ask for the policy `prefer`."))
}

pub(crate) fn rail_failed(rail: &Rail, why: &str) -> Obstacle {
    Obstacle::blocks(
        Code::RailFailed,
        format!("{} of {} failed while it was in use", rail.path, rail.nic),
    )
    .seen(format!("{}:{}", rail.path, rail.nic), why)
    .fixed_by(Fix::by_hand("Look at the NIC, its cable and the peer."))
}
