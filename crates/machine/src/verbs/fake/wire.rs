//! What queue pairs do: the checks of a NIC, then a copy.

use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

use super::super::abi;
use super::super::completion::Status;
use super::objects::Region;
use super::{World, world};

pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut abi::Qp,
    attr: *mut abi::QpAttr,
    mask: c_int,
) -> c_int {
    // SAFETY: made by `create_qp`, and the caller passes a structure.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
    let mut world = world();
    let Some(pair) = world.pairs.get_mut(&number) else {
        return libc::EINVAL;
    };
    let next = attr.qp_state;
    let in_order = next == abi::QPS_ERR || next == pair.state + 1;
    if mask & abi::QP_STATE == 0 || !in_order {
        return libc::EINVAL;
    }
    pair.state = next;
    if next == abi::QPS_RTR {
        pair.peer = attr.dest_qp_num;
    }
    if next == abi::QPS_ERR {
        let (sent, received) = (pair.send_cq, pair.recv_cq);
        let held = std::mem::take(&mut pair.held);
        let receives = std::mem::take(&mut pair.receives);
        for wr_id in held {
            world.complete(sent, flushed(wr_id, number));
        }
        for (wr_id, _) in receives {
            world.complete(received, flushed(wr_id, number));
        }
    }
    0
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut abi::Qp) -> c_int {
    // SAFETY: made by `create_qp`.
    let qp = unsafe { Box::from_raw(qp) };
    world().pairs.remove(&qp.qp_num);
    0
}

fn flushed(wr_id: u64, number: u32) -> abi::Wc {
    failed(wr_id, number, Status::FLUSHED)
}

/// Everything but the four valid fields is filled with rubbish, as a NIC may.
fn failed(wr_id: u64, number: u32, status: Status) -> abi::Wc {
    abi::Wc {
        wr_id,
        status: status.0,
        opcode: 0xbad0_0bad,
        vendor_err: 0x17,
        byte_len: u32::MAX,
        wc_flags: u32::MAX,
        imm_data: u32::MAX,
        qp_num: number,
        ..abi::Wc::default()
    }
}

impl World {
    fn complete(&mut self, cq: usize, wc: abi::Wc) {
        if let Some(queue) = self.queues.get_mut(&cq) {
            queue.push_back(wc);
        }
        if self.armed.remove(&cq).is_some() {
            let cq = cq as *const abi::Cq;
            let one = 1u64;
            // SAFETY: the queue is in the table, so it was not destroyed; it has a channel,
            // because only such a queue can be armed.
            unsafe { libc::write((*(*cq).channel).fd, (&raw const one).cast(), 8) };
        }
    }

    /// Completes what a slow NIC holds, unless the queue pair was stopped meanwhile.
    fn gives_back(&mut self, cq: usize, wc: abi::Wc) {
        let held = self.pairs.get_mut(&wc.qp_num).map(|pair| &mut pair.held);
        let at = held.and_then(|held| {
            let at = held.iter().position(|held| *held == wc.wr_id)?;
            Some(held.remove(at))
        });
        if at.is_some() {
            self.complete(cq, wc);
        }
    }

    fn region(
        &self,
        nic: &str,
        key: u32,
        address: u64,
        len: u64,
        access: c_uint,
    ) -> Option<Region> {
        let region = *self.nics.get(nic)?.regions.get(&key)?;
        let end = address.checked_add(len)?;
        let inside = address >= region.iova && end <= region.iova + region.len;
        (inside && region.access & access == access).then_some(region)
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, most: c_int, out: *mut abi::Wc) -> c_int {
    let mut world = world();
    let Some(queue) = world.queues.get_mut(&(cq as usize)) else {
        return -libc::EINVAL;
    };
    let mut count = 0;
    while count < most {
        let Some(wc) = queue.pop_front() else { break };
        // SAFETY: the caller passes room for `most` entries.
        unsafe { *out.add(count as usize) = wc };
        count += 1;
    }
    count
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, _: c_int) -> c_int {
    // SAFETY: made by `create_cq`.
    if unsafe { (*cq).channel.is_null() } {
        return libc::EINVAL;
    }
    world().armed.insert(cq as usize, true);
    0
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    mut wr: *mut abi::RecvWr,
    _: *mut *mut abi::RecvWr,
) -> c_int {
    let mut world = world();
    // SAFETY: made by `create_qp`; the caller passes a chain whose lists are readable.
    unsafe {
        let Some(pair) = world.pairs.get_mut(&(*qp).qp_num) else {
            return libc::EINVAL;
        };
        while !wr.is_null() {
            let piece = ((*wr).num_sge > 0).then(|| *(*wr).sg_list);
            pair.receives.push_back(((*wr).wr_id, piece));
            wr = (*wr).next;
        }
    }
    0
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    mut wr: *mut abi::SendWr,
    bad: *mut *mut abi::SendWr,
) -> c_int {
    let mut world = world();
    // SAFETY: made by `create_qp`.
    let number = unsafe { (*qp).qp_num };
    while !wr.is_null() {
        // SAFETY: the caller passes a chain of requests.
        let request = unsafe { &*wr };
        let state = world.pairs.get(&number).map_or(0, |pair| pair.state);
        if state != abi::QPS_RTS && state != abi::QPS_ERR {
            // SAFETY: the caller passes a writable pointer.
            unsafe { *bad = wr };
            return libc::EINVAL;
        }
        carry_out(&mut world, number, request);
        wr = request.next;
    }
    0
}

fn carry_out(world: &mut World, number: u32, request: &abi::SendWr) {
    let Some(pair) = world.pairs.get(&number) else {
        return;
    };
    let (nic, cq, inline) = (pair.nic.clone(), pair.send_cq, pair.inline);
    if pair.state == abi::QPS_ERR {
        return world.complete(cq, flushed(request.wr_id, number));
    }
    let Some(device) = world.nics.get_mut(&nic) else {
        return;
    };
    let (behaviour, ordinal) = (device.behaviour.clone(), device.posted);
    device.posted += 1;
    if behaviour.silent {
        if let Some(pair) = world.pairs.get_mut(&number) {
            pair.held.push(request.wr_id);
        }
        return;
    }
    let result = match behaviour.fail {
        Some((at, status)) if at == ordinal => Err(status),
        _ if behaviour.unanswered == Some(ordinal) => {
            move_bytes(world, number, &nic, inline, request).and(Err(Status::RETRIES_EXHAUSTED))
        }
        _ => move_bytes(world, number, &nic, inline, request),
    };
    match result {
        Ok(()) if request.send_flags & abi::SEND_SIGNALED == 0 => {}
        Ok(()) => {
            let opcode = match request.opcode {
                abi::WR_RDMA_READ => abi::WC_RDMA_READ,
                abi::WR_SEND | abi::WR_SEND_WITH_IMM => abi::WC_SEND,
                _ => abi::WC_RDMA_WRITE,
            };
            let wc = abi::Wc {
                wr_id: request.wr_id,
                opcode,
                qp_num: number,
                ..abi::Wc::default()
            };
            match behaviour.pace {
                None => world.complete(cq, wc),
                Some(pace) => complete_later(world, &nic, cq, wc, bytes_of(request) / pace as f64),
            }
        }
        Err(status) => {
            world.complete(cq, failed(request.wr_id, number, status));
            if let Some(pair) = world.pairs.get_mut(&number) {
                pair.state = abi::QPS_ERR;
            }
        }
    }
}

fn bytes_of(request: &abi::SendWr) -> f64 {
    let count = usize::try_from(request.num_sge).unwrap_or(0);
    // SAFETY: the caller passes a list of `num_sge` pieces.
    let lens = (0..count).map(|at| unsafe { (*request.sg_list.add(at)).length });
    lens.map(f64::from).sum()
}

/// Completes what a slow NIC takes so many seconds for, after all that it has to do before.
fn complete_later(world: &mut World, nic: &str, cq: usize, wc: abi::Wc, seconds: f64) {
    let Some(device) = world.nics.get_mut(nic) else {
        return;
    };
    let now = Instant::now();
    let from = device.busy.map_or(now, |busy| busy.max(now));
    let due = from + Duration::from_secs_f64(seconds);
    device.busy = Some(due);
    let (number, wr_id) = (wc.qp_num, wc.wr_id);
    if let Some(pair) = world.pairs.get_mut(&number) {
        pair.held.push(wr_id);
    }
    let started = std::thread::Builder::new()
        .name("crowfly-slow-nic".into())
        .spawn(move || {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            super::world().gives_back(cq, wc);
        });
    if started.is_err() {
        world.gives_back(cq, wc);
    }
}

fn move_bytes(
    world: &mut World,
    number: u32,
    nic: &str,
    inline: u32,
    request: &abi::SendWr,
) -> Result<(), Status> {
    let count = usize::try_from(request.num_sge).unwrap_or(0);
    let pieces = if count == 0 {
        &[][..]
    } else {
        // SAFETY: the caller passes a list of `num_sge` pieces.
        unsafe { std::slice::from_raw_parts(request.sg_list, count) }
    };
    let total: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
    let reads = request.opcode == abi::WR_RDMA_READ;
    if request.send_flags & abi::SEND_INLINE != 0 {
        if reads || total > u64::from(inline) {
            return Err(Status(2));
        }
    } else {
        let needed = if reads { abi::ACCESS_LOCAL_WRITE } else { 0 };
        for piece in pieces {
            let len = u64::from(piece.length);
            let known = world.region(nic, piece.lkey, piece.addr, len, needed);
            known.ok_or(Status::LOCAL_PROTECTION)?;
        }
    }
    let peer = world.pairs.get(&number).map_or(0, |pair| pair.peer);
    let answers = |pair: &&super::objects::PairState| {
        pair.peer == number && (abi::QPS_RTR..=abi::QPS_RTS).contains(&pair.state)
    };
    let Some(theirs) = world.pairs.get(&peer).filter(answers) else {
        return Err(Status::RETRIES_EXHAUSTED);
    };
    let (their_nic, their_cq) = (theirs.nic.clone(), theirs.recv_cq);
    let silent = world
        .nics
        .get(&their_nic)
        .is_none_or(|nic| nic.behaviour.silent);
    if silent {
        return Err(Status::RETRIES_EXHAUSTED);
    }
    let sends = matches!(request.opcode, abi::WR_SEND | abi::WR_SEND_WITH_IMM);
    let immediate = matches!(
        request.opcode,
        abi::WR_SEND_WITH_IMM | abi::WR_RDMA_WRITE_WITH_IMM
    );
    let receive = if sends || immediate {
        let pair = world.pairs.get_mut(&peer);
        let receive = pair.and_then(|pair| pair.receives.pop_front());
        Some(receive.ok_or(Status::RECEIVER_NOT_READY)?)
    } else {
        None
    };
    let mut at = if sends {
        let piece = receive.and_then(|(_, piece)| piece).unwrap_or_default();
        if total > u64::from(piece.length) {
            return Err(Status::REMOTE_INVALID_REQUEST);
        }
        piece.addr
    } else {
        // SAFETY: all requests that are no sends fill in this member of the union.
        let rdma = unsafe { request.wr.rdma };
        let needed = if reads {
            abi::ACCESS_REMOTE_READ
        } else {
            abi::ACCESS_REMOTE_WRITE
        };
        if total > 0 {
            let known = world.region(&their_nic, rdma.rkey, rdma.remote_addr, total, needed);
            known.ok_or(Status::REMOTE_ACCESS)?;
        }
        rdma.remote_addr
    };
    for piece in pieces {
        let (from, to) = if reads {
            (at, piece.addr)
        } else {
            (piece.addr, at)
        };
        // SAFETY: both ranges lie in registered regions, whose memory outlives them, or inline.
        unsafe { copy(from, to, piece.length as usize) };
        at += u64::from(piece.length);
    }
    if let Some((wr_id, _)) = receive {
        let wc = abi::Wc {
            wr_id,
            opcode: if sends {
                abi::WC_RECV
            } else {
                abi::WC_RECV_RDMA_WITH_IMM
            },
            byte_len: u32::try_from(total).unwrap_or(u32::MAX),
            imm_data: request.imm_data,
            wc_flags: if immediate { abi::WC_WITH_IMM } else { 0 },
            qp_num: peer,
            ..abi::Wc::default()
        };
        world.complete(their_cq, wc);
    }
    Ok(())
}

/// Copies between host memories, and those of GPUs that exist only in this process, whose addresses
/// no core may touch.
///
/// # Safety
/// What is no GPU's must be memory that may be read or written.
unsafe fn copy(from: u64, to: u64, len: usize) {
    let mut gpus = crate::gpu::fake::world();
    let mut bytes = vec![0; len];
    if !gpus.read_by_device(from, &mut bytes) {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy(from as *const u8, bytes.as_mut_ptr(), len) };
    }
    if !gpus.written_by_device(to, &bytes) {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, len) };
    }
}
