//! All sessions of a fabric, and what went by those that were forgotten.

use std::sync::{Arc, Mutex};

use super::{Session, locked};
use crate::fabric::totals::{PeerTotals, Sums, Totals};

/// All sessions of a fabric.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Known>);

#[derive(Default)]
struct Known {
    sessions: Vec<Arc<Session>>,
    /// What went to and from those that were forgotten.
    past: Sums,
}

impl Sessions {
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        locked(&self.0).sessions.clone()
    }

    /// Keeps a session, and forgets those that have ended and whose peers have given all memory back.
    pub(crate) fn insert(&self, session: &Arc<Session>) {
        let Known { sessions, past } = &mut *locked(&self.0);
        let ended =
            |session: &mut Arc<Session>| session.scheduler.is_lost().is_some() && !session.lends();
        for ended in sessions.extract_if(.., ended) {
            past.add(&ended.scheduler.report());
        }
        sessions.push(Arc::clone(session));
    }

    /// What went where.
    pub(crate) fn totals(&self) -> Totals {
        let known = locked(&self.0);
        let peers = known.sessions.iter().map(|session| PeerTotals {
            peer: session.peer,
            address: session.address.clone(),
            lost: session.scheduler.is_lost(),
            under_way: session.scheduler.under_way(),
            rails: session.scheduler.report(),
        });
        known.past.clone().with(peers.collect(), |path, nic| {
            let mut links = known.sessions.iter().filter_map(|s| s.link_by(path, nic));
            let looked = links.next().map(|link| link.port_counters());
            looked
                .unwrap_or_else(|| Err("no rail to a peer goes by it now".into()))
                .into()
        })
    }
}
