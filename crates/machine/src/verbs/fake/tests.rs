//! The handles above the table of functions, held against a NIC that checks what they do.

use std::sync::Arc;
use std::time::Duration;

use super::super::{
    Access, Completion, CompletionQueue, Context, DmaBufSupport, Done, GidFilter, GidKind, Init,
    Kind, MemoryRegion, Patience, Pinned, ProtectionDomain, QueuePair, Ready, Remote, Route, Sizes,
    Status, Verbs, VerbsError, ranked,
};
use super::{Behaviour, FakeNic, Library};

/// Bytes that only devices and this test's raw copies touch.
struct Bytes(Box<[std::cell::UnsafeCell<u8>]>);

// SAFETY: the tests access the bytes only by raw copies while nothing is in flight.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}
// SAFETY: the box never moves its contents.
unsafe impl Pinned for Bytes {
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Bytes {
    fn new(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self(bytes.iter().map(|b| (*b).into()).collect()))
    }

    fn get(&self) -> Vec<u8> {
        // SAFETY: no request is in flight when the tests look.
        self.0.iter().map(|b| unsafe { *b.get() }).collect()
    }
}

struct Side {
    nic: FakeNic,
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue>,
}

const SIZES: Sizes = Sizes {
    requests: 8,
    receives: 4,
    pieces: 4,
    inline: 64,
};

impl Side {
    fn new(name: &str) -> Self {
        let nic = FakeNic::plug(name, Behaviour::default());
        let context = nic.verbs().open(name).expect("it is plugged in");
        let domain = context.protection_domain().expect("a domain");
        let queue = context.completion_queue(64, true).expect("a queue");
        Self {
            nic,
            context,
            domain,
            queue,
        }
    }

    fn pair(&self) -> QueuePair<Init> {
        let pair = self.domain.queue_pair(&self.queue, &self.queue, SIZES);
        pair.expect("a pair").initialise(1).expect("port 1")
    }

    fn route(&self, remote_qp: u32) -> Route {
        let port = self.context.port(1).expect("port 1");
        let gids = self.context.addresses(&port).expect("addresses");
        let local = ranked(&gids, &GidFilter::Any).remove(0);
        Route {
            port,
            remote_gid: local.address,
            local: Some(local),
            remote_lid: 0,
            remote_qp,
            remote_psn: 1,
            local_psn: 1,
            mtu: port.mtu,
            reads: 1,
            patience: Patience::default(),
        }
    }

    fn region(&self, bytes: &Arc<Bytes>) -> Arc<MemoryRegion> {
        let memory: Arc<dyn Pinned> = Arc::clone(bytes) as _;
        self.domain
            .register(memory, Access::ALL)
            .expect("registered")
    }

    fn polled(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        self.queue.poll(&mut all).expect("polled");
        all
    }
}

fn joined(name: &str) -> (Side, QueuePair<Ready>, Side, QueuePair<Ready>) {
    let (a, b) = (
        Side::new(&format!("{name}_a")),
        Side::new(&format!("{name}_b")),
    );
    let (pair_a, pair_b) = (a.pair(), b.pair());
    let (number_a, number_b) = (pair_a.number(), pair_b.number());
    let pair_a = pair_a.connect(&a.route(number_b)).expect("connected");
    let pair_b = pair_b.connect(&b.route(number_a)).expect("connected");
    (a, pair_a, b, pair_b)
}

fn at(region: &MemoryRegion, offset: u64) -> Remote {
    Remote {
        address: region.address() + offset,
        key: region.keys().remote,
    }
}

#[test]
fn given_a_port_its_addresses_are_ranked_and_unused_entries_left_out() {
    let side = Side::new("gids");
    let port = side.context.port(1).expect("port 1");
    let gids = side.context.addresses(&port).expect("addresses");
    assert_eq!(gids.len(), 2);
    let best = ranked(&gids, &GidFilter::Any).remove(0);
    assert_eq!((best.index, best.kind), (1, GidKind::RoceV2));
    assert_eq!(
        side.context.port(2).expect_err("no port 2").errno(),
        Some(libc::EINVAL)
    );
}

#[test]
fn given_a_typo_the_devices_there_are_are_named() {
    let nic = FakeNic::plug("mlx5_0", Behaviour::default());
    let error = nic.verbs().open("mlx5_o").expect_err("a typo");
    assert_eq!(error.code(), "no-such-nic");
    assert!(error.to_string().contains("mlx5_0"), "{error}");
}

#[test]
fn a_chain_moves_gathered_bytes_and_completes_once_by_its_last_request() {
    let (a, mut pair, b, _theirs) = joined("chain");
    let (source, target) = (Bytes::new(b"straight as the crow"), Bytes::new(&[0; 20]));
    let (from, to) = (a.region(&source), b.region(&target));
    let slice = |range| from.slice(range).expect("inside");
    let mut batch = pair.batch();
    batch
        .write(1, vec![slice(0..9), slice(9..12)], at(&to, 0), None)
        .expect("fits");
    batch
        .write(2, vec![slice(12..20)], at(&to, 12), None)
        .expect("fits");
    let rung = batch.ring().expect("posted");
    assert_eq!((rung.posted, rung.last), (2, Some(2)));
    assert_eq!(pair.outstanding(), 2);
    let completions = a.polled();
    let [only] = completions.as_slice() else {
        panic!("{completions:?}");
    };
    assert_eq!(only.wr_id, 2);
    assert_eq!(only.outcome.expect("it worked").kind, Kind::Written);
    pair.retire(only);
    assert_eq!(pair.outstanding(), 0);
    assert_eq!(target.get(), source.get());
}

#[test]
fn reads_inline_writes_sends_and_notifications_arrive_as_what_they_are() {
    let (a, mut pair, b, mut theirs) = joined("kinds");
    let (mine, remote) = (Bytes::new(&[0; 8]), Bytes::new(b"far away"));
    let (local, far) = (a.region(&mine), b.region(&remote));
    let whole = || vec![local.slice(0..8).expect("inside")];
    let mut batch = pair.batch();
    batch.read(1, at(&far, 0), whole()).expect("fits");
    let _ = batch.ring().expect("posted");
    assert_eq!(mine.get(), b"far away");

    theirs.receive(5, None).expect("room");
    theirs
        .receive(6, Some(far.slice(0..8).expect("inside")))
        .expect("room");
    let mut batch = pair.batch();
    batch
        .write_inline(2, b"near", at(&far, 4), Some(77))
        .expect("fits");
    batch.send(3, whole(), Some(78)).expect("fits");
    let _ = batch.ring().expect("posted");
    let arrived = b.polled();
    let seen: Vec<(u64, bool, Done)> = arrived
        .iter()
        .map(|c| (c.wr_id, c.receive, c.outcome.expect("it worked")))
        .collect();
    let done = |kind, bytes, immediate| Done {
        kind,
        bytes,
        immediate: Some(immediate),
    };
    let expected = [
        (5, true, done(Kind::Notified, 4, 77)),
        (6, true, done(Kind::Received, 8, 78)),
    ];
    assert_eq!(seen, expected);
    assert_eq!(remote.get(), b"far away", "overwritten by the send");
}

#[test]
fn given_a_bad_key_a_range_outside_or_a_region_that_is_gone_the_peer_refuses() {
    let refused = |name: &str, make: &dyn Fn(Arc<MemoryRegion>) -> Remote| {
        let (a, mut pair, b, _theirs) = joined(name);
        let (source, target) = (Bytes::new(&[1; 8]), Bytes::new(&[0; 8]));
        let from = a.region(&source);
        let remote = make(b.region(&target));
        let mut batch = pair.batch();
        let slice = from.slice(0..8).expect("inside");
        batch
            .write(9, vec![slice.clone()], remote, None)
            .expect("fits");
        let _ = batch.ring().expect("posted");
        let mut batch = pair.batch();
        batch.write(10, vec![slice], remote, None).expect("fits");
        let _ = batch.ring().expect("posted");
        let statuses: Vec<_> = a
            .polled()
            .iter()
            .map(|c| c.outcome.err().map(|f| f.status))
            .collect();
        assert_eq!(
            statuses,
            [Some(Status::REMOTE_ACCESS), Some(Status::FLUSHED)],
            "{name}"
        );
        assert_eq!(target.get(), [0; 8], "{name}");
    };
    refused("bad_key", &|region| Remote {
        key: region.keys().remote + 1000,
        ..at(&region, 0)
    });
    refused("outside", &|region| at(&region, 1));
    refused("gone", &|region| at(&region, 0));
}

#[test]
fn given_more_than_fits_the_error_says_so_before_the_device_is_asked() {
    let (a, mut pair, _b, mut theirs) = joined("full");
    a.nic.behave(|nic| nic.silent = true);
    let source = Bytes::new(&[0; 8]);
    let from = a.region(&source);
    let remote = Remote { address: 0, key: 0 };
    let slice = || from.slice(0..8).expect("inside");
    let mut batch = pair.batch();
    for wr_id in 0..8 {
        batch
            .write(wr_id, vec![slice()], remote, None)
            .expect("there is room for 8");
    }
    let error = batch
        .write(8, vec![slice()], remote, None)
        .err()
        .expect("full");
    assert_eq!(error.code(), "queue-full");
    let _ = batch.ring().expect("posted");
    assert_eq!(pair.room(), 0);
    let mut batch = pair.batch();
    let error = batch
        .write_inline(9, &[0; 65], remote, None)
        .err()
        .expect("too long");
    assert_eq!(error.code(), "request-too-large");
    let five = (0..5).map(|_| slice()).collect();
    let error = batch.write(9, five, remote, None).err().expect("too many");
    assert!(
        error
            .to_string()
            .contains("pieces of memory: 5 is more than the 4"),
        "{error}"
    );
    assert_eq!(
        from.slice(4..9).expect_err("outside").code(),
        "out-of-bounds"
    );
    for wr_id in 0..4 {
        theirs.receive(wr_id, None).expect("room for 4");
    }
    assert_eq!(
        theirs.receive(4, None).expect_err("full").code(),
        "queue-full"
    );
}

#[test]
fn given_a_silent_peer_stopping_flushes_and_only_then_memory_is_let_go() {
    let (a, mut pair, b, _theirs) = joined("silent");
    a.nic.behave(|nic| nic.silent = true);
    let (source, target) = (Bytes::new(&[1; 8]), Bytes::new(&[0; 8]));
    let (from, to) = (a.region(&source), b.region(&target));
    let mut batch = pair.batch();
    batch
        .write(1, vec![from.slice(0..8).expect("inside")], at(&to, 0), None)
        .expect("fits");
    let _ = batch.ring().expect("posted");
    drop(from);
    assert_eq!(a.nic.regions(), 1, "in flight");
    assert_eq!(a.polled(), []);
    pair.stop().expect("stopped");
    let completions = a.polled();
    assert_eq!(
        completions[0].outcome.expect_err("flushed").status,
        Status::FLUSHED
    );
    assert_eq!(a.nic.regions(), 1, "not yet retired");
    pair.retire(&completions[0]);
    assert_eq!(a.nic.regions(), 0);
    assert_eq!(Arc::strong_count(&source), 1, "the memory is free");
}

#[test]
fn given_a_queue_pair_that_is_dropped_with_requests_in_flight_its_memory_outlives_it() {
    let (a, mut pair, _b, _theirs) = joined("dropped");
    a.nic.behave(|nic| nic.silent = true);
    let source = Bytes::new(&[1; 8]);
    let slice = a.region(&source).slice(0..8).expect("inside");
    let mut batch = pair.batch();
    let remote = Remote { address: 0, key: 0 };
    batch.write(1, vec![slice], remote, None).expect("fits");
    let _ = batch.ring().expect("posted");
    assert_eq!(a.nic.regions(), 1);
    drop(pair);
    assert_eq!(a.nic.regions(), 0, "destroyed first, then deregistered");
}

#[test]
fn an_armed_queue_wakes_its_waiter_at_the_next_completion() {
    let (a, mut pair, b, _theirs) = joined("events");
    assert!(!a.queue.wait(Duration::ZERO).expect("nothing yet"));
    a.queue.arm().expect("armed");
    let target = Bytes::new(&[0; 4]);
    let to = b.region(&target);
    let mut batch = pair.batch();
    batch
        .write_inline(1, b"wake", at(&to, 0), None)
        .expect("fits");
    let _ = batch.ring().expect("posted");
    assert!(a.queue.wait(Duration::from_secs(5)).expect("woken"));
    assert_eq!(a.polled().len(), 1);
}

#[test]
fn memory_that_may_not_be_written_is_refused_as_a_target() {
    let (a, mut pair, _b, mut theirs) = joined("access");
    let source: Arc<dyn Pinned> = Bytes::new(&[0; 8]);
    let region = a
        .domain
        .register(source, Access::default())
        .expect("registered");
    let slice = || region.slice(0..8).expect("inside");
    let error = theirs.receive(1, Some(slice())).expect_err("read only");
    assert_eq!(error.code(), "access-missing");
    let mut batch = pair.batch();
    let remote = Remote { address: 0, key: 0 };
    let error = batch
        .read(1, remote, vec![slice()])
        .err()
        .expect("read only");
    assert_eq!(error.code(), "access-missing");
}

#[test]
fn the_dma_buf_probe_tells_yes_no_and_unknown_apart() {
    let side = Side::new("probe");
    assert!(matches!(side.domain.takes_dma_bufs(), DmaBufSupport::Yes));
    for errno in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT] {
        side.nic.behave(|nic| nic.dma_buf = Some(errno));
        assert!(matches!(side.domain.takes_dma_bufs(), DmaBufSupport::No(_)));
    }
    side.nic.behave(|nic| nic.dma_buf = Some(libc::ENOMEM));
    assert!(matches!(
        side.domain.takes_dma_bufs(),
        DmaBufSupport::Unknown(_)
    ));
    assert_eq!(side.nic.regions(), 0);
}

#[test]
fn given_an_old_library_the_missing_function_is_named_with_its_version() {
    let nic = FakeNic::plug("old", Behaviour::default());
    let old = Library {
        iova2: false,
        dma_buf: false,
        mlx5: true,
    };
    let verbs: Verbs = nic.verbs_of(old);
    let domain = verbs
        .open("old")
        .and_then(|c| c.protection_domain())
        .expect("a domain");
    let DmaBufSupport::No(error) = domain.takes_dma_bufs() else {
        panic!("an old library cannot");
    };
    assert!(matches!(
        error,
        VerbsError::Unsupported {
            library: "libibverbs.so.1",
            symbol: "ibv_reg_dmabuf_mr@IBVERBS_1.12",
            ..
        }
    ));
    assert!(
        domain
            .relaxed_ordering()
            .is_err_and(|why| why.contains("ibv_reg_mr_iova2@IBVERBS_1.8"))
    );
}
