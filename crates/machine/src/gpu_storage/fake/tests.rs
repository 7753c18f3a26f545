//! The handles above the table of functions, held against a library that moves real bytes.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use super::super::{
    Batch, BatchOutcome, BatchRead, Compat, Counters, Driver, StorageError, StorageFile,
};
use super::{Behaviour, FakeStorage, Mode};
use crate::gpu::fake::{FakeGpus, Model, POISON};
use crate::gpu::{DeviceMemory, Dialect, Gpu, Stream};
use crate::verbs::Pinned;

const LEN: usize = 3 * 4096 + 100;

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + (at >> 8)) as u8).collect()
}

fn file() -> Arc<File> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&content()).expect("written");
    Arc::new(file)
}

fn gpu(gpus: &FakeGpus) -> Arc<Gpu> {
    let runtime = gpus.runtime().expect("it starts");
    runtime.open(FakeGpus::address(0)).expect("it is there")
}

struct Open {
    gpu: Arc<Gpu>,
    driver: Arc<Driver>,
    file: Arc<StorageFile>,
    memory: Arc<DeviceMemory>,
}

fn open(gpus: &FakeGpus, storage: &FakeStorage<'_>) -> Result<Open, StorageError> {
    let gpu = gpu(gpus);
    let driver = Driver::open(&storage.functions(), Compat::AsConfigured)?;
    Ok(Open {
        file: driver.register(file())?,
        memory: DeviceMemory::allocate(&gpu, LEN + 4096)?,
        gpu,
        driver,
    })
}

#[test]
fn given_each_mode_of_both_libraries_the_bytes_are_the_same_and_only_the_counters_differ() {
    for dialect in Dialect::ALL {
        for (mode, vectors) in [
            (Mode::Peer, true),
            (Mode::Module, false),
            (Mode::Posix, true),
        ] {
            let gpus = FakeGpus::plug(dialect, &[Model::default()]);
            let behaviour = Behaviour {
                mode,
                vectors,
                ..Behaviour::default()
            };
            let storage = FakeStorage::install(&gpus, dialect, behaviour);
            let open = open(&gpus, &storage).expect("open");
            let before = open.driver.counters().expect("it counts");
            let pinned = open
                .driver
                .register_memory(Arc::clone(&open.memory))
                .expect("pinned");
            let read = open
                .file
                .read(&open.memory, 100..100 + LEN, 0)
                .expect("read");
            assert_eq!(read, LEN);
            let bytes = gpus.bytes(&open.memory);
            assert_eq!(bytes[100..100 + LEN], content());
            assert!(
                bytes[..100]
                    .iter()
                    .chain(&bytes[100 + LEN..])
                    .all(|b| *b == POISON)
            );
            let ways = (open.driver.counters().expect("it counts") - before).reads;
            let seen = (ways.peer, ways.module, ways.posix, ways.unaligned);
            let expected = match mode {
                Mode::Peer => (1, 0, 0, 1),
                Mode::Module => (0, 1, 0, 1),
                Mode::Posix => (0, 0, 1, 1),
            };
            assert_eq!(seen, expected, "{dialect} {mode:?}");
            drop((pinned, open));
            assert_eq!((storage.alive(), gpus.alive()), (0, 0));
        }
    }
}

#[test]
fn a_version_that_does_not_count_says_so() {
    let gpus = FakeGpus::cuda(1);
    let behaviour = Behaviour {
        counts: false,
        version: 1140,
        ..Behaviour::default()
    };
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let open = open(&gpus, &storage).expect("open");
    let error = open.driver.counters().expect_err("it does not count");
    assert!(error.to_string().contains("cuFileGetStatsL3"), "{error}");
    assert_eq!(open.driver.version(), Some((1, 14)));
}

#[test]
fn what_the_library_and_the_kernel_refuse_is_told_apart() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let open = open(&gpus, &storage).expect("open");
    storage.fail("cuFileRead", 0, 5008);
    storage.fail("cuFileRead", 1, -libc::EIO);
    let read = || open.file.read(&open.memory, 0..4096, 0);
    let library = read().expect_err("the library");
    assert_eq!(library.refusal(), Some(("cuFileRead", 5008)));
    let StorageError::Io { source, .. } = read().expect_err("the kernel") else {
        panic!("the kernel refused")
    };
    assert_eq!(source.raw_os_error(), Some(libc::EIO));
    assert_eq!(read().expect("now it works"), 4096);
    let outside = open.file.read(&open.memory, 0..LEN + 4097, 0);
    assert_eq!(outside.expect_err("outside").code(), "out-of-bounds");
}

#[test]
fn a_read_past_the_end_of_the_file_is_short() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let open = open(&gpus, &storage).expect("open");
    let read = open
        .file
        .read(&open.memory, 0..4096, 3 * 4096)
        .expect("short");
    assert_eq!(read, 100);
    assert_eq!(gpus.bytes(&open.memory)[100], POISON);
}

#[test]
fn a_write_puts_the_gpus_bytes_into_the_file() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let gpu = gpu(&gpus);
    let driver = Driver::open(&storage.functions(), Compat::AsConfigured).expect("open");
    let target = Arc::new(tempfile::tempfile().expect("a file"));
    let file = driver.register(Arc::clone(&target)).expect("registered");
    let memory = DeviceMemory::allocate(&gpu, 8192).expect("room");
    gpus.set_bytes(&memory, 0, &content()[..8192]);
    assert_eq!(file.write(&memory, 4096..8192, 0).expect("written"), 4096);
    let mut written = vec![0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&*target, &mut written, 0).expect("there");
    assert_eq!(written, content()[4096..8192]);
    assert_eq!(driver.counters().expect("counted").writes.peer, 1);
}

#[test]
fn queued_on_a_stream_a_read_comes_before_the_work_that_follows_without_the_cpu() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let open = open(&gpus, &storage).expect("open");
    let stream = Stream::new(&open.gpu).expect("a stream");
    let queued = open
        .file
        .queue_read(&stream, &open.memory, 0..4096, 0)
        .expect("queued");
    let after = DeviceMemory::allocate(&open.gpu, 4096).expect("room");
    let copy = stream
        .copy_across(&after, 0, &open.memory, 0..4096)
        .expect("queued");
    assert_eq!(
        gpus.bytes(&open.memory)[0],
        POISON,
        "nothing has happened yet"
    );
    copy.wait().expect("done");
    assert_eq!(gpus.bytes(&after), content()[..4096]);
    assert_eq!(queued.wait().expect("done"), 4096);
    let watch = Arc::downgrade(&open.memory);
    let written = open.file.queue_write(&stream, &open.memory, 0..10, 1 << 20);
    drop(open);
    assert!(watch.upgrade().is_some(), "the request holds it");
    assert!(written.expect("queued").wait().is_ok());
    assert!(watch.upgrade().is_none());
}

#[test]
fn a_library_without_streams_or_batches_names_what_is_missing() {
    let gpus = FakeGpus::cuda(1);
    let behaviour = Behaviour {
        queues: false,
        ..Behaviour::default()
    };
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let open = open(&gpus, &storage).expect("open");
    let stream = Stream::new(&open.gpu).expect("a stream");
    let read = open
        .file
        .queue_read(&stream, &open.memory, 0..1, 0)
        .map(drop);
    assert!(
        read.expect_err("missing")
            .to_string()
            .contains("cuFileReadAsync")
    );
    let batch = Batch::new(&open.driver, 4).map(drop);
    assert!(
        batch
            .expect_err("missing")
            .to_string()
            .contains("cuFileBatchIOSetUp")
    );
}

#[test]
fn a_batch_answers_each_read_in_its_place_whatever_order_they_end_in() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let open = open(&gpus, &storage).expect("open");
    let mut batch = Batch::new(&open.driver, 2).expect("a batch");
    let reads: Vec<BatchRead> = (0..5)
        .map(|index| BatchRead {
            file: Arc::clone(&open.file),
            memory: Arc::clone(&open.memory),
            range: index * 1000..(index + 1) * 1000,
            offset: if index == 3 {
                1 << 30
            } else {
                index as u64 * 1000
            },
        })
        .collect();
    let outcomes = batch.read(&reads).expect("all ended");
    let read = BatchOutcome::Read;
    assert_eq!(
        outcomes,
        [read(1000), read(1000), read(1000), read(0), read(1000)]
    );
    let bytes = gpus.bytes(&open.memory);
    assert_eq!(
        (&bytes[..3000], &bytes[4000..5000]),
        (&content()[..3000], &content()[4000..5000])
    );
    storage.fail("cuFileBatchIOGetStatus", 0, 5030);
    let lost = batch.read(&reads[..1]).expect_err("nobody can watch it");
    assert_eq!(lost.refusal(), Some(("cuFileBatchIOGetStatus", 5030)));
}

#[test]
fn a_mixture_of_ways_is_counted_as_one() {
    let gpus = FakeGpus::cuda(1);
    let behaviour = Behaviour {
        posix_one_in: 3,
        ..Behaviour::default()
    };
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let open = open(&gpus, &storage).expect("open");
    for _ in 0..9 {
        open.file.read(&open.memory, 0..4096, 0).expect("read");
    }
    let Counters { reads, .. } = open.driver.counters().expect("counted");
    assert_eq!((reads.direct(), reads.posix), (6, 3));
}

#[test]
fn compat_mode_refused_is_passed_on_to_versions_that_can_be_told() {
    let gpus = FakeGpus::cuda(1);
    let behaviour = Behaviour {
        mode: Mode::Posix,
        obeys_refusal: true,
        ..Behaviour::default()
    };
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let driver = Driver::open(&storage.functions(), Compat::Refused).expect("open");
    let refused = driver.register(file()).map(drop).expect_err("not allowed");
    assert_eq!(refused.refusal(), Some(("cuFileHandleRegister", 5001)));
}

#[test]
fn whichever_call_fails_there_is_a_typed_error_and_nothing_is_left() {
    let run = |gpus: &FakeGpus, storage: &FakeStorage<'_>| -> Result<(), StorageError> {
        let open = open(gpus, storage)?;
        let _pinned = open.driver.register_memory(Arc::clone(&open.memory))?;
        open.file.read(&open.memory, 0..4096, 0)?;
        open.file.write(&open.memory, 0..10, 0)?;
        open.driver.counters()?;
        let stream = Stream::new(&open.gpu)?;
        open.file
            .queue_read(&stream, &open.memory, 0..4096, 0)?
            .wait()?;
        Ok(())
    };
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    run(&gpus, &storage).expect("nothing was asked to fail");
    let calls = storage.calls();
    for call in calls.keys() {
        let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
        storage.fail(call, 0, 5030);
        if let Err(error) = run(&gpus, &storage) {
            assert_eq!(error.refusal(), Some((*call, 5030)), "{error}");
            // A memory's address is compared so that none outlives its file.
            assert_eq!((storage.alive(), gpus.alive()), (0, 0), "{call}");
        }
    }
    assert!(calls.len() > 8, "{calls:?}");
    let _ = DeviceMemory::allocate(&gpu(&gpus), 1)
        .expect("room")
        .address();
}
