//! The provider against NICs that exist only in this process: the production code from the seam
//! down to the table of functions.

use std::net::SocketAddr;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crowfly_machine::verbs::Status;
use crowfly_machine::verbs::fake::{Behaviour, FakeNic};

use super::super::descriptor::{Grant, RegionDescriptor};
use super::super::error::FabricError;
use super::super::gate::Gate;
use super::super::identity::{Capability, Incarnation};
use super::super::memory::Buffer;
use super::super::provider::{
    Events, FlightId, Imm, Joining, Link, Local, Op, OpError, OpId, Posted, RailId, Refusal,
    Segment, Verb,
};
use super::super::region::{RegionCore, Registered as Known, Registrations};
use super::*;

/// Notes what a link says.
#[derive(Default)]
struct Heard {
    said: Mutex<Vec<Said>>,
    more: Condvar,
}

#[derive(Clone, Debug, PartialEq)]
enum Said {
    Done(u64),
    Failed(u64, String),
    Arrived(u32),
    Down(String),
}

impl Heard {
    fn note(&self, said: Said) {
        lock(&self.said).push(said);
        self.more.notify_all();
    }

    /// Waits until this many things were said.
    fn wait(&self, count: usize) -> Vec<Said> {
        let until = Instant::now() + Duration::from_secs(10);
        let mut said = lock(&self.said);
        while said.len() < count && Instant::now() < until {
            let waited = self.more.wait_timeout(said, Duration::from_millis(100));
            said = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        assert!(said.len() >= count, "heard only {said:?}");
        said.clone()
    }
}

impl Events for Heard {
    fn completed(&self, _: RailId, op: OpId, result: Result<(), OpError>) {
        self.note(match result {
            Ok(()) => Said::Done(op.0),
            Err(OpError::Op(error)) => Said::Failed(op.0, error.code().into()),
            Err(OpError::Rail(why)) => Said::Failed(op.0, why),
            Err(OpError::Elsewhere(_)) => Said::Failed(op.0, "elsewhere".into()),
        });
    }

    fn arrived(&self, imm: Imm, _: Option<FlightId>) -> bool {
        self.note(Said::Arrived(imm.0));
        true
    }

    fn down(&self, _: RailId, why: String) {
        self.note(Said::Down(why));
    }
}

/// Verbs do not care where the control connection is.
const MEETING: Meeting = Meeting {
    address: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1),
    here: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
};

fn joining(rail: u32, heard: &Arc<Heard>) -> Joining {
    let events: Arc<dyn Events> = Arc::clone(heard) as _;
    Joining {
        peer: Incarnation::from_bytes([7; 16]),
        rail: RailId(rail),
        events: Arc::downgrade(&events),
        deadline: Instant::now() + Duration::from_secs(5),
    }
}

struct Side {
    fake: FakeNic,
    nic: VerbsNic,
    life: Incarnation,
}

impl Side {
    fn new(name: &str, settings: VerbsSettings) -> Self {
        let fake = FakeNic::plug(name, Behaviour::default());
        let context = fake.verbs().open(name).expect("it is plugged in");
        let nic = VerbsNic::open(&context, 1, settings).expect("a port");
        Self {
            fake,
            nic,
            life: Incarnation::draw().expect("random bytes"),
        }
    }

    fn region(&self, bytes: &[u8]) -> Arc<RegionCore> {
        let backing = Buffer::copy_of(bytes).expect("memory").into_backing();
        let registration = self
            .nic
            .register(&backing, Access::READ_WRITE)
            .expect("registered");
        let grant = Grant {
            path: Path::Verbs,
            nic: self.nic.nic().into(),
            address: registration.address,
            key: registration.key.clone(),
        };
        let descriptor = RegionDescriptor::new(
            self.life,
            bytes.len() as u64,
            Access::READ_WRITE,
            backing.place().clone(),
            Capability::draw().expect("random bytes"),
            vec![grant],
        );
        Arc::new(RegionCore {
            descriptor,
            backing,
            gate: Gate::default(),
            registrations: Registrations {
                done: vec![Known {
                    path: Path::Verbs,
                    nic: self.nic.nic().into(),
                    registration,
                }],
                refused: Vec::new(),
            },
        })
    }
}

fn bytes_of(region: &RegionCore) -> Vec<u8> {
    let len = region.backing.len();
    let mut out = vec![0; len];
    region
        .span(0..len)
        .expect("the whole")
        .get(&mut out)
        .expect("host memory");
    out
}

struct Joined {
    dialer: Side,
    acceptor: Side,
    out: Arc<dyn Link>,
    back: Arc<dyn Link>,
    heard: Arc<Heard>,
    heard_there: Arc<Heard>,
}

fn joined(name: &str, settings: &VerbsSettings) -> Joined {
    let dialer = Side::new(&format!("{name}_dialer"), settings.clone());
    let acceptor = Side::new(&format!("{name}_acceptor"), settings.clone());
    let ours = dialer
        .nic
        .endpoint(Role::Dialer, &MEETING)
        .expect("an endpoint");
    let theirs = acceptor
        .nic
        .endpoint(Role::Acceptor, &MEETING)
        .expect("an endpoint");
    let (hello, answer) = (ours.hello(), theirs.hello());
    let (heard, heard_there) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
    let out = ours.join(&answer, joining(1, &heard)).expect("joined");
    let back = theirs
        .join(&hello, joining(2, &heard_there))
        .expect("joined");
    Joined {
        dialer,
        acceptor,
        out,
        back,
        heard,
        heard_there,
    }
}

fn op(
    id: u64,
    verb: Verb,
    local: &Arc<RegionCore>,
    remote: &RegionCore,
    runs: &[(u64, u64, u32)],
) -> Op {
    let segments = runs.iter().map(|(local, remote, len)| Segment {
        local: *local,
        remote: *remote,
        len: *len,
    });
    Op {
        id: OpId(id),
        verb,
        local: Some(Local {
            region: Arc::clone(local),
            flight: Arc::default(),
        }),
        remote: Some(remote.descriptor.clone()),
        segments: segments.collect(),
        imm: None,
        straight: false,
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn writes_and_reads_of_many_segments_arrive_whole_and_end_once_each() {
    let j = joined("whole", &VerbsSettings::default());
    let bytes = pattern(100_000);
    let (from, to) = (
        j.dialer.region(&bytes),
        j.acceptor.region(&vec![0; 100_000]),
    );
    let halves = [(0, 50_000, 50_000), (50_000, 0, 50_000)];
    let posted = j
        .out
        .post(op(1, Verb::Write, &from, &to, &halves))
        .expect("posted");
    assert_eq!(posted, Posted::InFlight);
    assert_eq!(j.heard.wait(1), [Said::Done(1)]);
    let swapped = [&bytes[50_000..], &bytes[..50_000]].concat();
    assert_eq!(bytes_of(&to), swapped);

    let back = j.dialer.region(&vec![0; 100_000]);
    let _ = j
        .out
        .post(op(2, Verb::Read, &back, &to, &halves))
        .expect("posted");
    assert_eq!(j.heard.wait(2), [Said::Done(1), Said::Done(2)]);
    assert_eq!(bytes_of(&back), bytes);
}

#[test]
fn a_value_arrives_with_the_bytes_of_its_write_and_without_any_too() {
    let j = joined("values", &VerbsSettings::default());
    let (from, to) = (j.dialer.region(&pattern(64)), j.acceptor.region(&[0; 64]));
    let mut with = op(1, Verb::Write, &from, &to, &[(0, 0, 64)]);
    with.imm = Some((Imm(0xdead_beef), FlightId(1)));
    let _ = j.out.post(with).expect("posted");
    assert_eq!(j.heard_there.wait(1), [Said::Arrived(0xdead_beef)]);
    assert_eq!(bytes_of(&to), pattern(64));
    let alone = Op {
        id: OpId(2),
        verb: Verb::Write,
        local: None,
        remote: None,
        segments: Vec::new(),
        imm: Some((Imm(3), FlightId(2))),
        straight: false,
    };
    let _ = j.out.post(alone).expect("posted");
    assert_eq!(j.heard_there.wait(2)[1], Said::Arrived(3));
}

#[test]
fn more_values_than_receives_are_posted_arrive_all_because_each_is_posted_again() {
    let j = joined("many_values", &VerbsSettings::default());
    const COUNT: u32 = 2000;
    for value in 0..COUNT {
        let alone = Op {
            id: OpId(u64::from(value)),
            verb: Verb::Write,
            local: None,
            remote: None,
            segments: Vec::new(),
            imm: Some((Imm(value), FlightId(0))),
            straight: false,
        };
        let _ = j.out.post(alone).expect("posted");
        // Not more at a time than are posted: this NIC does not wait for the receiver. And not more
        // than the queue holds: it has room again when the completion was heard.
        if value % 128 == 127 {
            j.heard_there.wait(value as usize + 1);
            j.heard.wait(value as usize + 1);
        }
    }
    let arrived = j.heard_there.wait(COUNT as usize);
    assert_eq!(arrived.len(), COUNT as usize);
}

#[test]
fn given_a_region_that_is_gone_its_op_fails_and_the_other_lane_works_on() {
    let j = joined("gone", &VerbsSettings::default());
    let (from, to) = (
        j.dialer.region(&pattern(4096)),
        j.acceptor.region(&[0; 4096]),
    );
    let gone = j.acceptor.region(&[0; 4096]);
    let stale = op(1, Verb::Write, &from, &gone, &[(0, 0, 4096)]);
    drop(gone);
    let _ = j.out.post(stale).expect("posted");
    assert_eq!(j.heard.wait(1), [Said::Failed(1, "no-such-region".into())]);
    let _ = j
        .out
        .post(op(2, Verb::Write, &from, &to, &[(0, 0, 4096)]))
        .expect("a lane is left");
    assert_eq!(j.heard.wait(2)[1], Said::Done(2));
    assert_eq!(bytes_of(&to), pattern(4096));
}

#[test]
fn given_a_peer_that_does_not_answer_the_failure_names_nics_and_status_and_the_link_goes_down() {
    let settings = VerbsSettings {
        lanes: 1,
        ..VerbsSettings::default()
    };
    let j = joined("mute", &settings);
    let (from, to) = (
        j.dialer.region(&pattern(4096)),
        j.acceptor.region(&[0; 4096]),
    );
    j.acceptor.fake.behave(|nic| nic.silent = true);
    let _ = j
        .out
        .post(op(1, Verb::Write, &from, &to, &[(0, 0, 4096)]))
        .expect("posted");
    let said = j.heard.wait(2);
    let Said::Failed(1, why) = &said[0] else {
        panic!("{said:?}");
    };
    for part in [
        "mute_dialer:1",
        "mute_acceptor:1",
        "IBV_WC_RETRY_EXC_ERR",
        "vendor error 0x17",
    ] {
        assert!(why.contains(part), "{part} in {why}");
    }
    assert_eq!(said[1], Said::Down(why.clone()));
    let refused = j.out.post(op(2, Verb::Write, &from, &to, &[(0, 0, 4096)]));
    assert!(
        matches!(refused, Err(Refusal::Failed(OpError::Rail(_)))),
        "{refused:?}"
    );
}

#[test]
fn closing_a_link_with_ops_in_flight_lets_go_of_their_memory_and_says_nothing() {
    // What was posted is fetched by the pump's thread or by the closing one, as it happens: both ways are
    // gone several times.
    for round in 0..20 {
        let j = joined(&format!("closed_{round}"), &VerbsSettings::default());
        let (from, to) = (
            j.dialer.region(&pattern(4096)),
            j.acceptor.region(&[0; 4096]),
        );
        j.dialer.fake.behave(|nic| nic.silent = true);
        let _ = j
            .out
            .post(op(1, Verb::Write, &from, &to, &[(0, 0, 4096)]))
            .expect("posted");
        let memory = Arc::downgrade(&from.backing);
        drop(from);
        assert!(memory.upgrade().is_some(), "in flight");
        j.out.close();
        assert!(memory.upgrade().is_none(), "let go of");
        assert_eq!(j.dialer.fake.regions(), 0);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(*lock(&j.heard.said), []);
        let late = op(2, Verb::Write, &j.dialer.region(&[1]), &to, &[(0, 0, 1)]);
        assert!(matches!(j.out.post(late), Err(Refusal::Failed(_))));
    }
}

/// A value without bytes.
fn value(id: u64, value: u32) -> Op {
    Op {
        id: OpId(id),
        verb: Verb::Write,
        local: None,
        remote: None,
        segments: Vec::new(),
        imm: Some((Imm(value), FlightId(id))),
        straight: false,
    }
}

#[test]
fn given_values_whose_ends_are_unknown_then_what_the_closed_peer_counted_tells_which_had_come() {
    let settings = VerbsSettings {
        lanes: 1,
        ..VerbsSettings::default()
    };
    let j = joined("doubts", &settings);
    // The first is answered, the second arrives and its answer is lost, the third does not leave any more.
    j.dialer.fake.behave(|nic| nic.unanswered = Some(1));
    for id in 1..=3 {
        let _ = j.out.post(value(id, id as u32));
    }
    let said = j.heard.wait(3);
    assert_eq!(said[0], Said::Done(1));
    assert!(matches!(&said[1], Said::Failed(2, _)), "{said:?}");
    let doubted = |id| j.out.is_in_doubt(OpId(id));
    assert!(doubted(2) && !doubted(4));
    assert_eq!(j.back.tally(), None, "more could come");
    j.back.close();
    let tally = j.back.tally().expect("all receives were given back");
    j.out.close();
    assert_eq!(j.out.landed(OpId(2), &tally), Some(true));
    if doubted(3) {
        assert_eq!(j.out.landed(OpId(3), &tally), Some(false));
    }
    assert_eq!(j.out.landed(OpId(4), &tally), None, "nobody sent it");
    let arrived = j.heard_there.wait(2);
    assert_eq!(arrived, [Said::Arrived(1), Said::Arrived(2)]);
}

#[test]
fn values_that_came_just_before_the_link_is_closed_are_told_all_the_same_and_counted() {
    for round in 0..20 {
        let j = joined(&format!("late_{round}"), &VerbsSettings::default());
        for id in 0..10 {
            let _ = j.out.post(value(id, 5)).expect("posted");
        }
        // The pump of the other side may or may not have seen them.
        j.back.close();
        let arrived = j.heard_there.wait(10);
        assert_eq!(arrived, vec![Said::Arrived(5); 10]);
        let tally = j.back.tally().expect("certain");
        j.out.close();
        for id in (0..10).map(OpId).filter(|id| j.out.is_in_doubt(*id)) {
            assert_eq!(j.out.landed(id, &tally), Some(true), "{id:?}");
        }
    }
}

#[test]
fn given_a_shut_gate_nothing_is_posted() {
    let j = joined("gates", &VerbsSettings::default());
    let (from, to) = (j.dialer.region(&pattern(64)), j.acceptor.region(&[0; 64]));
    let cancelled = op(1, Verb::Write, &from, &to, &[(0, 0, 64)]);
    cancelled.local.as_ref().expect("local").flight.close();
    let refused = j.out.post(cancelled);
    assert!(matches!(
        refused,
        Err(Refusal::Failed(OpError::Op(FabricError::Cancelled)))
    ));
    from.gate.close();
    let refused = j.out.post(op(2, Verb::Write, &from, &to, &[(0, 0, 64)]));
    assert!(matches!(
        refused,
        Err(Refusal::Failed(OpError::Op(FabricError::Deregistered)))
    ));
    assert_eq!(bytes_of(&to), [0; 64]);
}

#[test]
fn given_full_queues_the_op_comes_back_and_fits_again_later() {
    let settings = VerbsSettings {
        lanes: 2,
        depth: 4,
        ..VerbsSettings::default()
    };
    let j = joined("full_link", &settings);
    let (from, to) = (j.dialer.region(&pattern(512)), j.acceptor.region(&[0; 512]));
    j.dialer.fake.behave(|nic| nic.silent = true);
    assert_eq!(j.out.limits().ops, 8);
    for id in 0..8 {
        let _ = j
            .out
            .post(op(id, Verb::Write, &from, &to, &[(0, 0, 512)]))
            .expect("room for 8");
    }
    let refused = j.out.post(op(8, Verb::Write, &from, &to, &[(0, 0, 512)]));
    assert!(matches!(refused, Err(Refusal::Full(op)) if op.id == OpId(8)));
}

#[test]
fn given_a_failure_in_the_middle_of_a_chain_the_op_ends_once_with_the_first_cause() {
    let settings = VerbsSettings {
        lanes: 1,
        ..VerbsSettings::default()
    };
    let j = joined("middle", &settings);
    let (from, to) = (
        j.dialer.region(&pattern(4096)),
        j.acceptor.region(&[0; 4096]),
    );
    j.dialer
        .fake
        .behave(|nic| nic.fail = Some((1, Status::REMOTE_OPERATION)));
    let apart = [(0, 0, 1000), (1000, 2000, 1000), (2000, 3100, 900)];
    let _ = j
        .out
        .post(op(1, Verb::Write, &from, &to, &apart))
        .expect("posted");
    let said = j.heard.wait(2);
    assert!(
        matches!(&said[0], Said::Failed(1, why) if why.contains("REM_OP_ERR")),
        "{said:?}"
    );
    assert!(matches!(&said[1], Said::Down(_)), "{said:?}");
}

#[test]
fn a_port_that_is_down_and_a_machine_without_devices_are_obstacles() {
    let fake = FakeNic::plug(
        "down_port",
        Behaviour {
            port_down: true,
            ..Behaviour::default()
        },
    );
    let context = fake.verbs().open("down_port").expect("it is plugged in");
    let refused = VerbsNic::open(&context, 1, VerbsSettings::default()).expect_err("down");
    assert_eq!(refused.code, Code::PortDown);
    let (nics, obstacles) = discover(&fake.verbs(), &VerbsSettings::default());
    let about: Vec<&str> = obstacles.iter().map(|o| o.summary.as_str()).collect();
    assert!(about.contains(&"down_port:1 is not active"), "{about:?}");
    assert!(!nics.iter().any(|nic| nic.nic() == "down_port:1"));
}

#[test]
fn given_no_address_on_the_interface_asked_for_the_obstacle_names_it() {
    let settings = VerbsSettings {
        address: GidFilter::Interface("eth0.7".into()),
        ..VerbsSettings::default()
    };
    let side = Side::new("no_vlan", settings);
    let refused = side
        .nic
        .endpoint(Role::Dialer, &MEETING)
        .err()
        .expect("no address");
    let shows = &refused.evidence[0].shows;
    assert!(
        shows.contains("no_vlan port 1") && shows.contains("eth0.7"),
        "{shows}"
    );
}

#[test]
fn two_links_of_one_port_are_served_by_one_thread_and_end_on_their_own() {
    let j = joined("two", &VerbsSettings::default());
    let second = j
        .dialer
        .nic
        .endpoint(Role::Dialer, &MEETING)
        .expect("an endpoint");
    let third = Side::new("two_third", VerbsSettings::default());
    let theirs = third
        .nic
        .endpoint(Role::Acceptor, &MEETING)
        .expect("an endpoint");
    let heard = Arc::new(Heard::default());
    let hello = second.hello();
    let other = second
        .join(&theirs.hello(), joining(3, &heard))
        .expect("joined");
    let unheard = Arc::new(Heard::default());
    let _back = theirs.join(&hello, joining(4, &unheard)).expect("joined");
    j.out.close();
    drop(j.out);
    let (from, to) = (j.dialer.region(&pattern(300)), third.region(&[0; 300]));
    let _ = other
        .post(op(1, Verb::Write, &from, &to, &[(0, 0, 300)]))
        .expect("posted");
    assert_eq!(heard.wait(1), [Said::Done(1)]);
    j.back.close();
}
