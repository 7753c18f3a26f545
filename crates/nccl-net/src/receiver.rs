//! The end that receives: writes into its peer's memory which buffers are ready for which tags, and
//! finds there, in its own, which of them were filled.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use crowfly_mover::fabric::{RegionDescriptor, Transfer};

use crate::account::{Account, CommReceipt};
use crate::comm::{Health, Line, locked};
use crate::error::NetError;
use crate::memory::Memory;
use crate::records::{ARRIVAL, ARRIVALS, Arrival, Notice, POSTING, Posted, Posting, SLOTS};
use crate::ring::{Incoming, Outgoing};

/// One receive of a group, as NCCL asks for it.
pub(crate) struct Wanted {
    pub data: *mut c_void,
    pub room: usize,
    pub tag: i32,
    /// `None` for a receive of no bytes.
    pub memory: Option<Arc<Memory>>,
}

/// The end that receives.
pub(crate) struct Receiver {
    line: Line,
    state: Mutex<State>,
}

struct State {
    arrivals: Incoming,
    postings: Outgoing,
    /// The number of the next group.
    next: u64,
    /// Groups that are not filled.
    open: BTreeSet<u64>,
    groups: HashMap<u32, Group>,
    /// Numbers of the memory that the sender knows.
    announced: HashSet<u32>,
    notices: VecDeque<Transfer<()>>,
    requests: u32,
    account: Account,
    health: Health,
}

struct Group {
    number: u64,
    receives: Vec<Expected>,
}

struct Expected {
    tag: i32,
    room: u64,
    /// Once they have come.
    bytes: Option<u64>,
    memory: Option<Arc<Memory>>,
}

impl Receiver {
    /// Over a connection whose other end gave this ring for postings.
    pub(crate) fn new(line: Line, postings: &RegionDescriptor) -> Result<Self, NetError> {
        let arrivals = Incoming::new(line.fabric(), ARRIVALS)?;
        let postings = Outgoing::new(line.fabric(), postings, POSTING, SLOTS)?;
        let welcome = Notice::welcome(&arrivals.described()?);
        let welcome = line.peer.send(&welcome, line.options);
        let state = State {
            arrivals,
            postings,
            next: 0,
            open: BTreeSet::new(),
            groups: HashMap::new(),
            announced: HashSet::new(),
            notices: VecDeque::from([welcome]),
            requests: 0,
            account: line.account(),
            health: Health::new(),
        };
        Ok(Self {
            line,
            state: Mutex::new(state),
        })
    }

    pub(crate) const fn line(&self) -> &Line {
        &self.line
    }

    /// Makes a group of buffers ready, if there is room for it; the request's number.
    pub(crate) fn receive(&self, wanted: Vec<Wanted>) -> Result<Option<u32>, NetError> {
        let state = &mut *locked(&self.state);
        state.health.check()?;
        state.heard()?;
        let number = state.next;
        let oldest = state.open.first().copied();
        if oldest.is_some_and(|oldest| number - oldest >= SLOTS as u64) {
            return Ok(None);
        }
        match state.postings.has_room() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(state.fails(error.into())),
        }
        let mut receives = Vec::with_capacity(wanted.len());
        for wanted in &wanted {
            let (region, offset) = match &wanted.memory {
                Some(memory) => {
                    let range = memory.range(wanted.data, wanted.room)?;
                    (memory.number, range.start as u64)
                }
                None if wanted.room == 0 => (0, 0),
                None => {
                    return Err(NetError::Argument {
                        argument: "mhandles",
                        why: "one is null, and its buffer has room".into(),
                    });
                }
            };
            receives.push(Posted {
                region,
                tag: wanted.tag,
                offset,
                room: wanted.room as u64,
            });
        }
        for memory in wanted.iter().filter_map(|wanted| wanted.memory.as_ref()) {
            state.announce(&self.line, memory)?;
        }
        let posting = Posting { number, receives };
        let place = Posting::place(number);
        let options = self.line.options;
        state
            .postings
            .write(&self.line.peer, place, &posting.encode(), options);
        state.next += 1;
        state.open.insert(number);
        let expected = wanted.into_iter().map(|wanted| Expected {
            tag: wanted.tag,
            room: wanted.room as u64,
            bytes: None,
            memory: wanted.memory,
        });
        let group = Group {
            number,
            receives: expected.collect(),
        };
        let request = state.requests;
        state.requests = state.requests.wrapping_add(1);
        state.groups.insert(request, group);
        Ok(Some(request))
    }

    /// How many bytes came for each receive of the group, once all have.
    pub(crate) fn test(&self, request: u32) -> Result<Option<Vec<u64>>, NetError> {
        let state = &mut *locked(&self.state);
        state.health.check()?;
        let group = state.groups.get_mut(&request);
        let group = group.ok_or(NetError::Unknown("request"))?;
        let mut sizes = group.look(&state.arrivals);
        if let Ok(None) = sizes
            && let Some(lost) = state.health.gone(&self.line)
        {
            // What it wrote last came before it took its leave, and maybe after the look.
            sizes = group.look(&state.arrivals);
            if let Ok(None) = sizes {
                sizes = Err(lost);
            }
        }
        let number = group.number;
        let sizes = match sizes {
            Ok(Some(sizes)) => sizes,
            Ok(None) => {
                state.heard()?;
                return Ok(None);
            }
            Err(error) => return Err(state.fails(error)),
        };
        sizes
            .iter()
            .for_each(|bytes| state.account.received(*bytes));
        state.open.remove(&number);
        state.groups.remove(&request);
        Ok(Some(sizes))
    }

    /// Lets go of memory; fails when it is in use.
    pub(crate) fn forget(&self, memory: &Arc<Memory>) {
        let state = &mut *locked(&self.state);
        let uses = |expected: &Expected| {
            expected
                .memory
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, memory))
        };
        let mut groups = state.groups.values();
        if groups.any(|group| group.receives.iter().any(uses)) {
            state.fails(NetError::Argument {
                argument: "mhandle",
                why: "its memory was deregistered while receives into it were posted".into(),
            });
            self.line.peer.close();
        } else if state.announced.remove(&memory.number) {
            let notice = Notice::forget(memory.number);
            let sent = self.line.peer.send(&notice, self.line.options);
            state.notices.push_back(sent);
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self) -> CommReceipt {
        let state = &mut *locked(&self.state);
        let receipt = self.line.receipt(&state.account, state.health.ended());
        state.groups.clear();
        self.line.peer.close();
        receipt
    }

    /// What went by it, unless somebody is at work on it.
    pub(crate) fn so_far(&self) -> Option<CommReceipt> {
        let state = self.state.try_lock().ok()?;
        Some(self.line.receipt(&state.account, state.health.left()))
    }
}

impl Group {
    /// How many bytes came for each receive, once all have.
    fn look(&mut self, arrivals: &Incoming) -> Result<Option<Vec<u64>>, NetError> {
        let number = self.number;
        let missing = |(_, expected): &(usize, &mut Expected)| expected.bytes.is_none();
        for (index, expected) in self.receives.iter_mut().enumerate().filter(missing) {
            let decode = |bytes: &[u8; ARRIVAL]| Arrival::decode(bytes, number, index);
            let Some(arrival) = arrivals.look(Arrival::place(number, index), decode) else {
                continue;
            };
            let (tag, room) = (expected.tag, expected.room);
            match arrival.bytes {
                Some(bytes) if bytes <= room => expected.bytes = Some(bytes),
                Some(bytes) => return Err(NetError::Truncated { bytes, tag, room }),
                None => {
                    let what = "it has a longer message than there is room for";
                    return Err(NetError::Protocol(what));
                }
            }
        }
        Ok(self
            .receives
            .iter()
            .map(|expected| expected.bytes)
            .collect())
    }
}

impl State {
    /// Fails for good; the memory of what was expected is let go of.
    fn fails(&mut self, error: NetError) -> NetError {
        self.groups.clear();
        self.health.fails(error)
    }

    /// Makes sure that notices arrive.
    fn heard(&mut self) -> Result<(), NetError> {
        while let Some(first) = self.notices.front()
            && first.is_finished()
        {
            if let Some(Err(error)) = self.notices.pop_front().map(Transfer::wait) {
                return Err(self.fails(error.into()));
            }
        }
        Ok(())
    }

    /// Tells the sender of memory before the first posting that names it.
    fn announce(&mut self, line: &Line, memory: &Memory) -> Result<(), NetError> {
        if self.announced.insert(memory.number) {
            let notice = Notice::announce(memory.number, &memory.described()?);
            self.notices
                .push_back(line.peer.send(&notice, line.options));
        }
        Ok(())
    }
}
