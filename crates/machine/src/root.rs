//! The one root behind which every look at a machine goes.
//!
//! A [`Root`] is the live machine or a directory that holds a copy of one (`sys/`, `proc/`, `etc/`,
//! …). A copy may come from anyone, so nothing in it can make a look leave the root, block, run
//! without end, or open a device: links are resolved inside the root, only regular files are
//! opened, and every read has a limit.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crowfly_route::snapshot::{MAX_VALUE_BYTES, Observation, Value};
use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

mod walk;

/// The most entries of one directory that are looked at.
pub const MAX_ENTRIES: usize = 65_536;
/// The most work that one capture may be made to do, in steps: one for each place looked at, and one
/// more for each [`BYTES_A_STEP`] read and each [`ENTRIES_A_STEP`] listed. The largest servers take a
/// tenth of it; a tree of links to one large directory could otherwise take hours.
pub(crate) const MAX_STEPS: u64 = 1 << 20;
const BYTES_A_STEP: u64 = 4096;
const ENTRIES_A_STEP: u64 = 16;
/// How often a look is tried again when a rename elsewhere disturbed it.
const MAX_DISTURBED: usize = 16;

/// The machine to look at: this one, or a copy of one in a directory.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    dir: OwnedFd,
    live: bool,
    resolver: Resolver,
    steps: AtomicU64,
    starved: AtomicBool,
}

/// Who keeps path resolution inside the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolver {
    /// `openat2` with `RESOLVE_IN_ROOT`.
    Kernel,
    /// Component by component, for kernels before 5.6 and containers that forbid `openat2`.
    Walk,
}

/// A directory could not serve as the root of a machine.
#[derive(Debug, thiserror::Error)]
#[error("cannot look at `{}` as the root of a machine: {source}", path.display())]
pub struct RootError {
    /// The directory.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

impl RootError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        "root-unreadable"
    }
}

impl Root {
    /// The live machine.
    ///
    /// # Errors
    /// When `/` cannot be opened.
    pub fn live() -> Result<Self, RootError> {
        Self::open_root(Path::new("/"), true)
    }

    /// A copy of a machine in a directory; nothing of the live machine is consulted.
    ///
    /// # Errors
    /// When `dir` is not a directory that can be opened.
    pub fn tree(dir: impl AsRef<Path>) -> Result<Self, RootError> {
        Self::open_root(dir.as_ref(), false)
    }

    fn open_root(path: &Path, live: bool) -> Result<Self, RootError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |errno: Errno| RootError {
            path: path.to_owned(),
            source: errno.into(),
        };
        let dir = fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let probe = fs::openat2(&dir, ".", flags, Mode::empty(), ResolveFlags::IN_ROOT);
        let resolver = match probe {
            Ok(_) => Resolver::Kernel,
            Err(errno) if is_starvation(errno) => return Err(failed(errno)),
            Err(_) => Resolver::Walk,
        };
        Ok(Self {
            path: path.to_owned(),
            dir,
            live,
            resolver,
            steps: AtomicU64::new(0),
            starved: AtomicBool::new(false),
        })
    }

    /// Whether looks failed because too many files were open, in this process or in all: what was
    /// not seen then may well be there.
    ///
    /// # Errors
    /// When they did, with what could not be looked at.
    pub fn not_starved(&self) -> Result<(), RootError> {
        if !self.starved.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(RootError {
            path: self.path.clone(),
            source: Errno::MFILE.into(),
        })
    }

    /// Begins a capture: its work is counted from here on.
    pub(crate) fn begin(&self) {
        self.starved.store(false, Ordering::Relaxed);
        self.steps.store(0, Ordering::Relaxed);
    }

    /// Whether the capture was made to do so much that nothing more is looked at.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.steps.load(Ordering::Relaxed) > MAX_STEPS
    }

    fn spend(&self, steps: u64) {
        self.steps.fetch_add(steps, Ordering::Relaxed);
    }

    /// Whether this is the live machine.
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// A file's text without trailing white space; an error when it has more than `limit` bytes.
    pub(crate) fn text(&self, path: &str, limit: usize) -> Observation {
        self.whole(path, limit).map_or_else(refusal, |bytes| {
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_end_matches(|c: char| c.is_whitespace() || c == '\0');
            if text.len() > MAX_VALUE_BYTES {
                return Observation::Error(format!("more than {MAX_VALUE_BYTES} bytes"));
            }
            Observation::text(text)
        })
    }

    /// The target of a symbolic link, as written.
    pub(crate) fn link(&self, path: &str) -> Observation {
        let read = || {
            let link = self.open(path, OFlags::PATH | OFlags::NOFOLLOW)?;
            match FileType::from_raw_mode(fs::fstat(&link)?.st_mode) {
                FileType::Symlink => Ok(fs::readlinkat(&link, "", Vec::new())?),
                other => Err(Refusal::Odd(format!(
                    "{}, not a symbolic link",
                    kind_name(other)
                ))),
            }
        };
        read().map_or_else(refusal, |target| {
            Observation::Value(Value::Link(target.to_string_lossy().into_owned()))
        })
    }

    /// The entries of a directory, sorted, without `.` and `..`.
    pub(crate) fn list(&self, path: &str) -> Observation {
        let read = || {
            let dir = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let (mut names, mut bytes) = (Vec::new(), 0);
            for entry in fs::Dir::new(dir)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name == "." || name == ".." {
                    continue;
                }
                bytes += name.len();
                if names.len() == MAX_ENTRIES || bytes > MAX_VALUE_BYTES {
                    self.spend(names.len() as u64 / ENTRIES_A_STEP);
                    return Err(Refusal::Odd(format!(
                        "more than {MAX_ENTRIES} entries or {MAX_VALUE_BYTES} bytes of names"
                    )));
                }
                names.push(name);
            }
            self.spend(names.len() as u64 / ENTRIES_A_STEP);
            names.sort_unstable();
            Ok(names)
        };
        read().map_or_else(refusal, |names| Observation::Value(Value::List(names)))
    }

    /// What kind of thing is there, without opening it: `directory`, `file`, `char 195:255`, ….
    pub(crate) fn kind(&self, path: &str) -> Observation {
        let look = || {
            let found = self.open(path, OFlags::PATH)?;
            let stat = fs::fstat(&found)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let device = match kind {
                FileType::CharacterDevice | FileType::BlockDevice => {
                    format!(" {}:{}", fs::major(stat.st_rdev), fs::minor(stat.st_rdev))
                }
                _ => String::new(),
            };
            Ok::<_, Refusal>(format!("{}{device}", kind_name(kind)))
        };
        look().map_or_else(refusal, Observation::text)
    }

    /// Whether this process may read and write what is there, as the file's mode tells; of a copy
    /// of a machine, whether it may read and write there is not known and so not denied.
    pub(crate) fn usable(&self, path: &str) -> Result<(), Observation> {
        if !self.live {
            return Ok(());
        }
        let access = fs::Access::READ_OK | fs::Access::WRITE_OK;
        fs::accessat(fs::CWD, path, access, fs::AtFlags::EACCESS)
            .map_err(|errno| refusal(errno.into()))
    }

    /// A whole regular file of at most `limit` bytes.
    pub(crate) fn whole(&self, path: &str, limit: usize) -> Result<Vec<u8>, Refusal> {
        let bytes = self.head(path, limit.saturating_add(1))?;
        if bytes.len() > limit {
            return Err(Refusal::Odd(format!("more than {limit} bytes")));
        }
        Ok(bytes)
    }

    /// The first bytes of a regular file, at most `limit`.
    pub(crate) fn head(&self, path: &str, limit: usize) -> Result<Vec<u8>, Refusal> {
        let mut file = self.regular(path)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&mut file, limit as u64), &mut bytes)
            .map_err(|error| Refusal::from(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        self.spend(bytes.len() as u64 / BYTES_A_STEP);
        Ok(bytes)
    }

    /// Opens a regular file for reading; anything else is refused without being opened, because
    /// opening a FIFO blocks and opening a device can act on it.
    pub(crate) fn regular(&self, path: &str) -> Result<std::fs::File, Refusal> {
        let require_regular =
            |found: &OwnedFd| match FileType::from_raw_mode(fs::fstat(found)?.st_mode) {
                FileType::RegularFile => Ok(()),
                other => Err(Refusal::Odd(format!("{}, not a file", kind_name(other)))),
            };
        require_regular(&self.open(path, OFlags::PATH)?)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open(path, flags)?;
        // The name may have been given to something else between the two opens.
        require_regular(&file)?;
        Ok(file.into())
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Refusal> {
        self.spend(1);
        if self.is_exhausted() {
            let what = format!("not looked at: the capture already took {MAX_STEPS} steps");
            return Err(Refusal::Odd(what));
        }
        let opened = self.resolve(path, flags);
        if opened.as_ref().is_err_and(|errno| is_starvation(*errno)) {
            self.starved.store(true, Ordering::Relaxed);
        }
        Ok(opened?)
    }

    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        let relative = match path.trim_start_matches('/') {
            "" => ".",
            relative => relative,
        };
        if self.resolver == Resolver::Kernel {
            for _ in 0..MAX_DISTURBED {
                let resolve = ResolveFlags::IN_ROOT;
                match fs::openat2(&self.dir, relative, flags, Mode::empty(), resolve) {
                    Err(Errno::AGAIN) => {}
                    answer => return answer,
                }
            }
        }
        walk::open(&self.dir, relative, flags)
    }
}

/// Whether a file could not be opened only because too many others are open.
fn is_starvation(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// Why a look showed no value.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The system's answer.
    System(Errno),
    /// There, but not what was looked for.
    Odd(String),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// A refusal as an observation, with *absent*, *denied* and *error* kept apart.
pub(crate) fn refusal(refusal: Refusal) -> Observation {
    match refusal {
        Refusal::System(Errno::NOENT | Errno::NOTDIR) => Observation::Absent,
        Refusal::System(Errno::ACCESS | Errno::PERM) => Observation::Denied,
        Refusal::System(errno) => Observation::Error(errno.to_string()),
        Refusal::Odd(what) => Observation::Error(what),
    }
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "char",
        FileType::BlockDevice => "block",
        FileType::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Options, capture};

    #[test]
    fn without_the_kernels_help_the_same_is_seen() {
        // This machine's own PCI tree, links upon links, in what does not change between two looks.
        let options = Options::default();
        let help = Root::tree("/").expect("a directory");
        let none = Root {
            resolver: Resolver::Walk,
            ..Root::tree("/").expect("a directory")
        };
        let seen = [help, none].map(|root| {
            let stays = |key: &str| {
                let last = key.rsplit('/').next().unwrap_or_default();
                key.starts_with("/sys/bus/pci/devices")
                    && ["vendor", "device", "class", "driver", "iommu_group"].contains(&last)
                    || key.starts_with("/sys/devices/system/cpu/")
                    || key.starts_with("kconfig:")
            };
            let seen = capture(&root, &options);
            let kept = seen.iter().filter(|(key, _)| stays(key));
            let kept: Vec<_> = kept.map(|(k, v)| (k.to_owned(), v.clone())).collect();
            kept
        });
        let [with, without] = seen;
        assert_eq!(with, without);
        assert!(!with.is_empty());
    }
}
