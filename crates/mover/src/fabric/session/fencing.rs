//! How the two ends tell each other which links they closed when they have no control connection any more:
//! by streams of rails that are left. As long as the other end of a link is open, packets that are late still
//! write into its memory, and nobody says what came; so what is not answered is asked again.

use std::sync::Mutex;
use std::time::Duration;

use super::mending::Part;
use super::{Session, locked};
use crate::fabric::provider::{Link, RailId};

/// How long an answer may take before it is asked for again: what was said went by a rail that may have failed.
const AGAIN: Duration = Duration::from_millis(250);

/// When the peer was last asked again.
#[derive(Default)]
pub(super) struct Fencing(Mutex<Duration>);

impl Session {
    /// Says by a rail that this end of a link is closed, and what came by it; `asks` the same of the peer.
    pub(super) fn say_by_rail(&self, rail: RailId, link: &dyn Link, asks: bool) {
        let part = Part {
            rail,
            well: asks,
            endpoint: link.tally().unwrap_or_default(),
        };
        // Without such a rail there is nobody to say it to, and the scheduler knows.
        self.scheduler.says(&part.encode());
    }

    /// Asks again what the peer has not said of links that were closed here.
    pub(super) fn ask_again(&self, now: Duration) {
        if self.deaf().is_none() {
            return;
        }
        let doubtful = self.scheduler.doubtful();
        let mut last = locked(&self.fencing.0);
        if doubtful.is_empty() || now < last.saturating_add(AGAIN) {
            return;
        }
        *last = now;
        drop(last);
        for (rail, link) in doubtful {
            self.say_by_rail(rail, &*link, true);
        }
    }

    /// The peer says something by a rail, which it does once it has given up the control connection; `None` when
    /// that means nothing.
    pub(super) fn heard_by_rail(&self, word: &[u8]) -> Option<()> {
        let part = Part::decode(word)?;
        if self.deaf().is_none() {
            self.control_ended("the peer does not use it any more");
        }
        let (rail, asks) = (part.rail, part.well);
        self.peers_fell(Part {
            well: false,
            ..part
        });
        if asks && let Some(link) = self.scheduler.closed_link(rail) {
            self.say_by_rail(rail, &*link, false);
        }
        Some(())
    }
}
