//! What arrives, by which way, and what the receipt says of it.

#[path = "fabric_support/pair.rs"]
mod pair;

use std::time::Duration;

use crowfly_mover::fabric::{Access, Delivery, Imm, Options, Page};
use crowfly_route::hop::Class;
use crowfly_route::place::{Memory, Place};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;
use crowfly_route::units::Bytes;
use pair::{Pair, SOON, content, empty, filled, part, pattern, sent, settings};

/// Both paths, by whether memory is shared.
const PATHS: [(bool, Path); 2] = [(true, Path::Shm), (false, Path::Tcp)];

fn assert_whole(delivery: &Delivery, path: Path, bytes: u64) {
    let receipt = &delivery.receipt;
    assert!(receipt.is_whole());
    assert_eq!(receipt.requested, Bytes(bytes));
    let shares: Vec<_> = receipt.shares.iter().map(|s| (s.path, s.bytes)).collect();
    assert_eq!(shares, [(path, Bytes(bytes))]);
    let direct = matches!(path, Path::Shm | Path::Cma);
    let class = if direct { Class::Direct } else { Class::Socket };
    assert_eq!(receipt.shares[0].class, class);
    assert_eq!(receipt.route.class(), class);
    let bounced = if direct { 0 } else { bytes };
    assert_eq!(receipt.bounced, Bytes(bounced));
    assert_eq!(receipt.retries, 0);
    let by_nic: Vec<_> = delivery.nics.iter().map(|n| (n.path, n.bytes)).collect();
    assert_eq!(by_nic, [(path, Bytes(bytes))]);
}

#[test]
fn given_either_path_when_written_then_the_bytes_are_there_and_the_receipt_says_how() {
    for (shm, path) in PATHS {
        let pair = Pair::new(shm);
        for len in [1, 100, 8 << 10, (8 << 10) + 1, 300_000, (5 << 20) + 13] {
            let bytes = pattern(len, len as u64);
            let source = filled(&pair.here, &bytes, Access::LOCAL);
            let target = empty(&pair.there, len, Access::WRITE);
            let delivery = pair
                .to_there
                .write(
                    &source.whole(),
                    &sent(&target).whole(),
                    Options::within(SOON),
                )
                .wait()
                .unwrap_or_else(|error| panic!("{path}, {len}: {error}"));
            assert_eq!(content(&target), bytes, "{path}, {len}");
            assert_whole(&delivery, path, len as u64);
            assert_eq!(delivery.receipt.from, Place::Host(None));
            assert_eq!(delivery.receipt.to, Place::Remote(Memory::Host(None)));
            assert_eq!(delivery.peer, pair.there.incarnation());
        }
    }
}

#[test]
fn given_mapped_memory_when_a_little_is_moved_then_it_is_there_when_the_call_returns() {
    let pair = Pair::new(true);
    let len = 768 << 10;
    let source = filled(&pair.here, &pattern(len, 5), Access::LOCAL);
    let target = empty(&pair.there, len, Access::READ_WRITE);
    let back = empty(&pair.here, len, Access::LOCAL);
    let there = sent(&target);
    let options = Options::within(SOON);
    // The first transfer asks for the memory.
    pair.to_there
        .write(&source.whole(), &there.whole(), options)
        .wait()
        .expect("written");
    let written = pair
        .to_there
        .write(&source.whole(), &there.whole(), options);
    assert!(written.is_finished());
    let read = pair.to_there.read(&back.whole(), &there.whole(), options);
    assert!(read.is_finished());
    for transfer in [written, read] {
        assert_whole(&transfer.wait().expect("moved"), Path::Shm, len as u64);
    }
    assert_eq!(content(&back), pattern(len, 5));
}

#[test]
fn given_either_path_when_read_then_the_peers_bytes_arrive_here() {
    for (shm, path) in PATHS {
        let pair = Pair::new(shm);
        for len in [1, 8192, 300_000, (5 << 20) + 13] {
            let bytes = pattern(len, 3);
            let source = filled(&pair.there, &bytes, Access::READ);
            let target = empty(&pair.here, len, Access::LOCAL);
            let delivery = pair
                .to_there
                .read(
                    &target.whole(),
                    &sent(&source).whole(),
                    Options::within(SOON),
                )
                .wait()
                .unwrap_or_else(|error| panic!("{path}, {len}: {error}"));
            assert_eq!(content(&target), bytes, "{path}, {len}");
            assert_whole(&delivery, path, len as u64);
            assert_eq!(delivery.receipt.to, Place::Host(None));
        }
    }
}

#[test]
fn given_a_value_when_it_is_counted_then_the_bytes_of_its_write_are_there() {
    for (shm, path) in PATHS {
        let pair = Pair::new(shm);
        let counter = pair.there.counter(Imm(7));
        for (round, len) in [10, 3 << 20].into_iter().enumerate() {
            let bytes = pattern(len, round as u64);
            let source = filled(&pair.here, &bytes, Access::LOCAL);
            let target = empty(&pair.there, len, Access::WRITE);
            let remote = sent(&target).whole();
            let written =
                pair.to_there
                    .write_imm(&source.whole(), &remote, Imm(7), Options::within(SOON));
            counter.wait(round as u64 + 1, SOON).expect("counted");
            assert_eq!(content(&target), bytes, "{path}");
            assert_whole(&written.wait().expect("written"), path, len as u64);
        }
        assert_eq!(counter.get(), 2);
        let told = pair.to_there.notify(Imm(8), Options::within(SOON)).wait();
        assert_eq!(told.expect("told").receipt.requested, Bytes(0));
        assert_eq!(pair.there.counter(Imm(8)).get(), 1);
    }
}

#[test]
fn given_pages_that_lie_apart_when_written_and_read_back_then_each_is_in_its_place() {
    const PAGE: usize = 4096;
    for (shm, path) in PATHS {
        let pair = Pair::new(shm);
        let pages = 700;
        let bytes = pattern(pages * PAGE, 1);
        let source = filled(&pair.here, &bytes, Access::LOCAL);
        let target = empty(&pair.there, 2 * pages * PAGE, Access::READ_WRITE);
        // Backwards, every other page of the target.
        let table: Vec<Page> = (0..pages as u64)
            .map(|page| Page {
                local: page * PAGE as u64,
                remote: 2 * (pages as u64 - 1 - page) * PAGE as u64,
            })
            .collect();
        let remote = sent(&target).whole();
        let options = Options::within(SOON);
        let written = pair
            .to_there
            .write_paged(
                &source.whole(),
                &remote,
                PAGE as u64,
                &table,
                Some(Imm(1)),
                options,
            )
            .wait()
            .unwrap_or_else(|error| panic!("{path}: {error}; {:?}", pair.to_here.rails()));
        assert_whole(&written, path, (pages * PAGE) as u64);
        assert_eq!(
            pair.there.counter(Imm(1)).get(),
            1,
            "one value for all pages"
        );
        let there = content(&target);
        for page in &table {
            let (from, to) = (page.local as usize, page.remote as usize);
            assert_eq!(there[to..to + PAGE], bytes[from..from + PAGE]);
            assert!(
                there[to + PAGE..to + 2 * PAGE]
                    .iter()
                    .all(|byte| *byte == 0)
            );
        }
        let back = empty(&pair.here, pages * PAGE, Access::LOCAL);
        pair.to_there
            .read_paged(&back.whole(), &remote, PAGE as u64, &table, options)
            .wait()
            .expect("read");
        assert_eq!(content(&back), bytes);
    }
}

#[test]
fn given_both_paths_when_a_policy_is_asked_for_then_it_is_kept_to() {
    let pair = Pair::new(true);
    let source = filled(&pair.here, &pattern(100_000, 1), Access::LOCAL);
    let target = empty(&pair.there, 100_000, Access::WRITE);
    let remote = sent(&target).whole();
    let write = |policy| {
        let options = Options::within(SOON).by(policy);
        pair.to_there
            .write(&source.whole(), &remote, options)
            .wait()
    };
    assert_whole(
        &write(Policy::Require).expect("shm is direct"),
        Path::Shm,
        100_000,
    );
    let by_socket = write(Policy::Socket).expect("there are sockets too");
    assert_whole(&by_socket, Path::Tcp, 100_000);
    let because = by_socket.receipt.shares[0].because.as_deref();
    assert!(
        because.is_some_and(|why| why.contains("socket")),
        "{because:?}"
    );
    assert_eq!(
        write(Policy::Staged).expect_err("nothing to stage").code(),
        "route-refused"
    );
}

#[test]
fn given_only_sockets_when_a_direct_way_is_required_then_setting_up_fails_with_the_reason() {
    let here = crowfly_mover::fabric::Fabric::new(settings(true)).expect("a fabric");
    let there = crowfly_mover::fabric::Fabric::new(settings(false)).expect("another");
    let options = Options::within(SOON).by(Policy::Require);
    let refused = here
        .connect(&there.address().to_string(), options)
        .expect_err("no direct rail");
    assert_eq!(refused.code(), "route-refused");
}

#[test]
fn given_memory_that_cannot_be_mapped_when_read_then_the_kernel_copies_it_and_it_is_said_why() {
    let pair = Pair::new(true);
    let mut rails = pair.to_there.rails().into_iter();
    if !rails.any(|rail| rail.path == Path::Cma) {
        crowfly_waive::waived!("process_vm_readv is forbidden here");
    }
    let loaded = crowfly_mover::Region::zeroed(200_000, None).expect("memory");
    let buffer = crowfly_mover::fabric::Buffer::loaded(loaded).expect("plain memory");
    let weights = pair
        .there
        .register(buffer, Access::READ)
        .expect("registered");
    assert_eq!(weights.obstacles().len(), 1);
    let target = empty(&pair.here, 200_000, Access::LOCAL);
    let read = |policy| {
        let options = Options::within(SOON).by(policy);
        pair.to_there
            .read(&target.whole(), &sent(&weights).whole(), options)
            .wait()
    };
    let delivery = read(Policy::Prefer).expect("by the kernel's copy");
    assert_whole(&delivery, Path::Cma, 200_000);
    let codes: Vec<_> = delivery
        .receipt
        .obstacles
        .iter()
        .map(|o| o.code.as_str())
        .collect();
    assert_eq!(codes, ["no-shared-memory"]);
    let required = read(Policy::Require).expect("one copy is direct");
    assert_whole(&required, Path::Cma, 200_000);
}

#[test]
fn given_messages_when_sent_then_they_arrive_whole_and_in_order() {
    for (shm, _) in PATHS {
        let pair = Pair::new(shm);
        let options = Options::within(SOON);
        let waiting = pair.to_here.recv(options);
        for message in [&b"first"[..], b"", &[7; 30_000]] {
            pair.to_there.send(message, options).wait().expect("sent");
        }
        assert_eq!(waiting.wait().expect("received"), b"first");
        assert_eq!(pair.to_here.recv(options).wait().expect("received"), b"");
        assert_eq!(
            pair.to_here.recv(options).wait().expect("received"),
            [7; 30_000]
        );
        let late = pair
            .to_here
            .recv(Options::within(Duration::from_millis(30)));
        assert_eq!(late.wait().expect_err("none").code(), "deadline-exceeded");
        let long = pair.to_there.send(&[0; 40_000], options);
        assert_eq!(
            long.wait().expect_err("too long").code(),
            "message-too-long"
        );
    }
}

#[test]
fn given_a_receiver_that_ends_at_the_last_message_then_its_sender_knows_that_it_arrived() {
    for _ in 0..20 {
        let Pair {
            here: _here,
            there,
            to_there,
            to_here,
        } = Pair::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let last = to_here.recv(Options::within(SOON)).wait();
                assert_eq!(last.expect("received"), b"done");
                drop(there);
            });
            let sent = to_there.send(b"done", Options::within(SOON)).wait();
            sent.expect("it arrived");
        });
    }
}

#[test]
fn given_a_barrier_when_one_side_waits_then_it_goes_on_only_with_the_other() {
    let pair = Pair::new(false);
    let early = pair.here.barrier(
        std::slice::from_ref(&pair.to_there),
        1,
        Duration::from_millis(50),
    );
    assert_eq!(early.expect_err("alone").code(), "deadline-exceeded");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            pair.there
                .barrier(std::slice::from_ref(&pair.to_here), 2, SOON)
        });
        pair.here
            .barrier(std::slice::from_ref(&pair.to_there), 2, SOON)
            .expect("both came");
        other.join().expect("no panic").expect("both came");
    });
}

#[test]
fn given_a_region_taken_back_when_everything_is_done_then_its_memory_is_a_buffer_again() {
    for (shm, path) in PATHS {
        let pair = Pair::new(shm);
        let bytes = pattern(1 << 20, 5);
        let source = filled(&pair.here, &bytes, Access::LOCAL);
        let target = empty(&pair.there, bytes.len(), Access::WRITE);
        let remote = sent(&target).whole();
        let write = || {
            pair.to_there
                .write(&source.whole(), &remote, Options::within(SOON))
                .wait()
        };
        write().expect("written");
        let mut buffer = target
            .deregister()
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(buffer.as_slice(), bytes);
        buffer.as_mut_slice().expect("writable").fill(0);
        let gone = write().expect_err("withdrawn");
        assert_eq!(gone.code(), "no-such-region", "{path}");
        assert!(buffer.as_slice().iter().all(|byte| *byte == 0), "{path}");
        assert!(pair.to_there.lost().is_none(), "the connection lives on");
    }
}

#[test]
fn given_transfers_in_both_directions_at_once_then_all_arrive_and_the_totals_are_exact() {
    for (shm, path) in PATHS {
        let pair = Pair::new(shm);
        let len = 2 << 20;
        let (ours, theirs) = (pattern(len, 1), pattern(len, 2));
        let a = filled(&pair.here, &ours, Access::LOCAL);
        let b = filled(&pair.there, &theirs, Access::LOCAL);
        let at_there = empty(&pair.there, 4 * len, Access::WRITE);
        let at_here = empty(&pair.here, 4 * len, Access::WRITE);
        let mut running = Vec::new();
        for turn in 0..4 {
            let range = (turn * len) as u64..((turn + 1) * len) as u64;
            let to = sent(&at_there).slice(range.clone()).expect("inside");
            running.push(pair.to_there.write(&a.whole(), &to, Options::within(SOON)));
            let to = sent(&at_here).slice(range).expect("inside");
            running.push(pair.to_here.write(&b.whole(), &to, Options::within(SOON)));
        }
        for transfer in running {
            assert_whole(&transfer.wait().expect("written"), path, len as u64);
        }
        assert_eq!(content(&at_there), ours.repeat(4));
        assert_eq!(content(&at_here), theirs.repeat(4));
        let totals: Vec<_> = pair
            .to_there
            .rails()
            .into_iter()
            .filter(|r| r.path == path)
            .collect();
        assert_eq!(totals.len(), 1);
        assert_eq!(totals[0].totals.written, Bytes(4 * len as u64));
        assert_eq!(pair.to_there.under_way(), 0);
        assert_eq!(part(&at_here, 0, 1).len(), 1);
    }
}
