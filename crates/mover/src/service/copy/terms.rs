//! What all parts of a copy need to know.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_route::place::Place;
use crowfly_route::policy::Policy;

use super::Watch;
use crate::objects::{self, Store};
use crate::service::account::Doing;
use crate::service::attributes::{Attributes, Wanted};
use crate::service::client::Client;
use crate::service::error::ServiceError;
use crate::service::limits::PATIENCE;

/// What all parts of a copy need to know.
pub(crate) struct Terms {
    /// The connection to the server that has the source.
    pub source: Option<Client>,
    /// The connection to the server that keeps the destination.
    pub goal: Option<Client>,
    /// The store that has the source.
    pub from_store: Option<Arc<Store>>,
    /// The store that keeps the destination.
    pub to_store: Option<Arc<Store>>,
    /// Whether that is the same one, and copies by itself.
    pub within: bool,
    /// Why it does not, where both sides are objects.
    pub apart: Option<&'static str>,
    /// The memory at the end that is at no store and no server.
    pub here: Place,
    pub replace: bool,
    pub preserve: bool,
    pub verify: bool,
    pub resume: bool,
    pub policy: Policy,
    pub until: Option<Instant>,
    pub timeout: Duration,
    pub watch: Option<Watch>,
}

impl Terms {
    /// Whether checksums are made at all.
    pub(super) const fn sums(&self) -> bool {
        self.verify || self.resume
    }

    pub(super) fn source(&self) -> Result<&Client, ServiceError> {
        self.source.as_ref().ok_or_else(not_connected)
    }

    pub(super) fn goal(&self) -> Result<&Client, ServiceError> {
        self.goal.as_ref().ok_or_else(not_connected)
    }

    pub(super) fn source_store(&self) -> Result<&Arc<Store>, ServiceError> {
        self.from_store.as_ref().ok_or_else(not_connected)
    }

    pub(super) fn goal_store(&self) -> Result<&Arc<Store>, ServiceError> {
        self.to_store.as_ref().ok_or_else(not_connected)
    }

    /// The crossing that brings bytes to a store.
    pub(super) const fn crossing_to_store(&self) -> Doing {
        match self.source.is_some() || self.from_store.is_some() {
            true => Doing::Onward,
            false => Doing::Crossing,
        }
    }

    /// The crossing that brings the bytes to their destination.
    pub(super) const fn last_crossing(&self) -> Doing {
        match (
            self.source.is_some() || self.from_store.is_some(),
            &self.goal,
        ) {
            (true, Some(_)) => Doing::Onward,
            _ => Doing::Crossing,
        }
    }

    /// Until when a request to a store may last.
    pub(super) fn request_until(&self) -> Instant {
        let patience = Instant::now() + PATIENCE;
        self.until.map_or(patience, |until| until.min(patience))
    }

    /// Until when a store may take to get so many bytes, tries that fail included.
    pub(super) fn far_until(&self, bytes: u64) -> Instant {
        let patience = Instant::now() + objects::time_for(bytes);
        self.until.map_or(patience, |until| until.min(patience))
    }

    /// What a copy of something with these attributes is to have.
    pub(super) const fn wanted(&self, of: Option<Attributes>) -> Wanted {
        Wanted {
            of,
            preserved: self.preserve,
        }
    }

    /// Whether there is time left.
    pub(super) fn in_time(&self) -> Result<(), ServiceError> {
        match self.until {
            Some(until) if Instant::now() >= until => Err(ServiceError::Deadline {
                what: "the copy",
                after: self.timeout,
            }),
            _ => Ok(()),
        }
    }
}

fn not_connected() -> ServiceError {
    ServiceError::Protocol {
        peer: "this process".into(),
        what: "it is connected to no server",
    }
}
