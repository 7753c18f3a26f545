//! Faults that every path has to bear: each ends with its error within its time, the memory beside it stays as
//! it was, memory that was lent is given back, and whoever is left works on.

#[path = "fabric_support/pair.rs"]
mod pair;
#[path = "fabric_support/paths.rs"]
mod paths;

use std::time::{Duration, Instant};

use crowfly_mover::fabric::{
    Access, Buffer, Fabric, FabricError, MAX_FLIGHTS, Options, Region, RegionDescriptor,
};
use crowfly_route::receipt::Path;
use pair::{SOON, content, pattern, sent};
use paths::{Joined, by, joined};

const PATHS: [Path; 4] = [Path::Tcp, Path::Shm, Path::Cma, Path::Verbs];
const WITHIN: Options = Options::within(SOON);
const BRIEF: Options = Options::within(Duration::from_millis(300));
const LEN: usize = 64 << 10;

/// Memory of the kind that goes by a path.
fn memory(path: Path, fabric: &Fabric, bytes: &[u8], access: Access) -> Region {
    let buffer = match path {
        Path::Cma => {
            let mut buffer = Buffer::private(bytes.len()).expect("memory");
            let all = buffer.as_mut_slice().expect("writable");
            all.copy_from_slice(bytes);
            buffer
        }
        _ => Buffer::copy_of(bytes).expect("memory"),
    };
    fabric.register(buffer, access).expect("registered")
}

/// Two ends that only this path joins; `None` where the kernel forbids that.
fn ends(path: Path, test: &str) -> Option<Joined> {
    let joined = joined(path, test);
    let mut rails = joined.pair.to_there.rails().into_iter();
    rails.any(|rail| rail.path == path).then_some(joined)
}

/// Writes, and sees that it goes by the path and arrives.
fn assert_they_go_on(path: Path, j: &Joined) {
    let bytes = pattern(LEN, 77);
    let source = memory(path, &j.pair.here, &bytes, Access::LOCAL);
    let target = memory(path, &j.pair.there, &vec![0; LEN], Access::WRITE);
    let written = j
        .pair
        .to_there
        .write(&source.whole(), &sent(&target).whole(), WITHIN)
        .wait()
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    let paths: Vec<Path> = written.receipt.shares.iter().map(|s| s.path).collect();
    assert_eq!(paths, [path]);
    assert!(content(&target) == bytes, "{path}");
    source.deregister().expect("given back");
}

/// The descriptor with some bytes changed and its checksum made right again, as a forger would.
fn forged(descriptor: &RegionDescriptor, at: usize, change: &[u8]) -> RegionDescriptor {
    let mut bytes = descriptor.to_bytes().expect("fits");
    bytes.truncate(bytes.len() - 8);
    for (byte, change) in bytes.iter_mut().skip(at).zip(change) {
        *byte = *change;
    }
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(&sum.as_bytes()[..8]);
    RegionDescriptor::from_bytes(&bytes).expect("well formed")
}

const LEN_AT: usize = 4 + 2 + 16;
const ACCESS_AT: usize = LEN_AT + 8;

fn code(ended: Result<impl Sized, FabricError>) -> &'static str {
    ended.map(drop).expect_err("refused").code()
}

macro_rules! on_every_path {
    ($path:ident, $joined:ident, $test:literal, $body:block) => {
        for $path in PATHS {
            let Some($joined) = ends($path, $test) else {
                assert_eq!($path, Path::Cma, "only this can be forbidden");
                crowfly_waive::waived!("process_vm_readv is forbidden here");
            };
            $body
        }
    };
}

#[test]
fn given_a_descriptor_that_says_too_much_nothing_outside_is_touched_and_the_two_go_on() {
    on_every_path!(path, j, "forged", {
        let source = memory(path, &j.pair.here, &pattern(2 * LEN, 1), Access::LOCAL);
        let target = memory(path, &j.pair.there, &pattern(LEN, 2), Access::READ_WRITE);
        let beside = memory(path, &j.pair.there, &pattern(LEN, 3), Access::LOCAL);
        let larger = forged(&sent(&target), LEN_AT, &(2 * LEN as u64).to_le_bytes());
        let written = j
            .pair
            .to_there
            .write(&source.whole(), &larger.whole(), WITHIN);
        // A NIC says only that the key is not one for that.
        let expected = match path {
            Path::Verbs => "no-such-region",
            _ => "out-of-bounds",
        };
        assert_eq!(code(written.wait()), expected, "{path}");
        let read = j
            .pair
            .to_there
            .read(&source.whole(), &larger.whole(), WITHIN);
        assert_eq!(code(read.wait()), expected, "{path}");

        let shown = memory(path, &j.pair.there, &pattern(LEN, 4), Access::READ);
        let writable = forged(&sent(&shown), ACCESS_AT, &[3]);
        let half = source.slice(0..LEN).expect("inside");
        let written = j.pair.to_there.write(&half, &writable.whole(), WITHIN);
        let expected = match path {
            Path::Verbs => "no-such-region",
            _ => "access-denied",
        };
        assert_eq!(code(written.wait()), expected, "{path}");
        assert!(content(&shown) == pattern(LEN, 4), "{path}");
        assert!(content(&beside) == pattern(LEN, 3), "{path}");
        drop(half);
        source.deregister().expect("given back");
        assert_they_go_on(path, &j);
    });
}

#[test]
fn given_a_region_that_was_taken_back_what_is_written_to_it_or_read_has_nowhere_to_go() {
    on_every_path!(path, j, "taken_back", {
        let source = memory(path, &j.pair.here, &pattern(LEN, 1), Access::LOCAL);
        let target = memory(path, &j.pair.there, &pattern(LEN, 2), Access::READ_WRITE);
        let to = sent(&target).whole();
        // The two have done something with it before.
        let read = j.pair.to_there.read(&source.whole(), &to, WITHIN).wait();
        read.expect("still there");
        let back = target.deregister().expect("given back");
        let written = j.pair.to_there.write(&source.whole(), &to, WITHIN).wait();
        assert_eq!(code(written), "no-such-region", "{path}");
        let read = j.pair.to_there.read(&source.whole(), &to, WITHIN).wait();
        assert_eq!(code(read), "no-such-region", "{path}");
        assert!(back.as_slice() == pattern(LEN, 2), "{path}");
        source.deregister().expect("given back");
        assert_they_go_on(path, &j);
    });
}

#[test]
fn given_a_peer_that_ends_mid_transfer_every_transfer_ends_and_the_memory_is_given_back() {
    const EACH: usize = 16 << 20;
    on_every_path!(path, j, "ends", {
        let (settings, _card) = by(path, "ends_other");
        let other = Fabric::new(settings).expect("a fabric");
        let address = other.address().to_string();
        let to_other = j.pair.here.connect(address.as_str(), WITHIN).expect("met");
        let source = memory(path, &j.pair.here, &pattern(EACH, 1), Access::LOCAL);
        let target = memory(path, &j.pair.there, &vec![0; EACH], Access::READ_WRITE);
        let to = sent(&target).whole();
        let peer = &j.pair.to_there;
        let under_way: Vec<_> = (0..8)
            .map(|_| peer.write(&source.whole(), &to, WITHIN))
            .collect();
        let began = Instant::now();
        drop((j.pair.there, target));
        for transfer in under_way {
            if let Err(error) = transfer.wait() {
                assert_eq!(error.code(), "peer-lost", "{path}: {error}");
            }
        }
        assert!(began.elapsed() < SOON / 2, "{path}: {:?}", began.elapsed());
        let after = peer.write(&source.whole(), &to, WITHIN).wait();
        assert_eq!(code(after), "peer-lost", "{path}");
        let back = source.deregister().expect("given back");
        assert!(back.as_slice() == pattern(EACH, 1), "{path}");
        // Whoever else is connected is served.
        let source = memory(path, &j.pair.here, &pattern(LEN, 5), Access::LOCAL);
        let target = memory(path, &other, &vec![0; LEN], Access::WRITE);
        let written = to_other.write(&source.whole(), &sent(&target).whole(), WITHIN);
        written
            .wait()
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(content(&target) == pattern(LEN, 5), "{path}");
    });
}

#[test]
fn given_a_card_that_answers_nothing_the_queue_fills_and_every_transfer_ends_at_its_time() {
    let j = joined(Path::Verbs, "overflow");
    let [Some(near), Some(far)] = &j.cards else {
        panic!("two cards");
    };
    let source = memory(Path::Verbs, &j.pair.here, &pattern(64, 1), Access::LOCAL);
    let target = memory(Path::Verbs, &j.pair.there, &[0; 64], Access::WRITE);
    let to = sent(&target).whole();
    near.behave(|nic| nic.silent = true);
    far.behave(|nic| nic.silent = true);
    let slow = Options::within(Duration::from_secs(2));
    let write = |options| j.pair.to_there.write(&source.whole(), &to, options);
    let began = Instant::now();
    let under_way: Vec<_> = (0..MAX_FLIGHTS).map(|_| write(slow)).collect();
    assert_eq!(code(write(slow).wait()), "queue-full");
    for transfer in under_way {
        let code = code(transfer.wait());
        assert!(["deadline-exceeded", "peer-lost"].contains(&code), "{code}");
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    near.behave(|nic| nic.silent = false);
    far.behave(|nic| nic.silent = false);
    assert_they_go_on(Path::Verbs, &j);
    source.deregister().expect("given back");
}

#[test]
fn given_no_time_left_reads_and_writes_end_at_once_and_let_go_of_their_memory() {
    on_every_path!(path, j, "hurried", {
        let source = memory(path, &j.pair.here, &pattern(8 << 20, 1), Access::LOCAL);
        let target = memory(
            path,
            &j.pair.there,
            &pattern(8 << 20, 2),
            Access::READ_WRITE,
        );
        let to = sent(&target).whole();
        let hurried = Options::within(Duration::ZERO);
        for round in 0..20 {
            let peer = &j.pair.to_there;
            let transfer = match round % 2 {
                0 => peer.write(&source.whole(), &to, hurried),
                _ => peer.read(&source.whole(), &to, hurried),
            };
            let began = Instant::now();
            if let Err(error) = transfer.wait() {
                assert_eq!(error.code(), "deadline-exceeded", "{path}");
            }
            assert!(began.elapsed() < SOON / 2, "{path}: {:?}", began.elapsed());
        }
        source.deregister().expect("given back");
        let soon = j.pair.to_there.recv(BRIEF).wait();
        assert_eq!(code(soon), "deadline-exceeded", "nobody sends: {path}");
        assert_they_go_on(path, &j);
    });
}
