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

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, write};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use proptest::prelude::*;
    use rustix::fs::ResolveFlags;

    use super::*;

    /// Something in a directory of few names, so that most links lead somewhere.
    #[derive(Clone, Debug)]
    enum Entry {
        Directory(String),
        File(String),
        Link(String, String),
    }

    fn path() -> impl Strategy<Value = String> {
        prop::collection::vec("[ab]", 1..4).prop_map(|parts| parts.join("/"))
    }

    /// Relative, absolute, up and out, with empty and trailing components.
    fn target() -> impl Strategy<Value = String> {
        let part = prop_oneof![3 => "[ab]", 2 => Just("..".to_owned()), 1 => Just(".".to_owned())];
        let parts = prop::collection::vec(part, 1..5);
        (any::<bool>(), parts).prop_map(|(absolute, parts)| {
            format!("{}{}", if absolute { "/" } else { "" }, parts.join("/"))
        })
    }

    fn entry() -> impl Strategy<Value = Entry> {
        prop_oneof![
            path().prop_map(Entry::Directory),
            path().prop_map(Entry::File),
            (path(), target()).prop_map(|(path, target)| Entry::Link(path, target)),
        ]
    }

    /// Nothing is made through a link, which could lead anywhere on this machine.
    fn build(root: &Path, entries: &[Entry]) {
        for entry in entries {
            let (Entry::Directory(path) | Entry::File(path) | Entry::Link(path, _)) = entry;
            let path = root.join(path);
            let mut above = path.ancestors().skip(1).take_while(|above| *above != root);
            let own = |above: &Path| above.symlink_metadata().is_ok_and(|there| there.is_dir());
            if !above.all(own) || path.symlink_metadata().is_ok() {
                continue;
            }
            match entry {
                Entry::Directory(_) => create_dir(path),
                Entry::File(_) => write(path, "text"),
                Entry::Link(_, target) => symlink(target, path),
            }
            .expect("made in our own directory");
        }
    }

    proptest! {
        #[test]
        fn it_reaches_what_the_kernel_reaches(
            entries in prop::collection::vec(entry(), 1..12),
            wanted in prop::collection::vec((target(), any::<bool>()), 1..8),
        ) {
            let outer = tempfile::tempdir().expect("a directory");
            let inner = outer.path().join("inner");
            create_dir(&inner).expect("created");
            build(&inner, &entries);
            let root = fs::open(&inner, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("ours");
            for (path, follow) in wanted {
                let relative = path.trim_start_matches('/');
                let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
                let identity = |opened: Result<OwnedFd, Errno>| {
                    let stat = fs::fstat(&opened?)?;
                    Ok::<_, Errno>((stat.st_dev, stat.st_ino))
                };
                let resolve = ResolveFlags::IN_ROOT;
                let kernel = fs::openat2(&root, relative, flags, Mode::empty(), resolve);
                // Kernels before 5.6, or a sandbox: then there is nothing to compare with.
                prop_assume!(!matches!(kernel, Err(Errno::NOSYS | Errno::PERM)));
                prop_assert_eq!(
                    identity(open(&root, relative, flags)),
                    identity(kernel),
                    "{} in {:?}", path, entries
                );
            }
        }
    }
}
