//! How a session notices that its peer is gone, and what it does without its control connection.
//!
//! Transfers need the control connection for nothing while their rails work. When it breaks or falls silent,
//! as when the one NIC that it goes by fails, the session goes on for as long as something moves by a
//! rail: what is under way comes to its end, and messages, barriers, comparisons and the mending of
//! rails do not work any more. Then the peer counts as lost.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Session, locked};
use crate::fabric::conn::Frame;
use crate::fabric::error::FabricError;
use crate::fabric::wire::Kind;

pub(super) struct Hearing(Mutex<State>);

struct State {
    /// What the control connection had heard, and when that last changed.
    control: (u64, Duration),
    /// The same of all rails together.
    rails: (u64, Duration),
    /// Why the control connection is of no use any more.
    deaf: Option<String>,
}

impl Hearing {
    /// Of a session that begins now.
    pub(super) fn at(now: Duration) -> Self {
        Self(Mutex::new(State {
            control: (0, now),
            rails: (0, now),
            deaf: None,
        }))
    }
}

fn noted(known: &mut (u64, Duration), count: u64, now: Duration) -> Duration {
    if known.0 != count {
        *known = (count, now);
    }
    known.1
}

impl Session {
    /// Why messages, barriers and comparisons do not work any more, if they do not.
    pub(super) fn deaf(&self) -> Option<FabricError> {
        let state = locked(&self.hearing.0);
        state.deaf.clone().map(|why| FabricError::PeerLost {
            peer: self.peer,
            why: format!("its control connection ended: {why}"),
        })
    }

    /// The control connection is of no use any more.
    pub(super) fn control_ended(&self, why: &str) {
        if !self.scheduler.any_up() {
            return self.lose(why);
        }
        {
            let mut state = locked(&self.hearing.0);
            state.rails.1 = state.rails.1.max(self.now());
            state.deaf.get_or_insert_with(|| why.to_owned());
        }
        if let Some(control) = self.control.get() {
            control.close();
        }
        self.scheduler.nothing_returns(self.now());
        if let Some(error) = self.deaf() {
            self.end_talk(&error);
        }
    }

    /// A rail went down: without a control connection the last one is the end.
    pub(super) fn rail_ended(&self) {
        if let Some(FabricError::PeerLost { why, .. }) = self.deaf()
            && !self.scheduler.any_up()
        {
            self.lose(&why);
        }
    }

    /// Notices silence; asks the peer for a sign of life now and then.
    pub(super) fn listen(&self, now: Duration) {
        let links: u64 = locked(&self.links).values().map(|link| link.heard()).sum();
        let count = self.control.get().map_or(0, |control| control.heard());
        let (control, rails, deaf) = {
            let mut state = locked(&self.hearing.0);
            let control = noted(&mut state.control, count, now);
            let rails = noted(&mut state.rails, links, now);
            (control, rails, state.deaf.clone())
        };
        let moved = now.saturating_sub(rails.max(self.scheduler.stirred()));
        if let Some(why) = deaf {
            if moved >= self.silence {
                self.lose(&why);
            }
            return;
        }
        let silent = now.saturating_sub(control);
        if silent >= self.silence {
            let why = format!("it has been silent for {:.1} s", silent.as_secs_f64());
            if moved >= self.silence {
                return self.lose(&why);
            }
            return self.control_ended(&why);
        }
        let quarter = u64::try_from((self.silence / 4).as_millis()).unwrap_or(u64::MAX);
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        if millis.saturating_sub(self.pinged.load(Ordering::Relaxed)) >= quarter.max(1) {
            self.pinged.store(millis, Ordering::Relaxed);
            self.tell(Frame::new(Kind::Ping, 0, Vec::new()));
        }
    }
}
