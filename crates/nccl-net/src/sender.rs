//! The end that sends: takes each message to a receive with the same tag that its peer has posted,
//! writes the bytes straight into the peer's memory, and then a record that they are there.
//!
//! The two writes follow each other, where one with an immediate value would do: a write that carries
//! one cannot be repeated over another RDMA rail when its own fails, and these can.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crowfly_mover::fabric::{Options, Page, RegionDescriptor, RemoteSlice, Transfer};

use crate::account::{Account, CommReceipt};
use crate::comm::{Health, LAST_RECORDS, Line, locked};
use crate::error::NetError;
use crate::memory::Memory;
use crate::records::{ARRIVAL, Arrival, MAX_RECVS, Notice, POSTING, Posted, Posting, SLOTS};
use crate::ring::{Incoming, Outgoing};

/// The most memory that a receiver may have announced at one time.
const MAX_ANNOUNCED: usize = 1 << 16;
/// Notices are waited for as long as the comm lives.
const LIFELONG: Duration = Duration::from_secs(3600 * 24 * 365 * 10);

/// The end that sends.
pub(crate) struct Sender {
    line: Line,
    state: Mutex<State>,
}

struct State {
    postings: Incoming,
    /// The number of the posting that comes next.
    next: u64,
    /// Postings with receives that no message was found for yet, in their order.
    open: VecDeque<Open>,
    /// The receiver's memory by its number.
    announced: HashMap<u32, RemoteSlice>,
    arrivals: Outgoing,
    notices: Transfer<Vec<u8>>,
    flights: HashMap<u32, Flight>,
    requests: u32,
    account: Account,
    health: Health,
}

struct Open {
    posting: Posting,
    taken: [bool; MAX_RECVS],
}

/// A message under way.
struct Flight {
    /// `None` once its bytes have landed.
    transfer: Option<Transfer>,
    arrival: Arrival,
    bytes: u64,
    memory: Option<Arc<Memory>>,
}

impl Sender {
    /// Over a connection whose other end was given this ring for its postings and has answered with
    /// the one for arrivals.
    pub(crate) fn new(
        line: Line,
        postings: Incoming,
        arrivals: &RegionDescriptor,
    ) -> Result<Self, NetError> {
        let arrivals = Outgoing::new(line.fabric(), arrivals, ARRIVAL, SLOTS)?;
        let state = State {
            postings,
            next: 0,
            open: VecDeque::new(),
            announced: HashMap::new(),
            arrivals,
            notices: line.peer.recv(Options::within(LIFELONG)),
            flights: HashMap::new(),
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

    /// Starts to send, if a receive with this tag is posted; the request's number.
    pub(crate) fn send(
        &self,
        data: *mut c_void,
        len: usize,
        tag: i32,
        memory: Option<Arc<Memory>>,
    ) -> Result<Option<u32>, NetError> {
        let state = &mut *locked(&self.state);
        state.health.check()?;
        state.hear(&self.line)?;
        state.look();
        let Some((number, index, posted)) = state.posted(tag) else {
            return state.not_yet(&self.line);
        };
        let bytes = len as u64;
        if bytes > posted.room {
            state.tell_truncated(&self.line, number, index);
            return Err(state.health.fails(NetError::Truncated {
                bytes,
                tag,
                room: posted.room,
            }));
        }
        let transfer = match len {
            0 => None,
            _ => {
                let memory = memory.as_ref().ok_or_else(|| NetError::Argument {
                    argument: "mhandle",
                    why: "it is null, and there are bytes to send".into(),
                })?;
                let local = memory.slice(data, len)?;
                // Announced on another way than postings take, so it may come later.
                let Some(remote) = state.announced.get(&posted.region) else {
                    return state.not_yet(&self.line);
                };
                let page = Page {
                    local: 0,
                    remote: posted.offset,
                };
                let peer = &self.line.peer;
                Some(peer.write_paged(&local, remote, bytes, &[page], None, self.line.options))
            }
        };
        state.take(number, index);
        let request = state.requests;
        state.requests = state.requests.wrapping_add(1);
        let flight = Flight {
            transfer,
            arrival: Arrival {
                number,
                index,
                bytes: Some(bytes),
            },
            bytes,
            memory,
        };
        state.flights.insert(request, flight);
        Ok(Some(request))
    }

    /// The bytes that were sent, once they are where they belong.
    pub(crate) fn test(&self, request: u32) -> Result<Option<u64>, NetError> {
        let state = &mut *locked(&self.state);
        state.health.check()?;
        let flight = state.flights.get_mut(&request);
        let flight = flight.ok_or(NetError::Unknown("request"))?;
        match flight.transfer.take() {
            Some(transfer) if !transfer.is_finished() => {
                flight.transfer = Some(transfer);
                return Ok(None);
            }
            Some(transfer) => match transfer.wait() {
                Ok(delivery) => state.account.sent(&delivery),
                Err(error) => return Err(state.fails(error.into())),
            },
            None if flight.bytes == 0 => state.account.sent_nothing(),
            // Landed before, when there was no room to say so.
            None => {}
        }
        match state.arrivals.has_room() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(state.fails(error.into())),
        }
        let Some(flight) = state.flights.remove(&request) else {
            return Err(NetError::Unknown("request"));
        };
        state.say(&self.line, &flight.arrival);
        Ok(Some(flight.bytes))
    }

    /// Lets go of memory; fails when it is in use.
    pub(crate) fn forget(&self, memory: &Arc<Memory>) {
        let state = &mut *locked(&self.state);
        let mut flights = state.flights.values();
        let uses = |flight: &Flight| {
            flight
                .memory
                .as_ref()
                .is_some_and(|m| Arc::ptr_eq(m, memory))
        };
        if flights.any(uses) {
            state.fails(NetError::Argument {
                argument: "mhandle",
                why: "its memory was deregistered while messages out of it were under way".into(),
            });
            self.line.peer.close();
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self) -> CommReceipt {
        let state = &mut *locked(&self.state);
        if state.health.check().is_ok() {
            // The receiver that has them all may be gone by now, which is no fault.
            state.arrivals.drain(LAST_RECORDS);
        }
        let receipt = self.line.receipt(&state.account, state.health.ended());
        state.flights.clear();
        self.line.peer.close();
        receipt
    }

    /// What went by it, unless somebody is at work on it.
    pub(crate) fn so_far(&self) -> Option<CommReceipt> {
        let state = self.state.try_lock().ok()?;
        Some(self.line.receipt(&state.account, state.health.left()))
    }
}

impl State {
    /// Fails for good; the memory of what was under way is let go of.
    fn fails(&mut self, error: NetError) -> NetError {
        self.flights.clear();
        self.health.fails(error)
    }

    /// Nothing can be sent yet, and never where the receiver is gone.
    fn not_yet(&mut self, line: &Line) -> Result<Option<u32>, NetError> {
        match self.health.gone(line) {
            Some(lost) => Err(self.fails(lost)),
            None => Ok(None),
        }
    }

    /// Takes in what the receiver says of its memory.
    fn hear(&mut self, line: &Line) -> Result<(), NetError> {
        while self.notices.is_finished() {
            let next = line.peer.recv(Options::within(LIFELONG));
            let message = match std::mem::replace(&mut self.notices, next).wait() {
                Ok(message) => message,
                Err(error) => return Err(self.fails(error.into())),
            };
            match Notice::decode(&message) {
                Some(Notice::Announce(number, memory)) => {
                    if self.announced.len() >= MAX_ANNOUNCED {
                        let what = "it announced memory without end";
                        return Err(self.fails(NetError::Protocol(what)));
                    }
                    self.announced.insert(number, memory.whole());
                }
                Some(Notice::Forget(number)) => {
                    self.announced.remove(&number);
                }
                Some(Notice::Welcome(_)) | None => {
                    return Err(self.fails(NetError::Protocol("a notice that makes no sense")));
                }
            }
        }
        Ok(())
    }

    /// Takes in postings that have come.
    fn look(&mut self) {
        while self.open.len() < SLOTS {
            let number = self.next;
            let decode = |bytes: &[u8; POSTING]| Posting::decode(bytes, number);
            let Some(posting) = self.postings.look(Posting::place(number), decode) else {
                return;
            };
            let taken = [false; MAX_RECVS];
            self.open.push_back(Open { posting, taken });
            self.next += 1;
        }
    }

    /// The oldest receive with this tag that no message was found for.
    fn posted(&self, tag: i32) -> Option<(u64, usize, Posted)> {
        self.open.iter().find_map(|open| {
            let mut receives = open.posting.receives.iter().zip(&open.taken).enumerate();
            let (index, (posted, _)) =
                receives.find(|(_, (posted, taken))| posted.tag == tag && !**taken)?;
            Some((open.posting.number, index, *posted))
        })
    }

    /// A message was found for a receive.
    fn take(&mut self, number: u64, index: usize) {
        let mut open = self.open.iter_mut();
        if let Some(open) = open.find(|open| open.posting.number == number)
            && let Some(taken) = open.taken.get_mut(index)
        {
            *taken = true;
        }
        let used_up = |open: &Open| {
            let mut receives = open.posting.receives.iter().zip(&open.taken);
            receives.all(|(_, taken)| *taken)
        };
        self.open.retain(|open| !used_up(open));
    }

    fn say(&mut self, line: &Line, arrival: &Arrival) {
        let place = Arrival::place(arrival.number, arrival.index);
        let record = arrival.encode();
        self.arrivals
            .write(&line.peer, place, &record, line.options);
    }

    /// The receiver fails as well, as far as it can be told.
    fn tell_truncated(&mut self, line: &Line, number: u64, index: usize) {
        if self.arrivals.has_room().unwrap_or(false) {
            let bytes = None;
            self.say(
                line,
                &Arrival {
                    number,
                    index,
                    bytes,
                },
            );
        }
    }
}
