//! A machine's files in a temporary directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crowfly_machine::{Options, Root, capture};
use crowfly_route::snapshot::{Observation, Snapshot, Value};
use tempfile::TempDir;

/// A user that owns nothing.
const NOBODY: u32 = 65_534;

pub struct Tree {
    dir: TempDir,
}

impl Tree {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        // Others must be able to enter, so that only what a test forbids is forbidden.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("our directory");
        Self { dir }
    }

    /// Where a path of the machine lies here.
    pub fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    /// The place itself does not exist yet, its parent does.
    pub fn place(&self, path: &str) -> PathBuf {
        let place = self.at(path);
        fs::create_dir_all(place.parent().expect("below the root")).expect("created");
        place
    }

    pub fn file(&self, path: &str, bytes: impl AsRef<[u8]>) -> &Self {
        fs::write(self.place(path), bytes).expect("written");
        self
    }

    pub fn link(&self, path: &str, target: impl AsRef<Path>) -> &Self {
        symlink(target, self.place(path)).expect("linked");
        self
    }

    pub fn dir(&self, path: &str) -> &Self {
        fs::create_dir_all(self.at(path)).expect("created");
        self
    }

    pub fn fifo(&self, path: &str) -> &Self {
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        let place = self.place(path);
        rustix::fs::mknodat(rustix::fs::CWD, &place, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a FIFO");
        self
    }

    /// A character device; whether it could be made, which takes privilege.
    pub fn character_device(&self, path: &str, major: u32, minor: u32) -> bool {
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        let kind = rustix::fs::FileType::CharacterDevice;
        let device = rustix::fs::makedev(major, minor);
        let place = self.place(path);
        rustix::fs::mknodat(rustix::fs::CWD, &place, kind, mode, device).is_ok()
    }

    /// A PCI function as the bus lists it, below the host bridge of its domain and bus 0.
    pub fn function(&self, address: &str) -> &Self {
        let home = format!("/sys/devices/pci0000:00/{address}");
        self.dir(&home).link(
            &format!("/sys/bus/pci/devices/{address}"),
            format!("../../../devices/pci0000:00/{address}"),
        )
    }

    /// Where a link in `home` leads, which must be in this tree: tests write there.
    fn target(&self, home: &Path, target: &str) -> PathBuf {
        let root = fs::canonicalize(self.dir.path()).expect("ours");
        let mut place = fs::canonicalize(home).expect("created");
        for part in target.split('/') {
            match part {
                ".." => assert!(place != root && place.pop(), "`{target}` leads out"),
                name => place.push(name),
            }
        }
        assert!(place.starts_with(&root), "`{target}` leads out");
        place
    }

    pub fn forbid(&self, path: &str) -> &Self {
        fs::set_permissions(self.at(path), Permissions::from_mode(0o000)).expect("ours");
        self
    }

    pub fn look(&self) -> Snapshot {
        self.look_with(&Options::default())
    }

    pub fn look_with(&self, options: &Options) -> Snapshot {
        capture(&Root::tree(self.dir.path()).expect("a directory"), options)
    }

    /// Looks as a user who may not pass over permissions, also where the tests run as root.
    pub fn look_unprivileged(&self) -> Snapshot {
        let root = Root::tree(self.dir.path()).expect("a directory");
        let look = || {
            if rustix::process::geteuid().is_root() {
                // Of this thread only, which ends with the look.
                let nobody = rustix::process::Uid::from_raw(NOBODY);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("as root");
            }
            capture(&root, &Options::default())
        };
        std::thread::scope(|scope| scope.spawn(look).join()).expect("looked")
    }
}

/// Writes what a snapshot says of files into a tree.
pub fn materialised(snapshot: &Snapshot) -> Tree {
    let tree = Tree::new();
    // Links come first: what lies below one is written through it.
    for (key, seen) in snapshot.iter() {
        if let (true, Observation::Value(Value::Link(target))) = (key.starts_with('/'), seen) {
            let place = tree.place(key);
            let home = place.parent().expect("below the root");
            fs::create_dir_all(tree.target(home, target)).expect("created");
            symlink(target, place).expect("linked");
        }
    }
    for (key, seen) in snapshot.iter().filter(|(key, _)| key.starts_with('/')) {
        match seen {
            Observation::Value(Value::Text(text)) => {
                tree.file(key, format!("{text}\n"));
            }
            Observation::Value(Value::Bytes(bytes)) => {
                tree.file(key, bytes);
            }
            Observation::Value(Value::List(names)) => {
                tree.dir(key);
                for name in names {
                    let entry = format!("{key}/{name}");
                    if snapshot.get(&entry).is_none() {
                        tree.dir(&entry);
                    }
                }
            }
            _ => {}
        }
    }
    tree
}
