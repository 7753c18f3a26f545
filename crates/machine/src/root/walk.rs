//! Path resolution that cannot leave a root, without help from the kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;

/// The most links followed in one resolution, as in the kernel.
const MAX_LINKS: usize = 40;
/// The most components walked in one resolution.
const MAX_COMPONENTS: usize = 4096;

/// Opens `path` below `root` as `openat2` with `RESOLVE_IN_ROOT` does: absolute links start at the
/// root and `..` stops there.
///
/// Every directory on the way stays open while its children are looked up, so a directory that is
/// moved meanwhile cannot carry the walk out of the root.
pub(super) fn open(root: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut below: Vec<OwnedFd> = Vec::new();
    let mut ahead: Vec<Vec<u8>> = Vec::new();
    let (mut links, mut steps) = (0, 0);
    push_components(&mut ahead, path.as_bytes());
    while let Some(name) = ahead.pop() {
        steps += 1;
        if steps > MAX_COMPONENTS {
            return Err(Errno::NAMETOOLONG);
        }
        match name.as_slice() {
            b"." => continue,
            b".." => {
                below.pop();
                continue;
            }
            _ => {}
        }
        let here = top(root, &below);
        let last = ahead.is_empty();
        let found = fs::openat(
            here,
            name.as_slice(),
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let kind = FileType::from_raw_mode(fs::fstat(&found)?.st_mode);
        if kind == FileType::Symlink && !(last && flags.contains(OFlags::NOFOLLOW)) {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            let target = fs::readlinkat(&found, "", Vec::new())?;
            if target.as_bytes().starts_with(b"/") {
                below.clear();
            }
            push_components(&mut ahead, target.as_bytes());
        } else if last {
            return fs::openat(
                here,
                name.as_slice(),
                flags | OFlags::NOFOLLOW,
                Mode::empty(),
            );
        } else if kind == FileType::Directory {
            below.push(found);
        } else {
            return Err(Errno::NOTDIR);
        }
    }
    // The path ended in `.` or `..`, or in a link to such: it is the directory reached.
    fs::openat(top(root, &below), ".", flags, Mode::empty())
}

fn top<'d>(root: &'d OwnedFd, below: &'d [OwnedFd]) -> BorrowedFd<'d> {
    below.last().unwrap_or(root).as_fd()
}

/// Puts the components of `path` before what is ahead; the next one is at the end.
fn push_components(ahead: &mut Vec<Vec<u8>>, path: &[u8]) {
    let parts = path.split(|byte| *byte == b'/').filter(|p| !p.is_empty());
    let mut parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    parts.reverse();
    ahead.append(&mut parts);
}
