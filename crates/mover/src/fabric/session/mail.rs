//! Messages to and from a peer, over the control connection.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{GOODBYE, Session, locked};
use crate::fabric::conn::{Conn, Frame};
use crate::fabric::error::FabricError;
use crate::fabric::identity::Incarnation;
use crate::fabric::provider::FlightId;
use crate::fabric::transfer::{Canceller, Slot, Transfer};
use crate::fabric::wire::{Kind, MAX_MESSAGE, Status};

/// Messages that wait to be received; a peer that sends more is told that the queue is full.
pub const MAX_INBOX: usize = 1024;
/// Messages under way to one peer.
pub const MAX_SENDING: usize = 1024;

/// Who takes a peer's messages as they come, instead of [`Session::receive`].
pub(crate) trait Mailbox: Send + Sync {
    /// A message came. Called by threads that move bytes: it must not block.
    fn message(&self, from: Incarnation, bytes: &[u8]);

    /// The peer is gone, `orderly` when it said so itself; may be told more than once.
    fn lost(&self, from: Incarnation, why: &str, orderly: bool);
}

struct Waiting<T> {
    slot: Arc<Slot<T>>,
    id: u64,
    deadline: Duration,
    allowed: Duration,
}

#[derive(Default)]
pub(super) struct Mail {
    inbox: VecDeque<Vec<u8>>,
    receivers: VecDeque<Waiting<Vec<u8>>>,
    senders: Vec<Waiting<()>>,
    next: u64,
}

impl Session {
    pub(super) fn mailbox(&self) -> Option<Arc<dyn Mailbox>> {
        self.mailbox.get()?.upgrade()
    }

    /// Has all messages that nobody received yet, and those to come, delivered there, and the end
    /// told. A message that comes just now may be delivered before those that wait. Only the first
    /// mailbox counts.
    pub(crate) fn deliver_to(&self, mailbox: Weak<dyn Mailbox>) {
        let waiting = {
            let mut mail = locked(&self.mail);
            let first = self.mailbox.set(mailbox).is_ok();
            first.then(|| std::mem::take(&mut mail.inbox))
        };
        let Some(mailbox) = self.mailbox() else {
            return;
        };
        for message in waiting.unwrap_or_default() {
            mailbox.message(self.peer, &message);
        }
        if let Some(FabricError::PeerLost { why, .. }) = self.lost() {
            mailbox.lost(self.peer, &why, why == GOODBYE);
        }
    }

    /// Nothing is sent or received any more.
    pub(super) fn lose_mail(&self, error: &FabricError) {
        let (receivers, senders) = {
            let mut mail = locked(&self.mail);
            (
                std::mem::take(&mut mail.receivers),
                std::mem::take(&mut mail.senders),
            )
        };
        receivers
            .iter()
            .for_each(|waiting| waiting.slot.put(Err(error.clone())));
        senders
            .iter()
            .for_each(|waiting| waiting.slot.put(Err(error.clone())));
    }

    pub(super) fn overdue_mail(&self, now: Duration) {
        let (receivers, senders) = {
            let mut mail = locked(&self.mail);
            let late: Vec<_> = mail
                .senders
                .extract_if(.., |waiting| waiting.deadline <= now)
                .collect();
            let (overdue, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut mail.receivers)
                .into_iter()
                .partition(|waiting| waiting.deadline <= now);
            mail.receivers = rest;
            (overdue, late)
        };
        for waiting in receivers {
            let (what, after) = ("the arrival of a message", waiting.allowed);
            waiting.slot.put(Err(FabricError::Deadline { what, after }));
        }
        for waiting in senders {
            let (what, after) = ("the delivery of a message", waiting.allowed);
            waiting.slot.put(Err(FabricError::Deadline { what, after }));
        }
    }

    /// Sends a message; done when it is in the peer's queue.
    pub(crate) fn send(&self, bytes: &[u8], allowed: Duration) -> Transfer<()> {
        let slot = Arc::new(Slot::default());
        let mut mail = locked(&self.mail);
        mail.next += 1;
        let id = mail.next;
        let refused = if bytes.len() > MAX_MESSAGE {
            Some(FabricError::MessageTooLong {
                bytes: bytes.len(),
                limit: MAX_MESSAGE,
            })
        } else if mail.senders.len() >= MAX_SENDING {
            Some(FabricError::QueueFull {
                what: "messages under way",
                limit: MAX_SENDING,
            })
        } else {
            self.lost()
        };
        match refused {
            Some(error) => slot.put(Err(error)),
            None => mail.senders.push(Waiting {
                slot: Arc::clone(&slot),
                id,
                deadline: self.now().saturating_add(allowed),
                allowed,
            }),
        }
        drop(mail);
        if !slot.is_put() {
            self.tell(Frame::new(Kind::Message, id, bytes.to_vec()));
        }
        self.handle(slot, id)
    }

    /// Receives the next message.
    pub(crate) fn receive(&self, allowed: Duration) -> Transfer<Vec<u8>> {
        let slot = Arc::new(Slot::default());
        let mut mail = locked(&self.mail);
        mail.next += 1;
        let id = mail.next;
        if let Some(message) = mail.inbox.pop_front() {
            slot.put(Ok(message));
        } else if let Some(error) = self.lost() {
            slot.put(Err(error));
        } else {
            mail.receivers.push_back(Waiting {
                slot: Arc::clone(&slot),
                id,
                deadline: self.now().saturating_add(allowed),
                allowed,
            });
        }
        drop(mail);
        self.handle(slot, id)
    }

    fn handle<T>(&self, slot: Arc<Slot<T>>, id: u64) -> Transfer<T> {
        let canceller: Weak<dyn Canceller> = match self.this.upgrade() {
            Some(this) => {
                let mailman: Arc<dyn Canceller> = this;
                Arc::downgrade(&mailman)
            }
            None => Weak::<Self>::new(),
        };
        Transfer::new(slot, canceller, FlightId(id))
    }

    pub(super) fn message(&self, conn: &Conn, id: u64, bytes: &[u8]) {
        // It may tell of bytes that a NIC wrote.
        self.regions.make_visible();
        let mut mail = locked(&self.mail);
        if let Some(mailbox) = self.mailbox() {
            drop(mail);
            conn.send(Frame::answer(id, Status::Done));
            mailbox.message(self.peer, bytes);
            return;
        }
        let receiver = mail.receivers.pop_front();
        let status = match &receiver {
            Some(_) => Status::Done,
            None if mail.inbox.len() >= MAX_INBOX => Status::QueueFull,
            None => {
                mail.inbox.push_back(bytes.to_vec());
                Status::Done
            }
        };
        drop(mail);
        // The answer first: whoever receives the message may end the connection at once.
        conn.send(Frame::answer(id, status));
        if let Some(receiver) = receiver {
            receiver.slot.put(Ok(bytes.to_vec()));
        }
    }

    pub(super) fn answered(&self, id: u64, status: u8) {
        let sender = {
            let mut mail = locked(&self.mail);
            let found = mail.senders.iter().position(|waiting| waiting.id == id);
            found.map(|at| mail.senders.swap_remove(at))
        };
        if let Some(sender) = sender {
            let status = Status::of(status).unwrap_or(Status::NotAllowed);
            sender.slot.put(match status {
                Status::Done => Ok(()),
                _ => Err(FabricError::QueueFull {
                    what: "messages at the peer",
                    limit: MAX_INBOX,
                }),
            });
        }
    }
}

impl Canceller for Session {
    /// Ends the wait for a message, or for a message's delivery.
    fn cancel(&self, id: FlightId) {
        let (receivers, senders) = {
            let mut mail = locked(&self.mail);
            let mine = |waiting: u64| waiting == id.0;
            let (receivers, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut mail.receivers)
                .into_iter()
                .partition(|waiting| mine(waiting.id));
            mail.receivers = rest;
            let senders: Vec<_> = mail.senders.extract_if(.., |w| mine(w.id)).collect();
            (receivers, senders)
        };
        receivers
            .iter()
            .for_each(|w| w.slot.put(Err(FabricError::Cancelled)));
        senders
            .iter()
            .for_each(|w| w.slot.put(Err(FabricError::Cancelled)));
    }
}
