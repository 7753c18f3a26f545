//! Given ranks with a GPU each and NCCL between them, when they call a collective, then it is done in
//! the order of their streams, its receipt says by what, and a rank that is missing is named in time.
//!
//! GPUs and NCCL are made up: there are none on the machines that run this.

#[path = "collective_support/ranks.rs"]
mod ranks;

use std::sync::Arc;
use std::time::Duration;

use crowfly_machine::gpu::fake::FakeGpus;
use crowfly_machine::gpu::{DeviceMemory, Runtime, Stream};
use crowfly_machine::nccl::fake::FakeNccl;
use crowfly_machine::nccl::{Functions, Part};
use crowfly_mover::collective::{
    Algorithm, CallOptions, CollectiveError, DeviceGroup, Element, Evidence, Group, Reduction,
};
use crowfly_mover::fabric::rendezvous::Folder;
use ranks::{SOON, Spread};

/// Long enough for a fake, short enough to wait for.
const BRIEF: CallOptions = CallOptions::within(Duration::from_secs(2));

/// One rank of a test.
struct Rank<'a> {
    gpus: &'a FakeGpus,
    functions: Arc<Functions>,
    stream: Arc<Stream>,
    number: usize,
}

impl Rank<'_> {
    fn form(&self, host: Group) -> Result<DeviceGroup, CollectiveError> {
        DeviceGroup::form(host, &self.functions, Arc::clone(&self.stream), BRIEF)
    }

    fn memory(&self, numbers: &[f32]) -> Part {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let memory = DeviceMemory::allocate(self.stream.gpu(), bytes.len()).expect("memory");
        self.gpus.set_bytes(&memory, 0, &bytes);
        Part::of(&memory, 0..bytes.len())
    }

    fn numbers(&self, part: &Part) -> Vec<f32> {
        let bytes = self.gpus.bytes(&part.memory);
        let numbers = bytes.as_chunks::<4>().0.iter();
        numbers.map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// Runs `body` as each of `n` ranks, in an order that nothing sees to.
fn with_ranks<T: Send>(
    n: usize,
    nccl: &FakeNccl,
    gpus: &FakeGpus,
    body: impl Fn(&Rank<'_>, Group) -> T + Sync,
) -> Vec<T> {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime: Arc<Runtime> = gpus.runtime().expect("a runtime");
    let (body, path, runtime) = (&body, folder.path(), &runtime);
    let functions = nccl.functions();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|number| {
                let functions = Arc::clone(&functions);
                scope.spawn(move || {
                    let fabric = ranks::fabric(Spread::Shared);
                    let directory = Folder::at(path);
                    let settings = ranks::settings(Spread::Shared, number);
                    let host = Group::form(fabric, &directory, "job", number, n, settings);
                    let gpu = runtime.open(FakeGpus::address(number)).expect("a GPU");
                    let rank = Rank {
                        gpus,
                        functions,
                        stream: Stream::new(&gpu).expect("a stream"),
                        number,
                    };
                    body(&rank, host.expect("a group"))
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|end| end.expect("no rank fails")).collect()
    })
}

#[test]
fn every_collective_does_what_its_definition_says_in_the_order_of_the_stream() {
    let (gpus, nccl) = (FakeGpus::cuda(3), FakeNccl::plug());
    with_ranks(3, &nccl, &gpus, |rank, host| {
        let mut group = rank.form(host).expect("a group");
        let me = rank.number as f32;

        // The stream has yet to fill it when the call is made.
        let ones = rank.memory(&[7.0; 4]);
        let filled = rank.stream.fill(&ones.memory, 0..16, 0).expect("queued");
        let sum = group.all_reduce(ones.clone(), Element::F32, Reduction::Sum, SOON);
        let receipt = group.wait(sum.expect("queued")).expect("done");
        filled.wait().expect("filled");
        assert_eq!(rank.numbers(&ones), [0.0; 4]);
        assert_eq!(receipt.algorithm, Algorithm::Nccl);
        assert_eq!((receipt.number, receipt.ranks, receipt.size.0), (1, 3, 16));
        let account = receipt.nccl.as_deref().expect("NCCL did it");
        assert_eq!(
            (account.library.as_str(), account.version.as_str()),
            ("libnccl.so.2", "2.20.5")
        );
        let Evidence::Unknown { why } = &account.evidence else {
            panic!("nobody asked for a log")
        };
        assert!(why.starts_with("NCCL_DEBUG is not INFO"), "{why}");
        let json = serde_json::to_value(&receipt).expect("JSON");
        assert_eq!(json["nccl"]["version"], "2.20.5");

        for (reduction, wanted) in [
            (Reduction::Sum, [3.0, 33.0]),
            (Reduction::Min, [0.0, 10.0]),
            (Reduction::Max, [2.0, 12.0]),
            (Reduction::Mean, [1.0, 11.0]),
        ] {
            let data = rank.memory(&[me, 10.0 + me]);
            let call = group.all_reduce(data.clone(), Element::F32, reduction, SOON);
            group.wait(call.expect("queued")).expect("done");
            assert_eq!(rank.numbers(&data), wanted);
        }

        let (input, output) = (rank.memory(&[me, 1.0, 2.0]), rank.memory(&[0.0]));
        let (f32, sum) = (Element::F32, Reduction::Sum);
        let call = group.reduce_scatter(input, output.clone(), f32, sum, SOON);
        group.wait(call.expect("queued")).expect("done");
        assert_eq!(rank.numbers(&output), [[3.0], [3.0], [6.0]][rank.number]);

        let (input, output) = (rank.memory(&[me, -me]), rank.memory(&[9.0; 6]));
        let call = group.all_gather(input, output.clone(), f32, SOON);
        group.wait(call.expect("queued")).expect("done");
        assert_eq!(rank.numbers(&output), [0.0, 0.0, 1.0, -1.0, 2.0, -2.0]);

        let data = rank.memory(&[me; 2]);
        let call = group.broadcast(data.clone(), 2, f32, SOON);
        group.wait(call.expect("queued")).expect("done");
        assert_eq!(rank.numbers(&data), [2.0; 2]);

        let input = rank.memory(&[10.0 * me, 10.0 * me + 1.0, 10.0 * me + 2.0]);
        let output = rank.memory(&[0.0; 3]);
        let call = group.all_to_all(input, output.clone(), f32, SOON);
        group.wait(call.expect("queued")).expect("done");
        assert_eq!(rank.numbers(&output), [me, 10.0 + me, 20.0 + me]);
    });
    assert_eq!((nccl.alive(), nccl.aborts()), (0, 0));
}

#[test]
fn what_nccl_cannot_do_is_refused_before_anything_is_queued() {
    let (gpus, nccl) = (FakeGpus::cuda(1), FakeNccl::plug());
    with_ranks(1, &nccl, &gpus, |rank, host| {
        let mut group = rank.form(host).expect("a group");
        let data = rank.memory(&[1.0; 3]);
        let sum = Reduction::Sum;
        let refused = |done: Result<_, CollectiveError>| done.expect_err("refused").to_string();
        let done = group.all_reduce(data.clone(), Element::I16, sum, SOON);
        assert_eq!(refused(done), "all-reduce: NCCL has no i16");
        let ring = SOON.by(Algorithm::Ring);
        let done = group.all_reduce(data.clone(), Element::F32, sum, ring);
        assert_eq!(
            refused(done),
            "all-reduce: NCCL chooses by itself, and cannot be told to go by ring"
        );
        let done = group.all_reduce(data.clone(), Element::Bf16, sum, SOON.in_single_precision());
        assert_eq!(
            refused(done),
            "all-reduce: NCCL cannot be told in which precision to sum"
        );
        let odd = Part::of(&data.memory, 0..10);
        let done = group.all_reduce(odd, Element::F32, sum, SOON);
        assert_eq!(refused(done), "ncclAllReduce: 10 bytes where 12 are needed");
        let done = group.broadcast(data.clone(), 1, Element::F32, SOON);
        assert_eq!(refused(done), "broadcast: there is no rank 1 among 1");
        let beyond = Part::of(&data.memory, 8..16);
        let done = group.all_reduce(beyond, Element::F32, sum, SOON);
        assert_eq!(done.expect_err("outside").code(), "out-of-bounds");
        let call = group.all_reduce(data, Element::F32, sum, SOON);
        group
            .wait(call.expect("queued"))
            .expect("nothing is broken by that");
    });
}

#[test]
fn where_one_rank_cannot_join_it_hears_why_and_all_others_hear_which() {
    let (gpus, nccl) = (FakeGpus::cuda(3), FakeNccl::plug());
    nccl.fail("ncclCommInitRankConfig", 5);
    let ends = with_ranks(3, &nccl, &gpus, |rank, host| {
        rank.form(host).expect_err("not all join")
    });
    let own = "libnccl.so.2: ncclCommInitRankConfig returned 5: invalid usage";
    let failed = ends.iter().position(|end| end.to_string() == own);
    let failed = failed.expect("one hears why");
    // The others waited for it in NCCL, and hear that it was not they.
    for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| *rank != failed) {
        let wanted = format!("rank {failed} did not join by NCCL");
        assert_eq!(end.to_string(), wanted, "rank {rank}");
    }
    assert_eq!(nccl.alive(), 0);
}

#[test]
fn without_an_identity_of_the_first_rank_nobody_joins() {
    let (gpus, nccl) = (FakeGpus::cuda(2), FakeNccl::plug());
    nccl.fail("ncclGetUniqueId", 6);
    let ends = with_ranks(2, &nccl, &gpus, |rank, host| {
        rank.form(host)
            .expect_err("there is no identity")
            .to_string()
    });
    assert_eq!(
        ends[0],
        "libnccl.so.2: ncclGetUniqueId returned 6: remote process exited or there was a network error"
    );
    assert_eq!(ends[1], "rank 0 did not join by NCCL");
}

#[test]
fn a_rank_that_does_not_come_is_named_to_the_others_in_time() {
    let (gpus, nccl) = (FakeGpus::cuda(3), FakeNccl::plug());
    let ends = with_ranks(3, &nccl, &gpus, |rank, host| {
        let mut group = rank.form(host).expect("a group");
        if rank.number == 1 {
            std::thread::sleep(Duration::from_secs(4));
            return None;
        }
        let data = rank.memory(&[1.0]);
        let call = group.all_reduce(data.clone(), Element::F32, Reduction::Sum, BRIEF);
        let error = group
            .wait(call.expect("queued"))
            .expect_err("one is missing");
        let again = group.all_reduce(data, Element::F32, Reduction::Sum, BRIEF);
        let again = again.expect_err("the group is over");
        assert_eq!(again.to_string(), error.to_string());
        Some(error)
    });
    for end in [&ends[0], &ends[2]] {
        let error = end.as_ref().expect("it called");
        let CollectiveError::Late { absent, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(absent, &[1]);
    }
}

#[test]
fn ranks_that_are_left_hear_of_the_lost_one_and_go_on_without_it() {
    let (gpus, nccl) = (FakeGpus::cuda(3), FakeNccl::plug());
    with_ranks(3, &nccl, &gpus, |rank, host| {
        let mut group = rank.form(host).expect("a group");
        if rank.number == 2 {
            drop(group);
            return;
        }
        let call = group.all_reduce(rank.memory(&[1.0]), Element::F32, Reduction::Sum, BRIEF);
        let error = group.wait(call.expect("queued")).expect_err("one is gone");
        let CollectiveError::RanksLost(lost) = &error else {
            panic!("{error}")
        };
        assert_eq!(lost.iter().map(|lost| lost.rank).collect::<Vec<_>>(), [2]);
        let mut left = group.shrink(BRIEF).expect("a group of two");
        assert_eq!((left.rank(), left.size()), (rank.number, 2));
        let data = rank.memory(&[2.0]);
        let call = left.all_reduce(data.clone(), Element::F32, Reduction::Sum, SOON);
        left.wait(call.expect("queued")).expect("done");
        assert_eq!(rank.numbers(&data), [4.0]);
    });
}

#[test]
fn what_nccl_says_of_a_failure_is_what_the_caller_hears_where_all_ranks_are_there() {
    let (gpus, nccl) = (FakeGpus::cuda(2), FakeNccl::plug());
    let ends = with_ranks(2, &nccl, &gpus, |rank, host| {
        let mut group = rank.form(host).expect("a group");
        group.host().barrier(SOON).expect("both have joined");
        nccl.break_rank(rank.number, 6);
        group.host().barrier(SOON).expect("both are broken");
        let call = group.all_reduce(rank.memory(&[1.0]), Element::F32, Reduction::Sum, BRIEF);
        call.expect_err("it is broken").to_string()
    });
    let wanted = "libnccl.so.2: ncclAllReduce returned 6: remote process exited or there was a network error";
    assert_eq!(ends, [wanted; 2]);
    assert_eq!(nccl.alive(), 0);
}
