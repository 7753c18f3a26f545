//! The production worker against a device with seeded faults.

use std::fs::File;
use std::io::Write;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use crowfly_route::obstacle::Code;

use super::*;
use crate::io::fake::{Faults, Faulty};
use crate::memory::{BLOCK, Memory, Region};
use crate::source::Direct;
use crate::tune::Tuner;
use crate::work::{Terms, cut};

const LENGTH: u64 = 5 * digest::GRID + 1234;
/// Seeds run by the ordinary tests; each is another order, another set of faults.
const SEEDS: u64 = 200;
/// Requests that a job of these tests keeps in flight.
const IN_FLIGHT: usize = 4;

fn content() -> Vec<u8> {
    (0..LENGTH)
        .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
        .collect()
}

fn file(bytes: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("12 MB fit");
    Arc::new(file)
}

struct Outcome {
    job: Arc<Job>,
    region: Region,
    ledger: Ledger,
}

/// A job that reads the whole file into the memory directly, as far as the worker is concerned.
fn reading(file: &Arc<File>, memory: &Arc<Memory>) -> Job {
    let lane = Lane {
        name: "disk".into(),
        buffered: Arc::clone(file),
        direct: Some(Direct {
            file: Arc::clone(file),
            align: 512,
        }),
        landing: Landing::Region {
            memory: Arc::clone(memory),
            shift: 0,
        },
        may_detour: false,
        was_cached: false,
    };
    let terms = Terms {
        direct: true,
        straight: Way::Direct,
        cache: true,
        map: false,
        prefer_cache: false,
        cached: &|_| None,
    };
    let mut chunks = Vec::new();
    cut(0, 0..LENGTH, &terms, &mut chunks);
    Job::new(Direction::Read, vec![lane], chunks, Tuner::fixed(IN_FLIGHT)).with_digests()
}

/// Reads the whole file through a device, by the production worker.
fn read_through(device: Faulty, file: &Arc<File>, strict: bool) -> Outcome {
    let memory = Memory::host(LENGTH as usize, None).expect("12 MB");
    let mut job = reading(file, &memory);
    job.strict = strict;
    let job = Arc::new(job);
    let ledger = Worker::new(&job, device, (0, 1), None, Ledger::default()).run();
    let region = Region::new(memory, 0..LENGTH as usize);
    Outcome {
        job,
        region,
        ledger,
    }
}

fn read(file: &Arc<File>, faults: Faults, strict: bool) -> Outcome {
    read_through(Faulty::new(faults, 4), file, strict)
}

#[test]
fn given_any_seed_of_short_interrupted_and_reordered_answers_the_bytes_are_right() {
    let bytes = content();
    let file = file(&bytes);
    let pieces =
        digest::grid(0..LENGTH).map(|r| digest::piece(&bytes[r.start as usize..r.end as usize]));
    let expected = digest::whole(pieces);
    for seed in 0..SEEDS {
        let faults = Faults {
            seed,
            short_one_in: 2,
            interrupted_one_in: 3,
            busy_one_in: 5,
            ..Faults::default()
        };
        let out = read(&file, faults, true);
        assert!(out.job.failure().is_none(), "seed {seed}");
        assert!(out.region.as_slice() == Some(&bytes[..]), "seed {seed}");
        assert_eq!(out.job.digest(), Some(expected), "seed {seed}");
        assert_eq!(
            out.ledger.delivered.values().sum::<u64>(),
            LENGTH,
            "seed {seed}"
        );
        assert!(out.ledger.retries > 0, "seed {seed}");
        assert_eq!(out.ledger.bounced, 0, "seed {seed}");
    }
}

/// A device that tells how many requests it has been handed and not answered.
struct Told {
    device: Faulty,
    with_drive: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

impl Io for Told {
    fn submit(&mut self, op: crate::io::Op) {
        self.device.submit(op);
    }

    fn send(&mut self) {
        self.with_drive
            .store(self.device.in_flight(), Ordering::Relaxed);
    }

    fn room(&self) -> usize {
        self.device.room()
    }

    fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    fn wait(&mut self, patience: Duration, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        self.device.wait(patience, done)?;
        self.answered
            .fetch_add(done.len() - before, Ordering::Relaxed);
        self.send();
        Ok(())
    }
}

/// Notes what the drive had to do while bytes were looked at.
struct Onlooker {
    with_drive: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
    seen: std::sync::Mutex<Vec<(usize, usize)>>,
}

impl crate::job::Sink for Onlooker {
    fn take(&self, _piece: usize, _offset: u64, _bytes: &[u8]) {
        let now = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let seen = (now(&self.answered), now(&self.with_drive));
        self.seen.lock().expect("one thread").push(seen);
    }
}

#[test]
fn while_a_core_looks_at_what_has_arrived_the_drive_has_as_many_requests_as_before() {
    let file = file(&content());
    let chunks = LENGTH.div_ceil(digest::GRID) as usize;
    for seed in 0..SEEDS {
        let memory = Memory::host(LENGTH as usize, None).expect("12 MB");
        let (with_drive, answered) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let onlooker = Arc::new(Onlooker {
            with_drive: Arc::clone(&with_drive),
            answered: Arc::clone(&answered),
            seen: std::sync::Mutex::default(),
        });
        let mut job = reading(&file, &memory);
        job.sink = Some(Arc::clone(&onlooker) as _);
        let faults = Faults {
            seed,
            ..Faults::default()
        };
        let device = Told {
            device: Faulty::new(faults, 8),
            with_drive,
            answered,
        };
        Worker::new(&job, device, (0, 1), None, Ledger::default()).run();
        let seen = onlooker.seen.lock().expect("one thread");
        assert_eq!(seen.len(), chunks, "seed {seed}");
        for (answered, with_drive) in &*seen {
            assert_eq!(*with_drive, IN_FLIGHT.min(chunks - answered), "seed {seed}");
        }
    }
}

/// A job whose transfer has found that huge pages are slow, and small ones cheap or not.
fn where_huge_pages_are_slow(file: &Arc<File>, memory: &Arc<Memory>, small: f64) -> Arc<Job> {
    let mut job = reading(file, memory);
    job.lanes[0].may_detour = true;
    job.fresh().took(true, 1 << 30, 2.0);
    job.fresh().took(false, 1 << 30, (1 << 30) as f64 / small);
    Arc::new(job)
}

#[test]
fn given_huge_pages_are_slow_bytes_pass_a_buffer_into_small_ones_and_are_counted_as_bounced() {
    if let Some(setting) = crowfly_machine::huge_pages::forbidden() {
        crowfly_waive::waived!("this machine has no huge pages for the buffers: {setting}");
    }
    let bytes = content();
    let file = file(&bytes);
    let pieces =
        digest::grid(0..LENGTH).map(|r| digest::piece(&bytes[r.start as usize..r.end as usize]));
    let expected = digest::whole(pieces);
    for seed in 0..SEEDS {
        let memory = Memory::host(LENGTH as usize, None).expect("12 MB");
        let job = where_huge_pages_are_slow(&file, &memory, 3e9);
        let faults = Faults {
            seed,
            short_one_in: 2,
            interrupted_one_in: 3,
            busy_one_in: 5,
            ..Faults::default()
        };
        let device = Faulty::new(faults, 4);
        let ledger = Worker::new(&job, device, (0, 1), None, Ledger::default()).run();
        assert!(job.failure().is_none(), "seed {seed}");
        assert_eq!(job.digest(), Some(expected), "seed {seed}");
        let region = Region::new(memory, 0..LENGTH as usize);
        assert!(region.as_slice() == Some(&bytes[..]), "seed {seed}");
        assert!(!region.follows_file(), "seed {seed}");
        let ways: Vec<_> = ledger.delivered.into_iter().collect();
        assert_eq!(ways, [(Way::Bounce, LENGTH)], "seed {seed}");
        assert_eq!(ledger.bounced, LENGTH, "seed {seed}");
        assert_eq!(ledger.obstacles[0].code, Code::SlowFreshMemory);
    }
}

#[test]
fn given_a_refusal_or_an_early_end_on_the_way_through_a_buffer_it_is_met_as_on_the_straight_one() {
    let bytes = content();
    let file = file(&bytes);
    let run = |faults| {
        let memory = Memory::host(LENGTH as usize, None).expect("12 MB");
        let job = where_huge_pages_are_slow(&file, &memory, 3e9);
        let ledger = Worker::new(
            &job,
            Faulty::new(faults, 4),
            (0, 1),
            None,
            Ledger::default(),
        )
        .run();
        (job, ledger, Region::new(memory, 0..LENGTH as usize))
    };
    let (job, ledger, region) = run(Faults {
        always: Some(libc::EINVAL),
        ..Faults::default()
    });
    assert!(job.failure().is_none());
    assert!(region.as_slice() == Some(&bytes[..]));
    assert_eq!(ledger.delivered.get(&Way::Copy), Some(&LENGTH));
    let (job, _, _) = run(Faults {
        ends_at: Some(2 * digest::GRID + 777),
        ..Faults::default()
    });
    assert_eq!(job.failure().expect("it ended").code(), "file-shrank");
    assert!(job.moved() < LENGTH);
}

#[test]
fn given_all_fresh_memory_is_slow_the_page_caches_pages_are_taken() {
    let bytes = content();
    let file = file(&bytes);
    let memory = Memory::host(LENGTH as usize, None).expect("12 MB");
    let job = where_huge_pages_are_slow(&file, &memory, 0.4e9);
    let device = Faulty::new(Faults::default(), 4);
    let ledger = Worker::new(&job, device, (0, 1), None, Ledger::default()).run();
    assert!(job.failure().is_none());
    let region = Region::new(memory, 0..LENGTH as usize);
    assert!(region.follows_file());
    let mut found = vec![0; LENGTH as usize];
    region.read_at(0, &mut found).expect("the file is there");
    assert!(found == bytes);
    let ways: Vec<_> = ledger.delivered.into_iter().collect();
    assert_eq!(ways, [(Way::Map, LENGTH)]);
    assert_eq!((ledger.mapped_instead, ledger.bounced), (LENGTH, 0));
}

#[test]
fn given_a_bad_sector_the_read_fails_with_its_place_and_nothing_is_passed_off_as_loaded() {
    let file = file(&content());
    for seed in 0..20 {
        let faults = Faults {
            seed,
            error_at: Some((3 * digest::GRID + 7, libc::EIO)),
            ..Faults::default()
        };
        let out = read(&file, faults, false);
        let error = out.job.failure().expect("the sector is bad");
        assert_eq!(error.code(), "read-failed");
        assert!(
            error
                .to_string()
                .contains(&format!("disk at {}", 3 * digest::GRID)),
            "{error}"
        );
        assert!(out.job.moved() < LENGTH);
    }
}

#[test]
fn given_a_device_that_only_ever_says_again_the_transfer_ends() {
    let faults = Faults {
        always: Some(libc::EAGAIN),
        ..Faults::default()
    };
    let error = read(&file(&content()), faults, false)
        .job
        .failure()
        .expect("no progress");
    assert_eq!(error.code(), "no-progress");
}

#[test]
fn given_a_file_system_that_refuses_direct_reads_preferring_detours_with_the_reason_and_requiring_fails()
 {
    let bytes = content();
    let file = file(&bytes);
    for errno in [libc::EINVAL, libc::EOPNOTSUPP, libc::EREMOTEIO] {
        let faults = Faults {
            always: Some(errno),
            ..Faults::default()
        };
        let prefer = read(&file, faults, false);
        assert!(prefer.job.failure().is_none());
        assert!(prefer.region.as_slice() == Some(&bytes[..]));
        assert_eq!(prefer.ledger.delivered.get(&Way::Copy), Some(&LENGTH));
        assert_eq!(prefer.ledger.bounced, LENGTH);
        // Where fresh memory is slow, that is met as well.
        let met = prefer.ledger.obstacles.iter().map(|obstacle| obstacle.code);
        let met: Vec<Code> = met.filter(|code| *code != Code::SlowFreshMemory).collect();
        assert_eq!(met, [Code::NoDirectIo]);
        let require = read(&file, faults, true);
        assert_eq!(
            require.job.failure().expect("required").code(),
            "read-failed"
        );
        assert_eq!(require.ledger.delivered.values().sum::<u64>(), 0);
    }
}

#[test]
fn given_a_file_that_ends_early_the_read_fails_at_that_offset() {
    for end in [0, 512, digest::GRID, 2 * digest::GRID + 777, LENGTH - 1] {
        let faults = Faults {
            ends_at: Some(end),
            ..Faults::default()
        };
        let error = read(&file(&content()), faults, false)
            .job
            .failure()
            .expect("it ended");
        assert_eq!(error.code(), "file-shrank", "{end}");
    }
}

#[test]
fn given_a_full_disk_the_write_fails_with_no_space() {
    let memory = Memory::host(BLOCK, None).expect("a block");
    let file = file(&[]);
    let lane = Lane {
        name: "out".into(),
        buffered: Arc::clone(&file),
        direct: Some(Direct { file, align: 512 }),
        landing: Landing::Region { memory, shift: 0 },
        may_detour: false,
        was_cached: false,
    };
    let chunk = Chunk {
        piece: 0,
        index: 0,
        wanted: 0..100,
        way: Way::Direct,
    };
    let job = Job::new(Direction::Write, vec![lane], vec![chunk], Tuner::fixed(1));
    let faults = Faults {
        always: Some(libc::ENOSPC),
        ..Faults::default()
    };
    Worker::new(
        &job,
        Faulty::new(faults, 1),
        (0, 1),
        None,
        Ledger::default(),
    )
    .run();
    let error = job.failure().expect("the disk is full");
    assert_eq!(
        (error.code(), error.to_string().contains("out")),
        ("no-space", true),
        "{error}"
    );
}

#[test]
fn given_more_workers_than_requests_in_flight_a_worker_without_a_share_ends_with_the_others() {
    let file = file(&content());
    let lane = Lane {
        name: "disk".into(),
        buffered: Arc::clone(&file),
        direct: None,
        landing: Landing::Ring,
        may_detour: false,
        was_cached: false,
    };
    let terms = Terms {
        direct: false,
        straight: Way::Direct,
        cache: true,
        map: false,
        prefer_cache: false,
        cached: &|_| None,
    };
    let mut chunks = Vec::new();
    cut(0, 0..LENGTH, &terms, &mut chunks);
    let job = Job::new(Direction::Read, vec![lane], chunks, Tuner::fixed(1));
    while job.take().is_some() {}
    let (ended, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let io = Faulty::new(Faults::default(), 4);
        Worker::new(&job, io, (1, 2), None, Ledger::default()).run();
        ended.send(())
    });
    let patience = Duration::from_secs(10);
    assert_eq!(
        ends.recv_timeout(patience),
        Ok(()),
        "it still waits for a share"
    );
}

/// A chunk whose destination is the page cache's own pages, mapped and not yet looked at.
fn mapped(job: &Job, number: usize) -> Chunk {
    let chunk = Chunk {
        way: Way::Map,
        ..job.chunks()[number].clone()
    };
    let span = chunk.span(BLOCK as u64);
    let target = job.lanes[0].landing.target(&span).expect("host memory");
    let mapped = target.map_file(job.lanes[0].buffered.as_fd(), span.start);
    mapped.expect("a regular file");
    chunk
}

#[test]
fn given_a_mapped_file_cut_before_or_while_its_bytes_are_looked_at_it_shrank_and_no_signal_comes() {
    for cut_before in [true, false] {
        let file = file(&content());
        let memory = Memory::host(LENGTH as usize, None).expect("12 MB");
        let job = reading(&file, &memory);
        let chunk = mapped(&job, 2);
        let cut = chunk.wanted.start + 7;
        let mut worker = Worker::new(
            &job,
            Faulty::new(Faults::default(), 1),
            (0, 1),
            None,
            Ledger::default(),
        );
        if cut_before {
            file.set_len(cut).expect("cut");
            worker.map(chunk);
        } else {
            let target = job.lanes[0].landing.target(&chunk.wanted);
            let target = target.expect("host memory");
            target.populate().expect("all of it is there");
            file.set_len(cut).expect("cut");
            worker.landed(&chunk, &target);
        }
        match job.failure() {
            Some(TransferError::Shrank { path, offset }) => {
                assert_eq!((path.as_str(), offset), ("disk", cut));
            }
            other => panic!("{cut_before}: {other:?}"),
        }
        assert_eq!(job.moved(), 0);
    }
}

#[test]
fn given_a_whole_file_whose_mapped_pages_cannot_be_had_its_drive_failed() {
    let file = file(&content());
    let memory = Memory::host(LENGTH as usize, None).expect("12 MB");
    let job = reading(&file, &memory);
    let error = failed(&job.lanes[0], Direction::Read, 5, &(5..9), libc::EFAULT);
    assert_eq!(
        error.to_string(),
        "cannot read disk at 5 (4 bytes): Input/output error (os error 5)"
    );
    let error = failed(&job.lanes[0], Direction::Write, 5, &(5..9), libc::EFAULT);
    assert_eq!(error.code(), "memory-gone");
}

#[test]
fn given_a_file_cut_while_direct_requests_are_in_flight_the_read_fails_where_it_now_ends() {
    for end in [0, 3 * digest::GRID, 4 * digest::GRID + 512] {
        let file = file(&content());
        let cut = Arc::clone(&file);
        let meanwhile = move || cut.set_len(end).expect("cut");
        let device = Faulty::new(Faults::default(), 4).before(4 * digest::GRID, meanwhile);
        let out = read_through(device, &file, false);
        let Some(TransferError::Shrank { offset, .. }) = out.job.failure() else {
            panic!("{end}: it was cut")
        };
        assert!(offset >= end && offset < LENGTH, "{end}: {offset}");
        assert!(out.job.moved() < LENGTH, "{end}");
    }
}
