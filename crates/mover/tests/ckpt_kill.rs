//! Processes that are killed, file systems that fail, and several at once: the last good checkpoint is
//! always there, whole.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crowfly_mover::checkpoint::select::RankSlice;
use crowfly_mover::ckpt::{
    Act, Archive, Format, Retention, SaveError, Saver, SaverSettings, Witness, latest, prune,
};

#[path = "ckpt_support/state.rs"]
mod support;

use support::{Owned, alone, assert_holds, model, owned, state};

/// What the parent tells the child, by environment variable: folder, rank, world and number of the
/// act at which the child kills itself.
const ORDERS: &str = "CROWFLY_TEST_KILL";
const PATIENCE: Duration = Duration::from_millis(1500);
/// No child has more to do than a few saves, whose waits end with [`PATIENCE`].
const LONGEST: Duration = Duration::from_secs(60);

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// A small state, different on each rank and at each step, so that acts outnumber bytes.
fn small(step: u64, rank: u32) -> Vec<Owned> {
    use crowfly_mover::checkpoint::dtype::Dtype;
    let name = format!("w.{rank}");
    vec![owned(
        &name,
        Dtype::F32,
        &[33, 7],
        step * 100 + u64::from(rank),
    )]
}

fn all_ranks(step: u64, world: u32) -> Vec<Owned> {
    (0..world).flat_map(|rank| small(step, rank)).collect()
}

/// Kills its own process before the act with this number.
struct Killer {
    acts: AtomicU64,
    at: u64,
}

impl Witness for Killer {
    fn before(&self, _: Act, _: &Path) -> io::Result<()> {
        if self.acts.fetch_add(1, Ordering::SeqCst) == self.at {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL)?;
            std::thread::sleep(Duration::from_secs(60));
        }
        Ok(())
    }
}

fn settings(witness: Option<Arc<dyn Witness>>) -> SaverSettings {
    SaverSettings {
        patience: PATIENCE,
        retention: Some(Retention {
            keep: 1,
            keep_every: None,
        }),
        witness,
        ..SaverSettings::default()
    }
}

/// Not a test of its own: the process that the tests below start and kill.
#[test]
fn the_child_that_is_killed() {
    let Ok(orders) = std::env::var(ORDERS) else {
        return;
    };
    let words: Vec<&str> = orders.split('\n').collect();
    let [root, rank, world, at] = words.as_slice() else {
        panic!("bad orders: {orders:?}");
    };
    let rank: u32 = rank.parse().expect("a rank");
    let slice = RankSlice::new(rank, world.parse().expect("a world")).expect("a rank");
    let killer = Killer {
        acts: AtomicU64::new(0),
        at: at.parse().expect("a number"),
    };
    let mut saver = Saver::new(*root, slice, settings(Some(Arc::new(killer)))).expect("a saver");
    let outcome = saver.save(2, &state(&small(2, rank)));
    std::process::exit(if outcome.is_ok() { 0 } else { 7 });
}

fn child(root: &Path, rank: u32, world: u32, at: u64) -> std::process::Child {
    let this = std::env::current_exe().expect("this test");
    Command::new(this)
        .args(["--exact", "the_child_that_is_killed", "--nocapture"])
        .env(ORDERS, format!("{}\n{rank}\n{world}\n{at}", root.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started")
}

/// Waits for a child, and says what it was about when it does not end.
fn ended(child: &mut Child, rank: u32, at: u64) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("asked") {
            return status;
        }
        if began.elapsed() > LONGEST {
            let _ = child.kill();
            let _ = child.wait();
            panic!("rank {rank}, to die before act {at}, still saves after {LONGEST:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

/// Saves a step with all ranks in this process.
fn save_all(root: &Path, step: u64, world: u32) {
    std::thread::scope(|scope| {
        for rank in 0..world {
            scope.spawn(move || {
                let slice = RankSlice::new(rank, world).expect("a rank");
                let settings = SaverSettings {
                    patience: Duration::from_secs(20),
                    ..settings(None)
                };
                let mut saver = Saver::new(root, slice, settings).expect("a saver");
                saver.save(step, &state(&small(step, rank))).expect("saved");
            });
        }
    });
}

fn step_of(archive: &Archive) -> u64 {
    match archive.format() {
        Format::Step { step, .. } => *step,
        other => panic!("{other:?}"),
    }
}

/// The last good step, which holds what was saved at it, and which the next save goes on from.
fn survives(root: &Path, world: u32) -> u64 {
    let archive = Archive::open(root).expect("a good checkpoint");
    let step = step_of(&archive);
    assert_holds(&archive, &all_ranks(step, world));
    drop(archive);
    save_all(root, 3, world);
    assert_holds(&Archive::open(root).expect("opens"), &all_ranks(3, world));
    let mut left: Vec<_> = std::fs::read_dir(root)
        .expect("listed")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(
        left,
        [".crowfly-lock", "step-3"],
        "what the dead left is gone"
    );
    step
}

#[test]
fn given_a_kill_before_any_act_the_last_good_checkpoint_is_restored_and_the_next_save_cleans_up() {
    let mut survivors = Vec::new();
    for at in 0.. {
        let folder = folder();
        save_all(folder.path(), 1, 1);
        let status = ended(&mut child(folder.path(), 0, 1, at), 0, at);
        survivors.push(survives(folder.path(), 1));
        if !was_killed(status) {
            assert_eq!(status.code(), Some(0), "without a kill it succeeds");
            break;
        }
    }
    assert!(
        survivors.len() > 12,
        "every act was a place to die at: {survivors:?}"
    );
    assert!(
        survivors.is_sorted(),
        "once published it stays: {survivors:?}"
    );
    let (first, last) = (survivors.first(), survivors.last());
    assert_eq!((first, last), (Some(&1), Some(&2)));
}

#[test]
fn given_one_of_two_ranks_killed_before_any_act_no_half_of_a_checkpoint_is_ever_published() {
    for victim in [0, 1] {
        for at in 0.. {
            let folder = folder();
            save_all(folder.path(), 1, 2);
            let never = u64::MAX;
            let mut ranks: Vec<_> = [0, 1]
                .map(|rank| {
                    child(
                        folder.path(),
                        rank,
                        2,
                        if rank == victim { at } else { never },
                    )
                })
                .into();
            let statuses: Vec<ExitStatus> = ranks
                .iter_mut()
                .zip(0..)
                .map(|(child, rank)| ended(child, rank, at))
                .collect();
            let step = survives(folder.path(), 2);
            let killed = was_killed(statuses[victim as usize]);
            let other = statuses[1 - victim as usize].code();
            if other == Some(0) {
                assert_eq!(step, 2, "who was told of success finds it");
            }
            if !killed {
                assert_eq!((other, step), (Some(0), 2));
                assert!(at > 4, "rank {victim} has acts to die at");
                break;
            }
        }
    }
}

/// Has the act with this number fail with an error of the system.
struct Fault {
    acts: AtomicU64,
    at: u64,
    errno: i32,
    happened: AtomicBool,
}

impl Witness for Fault {
    fn before(&self, _: Act, _: &Path) -> io::Result<()> {
        if self.acts.fetch_add(1, Ordering::SeqCst) == self.at {
            self.happened.store(true, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        Ok(())
    }
}

#[test]
fn given_a_full_failing_or_read_only_file_system_at_any_act_the_error_is_typed_and_nothing_is_lost()
{
    let kinds = [
        (libc::ENOSPC, "no-space"),
        (libc::EFBIG, "no-space"),
        (libc::EIO, "io-failed"),
        (libc::EROFS, "denied"),
        (libc::EACCES, "denied"),
    ];
    for (errno, code) in kinds {
        for at in 0.. {
            let folder = folder();
            save_all(folder.path(), 1, 1);
            let fault = Arc::new(Fault {
                acts: AtomicU64::new(0),
                at,
                errno,
                happened: AtomicBool::new(false),
            });
            let witness: Arc<dyn Witness> = Arc::<Fault>::clone(&fault);
            let mut saver =
                Saver::new(folder.path(), alone(), settings(Some(witness))).expect("a saver");
            let outcome = saver.save(2, &state(&small(2, 0)));
            drop(saver);
            survives(folder.path(), 1);
            if !fault.happened.load(Ordering::SeqCst) {
                outcome.expect("nothing failed");
                break;
            }
            let error = outcome.expect_err("the act failed");
            assert_eq!(error.code(), code, "act {at}: {error}");
            assert!(!matches!(error, SaveError::ThreadDied { .. }));
        }
    }
}

/// Ends the loops of the threads beside, also when a saver panics: their scope waits for them.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn given_savers_pruners_and_readers_at_once_every_reader_finds_a_whole_checkpoint() {
    let folder = folder();
    let root = folder.path();
    save_all(root, 0, 1);
    const EACH: u64 = 12;
    let done = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        let savers: Vec<_> = (0..2u64)
            .map(|job| {
                scope.spawn(move || {
                    let settings = SaverSettings {
                        session: format!("job {job}"),
                        retention: None,
                        patience: Duration::from_secs(30),
                        ..SaverSettings::default()
                    };
                    let mut saver = Saver::new(root, alone(), settings).expect("a saver");
                    for number in 1..=EACH {
                        let step = number * 2 + job;
                        saver.save(step, &state(&model(step))).expect("saved");
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let keep = Retention {
                keep: 2,
                keep_every: None,
            };
            while !done.load(Ordering::SeqCst) {
                prune(root, keep, false, Duration::from_secs(30)).expect("pruned");
                // Savers wait for the folder by looking; one that is never let go of starves them.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let archive = Archive::open(root).expect("a good checkpoint");
                match step_of(&archive) {
                    0 => assert_holds(&archive, &all_ranks(0, 1)),
                    step => assert_holds(&archive, &model(step)),
                }
                seen.fetch_add(1, Ordering::SeqCst);
            }
        });
        for saver in savers {
            saver.join().expect("no panic");
        }
    });
    assert!(seen.load(Ordering::SeqCst) > 0);
    assert_eq!(latest(root).expect("listed"), Some(EACH * 2 + 1));
}
