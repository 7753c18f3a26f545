//! What around a file and a process is known to break storage libraries.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

const OVERLAY: u64 = 0x794c_7630;
/// What a record has to say for cuFile to take the drive for one with a file system.
const USAGE: &str = "E:ID_FS_USAGE=filesystem";
/// The largest record that is looked at.
const MAX_RECORD: usize = 1 << 16;

/// What around a file and a process is known to break storage libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Whether the kernel lists its modules; cuFile spins for ever where it does not.
    pub lists_modules: bool,
    /// Whether the file lies on an overlay file system, as those of containers do.
    pub overlay: bool,
    /// udev's record of the file's drive.
    pub udev: Udev,
}

/// udev's record of a drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Udev {
    /// Nobody looked, as there is no file.
    #[default]
    NotLookedFor,
    /// The record says that there is a file system on it.
    Whole,
    /// There is none; where it should be.
    Missing(PathBuf),
    /// It does not say so; where it is.
    Incomplete(PathBuf),
}

impl Surroundings {
    /// Looks around a file.
    pub fn of(file: Option<&Path>) -> Self {
        let modules = std::fs::metadata("/proc/modules").is_ok();
        let Some(file) = file else {
            return Self {
                lists_modules: modules,
                ..Self::default()
            };
        };
        let overlay = rustix::fs::statfs(file)
            .is_ok_and(|facts| facts.f_type as u64 & 0xffff_ffff == OVERLAY);
        let udev = std::fs::metadata(file).map_or(Udev::NotLookedFor, |facts| {
            let device = facts.dev();
            let name = format!("b{}:{}", major(device), minor(device));
            record(&Path::new("/run/udev/data").join(name))
        });
        Self {
            lists_modules: modules,
            overlay,
            udev,
        }
    }
}

fn record(at: &Path) -> Udev {
    match std::fs::read(at) {
        Ok(bytes) if bytes.len() <= MAX_RECORD => {
            let text = String::from_utf8_lossy(&bytes);
            match text.lines().any(|line| line == USAGE) {
                true => Udev::Whole,
                false => Udev::Incomplete(at.to_owned()),
            }
        }
        Ok(_) => Udev::Incomplete(at.to_owned()),
        Err(_) => Udev::Missing(at.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_whole_only_when_it_says_that_there_is_a_file_system() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join("b254:0");
        assert_eq!(record(&at), Udev::Missing(at.clone()));
        std::fs::write(&at, "E:ID_FS_TYPE=ext4\n").expect("written");
        assert_eq!(record(&at), Udev::Incomplete(at.clone()));
        std::fs::write(&at, "E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n").expect("written");
        assert_eq!(record(&at), Udev::Whole);
    }

    #[test]
    fn the_drive_of_a_file_is_looked_for() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let around = Surroundings::of(Some(file.path()));
        assert_ne!(around.udev, Udev::NotLookedFor);
        assert_eq!(Surroundings::of(None).udev, Udev::NotLookedFor);
    }
}
