//! What goes wrong, and what a caller sees of it: a typed error within its deadline, with everybody
//! else working on.

#[path = "fabric_support/pair.rs"]
mod pair;
#[path = "fabric_support/proxy.rs"]
mod proxy;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::{
    Access, Fabric, Imm, MAX_FLIGHTS, MAX_INBOX, NicFilter, Options, Peer, RegionDescriptor,
    Settings, SharedKey,
};
use pair::{Pair, SOON, content, empty, filled, pattern, sent, settings};
use proxy::Proxy;

const BRIEF: Duration = Duration::from_millis(300);
const SILENCE: Duration = Duration::from_millis(1_500);

fn silent_for(silence: Duration) -> Settings {
    Settings {
        silence,
        ..settings(false)
    }
}

/// Two fabrics with a network between them that can fail, and a third that is connected directly.
struct Net {
    here: Fabric,
    there: Fabric,
    other: Fabric,
    proxy: Proxy,
    to_there: Peer,
    to_other: Peer,
}

impl Net {
    fn new() -> Self {
        Self::with(SILENCE)
    }

    /// One that takes so long to notice a silence.
    fn with(silence: Duration) -> Self {
        let fabric = || Fabric::new(silent_for(silence)).expect("a fabric");
        let (here, there, other) = (fabric(), fabric(), fabric());
        let proxy = Proxy::before(there.address());
        let connect = |address: std::net::SocketAddr| {
            let options = Options::within(SOON);
            here.connect(&address.to_string(), options)
                .expect("connected")
        };
        let (to_there, to_other) = (connect(proxy.address), connect(other.address()));
        there.accept(SOON).expect("accepted");
        Self {
            here,
            there,
            other,
            proxy,
            to_there,
            to_other,
        }
    }

    fn assert_the_others_work_on(&self) {
        let bytes = pattern(300_000, 1);
        let source = filled(&self.here, &bytes, Access::LOCAL);
        let target = empty(&self.other, bytes.len(), Access::WRITE);
        self.to_other
            .write(
                &source.whole(),
                &sent(&target).whole(),
                Options::within(SOON),
            )
            .wait()
            .expect("the other peer is fine");
        assert_eq!(content(&target), bytes);
    }
}

#[test]
fn given_a_peer_that_is_killed_mid_transfer_then_the_transfer_fails_at_once_and_names_it() {
    let net = Net::with(2 * SOON);
    let source = filled(&net.here, &pattern(32 << 20, 1), Access::LOCAL);
    let target = empty(&net.there, 32 << 20, Access::WRITE);
    net.proxy.stop();
    let options = Options::within(SOON);
    let transfer = net
        .to_there
        .write(&source.whole(), &sent(&target).whole(), options);
    let began = Instant::now();
    net.proxy.cut();
    let error = transfer.wait().expect_err("killed");
    assert_eq!(error.code(), "peer-lost");
    assert!(
        error
            .to_string()
            .contains(&net.there.incarnation().to_string()),
        "{error}"
    );
    assert!(began.elapsed() < SOON, "at once");
    let after = net.to_there.notify(Imm(1), options).wait();
    assert_eq!(after.expect_err("still gone").code(), "peer-lost");
    net.assert_the_others_work_on();
}

#[test]
fn given_a_black_hole_then_the_transfer_ends_at_its_deadline_and_the_peer_soon_after() {
    let net = Net::new();
    let source = filled(&net.here, &pattern(8 << 20, 1), Access::LOCAL);
    let target = empty(&net.there, 8 << 20, Access::WRITE);
    net.proxy.stop();
    let began = Instant::now();
    let transfer = net.to_there.write(
        &source.whole(),
        &sent(&target).whole(),
        Options::within(BRIEF),
    );
    assert_eq!(
        transfer.wait().expect_err("late").code(),
        "deadline-exceeded"
    );
    let took = began.elapsed();
    assert!(
        took >= BRIEF && took < BRIEF + Duration::from_secs(1),
        "{took:?}"
    );
    // Half open: no transfer is under way, and yet it is noticed.
    while net.to_there.lost().is_none() {
        assert!(began.elapsed() < SOON, "never noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
    net.assert_the_others_work_on();
}

#[test]
fn given_a_read_that_was_cancelled_when_its_bytes_come_late_then_they_go_nowhere() {
    let net = Net::new();
    let source = filled(&net.there, &[7; 4 << 20], Access::READ);
    let target = empty(&net.here, 4 << 20, Access::LOCAL);
    net.proxy.stop();
    let transfer = net.to_there.read(
        &target.whole(),
        &sent(&source).whole(),
        Options::within(SOON),
    );
    std::thread::sleep(Duration::from_millis(50));
    transfer.cancel();
    assert_eq!(transfer.wait().expect_err("cancelled").code(), "cancelled");
    let buffer = target.deregister().expect("nobody uses it any more");
    net.proxy.go_on();
    // The connection still carries what is asked for now, behind the late bytes.
    let next = empty(&net.here, 4 << 20, Access::LOCAL);
    net.to_there
        .read(&next.whole(), &sent(&source).whole(), Options::within(SOON))
        .wait()
        .expect("read");
    assert!(content(&next).iter().all(|byte| *byte == 7));
    assert!(buffer.as_slice().iter().all(|byte| *byte == 0));
}

#[test]
fn given_a_dropped_transfer_then_the_region_is_free_and_the_connection_lives() {
    let net = Net::new();
    let source = filled(&net.here, &pattern(1 << 20, 2), Access::LOCAL);
    let target = empty(&net.there, 1 << 20, Access::WRITE);
    let remote = sent(&target).whole();
    for _ in 0..20 {
        drop(
            net.to_there
                .write(&source.whole(), &remote, Options::within(SOON)),
        );
    }
    let options = Options::within(SOON);
    net.to_there
        .write(&source.whole(), &remote, options)
        .wait()
        .expect("written");
    assert_eq!(content(&target), pattern(1 << 20, 2));
    assert_eq!(net.to_there.under_way(), 0);
}

#[test]
fn given_another_key_then_the_connection_is_refused_and_the_fabric_serves_others() {
    let there = Fabric::new(settings(true)).expect("a fabric");
    let stranger = Fabric::new(Settings::new(SharedKey::derive("another"))).expect("a fabric");
    let address = there.address().to_string();
    let refused = stranger
        .connect(&address, Options::within(SOON))
        .expect_err("a stranger");
    assert_eq!(refused.code(), "not-authenticated");
    let friend = Fabric::new(settings(true)).expect("a fabric");
    friend
        .connect(&address, Options::within(SOON))
        .expect("a friend");
}

#[test]
fn given_an_end_of_another_version_then_both_versions_are_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a dialer");
        let mut opening = [0; 55];
        stream.read_exact(&mut opening).expect("an opening");
        let mut answer = [0; 70];
        answer[..6].copy_from_slice(b"CRFW\x09\x00");
        stream.write_all(&answer).expect("answered");
    });
    let here = Fabric::new(settings(false)).expect("a fabric");
    let error = here
        .connect(&address, Options::within(SOON))
        .expect_err("version 9");
    assert_eq!(error.code(), "wrong-version");
    assert!(error.to_string().contains("version 9"), "{error}");
    other.join().expect("no panic");
}

#[test]
fn given_nobody_or_nothing_that_answers_then_connecting_ends_in_time() {
    let here = Fabric::new(settings(false)).expect("a fabric");
    let free = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("bound");
    let error = here
        .connect(&free.to_string(), Options::within(SOON))
        .expect_err("nobody");
    assert_eq!(error.code(), "peer-unreachable");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound").to_string();
    let began = Instant::now();
    let error = here
        .connect(&address, Options::within(BRIEF))
        .expect_err("silence");
    assert_eq!(error.code(), "deadline-exceeded");
    assert!(began.elapsed() < SOON);
}

/// The descriptor with one field changed and its checksum made right again, as a forger would.
fn forged(descriptor: &RegionDescriptor, change: impl FnOnce(&mut Vec<u8>)) -> RegionDescriptor {
    let mut bytes = descriptor.to_bytes().expect("fits");
    bytes.truncate(bytes.len() - 8);
    change(&mut bytes);
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(&sum.as_bytes()[..8]);
    RegionDescriptor::from_bytes(&bytes).expect("well formed")
}

const LEN_AT: usize = 4 + 2 + 16;
const ACCESS_AT: usize = LEN_AT + 8;

#[test]
fn given_forged_descriptors_then_the_owner_refuses_and_no_byte_outside_is_touched() {
    for shm in [true, false] {
        let pair = Pair::new(shm);
        let source = filled(&pair.here, &pattern(8192, 1), Access::LOCAL);
        let target = empty(&pair.there, 4096, Access::READ_WRITE);
        let larger = forged(&sent(&target), |bytes| {
            bytes[LEN_AT..ACCESS_AT].copy_from_slice(&8192u64.to_le_bytes())
        });
        let options = Options::within(SOON);
        let error = pair
            .to_there
            .write(&source.whole(), &larger.whole(), options)
            .wait();
        assert_eq!(
            error.expect_err("too far").code(),
            "out-of-bounds",
            "shm {shm}"
        );

        let read_only = filled(&pair.there, &pattern(4096, 2), Access::READ);
        let writable = forged(&sent(&read_only), |bytes| bytes[ACCESS_AT] = 3);
        let from = source.slice(0..4096).expect("inside");
        let error = pair
            .to_there
            .write(&from, &writable.whole(), options)
            .wait();
        assert_eq!(
            error.expect_err("read only").code(),
            "access-denied",
            "shm {shm}"
        );
        assert_eq!(content(&read_only), pattern(4096, 2));

        let stranger = forged(&sent(&target), |bytes| {
            let capability = bytes.iter().rposition(|_| true).expect("not empty");
            // Anywhere in the capability will do: it lies behind the place's name.
            let at = ACCESS_AT + 1 + 2 + "host".len() + 3;
            assert!(at < capability);
            bytes[at] ^= 1;
        });
        let error = pair
            .to_there
            .write(&from, &stranger.whole(), options)
            .wait();
        assert_eq!(
            error.expect_err("no such key").code(),
            "no-such-region",
            "shm {shm}"
        );
        assert!(pair.to_there.lost().is_none());
        pair.to_there
            .write(&from, &sent(&target).whole(), options)
            .wait()
            .expect("the real one");
    }
}

#[test]
fn given_a_region_without_the_right_then_it_is_refused_here_already() {
    let pair = Pair::new(false);
    let source = filled(&pair.here, &[1; 100], Access::LOCAL);
    let options = Options::within(SOON);
    let hidden = empty(&pair.there, 100, Access::LOCAL);
    let error = pair
        .to_there
        .read(&source.whole(), &sent(&hidden).whole(), options)
        .wait();
    assert_eq!(error.expect_err("local only").code(), "access-denied");
    let short = empty(&pair.there, 99, Access::WRITE);
    let error = pair
        .to_there
        .write(&source.whole(), &sent(&short).whole(), options)
        .wait();
    assert_eq!(error.expect_err("99 is not 100").code(), "length-mismatch");
}

#[test]
fn given_a_peer_that_was_started_anew_then_old_descriptors_are_refused_and_new_ones_work() {
    let here = Fabric::new(settings(true)).expect("a fabric");
    let first = Fabric::new(settings(true)).expect("a fabric");
    let old = sent(&empty(&first, 64, Access::WRITE));
    let listen = first.address();
    let peer = here
        .connect(&listen.to_string(), Options::within(SOON))
        .expect("connected");
    drop(first);
    let again = Settings {
        listen,
        ..settings(true)
    };
    let second = Fabric::new(again).expect("the same port");
    while peer.lost().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let peer = here
        .connect(&listen.to_string(), Options::within(SOON))
        .expect("reconnected");
    assert_eq!(peer.incarnation(), second.incarnation());
    let source = filled(&here, &[5; 64], Access::LOCAL);
    let stale = peer
        .write(&source.whole(), &old.whole(), Options::within(SOON))
        .wait();
    assert_eq!(
        stale.expect_err("of another life").code(),
        "stale-descriptor"
    );
    let target = empty(&second, 64, Access::WRITE);
    let options = Options::within(SOON);
    peer.write(&source.whole(), &sent(&target).whole(), options)
        .wait()
        .expect("written");
    assert_eq!(content(&target), [5; 64]);
}

#[test]
fn given_more_transfers_than_the_queue_holds_then_the_next_is_refused_and_none_is_lost() {
    let net = Net::new();
    let source = filled(&net.here, &[1; 8], Access::LOCAL);
    let target = empty(&net.there, 8, Access::WRITE);
    net.proxy.stop();
    let remote = sent(&target).whole();
    let options = Options::within(SOON);
    let running: Vec<_> = (0..MAX_FLIGHTS)
        .map(|_| net.to_there.write(&source.whole(), &remote, options))
        .collect();
    let error = net.to_there.write(&source.whole(), &remote, options).wait();
    assert_eq!(error.expect_err("one too many").code(), "queue-full");
    net.proxy.go_on();
    for transfer in running {
        transfer.wait().expect("written");
    }
}

#[test]
fn given_a_receiver_that_does_not_receive_then_the_sender_is_told_that_its_queue_is_full() {
    let pair = Pair::new(false);
    let options = Options::within(SOON);
    for _ in 0..MAX_INBOX {
        pair.to_there.send(b"hello", options).wait().expect("room");
    }
    let error = pair.to_there.send(b"hello", options).wait();
    assert_eq!(error.expect_err("no room").code(), "queue-full");
    pair.to_here.recv(options).wait().expect("the first");
    pair.to_there
        .send(b"hello", options)
        .wait()
        .expect("room again");
}

#[test]
fn given_a_value_that_was_counted_when_its_rail_breaks_then_its_bytes_are_not_written_once_more() {
    const VALUE: Imm = Imm(9);
    let net = Net::new();
    let source = filled(&net.here, &pattern(64 << 10, 1), Access::LOCAL);
    let target = empty(&net.there, 64 << 10, Access::WRITE);
    let remote = sent(&target).whole();
    net.proxy.mute(true);
    let written = net
        .to_there
        .write_imm(&source.whole(), &remote, VALUE, Options::within(SOON));
    let counter = net.there.counter(VALUE);
    counter.wait(1, SOON).expect("the bytes are there");
    assert!(content(&target) == pattern(64 << 10, 1));
    // Told of them, their owner puts others in their place.
    target.write_at(0, &pattern(64 << 10, 2));
    assert!(!written.is_finished(), "nobody has answered yet");
    net.proxy.cut_after(1);
    std::thread::sleep(Duration::from_millis(20));
    net.proxy.mute(false);
    let delivery = written.wait().expect("the peer says that it came");
    assert!(delivery.receipt.is_whole());
    assert_eq!(counter.get(), 1);
    assert!(
        content(&target) == pattern(64 << 10, 2),
        "written once more"
    );
    let next = net
        .to_there
        .write(&source.whole(), &remote, Options::within(SOON));
    next.wait().expect("by the new rail");
    assert!(content(&target) == pattern(64 << 10, 1));
}

#[test]
fn given_a_peer_that_takes_little_at_a_time_then_what_is_not_done_in_time_ends_and_it_is_not_lost()
{
    let net = Net::new();
    let bytes = pattern(48 << 20, 4);
    let source = filled(&net.here, &bytes, Access::LOCAL);
    let target = empty(&net.there, bytes.len(), Access::WRITE);
    let remote = sent(&target).whole();
    net.proxy.trickle(500);
    let began = Instant::now();
    let slow = net
        .to_there
        .write(&source.whole(), &remote, Options::within(BRIEF));
    assert_eq!(slow.wait().expect_err("late").code(), "deadline-exceeded");
    let took = began.elapsed();
    assert!(took < BRIEF + Duration::from_secs(2), "{took:?}");
    // Slow is not silent.
    std::thread::sleep(2 * SILENCE);
    assert_eq!(net.to_there.lost(), None);
    net.assert_the_others_work_on();
    net.proxy.trickle(0);
    net.to_there
        .write(&source.whole(), &remote, Options::within(SOON))
        .wait()
        .expect("written");
    assert!(content(&target) == bytes);
}

#[test]
fn given_strangers_that_send_garbage_or_nothing_then_the_fabric_serves_its_friends() {
    let there = Fabric::new(settings(false)).expect("a fabric");
    let address = there.address();
    let mut open = Vec::new();
    for seed in 0..100 {
        let mut stream = TcpStream::connect(address).expect("a port");
        let _ = stream.write_all(&pattern(seed as usize * 7, seed));
        if seed % 2 == 0 {
            open.push(stream);
        }
    }
    // Those that hold on keep places for a handshake until its time is over.
    drop(open.split_off(30));
    let friend = Fabric::new(settings(false)).expect("a fabric");
    let began = Instant::now();
    while friend
        .connect(&address.to_string(), Options::within(BRIEF))
        .is_err()
    {
        assert!(began.elapsed() < SOON, "shut out");
    }
}

#[test]
fn given_two_rails_when_one_breaks_mid_transfer_then_the_rest_goes_by_the_other() {
    let two = || Settings {
        nics: "lo,lo".parse().expect("a filter"),
        ..settings(false)
    };
    let pair = Pair::with(two(), two());
    assert_eq!(pair.to_there.rails().len(), 2);
    let bytes = pattern(64 << 20, 9);
    let source = filled(&pair.here, &bytes, Access::LOCAL);
    let target = empty(&pair.there, bytes.len(), Access::WRITE);
    let remote = sent(&target).whole();
    let options = Options::within(SOON);
    let transfer = pair
        .to_there
        .write_imm(&source.whole(), &remote, Imm(3), options);
    pair.to_there.break_rail(0);
    let delivery = transfer.wait().expect("by the other");
    assert_eq!(content(&target), bytes);
    assert!(delivery.receipt.is_whole());
    let codes: Vec<_> = delivery
        .receipt
        .obstacles
        .iter()
        .map(|o| o.code.as_str())
        .collect();
    assert!(codes.contains(&"rail-failed"), "{codes:?}");
    assert!(delivery.receipt.retries > 0);
    assert_eq!(pair.there.counter(Imm(3)).get(), 1, "told once");
    assert_eq!(
        pair.to_there
            .rails()
            .iter()
            .filter(|rail| rail.down.is_some())
            .count(),
        1
    );
}

#[test]
fn given_a_mistyped_nic_then_nothing_starts() {
    let typo = Settings {
        nics: NicFilter::only("lo0"),
        ..settings(false)
    };
    let error = Fabric::new(typo).expect_err("no such NIC");
    assert_eq!(error.code(), "no-such-nic");
    assert!(error.to_string().contains("lo"), "{error}");
}

fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happens() {
        assert!(began.elapsed() < SOON, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn given_a_rail_taken_out_of_use_when_it_is_let_in_again_then_both_ends_use_it() {
    for shm in [true, false] {
        let pair = Pair::new(shm);
        let (here, there) = (&pair.to_there, &pair.to_here);
        here.break_rail(0);
        wait_until("the peer's end going down", || {
            there.rails()[0].down.is_some()
        });
        std::thread::sleep(BRIEF * 3);
        assert!(here.rails()[0].down.is_some(), "nobody asked for it back");
        here.mend_rail(0);
        let up = |peer: &Peer| peer.rails()[0].down.is_none();
        wait_until("the return", || up(here) && up(there));
        assert_eq!((here.rails()[0].returns, there.rails()[0].returns), (1, 1));
        for (from, to, peer) in [
            (&pair.here, &pair.there, here),
            (&pair.there, &pair.here, there),
        ] {
            let bytes = pattern(3 << 20, 5);
            let source = filled(from, &bytes, Access::LOCAL);
            let target = empty(to, bytes.len(), Access::WRITE);
            let to = sent(&target).whole();
            let written = peer.write(&source.whole(), &to, Options::within(SOON));
            assert!(written.wait().expect("written").receipt.is_whole());
            assert!(content(&target) == bytes);
        }
    }
}

#[test]
fn given_a_network_that_breaks_all_streams_of_a_rail_then_it_comes_back_by_itself() {
    let there = Fabric::new(settings(false)).expect("a fabric");
    let proxy = Proxy::before(there.address());
    let here = Fabric::new(silent_for(SILENCE)).expect("a fabric");
    let to_there = here
        .connect(&proxy.address.to_string(), Options::within(SOON))
        .expect("connected");
    let _to_here = there.accept(SOON).expect("accepted");
    // The first connection is the one that the two processes talk by.
    proxy.cut_after(1);
    wait_until("the return", || {
        let rail = &to_there.rails()[0];
        rail.down.is_none() && rail.returns == 1
    });
    let source = filled(&here, &pattern(1 << 20, 1), Access::LOCAL);
    let target = empty(&there, 1 << 20, Access::WRITE);
    let to = sent(&target).whole();
    let written = to_there.write(&source.whole(), &to, Options::within(SOON));
    written.wait().expect("written by the new streams");
    assert!(content(&target) == pattern(1 << 20, 1));
}
