//! Requests that are posted with one ring of the doorbell.

use std::ffi::{c_int, c_uint};

use super::super::abi;
use super::super::completion::RECEIVE_BIT;
use super::super::error::VerbsError;
use super::super::memory::Slice;
use super::{Posted, QueuePair, Ready};

/// Where a request goes in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address, as the peer's registration counts.
    pub address: u64,
    /// The peer's key.
    pub key: u32,
}

/// What one ring of the doorbell did.
#[derive(Debug, PartialEq, Eq)]
pub struct Rung {
    /// How many requests the device took.
    pub posted: usize,
    /// The number of the last of them, whose completion ends them all.
    pub last: Option<u64>,
}

/// Requests that wait for [`Batch::ring`]. Only the last of a batch gives a completion, unless one
/// fails. Dropping a batch without ringing posts nothing.
#[must_use = "nothing is posted before `ring`"]
pub struct Batch<'q> {
    pair: &'q mut QueuePair<Ready>,
    requests: Vec<Request>,
}

struct Request {
    wr_id: u64,
    opcode: c_uint,
    memory: Vec<Slice>,
    inline: Vec<u8>,
    immediate: Option<u32>,
    remote: Remote,
}

impl QueuePair<Ready> {
    /// Starts a batch of requests.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch {
            pair: self,
            requests: Vec::new(),
        }
    }

    /// How many more requests can be posted before some complete.
    pub const fn room(&self) -> usize {
        (self.inner.cap.max_send_wr as usize).saturating_sub(self.inner.outstanding)
    }
}

const fn opcode_of_write(immediate: Option<u32>) -> c_uint {
    match immediate {
        Some(_) => abi::WR_RDMA_WRITE_WITH_IMM,
        None => abi::WR_RDMA_WRITE,
    }
}

impl Batch<'_> {
    /// Writes local memory, one piece after the other, to one run of the peer's; with `immediate`,
    /// the peer is told once the bytes are there.
    ///
    /// # Errors
    /// When the request has more pieces or bytes than the queue pair takes.
    pub fn write(
        &mut self,
        wr_id: u64,
        from: Vec<Slice>,
        to: Remote,
        immediate: Option<u32>,
    ) -> Result<&mut Self, VerbsError> {
        self.add(Request {
            wr_id,
            opcode: opcode_of_write(immediate),
            memory: from,
            inline: Vec::new(),
            immediate,
            remote: to,
        })
    }

    /// Writes bytes that travel inside of the request: no registered memory is needed.
    ///
    /// # Errors
    /// When there are more bytes than the queue pair carries inline.
    pub fn write_inline(
        &mut self,
        wr_id: u64,
        bytes: &[u8],
        to: Remote,
        immediate: Option<u32>,
    ) -> Result<&mut Self, VerbsError> {
        self.add(Request {
            wr_id,
            opcode: opcode_of_write(immediate),
            memory: Vec::new(),
            inline: bytes.to_vec(),
            immediate,
            remote: to,
        })
    }

    /// Reads one run of the peer's memory into local memory, one piece after the other.
    ///
    /// # Errors
    /// As for [`Batch::write`], and when the local memory may not be written.
    pub fn read(
        &mut self,
        wr_id: u64,
        from: Remote,
        into: Vec<Slice>,
    ) -> Result<&mut Self, VerbsError> {
        let writable = |slice: &Slice| {
            let access = slice.region.access();
            access.local_write || access.remote_write
        };
        if !into.iter().all(writable) {
            return Err(VerbsError::AccessMissing {
                what: "being read into",
            });
        }
        self.add(Request {
            wr_id,
            opcode: abi::WR_RDMA_READ,
            memory: into,
            inline: Vec::new(),
            immediate: None,
            remote: from,
        })
    }

    /// Sends a message into a receive that the peer has posted.
    ///
    /// # Errors
    /// As for [`Batch::write`].
    pub fn send(
        &mut self,
        wr_id: u64,
        from: Vec<Slice>,
        immediate: Option<u32>,
    ) -> Result<&mut Self, VerbsError> {
        let opcode = match immediate {
            Some(_) => abi::WR_SEND_WITH_IMM,
            None => abi::WR_SEND,
        };
        self.add(Request {
            wr_id,
            opcode,
            memory: from,
            inline: Vec::new(),
            immediate,
            remote: Remote { address: 0, key: 0 },
        })
    }

    fn add(&mut self, mut request: Request) -> Result<&mut Self, VerbsError> {
        request.wr_id &= !RECEIVE_BIT;
        let inner = &self.pair.inner;
        let too_large = |what, value, limit| VerbsError::TooLarge {
            qp_num: inner.number,
            what,
            value,
            limit,
        };
        let pieces = inner.cap.max_send_sge as usize;
        if request.memory.len() > pieces {
            return Err(too_large("pieces of memory", request.memory.len(), pieces));
        }
        let inline = inner.cap.max_inline_data as usize;
        if request.inline.len() > inline {
            return Err(too_large(
                "bytes inside of a request",
                request.inline.len(),
                inline,
            ));
        }
        if let Some(long) = request
            .memory
            .iter()
            .find(|s| u32::try_from(s.len()).is_err())
        {
            return Err(too_large(
                "bytes of one piece",
                long.len(),
                u32::MAX as usize,
            ));
        }
        let (room, wanted) = (self.pair.room(), self.requests.len() + 1);
        if wanted > room {
            return Err(VerbsError::QueueFull {
                qp_num: inner.number,
                room,
                wanted,
            });
        }
        self.requests.push(request);
        Ok(self)
    }

    /// Hands the requests to the device.
    ///
    /// # Errors
    /// When the device takes none of them. When it takes some, the answer says how many: the last
    /// one taken gives no completion of its own then, and the queue pair should be stopped.
    pub fn ring(mut self) -> Result<Rung, VerbsError> {
        let mut pieces: Vec<Vec<abi::Sge>> = self.requests.iter_mut().map(pieces_of).collect();
        let count = self.requests.len();
        let mut chain: Vec<abi::SendWr> = self
            .requests
            .iter()
            .zip(&mut pieces)
            .enumerate()
            .map(|(at, (request, pieces))| work_request(request, pieces, at + 1 == count))
            .collect();
        // Linked once they lie where they stay.
        for at in (1..count).rev() {
            let next: *mut abi::SendWr = &raw mut chain[at];
            chain[at - 1].next = next;
        }
        let Some(first) = chain.first_mut() else {
            return Ok(Rung {
                posted: 0,
                last: None,
            });
        };
        let first: *mut abi::SendWr = first;
        let inner = &mut self.pair.inner;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is open; the chain, its lists and the inline bytes live through
        // the call, and registered memory is held by `sent` until its completion comes.
        let rc = unsafe { (inner.post_send)(inner.raw.as_ptr(), first, &raw mut bad) };
        let context = inner.domain.context();
        let refused = context.checked(rc, || {
            format!(
                "ibv_post_send of {count} requests on queue pair {}",
                inner.number
            )
        });
        let posted = match refused {
            Ok(()) => count,
            Err(error) => {
                let taken = chain.iter().position(|wr| std::ptr::eq(wr, bad));
                match taken {
                    // A device that does not say may have taken any of them.
                    None if !bad.is_null() => count,
                    None | Some(0) => return Err(error),
                    Some(taken) => taken,
                }
            }
        };
        self.requests.truncate(posted);
        let last = self.requests.last().map(|request| request.wr_id);
        inner.outstanding += posted;
        inner.sent.push_back(Posted {
            last: last.unwrap_or_default(),
            requests: posted,
            memory: self.requests.into_iter().flat_map(|r| r.memory).collect(),
        });
        Ok(Rung { posted, last })
    }
}

/// The list of a request's memory, or of the bytes inside of it.
fn pieces_of(request: &mut Request) -> Vec<abi::Sge> {
    if request.inline.is_empty() {
        request.memory.iter().map(Slice::piece).collect()
    } else {
        vec![abi::Sge {
            addr: request.inline.as_ptr() as u64,
            length: u32::try_from(request.inline.len()).unwrap_or(u32::MAX),
            lkey: 0,
        }]
    }
}

fn work_request(request: &Request, pieces: &mut [abi::Sge], last: bool) -> abi::SendWr {
    let mut send_flags = 0;
    if last {
        send_flags |= abi::SEND_SIGNALED;
    }
    if !request.inline.is_empty() {
        send_flags |= abi::SEND_INLINE;
    }
    abi::SendWr {
        wr_id: request.wr_id,
        next: std::ptr::null_mut(),
        sg_list: pieces.as_mut_ptr(),
        num_sge: c_int::try_from(pieces.len()).unwrap_or(c_int::MAX),
        opcode: request.opcode,
        send_flags,
        imm_data: request.immediate.unwrap_or(0).to_be(),
        wr: abi::Operation {
            rdma: abi::Rdma {
                remote_addr: request.remote.address,
                rkey: request.remote.key,
            },
        },
        qp_type: 0,
        tail: [0; 6],
    }
}
