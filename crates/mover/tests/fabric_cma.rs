//! Memory that no other process can map, moved by the kernel's copy between two processes.

#[path = "fabric_support/pair.rs"]
mod pair;

use crowfly_mover::fabric::{Access, Buffer, Fabric, Imm, Options, Region};
use crowfly_route::hop::Class;
use crowfly_route::receipt::{Path, Receipt};
use crowfly_route::units::Bytes;
use pair::{Pair, SOON, content, filled, pattern, sent, settings};

const LENGTHS: [usize; 6] = [1, 64, 8192, 300_000, 2 << 20, (5 << 20) + 13];

/// Two ends in this process, which may read itself; `None` where even that is forbidden.
fn pair() -> Option<Pair> {
    let pair = Pair::new(true);
    let mut rails = pair.to_there.rails().into_iter();
    rails.any(|rail| rail.path == Path::Cma).then_some(pair)
}

macro_rules! pair_or_waive {
    () => {
        match pair() {
            Some(pair) => pair,
            None => crowfly_waive::waived!("process_vm_readv is forbidden here"),
        }
    };
}

fn private(fabric: &Fabric, bytes: &[u8], access: Access) -> Region {
    let mut buffer = Buffer::private(bytes.len()).expect("memory");
    let slice = buffer.as_mut_slice().expect("writable");
    slice.copy_from_slice(bytes);
    fabric.register(buffer, access).expect("registered")
}

fn assert_by(path: Path, receipt: &Receipt, bytes: usize) {
    assert!(receipt.is_whole());
    let shares: Vec<_> = receipt
        .shares
        .iter()
        .map(|s| (s.path, s.class, s.bytes))
        .collect();
    assert_eq!(shares, [(path, Class::Direct, Bytes(bytes as u64))]);
    let counters = receipt.route.counters();
    assert_eq!((counters.copies, counters.cpu_touches), (1, 1));
    assert_eq!((receipt.bounced, receipt.retries), (Bytes(0), 0));
}

#[test]
fn given_private_memory_when_written_then_the_peer_fetches_it_and_the_receipt_says_so() {
    let pair = pair_or_waive!();
    for len in LENGTHS {
        let bytes = pattern(len, 5);
        let source = private(&pair.here, &bytes, Access::LOCAL);
        let target = private(&pair.there, &vec![0; len], Access::WRITE);
        let write = pair.to_there.write_imm(
            &source.whole(),
            &sent(&target).whole(),
            Imm(len as u32),
            Options::within(SOON),
        );
        let delivery = write
            .wait()
            .unwrap_or_else(|error| panic!("{len}: {error}"));
        assert_eq!(content(&target), bytes, "{len}");
        assert_by(Path::Cma, &delivery.receipt, len);
        let counter = pair.there.counter(Imm(len as u32));
        assert_eq!(counter.get(), 1, "the value came with the bytes");
    }
}

#[test]
fn given_private_memory_when_read_then_this_process_fetches_it() {
    let pair = pair_or_waive!();
    for len in LENGTHS {
        let bytes = pattern(len, 6);
        let source = private(&pair.there, &bytes, Access::READ);
        let target = private(&pair.here, &vec![0; len], Access::LOCAL);
        let (from, options) = (sent(&source).whole(), Options::within(SOON));
        let read = pair.to_there.read(&target.whole(), &from, options);
        let delivery = read.wait().unwrap_or_else(|error| panic!("{len}: {error}"));
        assert_eq!(content(&target), bytes, "{len}");
        assert_by(Path::Cma, &delivery.receipt, len);
    }
}

#[test]
fn given_memory_that_can_be_mapped_it_is_mapped() {
    let pair = pair_or_waive!();
    let bytes = pattern(100_000, 7);
    let source = private(&pair.here, &bytes, Access::LOCAL);
    let target = filled(&pair.there, &vec![0; bytes.len()], Access::WRITE);
    let to = sent(&target).whole();
    let write = pair
        .to_there
        .write(&source.whole(), &to, Options::within(SOON));
    let delivery = write.wait().expect("written");
    assert_eq!(content(&target), bytes);
    assert_by(Path::Shm, &delivery.receipt, bytes.len());
}

#[test]
fn given_a_region_that_was_taken_back_neither_writes_nor_reads_reach_it_and_its_memory_is_free() {
    let pair = pair_or_waive!();
    let bytes = pattern(1 << 20, 8);
    let local = private(&pair.here, &bytes, Access::LOCAL);
    let remote = private(&pair.there, &bytes, Access::READ_WRITE);
    let whole = sent(&remote).whole();
    let options = Options::within(SOON);
    let first = pair.to_there.read(&local.whole(), &whole, options).wait();
    first.expect("it was there");
    remote.deregister().expect("nobody reads it any more");
    for transfer in [
        pair.to_there.read(&local.whole(), &whole, options),
        pair.to_there.write(&local.whole(), &whole, options),
    ] {
        let error = transfer.wait().expect_err("taken back");
        assert_eq!(error.code(), "no-such-region");
    }
    local.deregister().expect("nobody fetches from it any more");
}

#[test]
fn given_many_transfers_both_ways_some_cancelled_every_one_ends_and_the_rest_are_right() {
    let pair = pair_or_waive!();
    let (len, parts) = (256 << 10, 16);
    let bytes = pattern(len * parts, 9);
    let here = private(&pair.here, &bytes, Access::LOCAL);
    let there = private(&pair.there, &vec![0; len * parts], Access::READ_WRITE);
    let remote = sent(&there);
    let options = Options::within(SOON);
    let writes: Vec<_> = (0..parts)
        .map(|part| {
            let from = here.slice(part * len..(part + 1) * len).expect("inside");
            let (start, end) = ((part * len) as u64, ((part + 1) * len) as u64);
            let to = remote.slice(start..end).expect("inside");
            pair.to_there.write(&from, &to, options)
        })
        .collect();
    writes.iter().step_by(2).for_each(|write| write.cancel());
    let ends: Vec<_> = writes.into_iter().map(|write| write.wait()).collect();
    let arrived = content(&there);
    for (part, end) in ends.into_iter().enumerate() {
        match end {
            Ok(_) => assert_eq!(arrived[part * len..][..len], bytes[part * len..][..len]),
            Err(error) => assert_eq!((error.code(), part % 2), ("cancelled", 0)),
        }
    }
    assert!(pair.to_there.rails().iter().all(|rail| rail.down.is_none()));
}

#[test]
fn given_ends_that_share_no_memory_there_is_no_such_rail() {
    let pair = Pair::with(settings(true), settings(false));
    assert!(
        pair.to_there
            .rails()
            .iter()
            .all(|rail| rail.path != Path::Cma)
    );
}
