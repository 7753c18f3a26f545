//! RDMA whose queue pairs fail although the peer is there: what a transfer has left goes by new ones, nothing
//! is delivered twice, and only where no new ones can be had in time is the peer lost.

#[path = "fabric_support/pair.rs"]
mod pair;
#[path = "fabric_support/proxy.rs"]
mod proxy;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_machine::verbs::Status;
use crowfly_machine::verbs::fake::{Behaviour, FakeNic};
use crowfly_mover::fabric::verbs::{VerbsNic, VerbsSettings};
use crowfly_mover::fabric::{
    Access, Delivery, Fabric, FabricError, Imm, NicFilter, Options, Peer, Settings,
};
use crowfly_route::obstacle::Code;
use crowfly_route::receipt::Path;
use pair::{Pair, SOON, content, empty, filled, pattern, sent, settings};
use proxy::Proxy;

const WITHIN: Options = Options::within(SOON);
/// Long enough for some attempts, short enough to wait for their end.
const BRIEF: Duration = Duration::from_secs(1);
/// Goes in several pieces.
const LEN: usize = 1 << 20;
/// Goes in one.
const SMALL: usize = 64 << 10;
const VALUE: Imm = Imm(7);

/// Settings by which one RDMA port with one queue pair carries everything, so that its failure leaves none.
fn one_lane(name: &str) -> (Settings, FakeNic) {
    let fake = FakeNic::plug(name, Behaviour::default());
    let context = fake.verbs().open(name).expect("it is plugged in");
    let lanes = VerbsSettings {
        lanes: 1,
        ..VerbsSettings::default()
    };
    let nic = VerbsNic::open(&context, 1, lanes).expect("a port");
    let settings = Settings {
        nics: NicFilter::only(format!("{name}:1")),
        providers: vec![Arc::new(nic)],
        ..settings(false)
    };
    (settings, fake)
}

struct Joined {
    pair: Pair,
    near: FakeNic,
    far: FakeNic,
}

fn joined(test: &str) -> Joined {
    let (here, near) = one_lane(&format!("{test}_here"));
    let (there, far) = one_lane(&format!("{test}_there"));
    let pair = Pair::with(here, there);
    Joined { pair, near, far }
}

impl Joined {
    /// Writes so many bytes, with a value or without; answers the delivery once the bytes were looked at.
    fn write(
        &self,
        len: usize,
        imm: Option<Imm>,
        options: Options,
    ) -> Result<Delivery, FabricError> {
        let bytes = pattern(len, 1);
        let source = filled(&self.pair.here, &bytes, Access::LOCAL);
        let target = empty(&self.pair.there, len, Access::WRITE);
        let (from, to) = (source.whole(), sent(&target).whole());
        let written = match imm {
            Some(imm) => self.pair.to_there.write_imm(&from, &to, imm, options),
            None => self.pair.to_there.write(&from, &to, options),
        };
        let delivery = written.wait()?;
        assert!(content(&target) == bytes);
        Ok(delivery)
    }

    /// Neither end can make a new queue pair, and the old one gets no answers.
    fn cut(&self) {
        self.near.behave(|nic| nic.port_down = true);
        self.far.behave(|nic| {
            nic.port_down = true;
            nic.silent = true;
        });
    }

    fn join_again(&self) {
        self.near.behave(|nic| nic.port_down = false);
        self.far.behave(|nic| {
            nic.port_down = false;
            nic.silent = false;
        });
    }
}

/// Two ends whose sockets, and not their RDMA, go by a network that can stop or be cut.
struct Apart {
    there: Fabric,
    here: Fabric,
    near: FakeNic,
    far: FakeNic,
    proxy: Proxy,
    to_there: Peer,
    _to_here: Peer,
}

fn apart(test: &str) -> Apart {
    let (there, far) = one_lane(&format!("{test}_there"));
    let (here, near) = one_lane(&format!("{test}_here"));
    let there = Fabric::new(there).expect("a fabric");
    let proxy = Proxy::before(there.address());
    let here = Fabric::new(here).expect("another");
    let to_there = here
        .connect(&proxy.address.to_string(), WITHIN)
        .expect("connected");
    let _to_here = there.accept(SOON).expect("accepted");
    Apart {
        there,
        here,
        near,
        far,
        proxy,
        to_there,
        _to_here,
    }
}

fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happens() {
        assert!(began.elapsed() < SOON, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn given_one_rail_when_its_queue_pair_fails_then_a_new_one_carries_on_and_the_receipt_says_why() {
    let j = joined("alone");
    j.near
        .behave(|nic| nic.fail = Some((0, Status::RETRIES_EXHAUSTED)));
    let delivery = j.write(LEN, None, WITHIN).expect("by the new queue pair");
    let receipt = &delivery.receipt;
    assert!(receipt.is_whole());
    assert!(receipt.retries > 0);
    let [failed] = receipt.obstacles.as_slice() else {
        panic!("{:?}", receipt.obstacles);
    };
    assert_eq!(failed.code, Code::RailFailed);
    let shows = &failed.evidence[0].shows;
    assert!(shows.contains("IBV_WC_RETRY_EXC_ERR"), "{shows}");
    let nics: Vec<_> = delivery
        .nics
        .iter()
        .map(|nic| (nic.path, nic.nic.as_str(), nic.bytes.0))
        .collect();
    assert_eq!(nics, [(Path::Verbs, "alone_here:1", LEN as u64)]);
    for peer in [&j.pair.to_there, &j.pair.to_here] {
        let rails = peer.rails();
        assert_eq!((rails.len(), rails[0].returns), (1, 1));
    }
    assert!(j.pair.to_there.rails()[0].totals.failed_ops > 0);
}

#[test]
fn given_a_value_whose_answer_is_missing_when_it_came_or_did_not_then_it_is_counted_once() {
    let j = joined("counted");
    let counter = j.pair.there.counter(VALUE);
    for (returns, came) in [(1, true), (2, false), (3, true)] {
        // The value goes with the bytes, in one request.
        let next = j.near.requests();
        j.near.behave(|nic| {
            nic.fail = (!came).then_some((next, Status::RETRIES_EXHAUSTED));
            nic.unanswered = came.then_some(next);
        });
        let delivery = j.write(SMALL, Some(VALUE), WITHIN).expect("written");
        let receipt = &delivery.receipt;
        assert!(receipt.is_whole());
        assert_eq!(receipt.obstacles[0].code, Code::RailFailed);
        assert_eq!(receipt.retries, u64::from(!came), "came: {came}");
        counter.wait(1, SOON).expect("counted");
        wait_until("the return", || {
            let rails = j.pair.to_there.rails();
            rails[0].down.is_none() && rails[0].returns == returns
        });
        assert_eq!(counter.get(), 1, "came: {came}");
        assert!(counter.take(1));
    }
}

#[test]
fn given_a_value_that_may_have_come_when_nobody_can_say_then_the_transfer_ends_with_that_error() {
    let a = apart("unsaid");
    a.proxy.stop();
    a.near.behave(|nic| nic.unanswered = Some(0));
    let source = filled(&a.here, &pattern(SMALL, 1), Access::LOCAL);
    let target = empty(&a.there, SMALL, Access::WRITE);
    let to = sent(&target).whole();
    let written = a
        .to_there
        .write_imm(&source.whole(), &to, VALUE, Options::within(BRIEF));
    let error = written.wait().expect_err("nobody says");
    assert_eq!(error.code(), "peer-lost");
    let said = error.to_string();
    assert!(said.contains("was counted is not known"), "{said}");
    assert_eq!(a.there.counter(VALUE).get(), 1, "it had come");
}

#[test]
fn given_no_way_to_make_the_rail_anew_then_the_peer_is_lost_at_the_transfers_deadline() {
    let j = joined("cut");
    j.cut();
    let began = Instant::now();
    let error = j
        .write(LEN, None, Options::within(BRIEF))
        .expect_err("no way");
    let took = began.elapsed();
    assert_eq!(error.code(), "peer-lost");
    let said = error.to_string();
    for part in [
        "IBV_WC_RETRY_EXC_ERR",
        "no rail to it could be made anew within 1.00 s",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(took >= BRIEF && took < SOON, "{took:?}");
    assert_eq!(j.near.regions(), 0, "its memory was let go of");
}

#[test]
fn given_a_rail_that_is_down_when_a_transfer_starts_then_it_waits_for_the_rail() {
    let j = joined("waits");
    j.cut();
    let error = j
        .write(LEN, None, Options::within(BRIEF))
        .expect_err("no way");
    assert_eq!(error.code(), "peer-lost");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(BRIEF / 4);
            j.join_again();
        });
        let delivery = j.write(LEN, Some(VALUE), WITHIN).expect("by the new rail");
        let codes = delivery.receipt.obstacles.iter();
        assert!(codes.map(|o| o.code).any(|code| code == Code::RailFailed));
    });
    let counter = j.pair.there.counter(VALUE);
    counter.wait(1, SOON).expect("counted");
}

#[test]
fn given_a_rail_that_is_down_when_the_peers_process_ends_then_the_peer_is_lost_at_once() {
    let a = apart("ended");
    a.near.behave(|nic| nic.port_down = true);
    a.far.behave(|nic| nic.silent = true);
    let source = filled(&a.here, &pattern(LEN, 1), Access::LOCAL);
    let target = empty(&a.there, LEN, Access::WRITE);
    let to = sent(&target).whole();
    let written = a.to_there.write(&source.whole(), &to, WITHIN);
    std::thread::sleep(BRIEF / 4);
    assert!(!written.is_finished(), "it waits for the rail");
    let began = Instant::now();
    a.proxy.cut_after(0);
    let error = written.wait().expect_err("lost");
    assert_eq!(error.code(), "peer-lost");
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    source
        .deregister()
        .expect("its memory is the caller's again");
}

#[test]
fn given_a_write_that_ended_early_when_its_nic_holds_on_then_taking_the_memory_back_waits_for_it() {
    let j = joined("holds");
    let source = filled(&j.pair.here, &pattern(LEN, 1), Access::LOCAL);
    let target = empty(&j.pair.there, LEN, Access::WRITE);
    let (from, to) = (source.whole(), sent(&target).whole());
    j.near.behave(|nic| nic.silent = true);
    let late = Options::within(BRIEF / 10);
    let error = j.pair.to_there.write(&from, &to, late).wait();
    assert_eq!(error.expect_err("silent").code(), "deadline-exceeded");
    let held = source.deregister();
    assert_eq!(held.expect_err("a slice is left").code(), "region-in-use");

    drop(from);
    let source = filled(&j.pair.here, &pattern(LEN, 1), Access::LOCAL);
    let written = j.pair.to_there.write(&source.whole(), &to, late).wait();
    assert_eq!(written.expect_err("silent").code(), "deadline-exceeded");
    let began = Instant::now();
    source.deregister().expect("once the link was closed");
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
}

#[test]
fn given_a_slow_port_that_is_flooded_what_is_late_ends_so_and_the_rail_stays() {
    const MIB: usize = 1 << 20;
    let j = joined("slow");
    let source = filled(&j.pair.here, &pattern(MIB, 1), Access::LOCAL);
    let target = empty(&j.pair.there, MIB, Access::WRITE);
    let (from, to) = (source.whole(), sent(&target).whole());
    j.near.behave(|nic| nic.pace = Some(4 * MIB as u64));
    let write = |within: Duration| j.pair.to_there.write(&from, &to, Options::within(within));
    let patient = || write(4 * SOON);
    for written in [patient(), patient(), patient(), patient()] {
        written.wait().expect("a slow port is no fault");
    }
    // Two seconds of work, and then some that is not waited for as long.
    let kept: Vec<_> = (0..8).map(|_| patient()).collect();
    let late: Vec<_> = (0..4).map(|_| write(BRIEF / 4)).collect();
    for written in late {
        let error = written.wait().expect_err("too much was in front of it");
        assert_eq!(error.code(), "deadline-exceeded");
    }
    for written in kept {
        let delivery = written.wait().expect("it is not hurt by others' deadlines");
        assert_eq!(delivery.receipt.retries, 0, "{:?}", delivery.receipt);
    }
    let [rail] = &j.pair.to_there.rails()[..] else {
        panic!("one rail");
    };
    assert_eq!((rail.returns, rail.totals.failed_ops), (0, 0), "{rail:?}");
}
