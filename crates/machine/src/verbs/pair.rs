//! Queue pairs. What may be done with one depends on its state, and the state is part of its type:
//!
//! ```text
//! QueuePair<Reset> --initialise--> QueuePair<Init> --connect--> QueuePair<Ready>
//! ```
//!
//! Posting to a queue pair that is not connected does not compile:
//!
//! ```compile_fail,E0599
//! use crowfly_machine::verbs::{Init, QueuePair};
//! fn misuse(pair: &mut QueuePair<Init>) {
//!     let _ = pair.batch();
//! }
//! ```
//!
//! A batch borrows its queue pair exclusively until it is rung, so two batches cannot mix:
//!
//! ```compile_fail,E0499
//! use crowfly_machine::verbs::{QueuePair, Ready};
//! fn misuse(pair: &mut QueuePair<Ready>) {
//!     let first = pair.batch();
//!     let second = pair.batch();
//!     let _ = (first.ring(), second.ring());
//! }
//! ```
//!
//! One after the other does:
//!
//! ```
//! use crowfly_machine::verbs::{QueuePair, Ready};
//! fn use_it(pair: &mut QueuePair<Ready>) {
//!     let _ = pair.batch().ring();
//!     let _ = pair.batch().ring();
//! }
//! ```

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi;
use super::completion::{Completion, CompletionQueue, RECEIVE_BIT};
use super::device::{Mtu, Port};
use super::error::VerbsError;
use super::gid::{GidKind, PortGid};
use super::memory::{ProtectionDomain, Slice};

mod batch;

pub use batch::{Batch, Remote, Rung};

/// How large the queues of a queue pair are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Requests in flight.
    pub requests: usize,
    /// Receives posted.
    pub receives: usize,
    /// Pieces of memory in one request.
    pub pieces: usize,
    /// Bytes that a request may carry inside of itself.
    pub inline: usize,
}

/// Made, and not yet bound to a port.
#[derive(Debug)]
pub struct Reset;
/// Bound to a port; receives can be posted.
#[derive(Debug)]
pub struct Init;
/// Connected to a peer's queue pair.
#[derive(Debug)]
pub struct Ready;

/// How patient a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The NIC waits 4.096 µs × 2^`timeout` for an answer (InfiniBand specification, local ACK
    /// timeout); 20 is about 4 s.
    pub timeout: u8,
    /// How often it then tries again. 7 is what the hardware can count to; soft-RoCE takes it for
    /// *for ever*, so that nothing but a deadline ends a transfer to a peer that fell silent.
    pub retries: u8,
    /// How often it tries again when the peer has no receive posted; 7 is for ever.
    pub receiver_retries: u8,
    /// What it tells its peer to wait when it has no receive posted itself, as the specification's
    /// table counts: 12 is 0.64 ms.
    pub receiver_timer: u8,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            timeout: 20,
            retries: 7,
            receiver_retries: 7,
            receiver_timer: 12,
        }
    }
}

/// Where a connection leads.
#[derive(Clone, Debug)]
pub struct Route {
    /// The local port.
    pub port: Port,
    /// The local address; needed everywhere but within one InfiniBand subnet.
    pub local: Option<PortGid>,
    /// The peer's address, where the local one is given.
    pub remote_gid: [u8; 16],
    /// The peer's local identifier, on InfiniBand.
    pub remote_lid: u16,
    /// The number of the peer's queue pair.
    pub remote_qp: u32,
    /// The packet sequence number that the peer starts with.
    pub remote_psn: u32,
    /// The packet sequence number that this end starts with.
    pub local_psn: u32,
    /// The largest packet that both ports carry.
    pub mtu: Mtu,
    /// Reads in flight, as both ends can.
    pub reads: u8,
    /// How patient the connection is.
    pub patience: Patience,
}

/// Packet sequence numbers have 24 bits.
pub const PSN_MASK: u32 = 0x00ff_ffff;

/// Hops that a packet may take where it can be routed.
const HOP_LIMIT: u8 = 64;

/// A reliable queue pair.
pub struct QueuePair<S> {
    inner: Inner,
    state: PhantomData<S>,
}

/// Requests that were posted together: their memory stays registered until the last one's
/// completion comes.
struct Posted {
    last: u64,
    requests: usize,
    #[expect(dead_code, reason = "held for its drop")]
    memory: Vec<Slice>,
}

struct Inner {
    raw: NonNull<abi::Qp>,
    post_send: abi::PostSend,
    post_recv: abi::PostRecv,
    number: u32,
    cap: abi::QpCap,
    /// What was sent, oldest first; a reliable queue pair completes in order.
    sent: VecDeque<Posted>,
    received: VecDeque<Posted>,
    outstanding: usize,
    domain: Arc<ProtectionDomain>,
    _sent_to: Arc<CompletionQueue>,
    _received_to: Arc<CompletionQueue>,
}

// SAFETY: libibverbs documents its verbs as thread-safe; a queue pair has no thread affinity, and
// posting takes `&mut self`.
unsafe impl Send for Inner {}
// SAFETY: nothing is done through `&Inner` but reading numbers.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let functions = self.domain.context().functions();
        // SAFETY: the queue pair is open and no batch borrows it.
        let rc = unsafe { (functions.destroy_qp)(self.raw.as_ptr()) };
        if rc != 0 {
            // The device may still use the memory of what is in flight: it must never be freed.
            std::mem::forget(std::mem::take(&mut self.sent));
            std::mem::forget(std::mem::take(&mut self.received));
        }
    }
}

impl<S> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "QueuePair({} on {})",
            self.number(),
            self.inner.domain.context().name()
        )
    }
}

impl<S> QueuePair<S> {
    /// The number by which the peer connects to it.
    pub const fn number(&self) -> u32 {
        self.inner.number
    }

    /// The sizes that were granted, at least those asked for.
    pub const fn sizes(&self) -> Sizes {
        let cap = self.inner.cap;
        Sizes {
            requests: cap.max_send_wr as usize,
            receives: cap.max_recv_wr as usize,
            pieces: cap.max_send_sge as usize,
            inline: cap.max_inline_data as usize,
        }
    }

    fn modify(&mut self, mut attr: abi::QpAttr, mask: c_int, to: &str) -> Result<(), VerbsError> {
        let context = self.inner.domain.context();
        // SAFETY: the queue pair is open and `attr` holds what `mask` names.
        let rc = unsafe {
            (context.functions().modify_qp)(self.inner.raw.as_ptr(), &raw mut attr, mask)
        };
        context.checked(rc, || {
            format!("ibv_modify_qp of {} to {to}", self.inner.number)
        })
    }

    fn into<T>(self) -> QueuePair<T> {
        QueuePair {
            inner: self.inner,
            state: PhantomData,
        }
    }

    /// Takes note of a completion of this queue pair: room and memory of what it ends are free
    /// again. Completions of other queue pairs are ignored.
    pub fn retire(&mut self, completion: &Completion) {
        if completion.qp_num != self.inner.number {
            return;
        }
        let inner = &mut self.inner;
        if completion.receive {
            let number = completion.wr_id;
            if let Some(at) = inner.received.iter().position(|p| p.last == number) {
                inner.received.remove(at);
            }
        } else if let Some(at) = inner.sent.iter().position(|p| p.last == completion.wr_id) {
            for posted in inner.sent.drain(..=at) {
                inner.outstanding -= posted.requests;
            }
        }
    }

    /// Stops the queue pair. Everything in flight completes as [`Status::FLUSHED`]; the device lets
    /// go of its memory once those completions have come, or the queue pair is dropped.
    ///
    /// [`Status::FLUSHED`]: super::Status::FLUSHED
    ///
    /// # Errors
    /// When the device refuses.
    pub fn stop(&mut self) -> Result<(), VerbsError> {
        let attr = abi::QpAttr {
            qp_state: abi::QPS_ERR,
            ..abi::QpAttr::default()
        };
        self.modify(attr, abi::QP_STATE, "ERR")
    }

    /// Requests posted whose completions have not come.
    pub const fn outstanding(&self) -> usize {
        self.inner.outstanding
    }
}

impl QueuePair<Reset> {
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        sent: &Arc<CompletionQueue>,
        received: &Arc<CompletionQueue>,
        sizes: Sizes,
    ) -> Result<Self, VerbsError> {
        let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let context = domain.context();
        let mut init = abi::QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: sent.raw(),
            recv_cq: received.raw(),
            srq: std::ptr::null_mut(),
            cap: abi::QpCap {
                max_send_wr: count(sizes.requests.max(1)),
                max_recv_wr: count(sizes.receives.max(1)),
                max_send_sge: count(sizes.pieces.max(1)),
                max_recv_sge: 1,
                max_inline_data: count(sizes.inline),
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are open, and `init` is writable: the driver puts the sizes it
        // grants there.
        let raw = unsafe { (context.functions().create_qp)(domain.raw(), &raw mut init) };
        let raw = context.created(raw, || {
            let (requests, inline) = (sizes.requests, sizes.inline);
            format!("ibv_create_qp for {requests} requests with {inline} bytes inline")
        })?;
        // SAFETY: the queue pair was just made.
        let (number, post_send, post_recv) = unsafe {
            let qp = raw.as_ref();
            let ops = &(*qp.context).ops;
            (qp.qp_num, ops.post_send, ops.post_recv)
        };
        Ok(Self {
            inner: Inner {
                raw,
                post_send: post_send.ok_or_else(|| context.missing("post_send"))?,
                post_recv: post_recv.ok_or_else(|| context.missing("post_recv"))?,
                number,
                cap: init.cap,
                sent: VecDeque::new(),
                received: VecDeque::new(),
                outstanding: 0,
                domain: Arc::clone(domain),
                _sent_to: Arc::clone(sent),
                _received_to: Arc::clone(received),
            },
            state: PhantomData,
        })
    }

    /// Binds it to a port. A peer may then read and write the regions of its domain that allow it.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn initialise(mut self, port: u8) -> Result<QueuePair<Init>, VerbsError> {
        let attr = abi::QpAttr {
            qp_state: abi::QPS_INIT,
            port_num: port,
            qp_access_flags: abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE,
            ..abi::QpAttr::default()
        };
        let mask = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
        self.modify(attr, mask, &format!("INIT on port {port}"))?;
        Ok(self.into())
    }
}

impl QueuePair<Init> {
    /// Connects it. The peer has to do the same with its own end.
    ///
    /// # Errors
    /// The driver's refusal: no such address, or no way to it.
    pub fn connect(mut self, route: &Route) -> Result<QueuePair<Ready>, VerbsError> {
        let mut path = abi::AhAttr {
            dlid: route.remote_lid,
            port_num: route.port.number,
            ..abi::AhAttr::default()
        };
        if let Some(local) = &route.local {
            path.is_global = 1;
            path.grh = abi::GlobalRoute {
                dgid: abi::Gid {
                    raw: route.remote_gid,
                },
                sgid_index: local.index,
                hop_limit: if local.kind == GidKind::RoceV1 {
                    1
                } else {
                    HOP_LIMIT
                },
                ..abi::GlobalRoute::default()
            };
        }
        let receive = abi::QpAttr {
            qp_state: abi::QPS_RTR,
            path_mtu: c_uint::from(route.mtu.code()),
            dest_qp_num: route.remote_qp,
            rq_psn: route.remote_psn & PSN_MASK,
            max_dest_rd_atomic: route.reads,
            min_rnr_timer: route.patience.receiver_timer,
            ah_attr: path,
            ..abi::QpAttr::default()
        };
        let mask = abi::QP_STATE
            | abi::QP_AV
            | abi::QP_PATH_MTU
            | abi::QP_DEST_QPN
            | abi::QP_RQ_PSN
            | abi::QP_MAX_DEST_RD_ATOMIC
            | abi::QP_MIN_RNR_TIMER;
        let peer = match &route.local {
            Some(_) => format!("{}", std::net::Ipv6Addr::from(route.remote_gid)),
            None => format!("LID {}", route.remote_lid),
        };
        self.modify(
            receive,
            mask,
            &format!("RTR towards {} at {peer}", route.remote_qp),
        )?;
        let send = abi::QpAttr {
            qp_state: abi::QPS_RTS,
            timeout: route.patience.timeout,
            retry_cnt: route.patience.retries,
            rnr_retry: route.patience.receiver_retries,
            sq_psn: route.local_psn & PSN_MASK,
            max_rd_atomic: route.reads,
            ..abi::QpAttr::default()
        };
        let mask = abi::QP_STATE
            | abi::QP_TIMEOUT
            | abi::QP_RETRY_CNT
            | abi::QP_RNR_RETRY
            | abi::QP_SQ_PSN
            | abi::QP_MAX_QP_RD_ATOMIC;
        self.modify(send, mask, "RTS")?;
        Ok(self.into())
    }
}

/// States in which receives can be posted.
pub trait Receives {}
impl Receives for Init {}
impl Receives for Ready {}

impl<S: Receives> QueuePair<S> {
    /// Posts a receive for a message of at most the slice's length, or, without memory, for a
    /// peer's write with immediate data. Numbers have 63 bits, and are told apart from those of
    /// requests.
    ///
    /// # Errors
    /// When the queue is full or the memory may not be written.
    pub fn receive(&mut self, wr_id: u64, into: Option<Slice>) -> Result<(), VerbsError> {
        let inner = &mut self.inner;
        let room = (inner.cap.max_recv_wr as usize).saturating_sub(inner.received.len());
        if room == 0 {
            return Err(VerbsError::QueueFull {
                qp_num: inner.number,
                room,
                wanted: 1,
            });
        }
        if let Some(slice) = &into
            && !slice.region.access().local_write
            && !slice.region.access().remote_write
        {
            return Err(VerbsError::AccessMissing {
                what: "being received into",
            });
        }
        let mut piece = into.as_ref().map(Slice::piece);
        let mut request = abi::RecvWr {
            wr_id: wr_id | RECEIVE_BIT,
            next: std::ptr::null_mut(),
            sg_list: piece
                .as_mut()
                .map_or(std::ptr::null_mut(), std::ptr::from_mut),
            num_sge: c_int::from(into.is_some()),
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is open; the request and its list live through the call, and the
        // memory stays registered until the completion comes, because `received` holds it.
        let rc = unsafe { (inner.post_recv)(inner.raw.as_ptr(), &raw mut request, &raw mut bad) };
        let context = inner.domain.context();
        context.checked(rc, || {
            format!("ibv_post_recv on queue pair {}", inner.number)
        })?;
        inner.received.push_back(Posted {
            last: wr_id & !RECEIVE_BIT,
            requests: 1,
            memory: into.into_iter().collect(),
        });
        Ok(())
    }
}
