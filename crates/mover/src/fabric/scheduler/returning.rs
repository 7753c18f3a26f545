//! What becomes of transfers while a rail is made anew: those that no other rail can carry wait for it, and
//! neither a value that may have arrived nor bytes that may still come are sent again before the peer has
//! closed its end and said what came. Late bytes would overwrite what follows the transfer that they are of.
//!
//! All this needs the control connection. Without it nothing returns, and what waits for a rail fails. The peer
//! is then asked to close its end over the streams of other rails, where one of them has any. Where none has,
//! bytes go by another rail once the network has forgotten the late ones, and what cannot be known to be
//! forgotten fails: whoever is told so knows that late bytes may still come.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crowfly_route::units::significant;

use super::{Scheduler, State};
use crate::fabric::error::FabricError;
use crate::fabric::flight::Flight;
use crate::fabric::provider::{FlightId, Link, OpId, RailId, Verb};
use crate::fabric::rail::{InFlight, RailState};

/// How many rails may fail while one transfer is under way, the same one made anew included.
pub(super) const MAX_FALLS: u64 = 64;

/// What can be done about rails that fail.
#[derive(Default)]
pub(super) struct Returning {
    /// Whether the peer can be told, and asked, things by the control connection.
    talks: bool,
    /// Whether it could be, and can be no more save by rails.
    deaf: bool,
    /// Places of rails that are made anew when they fail.
    places: BTreeSet<u16>,
    /// Links that were closed since the peer was last told what came by them.
    closed: Vec<(RailId, Arc<dyn Link>)>,
}

impl Returning {
    pub(super) fn closed(&mut self, rail: RailId, link: &Arc<dyn Link>) {
        if self.talks || self.deaf {
            self.closed.push((rail, Arc::clone(link)));
        }
    }
}

impl Scheduler {
    /// From now on rails at these places are made anew when they fail, and the peer says of each link that
    /// it closed what came by it.
    pub(crate) fn makes_anew(&self, places: impl IntoIterator<Item = u16>) {
        let returning = &mut self.state().returning;
        returning.talks = true;
        returning.places.extend(places);
    }

    /// A rail stays down when it fails.
    pub(crate) fn leaves_alone(&self, place: u16) {
        self.state().returning.places.remove(&place);
    }

    /// No rail is made anew any more, and what the peer says comes by rails alone: what waits for either in vain
    /// fails.
    pub(crate) fn nothing_returns(&self, now: Duration) {
        self.step(|state| {
            state.now = state.now.max(now);
            state.returning.deaf |= state.returning.talks;
            state.returning.talks = false;
            state.learns_no_more();
            state.fail_stranded();
            state.pump();
        });
    }

    /// The peer has closed its end of a rail, which is down here as well, and says what came by it.
    pub(crate) fn learns(&self, rail: RailId, tally: Option<&[u8]>, now: Duration) {
        self.step(|state| {
            state.now = state.now.max(now);
            if let Some(known) = state.rails.get_mut(&rail) {
                known.told = Some(tally.map(<[u8]>::to_vec));
            }
            state.learns(rail, tally);
            state.pump();
        });
    }

    /// Links that were closed since this was last asked.
    pub(crate) fn take_closed(&self) -> Vec<(RailId, Arc<dyn Link>)> {
        std::mem::take(&mut self.state().returning.closed)
    }

    /// Links that were closed and whose peer has to say what came by them.
    pub(crate) fn doubtful(&self) -> Vec<(RailId, Arc<dyn Link>)> {
        let state = self.state();
        let doubtful = state.rails.iter().filter(|(_, known)| {
            let in_doubt = !known.in_doubt.is_empty();
            in_doubt && known.closed.is_some() && known.told.is_none()
        });
        doubtful
            .map(|(id, known)| (*id, Arc::clone(&known.rail.link)))
            .collect()
    }

    /// The link of a rail, if it is closed.
    pub(crate) fn closed_link(&self, rail: RailId) -> Option<Arc<dyn Link>> {
        let state = self.state();
        let known = state.rails.get(&rail)?;
        known.closed.map(|_| Arc::clone(&known.rail.link))
    }

    /// Has something said to the peer by every rail that can: which of them reaches it is not known.
    pub(crate) fn says(&self, word: &[u8]) {
        let speakers: Vec<Arc<dyn Link>> = self.state().speakers().map(Arc::clone).collect();
        speakers.iter().for_each(|link| link.say(word.to_vec()));
    }

    /// Whether some transfer waits for a rail that is down.
    pub(crate) fn is_awaited(&self) -> bool {
        let state = self.state();
        state.waiting().any(|(_, flight)| state.is_stranded(flight))
    }

    /// Whether something went well by a rail since it was made.
    pub(crate) fn has_carried(&self, place: u16) -> bool {
        let state = self.state();
        let latest = state.latest();
        let known = latest.get(&place).and_then(|id| state.rails.get(id));
        known.is_some_and(|known| known.totals().ops > 0)
    }
}

impl State {
    /// Whether a rail can take pieces of a transfer now, room aside.
    pub(super) fn is_usable(&self, rail: RailId, flight: &Flight) -> bool {
        let known = self.rails.get(&rail);
        known.is_some_and(|known| known.down.is_none() && !known.retiring && known.suits(flight))
    }

    /// Whether no rail can take pieces of a transfer now.
    pub(super) fn is_stranded(&self, flight: &Flight) -> bool {
        let mut rails = flight.plan.tiers.iter().flatten();
        !rails.any(|rail| self.is_usable(*rail, flight))
    }

    /// Whether a rail that could carry a transfer may come back.
    pub(super) fn may_return(&self, flight: &Flight) -> bool {
        let mut rails = flight.plan.tiers.iter().flatten();
        rails.any(|rail| {
            let known = self.rails.get(rail);
            known.is_some_and(|known| self.is_made_anew(known) && known.suits(flight))
        })
    }

    /// Whether a rail is made anew when it fails.
    pub(super) fn is_made_anew(&self, known: &RailState) -> bool {
        self.is_answered() && self.returning.places.contains(&known.rail.slot)
    }

    const fn is_answered(&self) -> bool {
        self.returning.talks && self.lost.is_none()
    }

    /// Ends the transfers that wait for a rail where none can come back.
    pub(super) fn fail_stranded(&mut self) {
        let stranded = self
            .waiting()
            .filter(|(_, flight)| self.is_stranded(flight) && !self.may_return(flight));
        let stranded: Vec<FlightId> = stranded.map(|(id, _)| id).collect();
        for id in stranded {
            let error = self.peer_lost("every rail that could carry the transfer is down");
            self.fail(id, error);
        }
    }

    /// Links by which the peer can be told and asked things without the control connection.
    fn speakers(&self) -> impl Iterator<Item = &Arc<dyn Link>> {
        let up = self.rails.values().filter(|known| known.down.is_none());
        let links = up.map(|known| &known.rail.link);
        links.filter(|link| link.takes_word())
    }

    /// Whether bytes of an op of a rail that failed may still be on their way to the peer's memory, in a session
    /// that can do something about it.
    pub(super) fn may_come_late(&self, rail: RailId, entry: &InFlight) -> bool {
        let flight = self.flights.get(&entry.flight);
        let writes = flight.is_some_and(|flight| flight.order.verb == Verb::Write);
        let lingers = || {
            let known = self.rails.get(&rail);
            known.is_some_and(|known| known.rail.link.lingers() != Some(Duration::ZERO))
        };
        let deaf = self.returning.deaf && self.lost.is_none() && lingers();
        writes && entry.bytes > 0 && (self.is_answered() || deaf)
    }

    /// When no bytes of a rail can be on their way any more, where something waits for that.
    pub(super) fn forgotten(&self, known: &RailState) -> Option<Duration> {
        let waits = self.returning.deaf && !known.in_doubt.is_empty();
        let since = known.closed.filter(|_| waits)?;
        Some(since.saturating_add(known.rail.link.lingers()?))
    }

    /// Keeps an op of a rail that is down, or is about to be, until the peer has closed its end: then nothing
    /// more comes by it, and the peer says whether the op's value did.
    pub(super) fn doubts(&mut self, rail: RailId, op: OpId, entry: InFlight) {
        let flight = self.flights.get_mut(&entry.flight);
        let flight = flight.filter(|flight| flight.ending.is_none());
        if let (Some(flight), Some(known)) = (flight, self.rails.get_mut(&rail)) {
            flight.in_flight += 1;
            known.in_doubt.push((op, entry));
        } else {
            self.settle(entry.flight);
        }
    }

    /// The peer may have said what came before it was known here what is in doubt.
    pub(super) fn recalls(&mut self, rail: RailId) {
        let told = self.rails.get(&rail).and_then(|known| known.told.clone());
        if let Some(tally) = told {
            self.learns(rail, tally.as_deref());
        }
    }

    /// Where nobody will say what came, doubts are at their end.
    pub(super) fn learns_no_more(&mut self) {
        if self.is_answered() {
            return;
        }
        let heard = self.returning.deaf && self.speakers().next().is_some();
        let doubtful = self
            .rails
            .iter()
            .filter(|(_, known)| !known.in_doubt.is_empty());
        let rails: Vec<RailId> = doubtful.map(|(id, _)| *id).collect();
        for rail in rails {
            let Some(known) = self.rails.get(&rail) else {
                continue;
            };
            let forgotten = match (self.returning.deaf, known.closed) {
                _ if self.lost.is_some() => true,
                (false, _) => true,
                // Its last ops failed before it was closed.
                (true, None) => continue,
                (true, Some(_)) => match self.forgotten(known) {
                    Some(at) => at <= self.now,
                    None if heard => continue,
                    None => {
                        self.gives_up(rail);
                        continue;
                    }
                },
            };
            if forgotten {
                self.learns(rail, None);
            }
        }
    }

    /// Nobody will ever know of the bytes of a rail that they do not come late: transfers that they are of end.
    fn gives_up(&mut self, rail: RailId) {
        let Some(known) = self.rails.get_mut(&rail) else {
            return;
        };
        let why = known.down.clone().unwrap_or_default();
        let (late, others): (Vec<_>, Vec<_>) = std::mem::take(&mut known.in_doubt)
            .into_iter()
            .partition(|(_, entry)| entry.bytes > 0);
        known.in_doubt = others;
        for (_, entry) in late {
            if let Some(flight) = self.flights.get_mut(&entry.flight) {
                flight.in_flight -= 1;
            }
            let error = FabricError::PeerLost {
                peer: self.peer,
                why: format!(
                    "{why}; whether bytes of the transfer are still on their way cannot be asked \
                     without the control connection"
                ),
            };
            self.fail(entry.flight, error);
        }
        self.learns(rail, None);
    }

    /// Decides the doubts of a rail by what its peer says.
    fn learns(&mut self, rail: RailId, tally: Option<&[u8]>) {
        let Some(known) = self.rails.get_mut(&rail) else {
            return;
        };
        let link = Arc::clone(&known.rail.link);
        let why = known.down.clone().unwrap_or_default();
        for (op, entry) in std::mem::take(&mut known.in_doubt) {
            if let Some(flight) = self.flights.get_mut(&entry.flight) {
                flight.in_flight -= 1;
            }
            if !link.is_in_doubt(op) {
                self.try_again(entry, &why);
                continue;
            }
            match tally.and_then(|tally| link.landed(op, tally)) {
                Some(true) => {
                    self.credits(rail, &entry);
                    self.settle(entry.flight);
                }
                Some(false) => self.try_again(entry, &why),
                None => {
                    let error = self.never_known(&why);
                    self.fail(entry.flight, error);
                }
            }
        }
    }

    fn never_known(&self, why: &str) -> FabricError {
        FabricError::PeerLost {
            peer: self.peer,
            why: format!(
                "{why}; whether the value that went with the transfer was counted is not known"
            ),
        }
    }

    /// Why a transfer that is overdue was not done in time.
    pub(super) fn too_late(&self, id: FlightId, flight: &Flight) -> FabricError {
        let after = flight.order.allowed;
        let mut rails = self.rails.values();
        let doubted = rails.find(|known| {
            let mut kept = known.in_doubt.iter();
            kept.any(|(op, entry)| entry.flight == id && known.rail.link.is_in_doubt(*op))
        });
        if let Some(known) = doubted {
            return self.never_known(known.down.as_deref().unwrap_or_default());
        }
        if flight.in_flight > 0 || !self.is_stranded(flight) {
            let what = "the transfer";
            return FabricError::Deadline { what, after };
        }
        let seconds = significant(after.as_secs_f64());
        match self.peer_lost("every rail that could carry the transfer is down") {
            FabricError::PeerLost { peer, why } => FabricError::PeerLost {
                peer,
                why: format!("{why}; no rail to it could be made anew within {seconds} s"),
            },
            other => other,
        }
    }
}
