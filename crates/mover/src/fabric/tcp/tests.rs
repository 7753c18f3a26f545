use std::os::unix::net::UnixStream;

use crowfly_route::place::Memory;

use super::super::provider::{Events, FlightId, Imm, Segment};
use super::super::socket::Socket;
use super::super::wire::Lane;
use super::*;

/// Somebody whose link closes while it is told of an op's end.
#[derive(Default)]
struct Closing {
    link: std::sync::OnceLock<Weak<TcpLink>>,
    /// Of each end, whether the op was in doubt then.
    doubts: Mutex<Vec<bool>>,
}

impl Events for Closing {
    fn completed(&self, _: RailId, op: OpId, _: Result<(), OpError>) {
        let link = self.link.get().and_then(Weak::upgrade).expect("a link");
        link.close();
        let mut doubts = self.doubts.lock().expect("nobody panicked");
        doubts.push(link.is_in_doubt(op));
    }

    fn arrived(&self, _: Imm, _: Option<FlightId>) -> bool {
        true
    }

    fn down(&self, _: RailId, _: String) {}
}

/// A link with these streams, or none, and one on which so many ops are under way.
fn link(conns: Vec<Arc<Conn>>, under_way: usize, events: Weak<dyn Events>) -> Arc<TcpLink> {
    let streams = conns.len().max(1);
    Arc::new(TcpLink {
        busy: (0..streams).map(|_| AtomicUsize::new(under_way)).collect(),
        conns,
        nic: "lo".into(),
        port: InterfacePort::of("lo"),
        line_rate: None,
        peer: Incarnation::draw().expect("random bytes"),
        rail: RailId(0),
        events,
        regions: Arc::default(),
        pending: Mutex::default(),
        values: Values::default(),
        attendance: Attendance::default(),
    })
}

/// A value without bytes.
fn value(id: u64) -> Op {
    Op {
        id: OpId(id),
        verb: Verb::Write,
        local: None,
        remote: None,
        segments: Vec::new(),
        imm: Some((Imm(7), FlightId(id))),
        straight: false,
    }
}

#[test]
fn an_op_stays_in_doubt_until_the_engine_knows_its_end_and_ends_once() {
    let told = Arc::new(Closing::default());
    let events: Arc<dyn Events> = told.clone();
    let link = link(Vec::new(), 1, Arc::downgrade(&events));
    told.link.set(Arc::downgrade(&link)).expect("set once");
    let segments = vec![Segment {
        local: 0,
        remote: 0,
        len: 1,
    }];
    let op = Op {
        segments,
        ..value(1)
    };
    let pending = Pending {
        op,
        conn: 0,
        ended: false,
    };
    link.pending().insert(1, pending);
    link.ended(1, Ok(()));
    link.ended(1, Ok(()));
    assert_eq!(*told.doubts.lock().expect("nobody panicked"), [true]);
    assert_eq!(link.busy[0].load(Ordering::Relaxed), 0);
    assert!(link.pending().is_empty());
}

/// A stream, and its other end.
fn stream() -> (Arc<Conn>, UnixStream) {
    let (here, there) = UnixStream::pair().expect("a pair");
    here.set_nonblocking(true).expect("non-blocking");
    let socket = Socket::accepted(here.into());
    let (sending, hearing) = (Lane::new([1; 32]), Lane::new([2; 32]));
    (Conn::new(socket, true, sending, hearing), there)
}

#[test]
fn no_more_ops_are_under_way_by_a_stream_than_the_other_end_remembers_values_of_it() {
    let streams: Vec<_> = (0..3).map(|_| stream()).collect();
    let conns = streams.iter().map(|(conn, _)| Arc::clone(conn)).collect();
    let link = link(conns, 0, Weak::<Closing>::new());
    for id in 1..=link.limits().ops as u64 {
        link.post(value(id)).expect("there is room");
        // It is sent at once, so that all of them have nothing to do.
        link.posted();
        assert!(link.conns.iter().all(|conn| conn.queued() == 0));
    }
    let busy = link.busy.iter().map(|busy| busy.load(Ordering::Relaxed));
    assert!(busy.eq([OPS_PER_STREAM; 3]));
}

#[test]
fn given_a_link_that_closes_while_ops_are_posted_then_it_holds_none_of_them() {
    for _ in 0..4000 {
        let (conn, _there) = stream();
        let link = link(vec![conn], 0, Weak::<Closing>::new());
        std::thread::scope(|scope| {
            scope.spawn(|| (1..).find(|id| link.post(value(*id)).is_err()));
            while link.pending().is_empty() {
                std::hint::spin_loop();
            }
            link.close();
        });
        assert!(link.pending().is_empty());
    }
}

#[test]
fn the_route_by_sockets_is_of_the_class_socket_and_touched_twice_by_the_cpu() {
    let route = route(
        "eth0",
        Some(12.5e9),
        Place::Host(None),
        Place::Remote(Memory::Host(None)),
    );
    assert_eq!(route.class(), Class::Socket);
    assert_eq!(route.ceiling().map(|c| c.capacity.rate.0), Some(12.5e9));
    assert_eq!(route.counters().cpu_touches, 2);
}
