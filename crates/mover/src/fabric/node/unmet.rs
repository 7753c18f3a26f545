//! Who connected and came to be no peer, and why.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::fabric::error::{FabricError, SharedIo};

/// The last ones whom this process could not greet, or who could not show that they have the key.
#[derive(Debug, Default)]
pub(super) struct Unmet {
    ungreeted: Mutex<Option<(Instant, SharedIo)>>,
    unproven: Mutex<Option<(Instant, String)>>,
}

fn since<T: Clone>(last: &Mutex<Option<(Instant, T)>>, began: Instant) -> Option<T> {
    let last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, what) = last.as_ref().filter(|(at, _)| *at >= began)?;
    Some(what.clone())
}

fn note<T>(last: &Mutex<Option<(Instant, T)>>, what: T) {
    *last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), what));
}

impl Unmet {
    /// No thread could be had to greet somebody.
    pub(super) fn without_thread(&self, error: std::io::Error) {
        note(&self.ungreeted, Arc::new(error));
    }

    /// How greeting somebody ended.
    pub(super) fn greeted(&self, ended: Result<(), FabricError>) {
        if let Err(FabricError::NotAuthenticated { address }) = ended {
            note(&self.unproven, address);
        }
    }

    /// Whether all who connected since then could be greeted.
    pub(super) fn all_greeted_since(&self, began: Instant) -> Result<(), FabricError> {
        match since(&self.ungreeted, began) {
            None => Ok(()),
            Some(source) => Err(FabricError::Setup {
                what: "starting a thread that greets who connects",
                source,
            }),
        }
    }

    /// Who connected since then and did not show that it has the key.
    pub(super) fn unproven_since(&self, began: Instant) -> Option<String> {
        since(&self.unproven, began)
    }
}
