//! Completion queues, and what completions say.

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::abi;
use super::device::Context;
use super::error::VerbsError;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// The request succeeded.
    pub const SUCCESS: Self = Self(0);
    /// Local memory was not registered for it.
    pub const LOCAL_PROTECTION: Self = Self(4);
    /// The queue pair failed before the request was carried out.
    pub const FLUSHED: Self = Self(5);
    /// The remote end refused the request as malformed.
    pub const REMOTE_INVALID_REQUEST: Self = Self(9);
    /// The remote end refused the key or the range.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The remote end could not carry it out.
    pub const REMOTE_OPERATION: Self = Self(11);
    /// The remote end did not answer in the configured time and number of retries.
    pub const RETRIES_EXHAUSTED: Self = Self(12);
    /// The remote end had no receive posted for as long as was configured.
    pub const RECEIVER_NOT_READY: Self = Self(13);

    /// The statuses by number, under the names of `enum ibv_wc_status` without their prefix.
    pub(super) const NAMES: &[(u32, &str)] = &[
        (0, "SUCCESS"),
        (1, "LOC_LEN_ERR"),
        (2, "LOC_QP_OP_ERR"),
        (3, "LOC_EEC_OP_ERR"),
        (4, "LOC_PROT_ERR"),
        (5, "WR_FLUSH_ERR"),
        (6, "MW_BIND_ERR"),
        (7, "BAD_RESP_ERR"),
        (8, "LOC_ACCESS_ERR"),
        (9, "REM_INV_REQ_ERR"),
        (10, "REM_ACCESS_ERR"),
        (11, "REM_OP_ERR"),
        (12, "RETRY_EXC_ERR"),
        (13, "RNR_RETRY_EXC_ERR"),
        (14, "LOC_RDD_VIOL_ERR"),
        (15, "REM_INV_RD_REQ_ERR"),
        (16, "REM_ABORT_ERR"),
        (17, "INV_EECN_ERR"),
        (18, "INV_EEC_STATE_ERR"),
        (19, "FATAL_ERR"),
        (20, "RESP_TIMEOUT_ERR"),
        (21, "GENERAL_ERR"),
    ];

    /// The name in `enum ibv_wc_status`, for searching the web with.
    pub fn name(self) -> String {
        let known = Self::NAMES.iter().find(|(number, _)| *number == self.0);
        known.map_or_else(
            || format!("status {}", self.0),
            |(_, name)| format!("IBV_WC_{name}"),
        )
    }

    /// What it means, in words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::SUCCESS => "it succeeded",
            Self::LOCAL_PROTECTION => "the local memory is not registered for this",
            Self::FLUSHED => "the connection had failed before",
            Self::REMOTE_INVALID_REQUEST => "the peer's NIC rejected the request",
            Self::REMOTE_ACCESS => "the peer's NIC refused the key or the range",
            Self::REMOTE_OPERATION => "the peer's NIC could not carry it out",
            Self::RETRIES_EXHAUSTED => "the peer's NIC did not answer",
            Self::RECEIVER_NOT_READY => "the peer had no receive posted",
            _ => "the NIC reported an error",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.meaning(), self.name())
    }
}

/// What a successful request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send was delivered.
    Sent,
    /// A write was delivered.
    Written,
    /// A read came back.
    Read,
    /// A message arrived in a posted receive.
    Received,
    /// A peer's write with immediate data arrived; it consumed a posted receive.
    Notified,
    /// Something this version does not use.
    Other(u32),
}

/// Set in the number of every posted receive: a failed completion does not say what it ends.
pub(super) const RECEIVE_BIT: u64 = 1 << 63;

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the poster gave the request.
    pub wr_id: u64,
    /// Whether it ends a posted receive rather than a request.
    pub receive: bool,
    /// The queue pair.
    pub qp_num: u32,
    /// How it ended.
    pub outcome: Result<Done, Failed>,
}

/// A request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What it was.
    pub kind: Kind,
    /// Bytes that arrived; meaningful for what was received or read.
    pub bytes: u32,
    /// The peer's immediate data.
    pub immediate: Option<u32>,
}

/// A request that failed. Of a failed completion a NIC fills in nothing more than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// How.
    pub status: Status,
    /// The vendor's own number, for its support.
    pub vendor_error: u32,
}

impl From<&abi::Wc> for Completion {
    fn from(wc: &abi::Wc) -> Self {
        let outcome = if wc.status == abi::WC_SUCCESS {
            let received = wc.opcode & abi::WC_RECV != 0;
            Ok(Done {
                kind: match wc.opcode {
                    abi::WC_SEND => Kind::Sent,
                    abi::WC_RDMA_WRITE => Kind::Written,
                    abi::WC_RDMA_READ => Kind::Read,
                    abi::WC_RECV => Kind::Received,
                    abi::WC_RECV_RDMA_WITH_IMM => Kind::Notified,
                    other => Kind::Other(other),
                },
                bytes: wc.byte_len,
                immediate: (received && wc.wc_flags & abi::WC_WITH_IMM != 0)
                    .then(|| u32::from_be(wc.imm_data)),
            })
        } else {
            Err(Failed {
                status: Status(wc.status),
                vendor_error: wc.vendor_err,
            })
        };
        Self {
            wr_id: wc.wr_id & !RECEIVE_BIT,
            receive: wc.wr_id & RECEIVE_BIT != 0,
            qp_num: wc.qp_num,
            outcome,
        }
    }
}

/// How many completions are fetched by one call.
const POLL_BATCH: usize = 32;

/// Where a device reports what it has finished. Destroyed after every queue pair that reports to
/// it: they hold it.
pub struct CompletionQueue {
    raw: NonNull<abi::Cq>,
    poll: abi::PollCq,
    arm: abi::ReqNotifyCq,
    channel: Option<Channel>,
    capacity: usize,
    context: Arc<Context>,
}

// SAFETY: libibverbs documents its verbs as thread-safe; the queue has no thread affinity.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above: polling and arming take the provider's lock.
unsafe impl Sync for CompletionQueue {}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CompletionQueue({}, {})",
            self.context.name(),
            self.capacity
        )
    }
}

impl CompletionQueue {
    /// A queue for at least `capacity` completions; with `events`, a thread can sleep until one comes.
    pub(super) fn new(
        context: &Arc<Context>,
        capacity: usize,
        events: bool,
    ) -> Result<Arc<Self>, VerbsError> {
        let channel = events.then(|| Channel::new(context)).transpose()?;
        let raw_channel = channel
            .as_ref()
            .map_or(std::ptr::null_mut(), |c| c.raw.as_ptr());
        let entries = c_int::try_from(capacity.max(1)).unwrap_or(c_int::MAX);
        let functions = context.functions();
        // SAFETY: the context is open, the channel null or open, and vector 0 always exists.
        let raw = unsafe {
            (functions.create_cq)(context.raw(), entries, std::ptr::null_mut(), raw_channel, 0)
        };
        let raw = context.created(raw, || format!("ibv_create_cq for {capacity} completions"))?;
        // SAFETY: the queue is open, so its context and the operations in it can be read.
        let (poll, arm, granted) = unsafe {
            let cq = raw.as_ref();
            let ops = &(*cq.context).ops;
            (ops.poll_cq, ops.req_notify_cq, cq.cqe)
        };
        let missing = || context.missing("poll_cq");
        Ok(Arc::new(Self {
            poll: poll.ok_or_else(missing)?,
            arm: arm.ok_or_else(missing)?,
            capacity: usize::try_from(granted).unwrap_or(capacity),
            raw,
            channel,
            context: Arc::clone(context),
        }))
    }

    pub(super) const fn raw(&self) -> *mut abi::Cq {
        self.raw.as_ptr()
    }

    /// How many completions fit. Posting more requests than this at a time can lose some.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends what has completed, without waiting; returns how many that were.
    ///
    /// # Errors
    /// When the queue overflowed or the device is gone.
    pub fn poll(&self, into: &mut Vec<Completion>) -> Result<usize, VerbsError> {
        let mut entries = [abi::Wc::default(); POLL_BATCH];
        let mut total = 0;
        loop {
            // SAFETY: the queue is open and there is room for as many entries as are asked for.
            let got = unsafe { (self.poll)(self.raw(), POLL_BATCH as c_int, entries.as_mut_ptr()) };
            let got = usize::try_from(got).map_err(|_| {
                let source = io::Error::from_raw_os_error(got.saturating_neg());
                self.context.failed("ibv_poll_cq", source)
            })?;
            let got = got.min(POLL_BATCH);
            into.extend(entries[..got].iter().map(Completion::from));
            total += got;
            if got < POLL_BATCH {
                return Ok(total);
            }
        }
    }

    /// Asks for an event at the next completion. What completed before causes none: poll once more
    /// before sleeping.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is open.
        let rc = unsafe { (self.arm)(self.raw(), 0) };
        self.context.checked(rc, || "ibv_req_notify_cq".into())
    }

    /// What becomes readable when an event is there; `None` for a queue without events.
    pub fn event_source(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(Channel::fd)
    }

    /// Takes the events that are there, waiting for one up to `patience`. Returns whether there
    /// was one.
    ///
    /// # Errors
    /// When waiting or fetching fails.
    pub fn wait(&self, patience: Duration) -> Result<bool, VerbsError> {
        let Some(channel) = &self.channel else {
            std::thread::sleep(patience);
            return Ok(false);
        };
        let mut any = false;
        while channel.readable(if any { Duration::ZERO } else { patience })? {
            channel.take(self)?;
            any = true;
        }
        Ok(any)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the queue any more: every queue pair on it holds an `Arc`.
        // A refusal leaks it, which is harmless; every event was acknowledged when it was taken.
        let _ = unsafe { (self.context.functions().destroy_cq)(self.raw()) };
    }
}

/// The file descriptor behind which events wait.
struct Channel {
    raw: NonNull<abi::CompChannel>,
    context: Arc<Context>,
}

impl Channel {
    fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.functions().create_comp_channel)(context.raw()) };
        let raw = context.created(raw, || "ibv_create_comp_channel".into())?;
        Ok(Self {
            raw,
            context: Arc::clone(context),
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self` lives, and with it its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    fn readable(&self, patience: Duration) -> Result<bool, VerbsError> {
        let fd = self.fd();
        let mut polled = [rustix::event::PollFd::new(
            &fd,
            rustix::event::PollFlags::IN,
        )];
        let patience = rustix::event::Timespec::try_from(patience).ok();
        match rustix::event::poll(&mut polled, patience.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self
                .context
                .failed("poll of the completion channel", error.into())),
        }
    }

    fn take(&self, queue: &CompletionQueue) -> Result<(), VerbsError> {
        let mut cq = std::ptr::null_mut();
        let mut user = std::ptr::null_mut();
        let functions = self.context.functions();
        // SAFETY: the channel is open, it was seen to be readable, and both results are writable.
        let rc = unsafe { (functions.get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut user) };
        if rc != 0 {
            let source = io::Error::last_os_error();
            return Err(self.context.failed("ibv_get_cq_event", source));
        }
        // SAFETY: one event of this queue was taken: the channel belongs to it alone.
        unsafe { (functions.ack_cq_events)(queue.raw(), c_uint::from(1u8)) };
        Ok(())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: fields drop after `CompletionQueue::drop` destroyed the queue, its only user.
        let _ = unsafe { (self.context.functions().destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

// SAFETY: see `CompletionQueue`.
unsafe impl Send for Channel {}
// SAFETY: see `CompletionQueue`.
unsafe impl Sync for Channel {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_status_and_vendor_number_is_read_of_a_failed_completion() {
        let wc = abi::Wc {
            wr_id: 7,
            status: Status::REMOTE_ACCESS.0,
            opcode: 0xdead,
            vendor_err: 0x88,
            byte_len: 99,
            imm_data: 5,
            qp_num: 12,
            wc_flags: abi::WC_WITH_IMM,
            ..abi::Wc::default()
        };
        let failed = Failed {
            status: Status::REMOTE_ACCESS,
            vendor_error: 0x88,
        };
        let expected = Completion {
            wr_id: 7,
            receive: false,
            qp_num: 12,
            outcome: Err(failed),
        };
        assert_eq!(Completion::from(&wc), expected);
        assert_eq!(
            failed.status.to_string(),
            "the peer's NIC refused the key or the range (IBV_WC_REM_ACCESS_ERR)"
        );
    }

    #[test]
    fn immediate_data_is_read_in_network_order_and_only_where_it_was_received() {
        let mut wc = abi::Wc {
            opcode: abi::WC_RECV_RDMA_WITH_IMM,
            imm_data: 0x0102_0304_u32.to_be(),
            wc_flags: abi::WC_WITH_IMM,
            ..abi::Wc::default()
        };
        let immediate = |wc: &abi::Wc| Completion::from(wc).outcome.expect("success").immediate;
        assert_eq!(immediate(&wc), Some(0x0102_0304));
        wc.opcode = abi::WC_RDMA_WRITE;
        assert_eq!(immediate(&wc), None);
    }

    #[test]
    fn a_status_that_is_not_known_keeps_its_number() {
        assert_eq!(Status(99).name(), "status 99");
    }
}
