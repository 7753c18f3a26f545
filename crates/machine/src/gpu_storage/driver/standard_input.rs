//! Descriptor 0 while a call runs that may close it: a failing `cuFileDriverOpen` does.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const STANDARD_INPUT: libc::c_int = 0;
/// The copy lies above the standard descriptors.
const ABOVE: libc::c_int = 3;

/// A copy of descriptor 0; none where it was closed already.
pub(super) struct StandardInput(Option<OwnedFd>);

impl StandardInput {
    pub(super) fn hold() -> Self {
        // SAFETY: duplicating takes any number.
        let copy = unsafe { libc::fcntl(STANDARD_INPUT, libc::F_DUPFD_CLOEXEC, ABOVE) };
        // SAFETY: a new descriptor that nobody else knows of.
        Self((copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) }))
    }

    /// Puts it back where it was closed; whether that was so. Where another file has its number by
    /// now, that file is left alone.
    pub(super) fn restore(self) -> bool {
        let Some(copy) = self.0 else {
            return false;
        };
        // SAFETY: asking takes any number.
        let there = unsafe { libc::fcntl(STANDARD_INPUT, libc::F_GETFD) };
        if there >= 0 {
            return false;
        }
        // SAFETY: descriptor 0 is not open, so nobody's file is replaced.
        unsafe { libc::dup2(copy.as_raw_fd(), STANDARD_INPUT) };
        true
    }
}
