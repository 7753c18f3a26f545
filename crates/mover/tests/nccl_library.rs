//! Given a library with NCCL's functions, written in C, when it is opened, then each function is called
//! with what the C header says, and a version that lacks one is refused by its name.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crowfly_machine::gpu::fake::FakeGpus;
use crowfly_machine::gpu::{DeviceMemory, Gpu, InFlight, Stream};
use crowfly_machine::nccl::{Communicator, Functions, Kind, Member, NcclError, Operation, Part};

const ALONE: Member = Member { rank: 0, ranks: 1 };
const SOON: Duration = Duration::from_secs(20);

/// Compiles the stand-in; an error where there is no compiler.
fn library(folder: &Path, flags: &[&str]) -> io::Result<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nccl_stand_in.c");
    let made = folder.join("libnccl.so.2");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]);
    let status = compiler.arg(&made).args(flags).arg(source).status()?;
    assert!(status.success(), "{status}");
    Ok(made)
}

fn open(library: &Path) -> Result<Arc<Functions>, NcclError> {
    // SAFETY: it has NCCL's functions.
    unsafe { Functions::at(library) }
}

fn gpu(gpus: &FakeGpus) -> Arc<Gpu> {
    let runtime = gpus.runtime().expect("a runtime");
    runtime.open(FakeGpus::address(0)).expect("a GPU")
}

#[test]
fn every_function_gets_what_the_header_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = match library(folder.path(), &[]) {
        Ok(library) => library,
        Err(error) => crowfly_waive::waived!("no C compiler: {error}"),
    };
    let functions = open(&library).expect("it has all functions");
    assert_eq!(functions.version().expect("it says"), 29_901);
    let gpus = FakeGpus::cuda(1);
    let gpu = gpu(&gpus);
    let stream = Stream::new(&gpu).expect("a stream");
    let memory = DeviceMemory::allocate(&gpu, 4096).expect("memory");
    let part = |start: usize, len: usize| Part::of(&memory, start..start + len);
    let id = functions.new_id().expect("an identity");
    let join = || Communicator::join(&functions, &gpu, id, ALONE, SOON).expect("it is alone");
    let refused = |call: &dyn Fn(&Communicator) -> Result<InFlight, NcclError>| {
        let error = call(&join()).expect_err("it refuses all").to_string();
        let (_, said) = error.split_once(": ").expect("the library's name is first");
        said.to_owned()
    };
    let how = (Kind::F32, Operation::Product);
    let two = || (part(0, 64), part(64, 64));
    let said = refused(&|c| c.all_reduce(&stream, (part(0, 64), part(0, 64)), how, SOON));
    assert_eq!(
        said,
        "ncclAllReduce returned 4: invalid argument (AllReduce 1 16 kind 7 op 1 root -1 on a stream in group 0, aborted 0)"
    );
    let bf16 = (Kind::Bf16, Operation::Mean);
    for (call, wanted) in [
        (
            refused(&|c| c.reduce_scatter(&stream, two(), bf16, SOON)),
            "ReduceScatter 0 32 kind 9 op 4 root -1",
        ),
        (
            refused(&|c| c.all_gather(&stream, two(), Kind::I64, SOON)),
            "AllGather 0 8 kind 4 op -1 root -1",
        ),
        (
            refused(&|c| c.broadcast(&stream, part(0, 7), 0, Kind::U8, SOON)),
            "Broadcast 1 7 kind 1 op -1 root 0",
        ),
        (
            refused(&|c| c.reduce(&stream, two(), 3, (Kind::F16, Operation::Min), SOON)),
            "Reduce 0 32 kind 6 op 3 root 3",
        ),
        (
            refused(&|c| c.exchange(&stream, vec![(2, part(0, 8))], vec![], Kind::F64, SOON)),
            "Send 1 1 kind 8 op -1 root 2",
        ),
        (
            refused(&|c| c.exchange(&stream, vec![], vec![(5, part(8, 8))], Kind::I32, SOON)),
            "Recv 1 2 kind 2 op -1 root 5",
        ),
    ] {
        assert!(call.contains(&format!("({wanted} on a stream")), "{call}");
    }
    // Each of those calls gave its communicator up, and a group that was begun was ended.
    let said = refused(&|c| c.broadcast(&stream, part(0, 1), 0, Kind::I8, SOON));
    assert!(said.ends_with("in group 0, aborted 7)"), "{said}");
}

#[test]
fn others_that_never_come_cost_the_time_limit_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = match library(folder.path(), &[]) {
        Ok(library) => library,
        Err(error) => crowfly_waive::waived!("no C compiler: {error}"),
    };
    let functions = open(&library).expect("it has all functions");
    let gpus = FakeGpus::cuda(1);
    let two = Member { rank: 0, ranks: 2 };
    let id = functions.new_id().expect("an identity");
    let late = Communicator::join(&functions, &gpu(&gpus), id, two, Duration::from_millis(50));
    let late = late.expect_err("nobody comes");
    let name = library.display();
    assert_eq!(
        late.to_string(),
        format!("{name}: ncclCommInitRankConfig was not done within 0.050 s")
    );
    assert!(late.is_of_another());
}

#[test]
fn a_version_without_communicators_that_do_not_block_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = match library(folder.path(), &["-DOLD"]) {
        Ok(library) => library,
        Err(error) => crowfly_waive::waived!("no C compiler: {error}"),
    };
    let error = open(&library).err().expect("it is too old").to_string();
    let name = library.display();
    let wanted = format!("{name} has no `ncclCommInitRankConfig`: ");
    assert!(error.starts_with(&wanted), "{error}");
}
