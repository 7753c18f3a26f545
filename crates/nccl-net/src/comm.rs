//! What NCCL calls a comm: one direction between two ranks, over a connection of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::{Fabric, FabricError, Options, Peer};
use crowfly_route::policy::Policy;

use crate::account::{Account, CommReceipt, Direction, Ended, SCHEMA};
use crate::door::Door;
use crate::error::NetError;
use crate::memory::Memory;
use crate::receiver::Receiver;
use crate::sender::Sender;

/// How often a comm that waits looks whether its peer is still there.
const LOOK: Duration = Duration::from_millis(2);
/// How long closing may wait for the last records to arrive.
pub(crate) const LAST_RECORDS: Duration = Duration::from_secs(5);

/// A comm.
pub(crate) enum Comm {
    Send(Sender),
    Receive(Receiver),
}

impl Comm {
    /// The memory is NCCL's own again when this returns well. One that is still in use is taken
    /// from its comm, which fails: NCCL does so to comms that it gives up.
    pub(crate) fn release(&self, memory: &Arc<Memory>) -> Result<(), NetError> {
        match self {
            Self::Send(sender) => sender.forget(memory),
            Self::Receive(receiver) => receiver.forget(memory),
        }
        memory.release()
    }

    /// Ends the connection; what went by it.
    pub(crate) fn close(&self) -> CommReceipt {
        match self {
            Self::Send(sender) => sender.close(),
            Self::Receive(receiver) => receiver.close(),
        }
    }

    /// What went by it so far, unless somebody is at work on it.
    pub(crate) fn so_far(&self) -> Option<CommReceipt> {
        match self {
            Self::Send(sender) => sender.so_far(),
            Self::Receive(receiver) => receiver.so_far(),
        }
    }

    pub(crate) const fn line(&self) -> &Line {
        match self {
            Self::Send(sender) => sender.line(),
            Self::Receive(receiver) => receiver.line(),
        }
    }
}

/// The connection of a comm.
pub(crate) struct Line {
    pub door: Arc<Door>,
    pub peer: Peer,
    pub options: Options,
    policy: Policy,
    direction: Direction,
    opened: Instant,
}

impl Line {
    pub(crate) fn new(door: Arc<Door>, peer: Peer, direction: Direction) -> Self {
        let policy = door.policy;
        Self {
            options: Options::within(door.timeout).by(policy),
            door,
            peer,
            policy,
            direction,
            opened: Instant::now(),
        }
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.door.fabric
    }

    /// What is known of rails that the two ends do not have, as the start of an account.
    pub(crate) fn account(&self) -> Account {
        let mut account = Account::default();
        account.met(self.peer.obstacles());
        account
    }

    pub(crate) fn receipt(&self, account: &Account, ended: Ended) -> CommReceipt {
        CommReceipt {
            schema: SCHEMA,
            event: "comm",
            process: std::process::id(),
            device: self.door.device.clone(),
            direction: self.direction,
            peer: self.peer.incarnation().to_string(),
            address: self.peer.address().to_owned(),
            policy: self.policy,
            ended,
            seconds: self.opened.elapsed().as_secs_f64(),
            account: account.clone(),
            rails: self.peer.rails(),
        }
    }
}

/// Whether a comm still works: the first thing that went wrong stays.
pub(crate) struct Health {
    failed: Option<NetError>,
    looked: Instant,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            failed: None,
            looked: Instant::now(),
        }
    }

    /// # Errors
    /// What it failed of.
    pub(crate) fn check(&self) -> Result<(), NetError> {
        match &self.failed {
            Some(error) => Err(NetError::Failed(Box::new(error.clone()))),
            None => Ok(()),
        }
    }

    /// Looks now and then whether the peer is gone; if it is, how.
    pub(crate) fn gone(&mut self, line: &Line) -> Option<NetError> {
        if self.looked.elapsed() < LOOK {
            return None;
        }
        self.looked = Instant::now();
        let why = line.peer.lost()?;
        let peer = line.peer.incarnation();
        Some(FabricError::PeerLost { peer, why }.into())
    }

    /// It has failed; answers what it failed of, for the caller to report.
    pub(crate) fn fails(&mut self, error: NetError) -> NetError {
        self.failed.get_or_insert_with(|| error.clone());
        error
    }

    pub(crate) fn ended(&self) -> Ended {
        self.failed
            .as_ref()
            .map_or(Ended::Closed, |error| Ended::Failed {
                code: error.code(),
                error: error.to_string(),
            })
    }

    /// As it stands when the process ends and nobody has closed it.
    pub(crate) fn left(&self) -> Ended {
        match self.ended() {
            Ended::Closed => Ended::Open,
            failed => failed,
        }
    }
}

/// A lock whose holder leaves no disorder behind: a comm that panicked is closed by NCCL.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
