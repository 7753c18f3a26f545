//! Ctrl-C and its kin end the process at once with one exit status and leave nothing half-written.
//!
//! No command polls: whatever it is doing, be it a read that does not answer or a checksum of a
//! terabyte, the signal is taken by a thread of its own. That thread removes what was registered as
//! a [`Leftover`], says what happened and ends the process. Devices that still write into its memory
//! are the kernel's to wait for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::args::Global;
use crate::failure::{Exit, Failure, errno};
use crate::output::Output;
use crate::path::shown;

/// The signals that ask a program to end.
const ENDING: [(i32, &str); 3] = [(SIGINT, "SIGINT"), (SIGTERM, "SIGTERM"), (SIGHUP, "SIGHUP")];
/// How often a folder is emptied that the interrupted work still fills.
const ATTEMPTS: u32 = 20;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);
/// Whoever reads our output may have stopped reading.
const TELLING: Duration = Duration::from_millis(200);

/// Who is asked to end before the process is ended.
static ASKED: Mutex<Option<mpsc::Sender<&'static str>>> = Mutex::new(None);
/// What has to be gone when the process ends before its time.
static LEFTOVERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Takes over the signals that ask the process to end, for the rest of its life. A hang-up that the
/// caller had ignored, as `nohup` does, stays ignored. An ignored SIGINT does not: shells start
/// every background job of a script so, and whoever signals one by hand means it.
///
/// SIGXFSZ, by which the system ends whoever writes a file past `ulimit -f`, is caught and not heeded:
/// the write then fails as any other, is reported as any other, and what was begun is removed.
pub fn take_over(global: Global) -> Result<(), Failure> {
    let unavailable = |error: io::Error| {
        let what = format!("could not take over Ctrl-C: {error}");
        let failure = Failure::new("signals-unavailable", Exit::Unavailable, what);
        failure.maybe_hint(errno::hint(&error))
    };
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(unavailable)?;
    let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    if ignored >> (SIGHUP - 1) & 1 == 0 {
        signals.add_signal(SIGHUP).map_err(unavailable)?;
    }
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map_err(unavailable)?;
    let end = move || {
        for signal in signals.forever() {
            if !ask(signal) {
                end(signal, global);
            }
        }
    };
    let named = thread::Builder::new().name("crowfly-signals".into());
    named.spawn(end).map(drop).map_err(unavailable)
}

/// From now on the first signal is told here instead of ending the process: for a command whose end is
/// nothing but a signal, and which has something to say then. The next one ends it all the same.
pub fn asks_first() -> mpsc::Receiver<&'static str> {
    let (sender, receiver) = mpsc::channel();
    *ASKED.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    receiver
}

/// Whether somebody wanted to be asked, and was.
fn ask(signal: i32) -> bool {
    let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner).take();
    asked.is_some_and(|asked| asked.send(name(signal)).is_ok())
}

fn name(signal: i32) -> &'static str {
    let known = ENDING.iter().find(|(number, _)| *number == signal);
    known.map_or("a signal", |(_, name)| name)
}

/// The signals that a process ignores, as a bit mask, from the text of its `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.map(|mask| u64::from_str_radix(mask.trim(), 16));
    mask.and_then(Result::ok).unwrap_or(0)
}

fn end(signal: i32, global: Global) -> ! {
    // Held to the end, so that nothing new is made that would have to be removed.
    let mut leftovers = leftovers();
    let stay: Vec<PathBuf> = leftovers.drain(..).filter(|path| !removed(path)).collect();
    let mut failure = Failure::interrupted(name(signal));
    if !stay.is_empty() {
        let stay: Vec<String> = stay.iter().map(|path| shown(path)).collect();
        failure = failure.hint(format!("this is left behind: {}", stay.join(", ")));
    }
    let (told, wait) = mpsc::channel();
    let tell = move || {
        Output::new(&global).finish(Err(failure));
        let _ = told.send(());
    };
    if thread::Builder::new().spawn(tell).is_ok() {
        let _ = wait.recv_timeout(TELLING);
    }
    std::process::exit(Exit::Interrupted.status().into())
}

/// Whether nothing is left at a path.
fn removed(path: &Path) -> bool {
    for _ in 0..ATTEMPTS {
        let result = match fs::symlink_metadata(path) {
            Ok(there) if there.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        if result.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return true;
        }
        // The work goes on meanwhile and may have put another file in there.
        thread::sleep(BETWEEN_ATTEMPTS);
    }
    false
}

/// Comes before the end of the process: where a signal is already ending it, that end is the one, with
/// its status. The signal's word may have kept the command from writing its own.
pub fn let_end() {
    // Whoever ends the process by a signal holds them and gives them back to nobody.
    drop(leftovers());
}

fn leftovers() -> MutexGuard<'static, Vec<PathBuf>> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file or folder that must not outlive an interrupted process. Dropping this says that it is
/// finished, or gone.
#[derive(Debug)]
pub struct Leftover {
    path: PathBuf,
}

impl Leftover {
    /// Makes something that is removed should a signal end the process, with no moment in between
    /// at which it exists and nobody would remove it. `path` says where what was made lies.
    pub fn make<T, E>(
        make: impl FnOnce() -> Result<T, E>,
        path: impl FnOnce(&T) -> &Path,
    ) -> Result<(T, Self), E> {
        let mut leftovers = leftovers();
        let made = make()?;
        let path = path(&made).to_owned();
        leftovers.push(path.clone());
        Ok((made, Self { path }))
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let mut leftovers = leftovers();
        if let Some(position) = leftovers.iter().position(|path| *path == self.path) {
            leftovers.swap_remove(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_what_a_caller_had_ignored_the_kernels_mask_tells_it() {
        let nohup = "Name:\tcrowfly\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!(ignored(nohup), 0x1001);
        assert_eq!(ignored(""), 0);
        assert_eq!(ignored("SigIgn:\tmany\n"), 0);
    }

    #[test]
    fn given_something_unfinished_it_is_registered_until_it_is_finished() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("unfinished");
        let make = || fs::write(&path, "half").map(|()| path.clone());
        let (_, leftover) = Leftover::make(make, |path| path).expect("made");
        assert!(leftovers().contains(&path));
        drop(leftover);
        assert!(!leftovers().contains(&path));
        assert!(path.exists(), "finished is not removed");
    }

    #[test]
    fn given_what_could_not_be_made_nothing_is_registered() {
        let path = Path::new("/no/such/folder/file");
        let failed = Leftover::make(|| fs::write(path, ""), |()| path);
        assert!(failed.is_err());
        assert!(!leftovers().iter().any(|left| left == path));
    }

    #[test]
    fn given_a_file_or_a_full_folder_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, full) = (folder.path().join("file"), folder.path().join("full"));
        fs::write(&file, "").expect("written");
        fs::create_dir(&full).expect("created");
        fs::write(full.join("shard"), "").expect("written");
        assert!(removed(&file) && removed(&full) && removed(&file));
        assert!(!file.exists() && !full.exists());
    }
}
