//! Each operation of the fabric by each of its paths: shared memory, sockets, and RDMA with cards
//! that exist only in this process.

#[path = "fabric_support/pair.rs"]
mod pair;
#[path = "fabric_support/paths.rs"]
mod paths;

use std::time::{Duration, Instant};

use crowfly_machine::verbs::Status;
use crowfly_machine::verbs::fake::{Behaviour, FakeNic};
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsSettings, discover};
use crowfly_mover::fabric::{
    Access, Checked, Fabric, Group, Imm, Options, Page, Part, Peer, Port, Region, Settings,
};
use crowfly_route::obstacle::Code;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};
use pair::{Pair, SOON, content, empty, filled, part, pattern, sent, settings};
use paths::{by, card, joined};

const WITHIN: Options = Options::within(SOON);
const PATHS: [Path; 3] = [Path::Shm, Path::Tcp, Path::Verbs];

#[test]
fn given_any_path_when_verified_then_both_ends_have_the_same_checksum_and_the_receipt_shows_it() {
    for path in PATHS {
        let j = joined(path, "verified");
        let bytes = pattern(5_000_001, 3);
        let source = filled(&j.pair.here, &bytes, Access::LOCAL);
        let target = empty(&j.pair.there, bytes.len(), Access::READ_WRITE);
        let to = sent(&target).whole();
        let written = j
            .pair
            .to_there
            .write(&source.whole(), &to, WITHIN.verified());
        let written = written.wait().expect("written");
        let pieces = bytes.chunks(2 << 20).map(crowfly_mover::digest::piece);
        let expected = Verification::Matched {
            algorithm: "xxh3-64/2MiB".into(),
            checksum: format!("{:016x}", crowfly_mover::digest::whole(pieces)),
        };
        assert_eq!(written.receipt.verification, expected, "{path}");
        let back = empty(&j.pair.here, bytes.len(), Access::LOCAL);
        let read = j.pair.to_there.read(&back.whole(), &to, WITHIN.verified());
        let read = read.wait().expect("read");
        assert_eq!(read.receipt.verification, expected, "{path}");
        assert!(content(&back) == bytes);
        let unasked = j.pair.to_there.write(&source.whole(), &to, WITHIN).wait();
        let unasked = unasked.expect("written").into_receipt().verification;
        assert_eq!(unasked, Verification::NotAsked);
    }
}

#[test]
fn given_pages_when_verified_then_only_the_pages_count_and_in_their_order() {
    let j = joined(Path::Tcp, "verified_pages");
    let source = filled(&j.pair.here, &pattern(1 << 20, 1), Access::LOCAL);
    let target = empty(&j.pair.there, 1 << 20, Access::WRITE);
    let pages: Vec<Page> = (0..1000u64)
        .map(|at| Page {
            local: 512 * (2 * at),
            remote: 512 * (2000 - 2 * at),
        })
        .collect();
    let to = sent(&target).whole();
    let written = j
        .pair
        .to_there
        .write_paged(&source.whole(), &to, 512, &pages, None, WITHIN.verified())
        .wait()
        .expect("written and the same");
    assert_eq!(written.receipt.requested.0, 512_000);
    assert!(matches!(
        written.receipt.verification,
        Verification::Matched { .. }
    ));
}

#[test]
fn given_bytes_that_change_under_the_transfer_when_verified_then_it_fails_and_says_so() {
    let j = joined(Path::Tcp, "changing");
    // Most of what is written is written over by what comes after it.
    let source = filled(&j.pair.here, &pattern(1 << 20, 1), Access::LOCAL);
    let target = empty(&j.pair.there, 1 << 20, Access::WRITE);
    let pages = |seed: u64| Page {
        local: 4096 * seed,
        remote: 0,
    };
    let pages: Vec<Page> = (0..256).map(pages).collect();
    let to = sent(&target).whole();
    let written = j
        .pair
        .to_there
        .write_paged(&source.whole(), &to, 4096, &pages, None, WITHIN.verified())
        .wait();
    let error = written.expect_err("256 pages cannot all be in one place");
    assert_eq!(error.code(), "data-differs");
}

#[test]
fn given_a_verified_transfer_when_its_region_goes_away_then_it_ends_with_a_typed_error() {
    let j = joined(Path::Tcp, "vanished");
    let source = filled(&j.pair.here, &pattern(64 << 20, 1), Access::LOCAL);
    let target = empty(&j.pair.there, 64 << 20, Access::WRITE);
    let to = sent(&target).whole();
    let written = j
        .pair
        .to_there
        .write(&source.whole(), &to, WITHIN.verified());
    drop(target);
    let error = written.wait().expect_err("it is gone");
    assert_eq!(error.code(), "no-such-region");
    let cancelled = j.pair.to_there.write(
        &source.whole(),
        &sent(&empty(&j.pair.there, 64 << 20, Access::WRITE)).whole(),
        WITHIN.verified(),
    );
    cancelled.cancel();
    let code = cancelled.wait().expect_err("ended early").code();
    assert!(["cancelled", "no-such-region"].contains(&code), "{code}");
}

/// A process in the middle of a star of others.
struct Star {
    middle: Fabric,
    others: Vec<Fabric>,
    out: Vec<Peer>,
    back: Vec<Peer>,
    _cards: Vec<FakeNic>,
}

fn star(path: Path, test: &str) -> Star {
    let (settings, mut cards) = {
        let (settings, card) = by(path, &format!("{test}_middle"));
        (settings, Vec::from_iter(card))
    };
    let mut star = Star {
        middle: Fabric::new(settings).expect("a fabric"),
        others: Vec::new(),
        out: Vec::new(),
        back: Vec::new(),
        _cards: Vec::new(),
    };
    for number in 0..3 {
        let (settings, card) = by(path, &format!("{test}_{number}"));
        cards.extend(card);
        let other = Fabric::new(settings).expect("a fabric");
        let address = other.address().to_string();
        star.out
            .push(star.middle.connect(&address, WITHIN).expect("connected"));
        star.back.push(other.accept(SOON).expect("accepted"));
        star.others.push(other);
    }
    star._cards = cards;
    star
}

#[test]
fn given_several_peers_when_a_source_is_scattered_and_gathered_then_each_has_its_part() {
    const EACH: usize = 300_000;
    for path in PATHS {
        let star = star(path, "scatter");
        let bytes = pattern(3 * EACH, 9);
        let source = filled(&star.middle, &bytes, Access::LOCAL);
        let targets: Vec<Region> = star
            .others
            .iter()
            .map(|other| empty(other, EACH, Access::READ_WRITE))
            .collect();
        let counters: Vec<_> = star.others.iter().map(|o| o.counter(Imm(4))).collect();
        let parts = |local: &Region| -> Vec<Part<'_>> {
            let each = star.out.iter().zip(&targets).enumerate();
            each.map(|(at, (peer, target))| Part {
                peer,
                local: part(local, at * EACH, EACH),
                remote: sent(target).whole(),
                pages: None,
                imm: Some(Imm(4)),
            })
            .collect()
        };
        let written = Group::write(&parts(&source), WITHIN).wait();
        assert_eq!(written.len(), 3);
        for (at, outcome) in written.into_iter().enumerate() {
            let receipt = outcome.expect("written").into_receipt();
            assert!(receipt.is_whole() && receipt.shares[0].path == path);
            counters[at].wait(1, SOON).expect("counted");
            assert!(content(&targets[at]) == bytes[at * EACH..(at + 1) * EACH]);
        }
        let gathered = empty(&star.middle, 3 * EACH, Access::LOCAL);
        let read = Group::read(&parts(&gathered), WITHIN).wait();
        assert!(read.iter().all(Result::is_ok));
        assert!(content(&gathered) == bytes);

        let totals = star.middle.totals();
        assert_eq!(totals.peers.len(), 3);
        for of_path in &totals.paths {
            let expected = if of_path.path == path { 900_000 } else { 0 };
            let sum = of_path.totals;
            assert_eq!((sum.written.0, sum.read.0), (expected, expected), "{path}");
        }
        let by_nic: u64 = totals.nics.iter().map(|nic| nic.totals.written.0).sum();
        assert_eq!(by_nic, 900_000);
        for nic in &totals.nics {
            // The loopback interface counts its bytes, memory that is shared does not.
            match (nic.path, &nic.port) {
                (Path::Tcp, Port::Counted(count)) => assert!(count.sent.0 > 0),
                (Path::Shm | Path::Cma, Port::Unavailable { why }) => {
                    assert!(why.contains("no port"), "{why}");
                }
                // The simulated device has none.
                (Path::Verbs, Port::Unavailable { why }) => {
                    assert!(why.contains("scatter_middle"), "{why}");
                }
                (path, port) => panic!("{path}: {port:?}"),
            }
        }
        let by_peer = totals.peers.iter().flat_map(|peer| &peer.rails);
        assert_eq!(by_peer.map(|rail| rail.totals.read.0).sum::<u64>(), 900_000);
    }
}

#[test]
fn given_several_peers_when_pages_are_scattered_then_one_that_is_gone_fails_alone() {
    let mut star = star(Path::Tcp, "paged_scatter");
    let source = filled(&star.middle, &pattern(8192, 2), Access::LOCAL);
    let targets: Vec<Region> = star
        .others
        .iter()
        .map(|other| empty(other, 8192, Access::WRITE))
        .collect();
    let descriptors: Vec<_> = targets.iter().map(sent).collect();
    let pages = [
        Page {
            local: 0,
            remote: 4096,
        },
        Page {
            local: 4096,
            remote: 0,
        },
    ];
    star.others.remove(1);
    star.back.remove(1);
    let parts: Vec<Part<'_>> = star
        .out
        .iter()
        .zip(&descriptors)
        .map(|(peer, to)| Part {
            peer,
            local: source.whole(),
            remote: to.whole(),
            pages: Some((4096, &pages)),
            imm: None,
        })
        .collect();
    let written = Group::write(&parts, WITHIN).wait();
    let codes: Vec<_> = written
        .iter()
        .map(|outcome| outcome.as_ref().map_or_else(|e| e.code(), |_| "done"))
        .collect();
    assert_eq!(codes, ["done", "peer-lost", "done"]);
    let swapped = [&pattern(8192, 2)[4096..], &pattern(8192, 2)[..4096]].concat();
    assert!(content(&targets[2]) == swapped);
}

#[test]
fn given_several_peers_when_one_comes_late_to_the_barrier_then_all_wait_for_it() {
    for path in PATHS {
        let star = star(path, "barrier");
        let began = Instant::now();
        let late = Duration::from_millis(300);
        std::thread::scope(|scope| {
            for (at, (other, peer)) in star.others.iter().zip(&star.back).enumerate() {
                scope.spawn(move || {
                    if at == 2 {
                        std::thread::sleep(late);
                    }
                    let peers = std::slice::from_ref(peer);
                    other.barrier(peers, 1, SOON).expect("reached");
                });
            }
            star.middle.barrier(&star.out, 1, SOON).expect("reached");
            assert!(began.elapsed() >= late, "{path}");
        });
        let brief = Duration::from_millis(50);
        let alone = star.middle.barrier(&star.out, 2, brief);
        assert_eq!(alone.expect_err("nobody comes").code(), "deadline-exceeded");
    }
}

#[test]
fn given_any_path_when_values_and_messages_are_sent_then_they_are_counted_and_received() {
    for path in PATHS {
        let j = joined(path, "values");
        let counter = j.pair.there.counter(Imm(1));
        for _ in 0..3 {
            j.pair.to_there.notify(Imm(1), WITHIN).wait().expect("told");
        }
        counter.wait(3, SOON).expect("three");
        let group = Group::notify(std::slice::from_ref(&j.pair.to_there), Imm(1), WITHIN).wait();
        assert!(group[0].is_ok());
        counter.wait(4, SOON).expect("four");
        let source = filled(&j.pair.here, &pattern(100, 1), Access::LOCAL);
        let target = empty(&j.pair.there, 100, Access::WRITE);
        let to = sent(&target).whole();
        let written = j
            .pair
            .to_there
            .write_imm(&source.whole(), &to, Imm(2), WITHIN);
        j.pair
            .there
            .counter(Imm(2))
            .wait(1, SOON)
            .expect("the bytes are there");
        assert!(content(&target) == pattern(100, 1));
        written.wait().expect("written");
        j.pair
            .to_there
            .send(b"a message", WITHIN)
            .wait()
            .expect("sent");
        let message = j.pair.to_here.recv(WITHIN).wait().expect("received");
        assert_eq!(message, b"a message");
    }
}

#[test]
fn given_any_path_when_the_deadline_is_over_already_then_the_transfer_says_so_or_was_fast() {
    for path in PATHS {
        let j = joined(path, "late");
        let source = filled(&j.pair.here, &pattern(16 << 20, 1), Access::LOCAL);
        let target = empty(&j.pair.there, 16 << 20, Access::WRITE);
        if let [_, Some(far)] = &j.cards {
            far.behave(|nic| nic.silent = true);
        }
        let began = Instant::now();
        let brief = Options::within(Duration::from_millis(1));
        let to = sent(&target).whole();
        let outcome = j.pair.to_there.write(&source.whole(), &to, brief).wait();
        if let Err(error) = outcome {
            let code = error.code();
            assert!(
                ["deadline-exceeded", "peer-lost"].contains(&code),
                "{path}: {error}"
            );
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{path}");
    }
}

#[test]
fn given_sockets_over_loopback_then_the_kernels_counters_agree_with_the_receipt() {
    let j = joined(Path::Tcp, "counted");
    let source = filled(&j.pair.here, &pattern(8 << 20, 1), Access::LOCAL);
    let target = empty(&j.pair.there, 8 << 20, Access::WRITE);
    let to = sent(&target).whole();
    let written = j.pair.to_there.write(&source.whole(), &to, WITHIN).wait();
    let written = written.expect("written");
    let nics = &written.nics;
    assert_eq!((nics.len(), nics[0].nic.as_str()), (1, "lo"));
    match &nics[0].checked {
        Checked::Agrees { counted } => assert!(counted.0 >= 8 << 20),
        other => panic!("{other:?}"),
    }
    // Memory has no port.
    let j = joined(Path::Shm, "uncounted");
    let source = filled(&j.pair.here, &pattern(8 << 20, 1), Access::LOCAL);
    let target = empty(&j.pair.there, 8 << 20, Access::WRITE);
    let to = sent(&target).whole();
    let written = j.pair.to_there.write(&source.whole(), &to, WITHIN).wait();
    let checked = &written.expect("written").nics[0].checked;
    assert!(
        matches!(checked, Checked::Unavailable { .. }),
        "{checked:?}"
    );
}

#[test]
fn given_an_rdma_link_that_lost_a_lane_then_it_is_made_anew_while_the_rest_works_on() {
    let j = joined(Path::Verbs, "worn");
    let near = j.cards[0].as_ref().expect("a card");
    let source = filled(&j.pair.here, &pattern(1 << 20, 1), Access::LOCAL);
    let target = empty(&j.pair.there, 1 << 20, Access::WRITE);
    let to = sent(&target).whole();
    near.behave(|nic| nic.fail = Some((0, Status::RETRIES_EXHAUSTED)));
    let written = j.pair.to_there.write(&source.whole(), &to, WITHIN).wait();
    let receipt = written.expect("by the other lane").into_receipt();
    assert_eq!(receipt.retries, 1);
    let began = Instant::now();
    while j.pair.to_there.rails()[0].returns == 0 {
        assert!(began.elapsed() < SOON, "{:?}", j.pair.to_there.rails());
        std::thread::sleep(Duration::from_millis(20));
    }
    let rails = j.pair.to_there.rails();
    assert_eq!((rails.len(), &rails[0].down), (1, &None));
    assert_eq!(rails[0].totals.written.0, 1 << 20, "the account goes on");
    let again = j.pair.to_there.write(&source.whole(), &to, WITHIN).wait();
    again.expect("by the new link");
    assert!(content(&target) == pattern(1 << 20, 1));
}

#[test]
fn given_an_rdma_port_that_goes_down_and_up_then_sockets_carry_meanwhile_and_it_comes_back() {
    let side = |name: &str| {
        let (nic, fake) = card(name);
        let settings = Settings {
            providers: vec![nic],
            ..settings(false)
        };
        (settings, fake)
    };
    let ((here, near), (there, far)) = (side("flap_here"), side("flap_there"));
    let pair = Pair::with(here, there);
    let source = filled(&pair.here, &pattern(1 << 20, 1), Access::LOCAL);
    let target = empty(&pair.there, 1 << 20, Access::WRITE);
    let to = sent(&target).whole();
    let path = || {
        let written = pair.to_there.write(&source.whole(), &to, WITHIN).wait();
        let receipt = written.expect("written").into_receipt();
        assert!(receipt.is_whole());
        let last = receipt.shares[0].clone();
        (last.path, last.because, receipt.obstacles)
    };
    assert_eq!(path().0, Path::Verbs);
    near.behave(|nic| nic.port_down = true);
    far.behave(|nic| nic.silent = true);
    let (meanwhile, because, obstacles) = path();
    assert_eq!(meanwhile, Path::Tcp);
    assert!(because.is_some_and(|why| why.contains("flap_here:1")));
    assert_eq!(obstacles[0].code, Code::RailFailed);
    near.behave(|nic| nic.port_down = false);
    far.behave(|nic| nic.silent = false);
    let began = Instant::now();
    while path().0 != Path::Verbs {
        assert!(began.elapsed() < SOON, "{:?}", pair.to_there.rails());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn given_require_when_no_card_can_register_the_memory_then_registering_fails_with_what_was_met() {
    let (settings, fake) = by(Path::Verbs, "refusing");
    let fake = fake.expect("a card");
    let fabric = Fabric::new(Settings {
        policy: Policy::Require,
        ..settings
    })
    .expect("a fabric");
    fake.behave(|nic| nic.register = Some(libc::ENOMEM));
    let buffer = crowfly_mover::fabric::Buffer::zeroed(4096, None).expect("memory");
    let error = fabric.register(buffer, Access::WRITE).expect_err("refused");
    assert_eq!(error.code(), "registration-refused");
    let [obstacle] = error.obstacles() else {
        panic!("{error:?}");
    };
    assert!(obstacle.summary.contains("refusing"), "{obstacle:?}");
    assert!(!obstacle.evidence.is_empty());
    assert_eq!(fake.regions(), 0, "nothing is left registered");
    fake.behave(|nic| nic.register = None);
    let buffer = crowfly_mover::fabric::Buffer::zeroed(4096, None).expect("memory");
    fabric.register(buffer, Access::WRITE).expect("registered");
}

#[test]
fn given_ports_of_two_kinds_when_they_are_offered_then_each_end_knows_why_they_were_not_joined() {
    // One end has a card and the other only sockets.
    let (nic, _fake) = card("lonely");
    let here = Settings {
        providers: vec![nic],
        ..settings(false)
    };
    let pair = Pair::with(here, settings(false));
    let at_the_dialer = pair.to_there.obstacles();
    let found = |obstacles: &[crowfly_route::obstacle::Obstacle]| {
        let mut obstacles = obstacles.iter();
        obstacles.any(|o| o.code == Code::PortsDoNotMeet && o.summary.contains("lonely:1"))
    };
    assert!(found(at_the_dialer), "{at_the_dialer:?}");
    assert!(found(pair.to_here.obstacles()));
    let source = filled(&pair.here, &pattern(100, 1), Access::LOCAL);
    let target = empty(&pair.there, 100, Access::WRITE);
    let to = sent(&target).whole();
    let written = pair.to_there.write(&source.whole(), &to, WITHIN).wait();
    let receipt = written.expect("by sockets").into_receipt();
    assert!(
        found(&receipt.obstacles),
        "the receipt says why it was no RDMA"
    );
    assert!(receipt.shares[0].because.is_some());
}

#[test]
fn given_a_machine_whose_port_is_down_when_it_is_looked_at_then_it_is_left_out_by_name() {
    let behaviour = Behaviour {
        port_down: true,
        ..Behaviour::default()
    };
    let fake = FakeNic::plug("unplugged", behaviour);
    let (nics, obstacles) = discover(&fake.verbs(), &VerbsSettings::default());
    assert!(nics.iter().all(|nic| nic.nic() != "unplugged:1"));
    let named = |o: &&crowfly_route::obstacle::Obstacle| o.summary.contains("unplugged:1");
    let obstacle = obstacles.iter().find(named).expect("it is named");
    assert_eq!(obstacle.code, Code::PortDown);
}
