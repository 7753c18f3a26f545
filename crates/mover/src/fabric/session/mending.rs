//! Rails that failed are made anew: by the end that dialled, with growing pauses, over the control
//! connection and by the same steps by which they were first made.
//!
//! Both ends tell each other which links of theirs were closed, and what had come by them, or are worn:
//! still carrying, by a part of their lanes. Whoever hears of a closed link closes its own end, so an old
//! link writes nothing any more once there is a new one. The dialer sends its half of a new link, the
//! acceptor answers with its own; the dialer joins and says so, and the acceptor joins and says so. Each new
//! link of a rail has a number of its own, the same at both ends, so that what is said of an old one is never
//! taken for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Session, locked};
use crate::fabric::conn::Frame;
use crate::fabric::fields::{Reader, Writer};
use crate::fabric::hello::MAX_RAILS;
use crate::fabric::nics::{Nearness, Nic};
use crate::fabric::provider::{Endpoint, Events, Joining, Link, MAX_TALLY, Meeting, RailId, Role};
use crate::fabric::rail::Rail;
use crate::fabric::wire::{Kind, Violation};

/// The pause before the first attempt, which doubles with each that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// The longest pause while transfers wait for a rail.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// A rail that held for this long, or by which something came to its end, starts with the first pause again
/// when it fails.
const STEADY: Duration = Duration::from_secs(30);
/// The time that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(4);
/// Frames of one attempt that may wait to be looked at.
const MAX_WAITING: usize = 4;

/// What a rail is made of, to make it again.
#[derive(Clone)]
pub(crate) struct Makings {
    pub nic: Nic,
    pub weight: f64,
    pub nearness: Arc<Nearness>,
}

/// Which end of the session this is, and where the two met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub role: Role,
    pub meeting: Meeting,
}

/// When a rail is tried again.
struct Attempt {
    next: Duration,
    pause: Duration,
    returned: Option<Duration>,
}

impl Attempt {
    fn first(now: Duration) -> Self {
        Self {
            next: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
            returned: None,
        }
    }
}

/// The state of a session's mending.
#[derive(Default)]
pub(super) struct Mending(Mutex<State>);

#[derive(Default)]
struct State {
    met: Option<Met>,
    makings: BTreeMap<u16, Makings>,
    /// Rails that were taken out of use on purpose.
    kept_out: BTreeSet<u16>,
    /// Rails that the peer said are worn.
    worn: BTreeSet<u16>,
    attempts: BTreeMap<u16, Attempt>,
    /// Worn links that the peer was told of.
    told: BTreeSet<RailId>,
    /// What the peer last said of a link that this end has not taken into use yet.
    early: Option<Part>,
    generation: u32,
    /// Where the frames of the attempt that is under way go.
    under_way: Option<SyncSender<Said>>,
}

/// A frame of an attempt.
struct Said {
    kind: Kind,
    part: Part,
}

/// What ends tell each other about a new link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) rail: RailId,
    /// Whether the step went well; of a link that fell, whether it still carries, or by a rail, whether the
    /// other end is to say the same.
    pub(super) well: bool,
    /// The half of the new link, where one is told; of a closed link what came by it, where that is known.
    pub(super) endpoint: Vec<u8>,
}

impl Part {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(self.rail.0)
            .u8(u8::from(self.well))
            .bytes(&self.endpoint);
        out.finish()
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(body);
        let rail = RailId(fields.u32()?);
        let well = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let endpoint = fields.bytes(MAX_TALLY)?.to_vec();
        fields.is_done().then_some(Self {
            rail,
            well,
            endpoint,
        })
    }
}

/// The place of a rail's links among the session's.
const fn slot_of(rail: RailId) -> u16 {
    // The remainder fits.
    (rail.0 % MAX_RAILS as u32) as u16
}

impl Session {
    /// Says how its rails were made.
    pub(crate) fn made_by(&self, met: Met, makings: BTreeMap<u16, Makings>) {
        self.scheduler.makes_anew(makings.keys().copied());
        let mut state = locked(&self.mending.0);
        state.met = Some(met);
        state.makings = makings;
    }

    /// Takes a rail out of use, until [`Session::mend_rail`].
    pub(crate) fn break_rail(&self, index: usize) {
        if let Some((slot, rail)) = self.scheduler.rail_at(index) {
            locked(&self.mending.0).kept_out.insert(slot);
            self.scheduler.leaves_alone(slot);
            let why = "it was taken out of use";
            self.scheduler.down(rail, why, self.now());
        }
    }

    /// Lets a rail that was taken out of use come back.
    pub(crate) fn mend_rail(&self, index: usize) {
        if let Some((slot, _)) = self.scheduler.rail_at(index) {
            let mut state = locked(&self.mending.0);
            state.kept_out.remove(&slot);
            state.attempts.remove(&slot);
            self.scheduler.makes_anew([slot]);
        }
    }

    /// Tells the peer of links that were closed here: as long as its end is open, packets that are late
    /// still write into its memory.
    pub(super) fn tell_fallen(&self) {
        // What cannot be told yet is told later.
        if self.control.get().is_none() {
            return;
        }
        let deaf = self.deaf().is_some();
        for (rail, link) in self.scheduler.take_closed() {
            match deaf {
                true => self.say_by_rail(rail, &*link, true),
                false => self.say(Kind::Fallen, rail, false, link.tally().unwrap_or_default()),
            }
        }
    }

    /// Tells the peer of rails that failed here or are worn, and starts the next attempt to make one anew.
    pub(super) fn mend(&self, now: Duration) {
        if self.deaf().is_some() {
            return;
        }
        self.tell_fallen();
        let fallen = self.scheduler.fallen();
        let mut state = locked(&self.mending.0);
        let Some(met) = state.met else {
            return;
        };
        state.told.retain(|known| fallen.contains(&(*known, true)));
        for (rail, _) in fallen.iter().filter(|(_, worn)| *worn) {
            if state.told.insert(*rail) {
                self.say(Kind::Fallen, *rail, true, Vec::new());
            }
        }
        if met.role != Role::Dialer || state.under_way.is_some() {
            return;
        }
        let mut wanted: BTreeSet<u16> = fallen.iter().map(|(rail, _)| slot_of(*rail)).collect();
        wanted.extend(&state.worn);
        wanted.retain(|slot| !state.kept_out.contains(slot) && state.makings.contains_key(slot));
        for slot in wanted {
            let State {
                attempts,
                generation,
                makings,
                ..
            } = &mut *state;
            let attempt = attempts.entry(slot).or_insert_with(|| Attempt::first(now));
            if let Some(returned) = attempt.returned.take() {
                let steady = now.saturating_sub(returned) >= STEADY;
                if steady || self.scheduler.has_carried(slot) {
                    attempt.pause = FIRST_PAUSE;
                }
                attempt.next = now + attempt.pause;
            }
            if attempt.next > now {
                continue;
            }
            *generation = generation.wrapping_add(1);
            let rail = generation.wrapping_mul(MAX_RAILS as u32);
            let rail = RailId(rail.wrapping_add(u32::from(slot)));
            let Some(makings) = makings.get(&slot).cloned() else {
                continue;
            };
            let (said, heard) = sync_channel(MAX_WAITING);
            state.under_way = Some(said);
            drop(state);
            self.attempt(rail, move |session| {
                session.dial_again(rail, &makings, met, &heard)
            });
            return;
        }
    }

    /// Runs an attempt in a thread of its own: joining may take its time.
    fn attempt(&self, rail: RailId, body: impl FnOnce(&Arc<Self>) -> Option<()> + Send + 'static) {
        let started = self.this.upgrade().is_some_and(|session| {
            std::thread::Builder::new()
                .name("crowfly-mend".into())
                .spawn(move || {
                    // What failed is tried again later.
                    let _ = body(&session);
                    session.attempt_ended(rail);
                })
                .is_ok()
        });
        if !started {
            self.attempt_ended(rail);
        }
    }

    /// An attempt is over; unless the rail has come back, the next one follows after a longer pause.
    fn attempt_ended(&self, rail: RailId) {
        let longest = match self.scheduler.is_awaited() {
            true => LONGEST_WAIT,
            false => LONGEST_PAUSE,
        };
        let mut state = locked(&self.mending.0);
        state.under_way = None;
        if let Some(attempt) = state.attempts.get_mut(&slot_of(rail)) {
            attempt.next = self.now() + attempt.pause.min(longest);
            attempt.pause = (attempt.pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn dial_again(
        self: &Arc<Self>,
        rail: RailId,
        makings: &Makings,
        met: Met,
        heard: &Receiver<Said>,
    ) -> Option<()> {
        let deadline = Instant::now() + ATTEMPT;
        let provider = &makings.nic.provider;
        let endpoint = provider.endpoint(Role::Dialer, &met.meeting).ok()?;
        self.say(Kind::Mend, rail, true, endpoint.hello());
        let theirs = hear(heard, Kind::Mended, rail, deadline)?;
        let joined = endpoint.join(&theirs.endpoint, self.joining(rail, deadline));
        self.say(Kind::Joined, rail, joined.is_ok(), Vec::new());
        let link = joined.ok()?;
        match hear(heard, Kind::Joined, rail, deadline) {
            Some(_) => self.back(rail, makings, link),
            None => {
                link.close();
                // The other end may have begun to use it.
                self.say(Kind::Fallen, rail, false, link.tally().unwrap_or_default());
            }
        }
        Some(())
    }

    fn answer_again(
        self: &Arc<Self>,
        rail: RailId,
        makings: &Makings,
        endpoint: Box<dyn Endpoint>,
        theirs: &[u8],
        heard: &Receiver<Said>,
    ) -> Option<()> {
        let deadline = Instant::now() + ATTEMPT;
        self.say(Kind::Mended, rail, true, endpoint.hello());
        hear(heard, Kind::Joined, rail, deadline)?;
        let joined = endpoint.join(theirs, self.joining(rail, deadline));
        let well = joined.is_ok();
        if let Ok(link) = joined {
            self.back(rail, makings, link);
        }
        self.say(Kind::Joined, rail, well, Vec::new());
        Some(())
    }

    fn joining(self: &Arc<Self>, rail: RailId, deadline: Instant) -> Joining {
        let events: Arc<dyn Events> = Arc::<Self>::clone(self);
        Joining {
            peer: self.peer,
            rail,
            events: Arc::downgrade(&events),
            deadline,
        }
    }

    fn say(&self, kind: Kind, rail: RailId, well: bool, endpoint: Vec<u8>) {
        let part = Part {
            rail,
            well,
            endpoint,
        };
        self.tell(Frame::new(kind, 0, part.encode()));
    }

    fn back(&self, id: RailId, makings: &Makings, link: Arc<dyn Link>) {
        let slot = slot_of(id);
        let rail = Rail {
            slot,
            path: link.path(),
            nic: link.nic().to_owned(),
            weight: makings.weight,
            nearness: Arc::clone(&makings.nearness),
            load: Arc::clone(&makings.nic.load),
            link: Arc::clone(&link),
        };
        self.keep(slot, link);
        let now = self.now();
        {
            let mut state = locked(&self.mending.0);
            state.worn.remove(&slot);
            if let Some(attempt) = state.attempts.get_mut(&slot) {
                attempt.returned = Some(now);
            }
        }
        let class = makings.nic.provider.class();
        self.scheduler.came_back(id, rail, class, now);
        let early = locked(&self.mending.0).early.take();
        if let Some(part) = early.filter(|part| part.rail == id) {
            self.peers_fell(part);
        }
    }

    /// A frame about mending.
    pub(super) fn mending_frame(&self, kind: Kind, body: &[u8]) -> Result<(), Violation> {
        let part = Part::decode(body).ok_or(Violation("a malformed frame about a rail"))?;
        match kind {
            Kind::Fallen => self.peers_fell(part),
            Kind::Mend => self.asked_to_mend(part),
            _ => {
                let under_way = locked(&self.mending.0).under_way.clone();
                if let Some(under_way) = under_way {
                    // An attempt that does not listen any more is over.
                    let _ = under_way.try_send(Said { kind, part });
                }
            }
        }
        Ok(())
    }

    /// The peer's end of a rail is closed, or worn.
    pub(super) fn peers_fell(&self, part: Part) {
        let slot = slot_of(part.rail);
        if part.well {
            if self.scheduler.stands(slot, part.rail) {
                locked(&self.mending.0).worn.insert(slot);
            }
            return;
        }
        if self.scheduler.precedes(slot, part.rail) {
            // It has failed before this end took it into use.
            locked(&self.mending.0).early = Some(part);
            return;
        }
        let (now, tally) = (self.now(), &part.endpoint);
        let why = "the peer says that its end is down";
        self.scheduler.down(part.rail, why, now);
        let tally = (!tally.is_empty()).then_some(tally.as_slice());
        self.scheduler.learns(part.rail, tally, now);
    }

    fn asked_to_mend(&self, part: Part) {
        let slot = slot_of(part.rail);
        let mut state = locked(&self.mending.0);
        let acceptor = state.met.filter(|met| met.role == Role::Acceptor);
        let free = state.under_way.is_none()
            && !state.kept_out.contains(&slot)
            && self.scheduler.precedes(slot, part.rail);
        let makings = state.makings.get(&slot).filter(|_| free).cloned();
        let (Some(met), Some(makings)) = (acceptor, makings) else {
            drop(state);
            return self.say(Kind::Mended, part.rail, false, Vec::new());
        };
        let (said, heard) = sync_channel(MAX_WAITING);
        state.under_way = Some(said);
        drop(state);
        self.attempt(part.rail, move |session| {
            let provider = &makings.nic.provider;
            match provider.endpoint(Role::Acceptor, &met.meeting) {
                Ok(end) => session.answer_again(part.rail, &makings, end, &part.endpoint, &heard),
                Err(_) => {
                    session.say(Kind::Mended, part.rail, false, Vec::new());
                    None
                }
            }
        });
    }
}

/// The next step of an attempt, if it comes in time and went well.
fn hear(heard: &Receiver<Said>, kind: Kind, rail: RailId, deadline: Instant) -> Option<Part> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let said = heard.recv_timeout(left).ok()?;
        // What is left of an earlier attempt is passed over.
        if said.kind == kind && said.part.rail == rail {
            return Some(said.part).filter(|part| part.well);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic_and_what_it_reads_is_what_was_written(
            body in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            if let Some(part) = Part::decode(&body) {
                prop_assert_eq!(part.encode(), body);
            }
        }
    }
}
