//! What files and folders have besides their bytes: who may do what with them, and when they were
//! changed last.

use std::io;
use std::os::fd::AsFd;

use crowfly_machine::limits;
use rustix::fs::{FileType, Mode, RawMode, Stat, Timespec, Timestamps};

/// The permissions that are copied: those of owner, group and others. The bits that change the user of
/// a program (`setuid` and its like) belong to an owner, which is not copied.
const PERMISSIONS: u16 = 0o777;
/// The permissions of a file whose source has none, less the umask.
const OF_A_FILE: u16 = 0o666;
/// What the owner of a folder may do while it is filled.
const WHILE_FILLED: u16 = 0o700;
const NANOSECONDS: u32 = 1_000_000_000;

/// Permissions and last change of a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    mode: u16,
    seconds: i64,
    nanoseconds: u32,
}

impl Attributes {
    /// Those with these permissions (`rwxrwxrwx` as bits), changed last so many seconds and nanoseconds
    /// after the beginning of 1970; `None` when that is no mode or no time.
    pub fn new(mode: u16, seconds: i64, nanoseconds: u32) -> Option<Self> {
        let fine = mode & !PERMISSIONS == 0 && nanoseconds < NANOSECONDS;
        fine.then_some(Self {
            mode,
            seconds,
            nanoseconds,
        })
    }

    /// The permissions.
    pub const fn mode(&self) -> u16 {
        self.mode
    }

    /// The last change, in seconds and nanoseconds since the beginning of 1970.
    pub const fn changed(&self) -> (i64, u32) {
        (self.seconds, self.nanoseconds)
    }
}

impl Attributes {
    /// Those of an open file; `None` of a device.
    pub(crate) fn of_file(file: impl AsFd) -> Option<Self> {
        let stat = rustix::fs::fstat(file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then(|| Self::from(&stat))
    }
}

impl From<&Stat> for Attributes {
    fn from(stat: &Stat) -> Self {
        Self {
            mode: permissions(stat.st_mode),
            seconds: stat.st_mtime,
            nanoseconds: u32::try_from(stat.st_mtime_nsec).map_or(0, |n| n.min(NANOSECONDS - 1)),
        }
    }
}

/// The permissions in a mode.
pub(crate) fn permissions(mode: RawMode) -> u16 {
    (mode & RawMode::from(PERMISSIONS)) as u16
}

/// What something that is made is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// What its source has, where that has any.
    pub of: Option<Attributes>,
    /// Whether it is to have exactly the same, its time included, whatever was there before and whatever
    /// the umask says.
    pub preserved: bool,
}

impl Wanted {
    /// The permissions of a file in whose place there was one with the permissions `before`.
    fn mode(&self, before: Option<u16>) -> u16 {
        let unmasked = |mode: u16| mode & !(limits::file_mask() as u16);
        match (self.of, before) {
            (Some(of), _) if self.preserved => of.mode,
            (_, Some(before)) => before,
            (Some(of), None) => unmasked(of.mode),
            (None, None) => unmasked(OF_A_FILE),
        }
    }

    /// Gives an open file what it is to have.
    ///
    /// # Errors
    /// When the file system refuses.
    pub(crate) fn give(&self, file: impl AsFd, before: Option<u16>) -> io::Result<()> {
        let mode = Mode::from_raw_mode(self.mode(before).into());
        rustix::fs::fchmod(&file, mode)?;
        if let Some(of) = self.of.filter(|_| self.preserved) {
            let time = Timespec {
                tv_sec: of.seconds,
                tv_nsec: of.nanoseconds.into(),
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::futimens(&file, &times)?;
        }
        Ok(())
    }

    /// The permissions of a new folder before what belongs into it is there.
    pub(crate) fn of_new_folder(&self) -> Mode {
        let of = self.of.map_or(PERMISSIONS, |of| of.mode);
        Mode::from_raw_mode((of | WHILE_FILLED).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_a_file_that_was_there_it_keeps_its_permissions_unless_they_are_preserved() {
        let of = Attributes::new(0o751, 1, 2);
        let wanted = |preserved| Wanted { of, preserved };
        assert_eq!(wanted(false).mode(Some(0o600)), 0o600);
        assert_eq!(wanted(true).mode(Some(0o600)), 0o751);
        let mask = limits::file_mask() as u16;
        assert_eq!(wanted(false).mode(None), 0o751 & !mask);
        assert_eq!(wanted(true).mode(None), 0o751);
        assert_eq!(Wanted::default().mode(None), 0o666 & !mask);
    }

    #[test]
    fn what_is_no_mode_or_no_time_is_none() {
        assert_eq!(Attributes::new(0o4755, 0, 0), None);
        assert_eq!(Attributes::new(0o755, 0, NANOSECONDS), None);
    }
}
