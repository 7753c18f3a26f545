//! The line of flights with something left to post.
//!
//! Thousands may wait and end at one time, so that nobody looks for one in the line: a flight knows whether it is
//! in there, and what has ended is passed over when its turn comes, or taken out with all others like it.

use super::State;
use crate::fabric::flight::Flight;
use crate::fabric::provider::FlightId;

/// So many that have ended may always be in the line.
const SLACK: usize = 64;

impl State {
    /// Puts a flight at the end of the line, unless it is in it.
    pub(super) fn waits(&mut self, id: FlightId) {
        if self.enters(id) {
            self.waiting.push_back(id);
        }
    }

    /// Puts a flight back where it was: at the front.
    pub(super) fn waits_on(&mut self, id: FlightId) {
        if self.enters(id) {
            self.waiting.push_front(id);
        }
    }

    fn enters(&mut self, id: FlightId) -> bool {
        let flight = self.flights.get_mut(&id);
        flight.is_some_and(|flight| !std::mem::replace(&mut flight.waits, true))
    }

    /// Takes the first flight out of the line.
    pub(super) fn next_waiting(&mut self) -> Option<FlightId> {
        loop {
            let id = self.waiting.pop_front()?;
            if let Some(flight) = self.flights.get_mut(&id) {
                flight.waits = false;
                return Some(id);
            }
        }
    }

    /// The flights in the line, in its order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (FlightId, &Flight)> {
        let ids = self.waiting.iter();
        ids.filter_map(|id| Some((*id, &**self.flights.get(id)?)))
    }

    /// A flight has ended: so that those do not gather in the line, they are taken out when they are most of it.
    pub(super) fn tidy_line(&mut self) {
        if self.waiting.len() > 2 * self.flights.len() + SLACK {
            let flights = &self.flights;
            self.waiting.retain(|id| flights.contains_key(id));
        }
    }
}
