//! The channels of a log, gathered into connections.
//!
//! This is the hot path: a large job prints little else. A line that says nothing new costs a few
//! look-ups and no allocation.

use std::collections::HashMap;

use super::channel::{
    ChannelLine, Direction, NetTotal, Transport, TransportTotals, Via, is_wrapped_suffix,
};
use super::{Connection, limits};
use crate::evidence::cite::Cite;
use crate::evidence::line::Line;
use crate::evidence::sighting::{ProcessId, Sighting};

/// Most distinct suffixes remembered as read; others are read each time.
const MAX_SUFFIXES: usize = 16_384;
/// Most totals by network told apart, and the name under which the others are counted.
const MAX_TOTALS: usize = 64;
const OTHER_NETWORKS: &str = "(others)";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    by: ProcessId,
    from: u32,
    to: Option<u32>,
    direction: Option<Direction>,
    transport: u32,
}

/// What a suffix was read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suffix {
    /// The transport of this number.
    Transport(u32),
    /// Cut short.
    Cut,
    /// A transport that is not kept: there are too many.
    Beyond,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    transports: Vec<Transport>,
    by_transport: HashMap<Transport, u32>,
    /// What each suffix was read as.
    suffixes: HashMap<Box<str>, Suffix>,
    seen: Vec<(Key, Cite, u64)>,
    index: HashMap<Key, u32>,
    /// A network channel without `/GDRDMA`, until the next line shows that it was not wrapped; cited
    /// when it is new.
    pending: Option<(Key, Option<Cite>)>,
    cut: Option<Sighting<()>>,
    beyond: u64,
    beyond_totals: TransportTotals,
}

impl Connections {
    /// Takes a channel line of a process.
    pub(super) fn take(
        &mut self,
        channel: ChannelLine<'_>,
        by: ProcessId,
        line: &Line<'_>,
        whole: bool,
    ) {
        self.settle();
        // RCCL appends the communicator, which would make every suffix a new one.
        let via = match memchr::memchr(b' ', channel.via.as_bytes()) {
            Some(_) => channel
                .via
                .split_once(" comm 0x")
                .map_or(channel.via, |(via, _)| via),
            None => channel.via,
        };
        let suffix = match self.suffixes.get(via) {
            Some(known) if whole => *known,
            _ => self.read(via, whole),
        };
        let transport = match suffix {
            Suffix::Transport(id) => id,
            Suffix::Cut => return self.count_cut(by, || line.cite()),
            Suffix::Beyond => {
                self.beyond += 1;
                if let Via::Transport(transport) = Via::parse(via, whole) {
                    add(&mut self.beyond_totals, &transport, channel.direction, 1);
                }
                return;
            }
        };
        let key = Key {
            by,
            from: channel.from,
            to: channel.to,
            direction: channel.direction,
            transport,
        };
        let plain = matches!(
            self.transports.get(transport as usize),
            Some(Transport::Net { gdr: false, .. } | Transport::CollNet { gdr: false, .. })
        );
        if plain {
            let is_new = !self.index.contains_key(&key);
            self.pending = Some((key, is_new.then(|| line.cite())));
        } else {
            self.count(key, || line.cite());
        }
    }

    /// Looks at the line after a network channel without `/GDRDMA`: the rest of a wrapped line
    /// makes it a cut one.
    pub(super) fn takes_wrapped_rest(&mut self, text: &str) -> bool {
        let wrapped = self.pending.is_some() && is_wrapped_suffix(text);
        if wrapped && let Some((key, cite)) = self.pending.take() {
            let seen = self
                .index
                .get(&key)
                .and_then(|at| self.seen.get(*at as usize));
            // A connection seen before is cited where it was seen whole.
            if let Some(cite) = cite.or_else(|| seen.map(|(_, cite, _)| cite.clone())) {
                self.count_cut(key.by, || cite);
            }
        } else {
            self.settle();
        }
        wrapped
    }

    /// Counts a network channel that was waiting for its next line.
    pub(super) fn settle(&mut self) {
        match self.pending.take() {
            Some((key, Some(cite))) => self.count(key, || cite),
            Some((key, None)) => {
                if let Some((_, _, count)) = self
                    .index
                    .get(&key)
                    .and_then(|at| self.seen.get_mut(*at as usize))
                {
                    *count += 1;
                }
            }
            None => {}
        }
    }

    fn read(&mut self, via: &str, whole: bool) -> Suffix {
        let suffix = match Via::parse(via, whole) {
            Via::Cut => Suffix::Cut,
            Via::Transport(transport) => match self.by_transport.get(&transport) {
                Some(id) => Suffix::Transport(*id),
                None if self.transports.len() < MAX_SUFFIXES => {
                    let id = self.transports.len() as u32;
                    self.by_transport.insert(transport.clone(), id);
                    self.transports.push(transport);
                    Suffix::Transport(id)
                }
                None => Suffix::Beyond,
            },
        };
        if whole && self.suffixes.len() < MAX_SUFFIXES && suffix != Suffix::Beyond {
            self.suffixes.insert(via.into(), suffix);
        }
        suffix
    }

    fn count(&mut self, key: Key, cite: impl FnOnce() -> Cite) {
        if let Some((_, _, count)) = self
            .index
            .get(&key)
            .and_then(|at| self.seen.get_mut(*at as usize))
        {
            *count += 1;
        } else if self.seen.len() < limits::CONNECTIONS {
            self.index.insert(key, self.seen.len() as u32);
            self.seen.push((key, cite(), 1));
        } else {
            self.beyond += 1;
            if let Some(transport) = self.transports.get(key.transport as usize) {
                add(&mut self.beyond_totals, transport, key.direction, 1);
            }
        }
    }

    fn count_cut(&mut self, by: ProcessId, cite: impl FnOnce() -> Cite) {
        match &mut self.cut {
            Some(cut) => cut.count += 1,
            None => {
                self.cut = Some(Sighting {
                    what: (),
                    first: cite(),
                    count: 1,
                    by: vec![by],
                });
            }
        }
    }

    /// The rank that a process speaks for, by its own channels; several say nothing.
    pub(super) fn own_ranks(&self) -> HashMap<ProcessId, Option<u32>> {
        let mut ranks = HashMap::new();
        for (key, _, _) in &self.seen {
            let own = match key.direction {
                Some(Direction::Receive) => key.to,
                _ => Some(key.from),
            };
            ranks
                .entry(key.by)
                .and_modify(|known| {
                    if *known != own {
                        *known = None;
                    }
                })
                .or_insert(own);
        }
        ranks
    }

    pub(super) fn finish(mut self) -> Gathered {
        self.settle();
        let mut totals = self.beyond_totals;
        let mut connections = Vec::with_capacity(self.seen.len());
        for (key, first, count) in self.seen {
            let Some(transport) = self.transports.get(key.transport as usize) else {
                continue;
            };
            add(&mut totals, transport, key.direction, count);
            connections.push(Sighting {
                what: Connection {
                    by: key.by,
                    from: key.from,
                    to: key.to,
                    direction: key.direction,
                    transport: transport.clone(),
                },
                first,
                count,
                by: vec![key.by],
            });
        }
        Gathered {
            connections,
            totals,
            cut: self.cut,
            beyond: self.beyond,
        }
    }
}

pub(super) struct Gathered {
    pub(super) connections: Vec<Sighting<Connection>>,
    pub(super) totals: TransportTotals,
    pub(super) cut: Option<Sighting<()>>,
    pub(super) beyond: u64,
}

fn add(
    totals: &mut TransportTotals,
    transport: &Transport,
    direction: Option<Direction>,
    channels: u64,
) {
    match transport {
        Transport::P2p { .. } => totals.p2p += channels,
        Transport::Shm { .. } => totals.shm += channels,
        Transport::CollNet { gdr: true, .. } => totals.collnet_gdr += channels,
        Transport::CollNet { gdr: false, .. } => totals.collnet_plain += channels,
        Transport::Net { network, gdr, .. } => {
            let direction = direction.unwrap_or(Direction::Send);
            // No job has more networks than this; what claims to is counted together.
            let known = totals.net.iter().any(|t| t.network == *network);
            let name = if known || totals.net.len() < MAX_TOTALS {
                network.as_str()
            } else {
                OTHER_NETWORKS
            };
            let same =
                |t: &&mut NetTotal| t.network == name && t.direction == direction && t.gdr == *gdr;
            match totals.net.iter_mut().find(same) {
                Some(total) => total.channels += channels,
                None => totals.net.push(NetTotal {
                    network: name.to_owned(),
                    direction,
                    gdr: *gdr,
                    channels,
                }),
            }
        }
    }
}
