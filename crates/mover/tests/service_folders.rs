//! What a copy keeps besides bytes: empty folders, permissions, times, names that are no text; and what it
//! does about links.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crowfly_mover::service::{Copied, ServiceError, Side};

#[path = "service_support/stage.rs"]
mod stage;

use stage::{Stage, copy, pattern};

/// Long ago, with nanoseconds.
const WHEN: Duration = Duration::new(1_000_000_000, 123_456_789);

fn mode(path: &Path) -> u32 {
    path.metadata().expect("there").permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

fn changed(path: &Path) -> Duration {
    let time = path.metadata().expect("there").modified().expect("a time");
    time.duration_since(SystemTime::UNIX_EPOCH).expect("after")
}

fn set_changed(path: &Path) {
    let file = fs::File::open(path).expect("opened");
    let time = SystemTime::UNIX_EPOCH + WHEN;
    file.set_modified(time).expect("set");
}

/// The permissions that new files get of those asked for here.
fn unmasked(mode: u32) -> u32 {
    mode & !crowfly_machine::limits::file_mask()
}

/// The ways there are: down from a server, up to it, within this machine.
struct Ways {
    stage: Stage,
    here: tempfile::TempDir,
}

impl Ways {
    fn new() -> Self {
        Self {
            stage: Stage::new(true),
            here: tempfile::tempdir().expect("a folder"),
        }
    }

    /// A source made by `fill`, and a destination that is not there yet, for each way.
    fn each(&self, fill: impl Fn(&Path)) -> Vec<(Side, Side, PathBuf, PathBuf)> {
        let there = self.stage.folder.path();
        let here = self.here.path();
        let sides = |root: &Path, export: &str, name: &str, served: bool| match served {
            true => self.stage.at(&format!("{export}/{name}")),
            false => Side::File(root.join(name)),
        };
        let ways = [
            ("down", true, false),
            ("up", false, true),
            ("local", false, false),
        ];
        let make = |(way, from, to): (&str, bool, bool)| {
            let (source, target) = (format!("{way}-from"), format!("{way}-to"));
            let (at, into) = match (from, to) {
                (true, _) => (there.join(&source), here.join(&target)),
                (_, true) => (here.join(&source), there.join(&target)),
                _ => (here.join(&source), here.join(&target)),
            };
            fill(&at);
            let from = sides(here, "data", &source, from);
            (from, sides(here, "inbox", &target, to), at, into)
        };
        ways.into_iter().map(make).collect()
    }

    fn copy(
        &self,
        from: &Side,
        to: &Side,
        (preserve, follow): (bool, bool),
    ) -> Result<Copied, ServiceError> {
        let mut asked = self.stage.asked(from.clone(), to.clone());
        asked.recursive = true;
        asked.preserve = preserve;
        asked.follow = follow;
        copy(asked)
    }
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("empty/deeper")).expect("made");
    fs::create_dir_all(root.join("closed")).expect("made");
    fs::write(root.join("closed/tool"), pattern(9_000, 1)).expect("written");
    fs::write(root.join("read-only"), pattern(70, 2)).expect("written");
    set_mode(&root.join("closed/tool"), 0o750);
    set_mode(&root.join("read-only"), 0o440);
    set_mode(&root.join("closed"), 0o500);
    set_mode(&root.join("empty"), 0o777);
    for path in [
        "closed/tool",
        "read-only",
        "closed",
        "empty/deeper",
        "empty",
        "",
    ] {
        set_changed(&root.join(path));
    }
}

const MODES: [(&str, u32); 5] = [
    ("closed/tool", 0o750),
    ("read-only", 0o440),
    ("closed", 0o500),
    ("empty", 0o777),
    ("empty/deeper", 0o755),
];

#[test]
fn given_a_folder_empty_ones_and_permissions_are_copied_less_the_umask() {
    let ways = Ways::new();
    for (from, to, _, into) in ways.each(tree) {
        let copied = ways.copy(&from, &to, (false, false)).expect("copied");
        assert_eq!((copied.files, copied.folders, copied.skipped), (2, 4, 0));
        assert!(into.join("empty/deeper").is_dir(), "{from:?}");
        for (path, of) in MODES {
            assert_eq!(mode(&into.join(path)), unmasked(of), "{path} of {from:?}");
            assert_ne!(changed(&into.join(path)), WHEN, "{path}");
        }
    }
}

#[test]
fn given_preserve_permissions_and_times_are_those_of_the_source_wherever_something_was() {
    let ways = Ways::new();
    for (from, to, at, into) in ways.each(tree) {
        fs::create_dir_all(into.join("closed")).expect("made");
        fs::write(into.join("read-only"), b"other").expect("written");
        ways.copy(&from, &to, (true, false)).expect("copied");
        for (path, of) in MODES {
            assert_eq!(mode(&into.join(path)), of, "{path} of {from:?}");
            assert_eq!(changed(&into.join(path)), WHEN, "{path} of {from:?}");
        }
        assert_eq!(mode(&into), mode(&at), "the folder itself");
        assert_eq!(changed(&into), WHEN, "the folder itself");
    }
}

#[test]
fn given_a_file_that_was_there_it_keeps_its_permissions() {
    let ways = Ways::new();
    let fill = |at: &Path| {
        fs::write(at, b"new").expect("written");
        set_mode(at, 0o755);
    };
    for (from, to, _, into) in ways.each(fill) {
        fs::write(&into, b"before").expect("written");
        set_mode(&into, 0o600);
        ways.copy(&from, &to, (false, false)).expect("copied");
        assert_eq!(fs::read(&into).expect("there"), b"new");
        assert_eq!(mode(&into), 0o600, "{from:?}");
    }
}

#[test]
fn given_memory_or_nothing_that_is_kept_there_is_nothing_to_preserve() {
    let ways = Ways::new();
    let file = ways.stage.put("m", b"bytes");
    let pool = ways.stage.at("pool");
    for (from, to) in [
        (pool.clone(), Side::File(ways.here.path().join("m"))),
        (Side::File(file.clone()), pool),
        (Side::File(file), Side::Host),
    ] {
        let error = ways.copy(&from, &to, (true, false)).map(drop);
        assert_eq!(error.expect_err("refused").code(), "not-copied", "{from:?}");
    }
}

#[test]
fn given_names_that_are_no_text_they_are_copied_byte_by_byte() {
    let ways = Ways::new();
    let name = OsStr::from_bytes(b"no\xff text\n100%");
    let fill = |at: &Path| {
        fs::create_dir_all(at.join(name)).expect("made");
        fs::write(at.join(name).join(name), b"bytes").expect("written");
    };
    for (from, to, _, into) in ways.each(fill) {
        let copied = ways.copy(&from, &to, (false, false)).expect("copied");
        assert_eq!((copied.files, copied.skipped), (1, 0), "{from:?}");
        let there = into.join(name).join(name);
        assert_eq!(fs::read(there).expect("there"), b"bytes");
    }
    let one = ways.stage.folder.path().join("down-from").join(name);
    assert!(one.is_dir());
    let url = "data/down-from/no%FF text%0A100%25/no%FF text%0A100%25";
    let into = Side::File(ways.here.path().to_owned());
    ways.copy(&ways.stage.at(url), &into, (false, false))
        .expect("by its URL");
    assert_eq!(
        fs::read(ways.here.path().join(name)).expect("there"),
        b"bytes"
    );
}

#[test]
fn given_links_in_a_folder_they_are_left_out_or_followed_as_asked() {
    let ways = Ways::new();
    let fill = |at: &Path| {
        fs::create_dir_all(at.join("blobs")).expect("made");
        fs::create_dir_all(at.join("snapshot")).expect("made");
        fs::write(at.join("blobs/b"), b"bytes").expect("written");
        symlink("../blobs/b", at.join("snapshot/m")).expect("linked");
        symlink("blobs", at.join("again")).expect("linked");
        symlink("nowhere", at.join("dangling")).expect("linked");
    };
    for (from, to, _, into) in ways.each(fill) {
        let copied = ways.copy(&from, &to, (false, false)).expect("copied");
        assert_eq!((copied.files, copied.folders, copied.skipped), (1, 3, 3));
        assert!(!into.join("snapshot/m").exists());
        let copied = ways.copy(&from, &to, (false, true)).expect("copied");
        assert_eq!((copied.files, copied.folders, copied.skipped), (3, 4, 1));
        let file = fs::symlink_metadata(into.join("snapshot/m")).expect("there");
        assert!(file.is_file() && into.join("again/b").is_file(), "{from:?}");
    }
}

#[test]
fn given_links_that_lead_around_in_a_circle_following_them_ends() {
    let ways = Ways::new();
    let fill = |at: &Path| {
        fs::create_dir_all(at).expect("made");
        symlink(".", at.join("a")).expect("linked");
        symlink(".", at.join("b")).expect("linked");
    };
    for (from, to, _, _) in ways.each(fill) {
        let error = ways.copy(&from, &to, (false, true)).map(drop);
        assert_eq!(error.expect_err("it never ends").code(), "link-cycle");
    }
}

#[test]
fn given_a_link_as_a_destination_it_is_followed_here_refused_there_and_never_replaced() {
    let ways = Ways::new();
    let fill = |at: &Path| fs::write(at, b"bytes").expect("written");
    for (number, (from, to, _, into)) in (0..).zip(ways.each(fill)) {
        symlink("nowhere", &into).expect("linked");
        let error = ways.copy(&from, &to, (false, false)).map(drop);
        assert_eq!(error.expect_err("dangling").code(), "destination-is-link");
        let target = into.with_file_name("target");
        fs::write(&target, b"before").expect("written");
        fs::remove_file(&into).expect("removed");
        symlink("target", &into).expect("linked");
        let copied = ways.copy(&from, &to, (false, false)).map(drop);
        let served = number == 1;
        match served {
            true => assert_eq!(copied.expect_err("there").code(), "destination-is-link"),
            false => copied.expect("through the link"),
        }
        let expected: &[u8] = if served { b"before" } else { b"bytes" };
        assert_eq!(fs::read(&target).expect("there"), expected);
        let link = fs::symlink_metadata(&into).expect("there");
        assert!(link.is_symlink(), "{from:?}");
    }
}

#[test]
fn given_a_folder_to_be_copied_into_itself_it_is_refused() {
    let ways = Ways::new();
    let path = ways.here.path().join("tree");
    fs::create_dir_all(&path).expect("made");
    let from = Side::File(path.clone());
    for inside in ["", "below", "below/deeper"] {
        let error = ways.copy(&from, &Side::File(path.join(inside)), (false, false));
        assert_eq!(error.map(drop).expect_err("itself").code(), "not-copied");
    }
    let beside = Side::File(ways.here.path().join("tree-2"));
    ways.copy(&from, &beside, (false, false))
        .expect("beside it");
    assert_eq!(
        path.metadata().expect("there").nlink(),
        2,
        "nothing was made in it"
    );
}

#[test]
fn given_an_exposed_folder_itself_its_permissions_stay_as_they_are() {
    let ways = Ways::new();
    let path = ways.here.path().join("tree");
    tree(&path);
    set_mode(ways.stage.folder.path(), 0o705);
    let to = ways.stage.at("inbox");
    ways.copy(&Side::File(path), &to, (true, false))
        .expect("copied");
    assert_eq!(mode(ways.stage.folder.path()), 0o705);
    assert_eq!(mode(&ways.stage.folder.path().join("closed")), 0o500);
}

#[test]
fn given_an_interrupted_copy_of_a_folder_a_resumed_one_leaves_whole_files_alone_and_tidies_up() {
    let ways = Ways::new();
    let (first, second) = (1_500_000, 70_000);
    let each = ways.each(|root| {
        fs::create_dir_all(root).expect("made");
        fs::write(root.join("a"), pattern(first, 1)).expect("written");
        fs::write(root.join("z"), pattern(second, 2)).expect("written");
    });
    for (from, to, at, into) in each {
        let mut asked = ways.stage.asked(from, to);
        (asked.recursive, asked.resume) = (true, true);
        // What is in the way of the second file ends the copy once the first one is whole.
        fs::create_dir_all(into.join("z")).expect("made");
        let error = copy(asked.clone()).map(drop).expect_err("in the way");
        assert_eq!(error.code(), "destination-occupied");
        let names = || {
            let entries = fs::read_dir(&into).expect("there").flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), [".a.crowfly-journal", "a", "z"]);
        let inode = || into.join("a").metadata().expect("there").ino();
        let before = inode();
        fs::remove_dir(into.join("z")).expect("removed");
        let copied = copy(asked.clone()).expect("goes on");
        assert_eq!((copied.files, copied.unchanged), (2, 1));
        assert_eq!(copied.resumed.0, first as u64);
        assert_eq!(copied.receipt.requested.0, second as u64);
        assert_eq!((inode(), names()), (before, vec!["a".into(), "z".into()]));
        assert_eq!(fs::read(into.join("a")).ok(), fs::read(at.join("a")).ok());
        // Nothing is remembered of a copy that came to its end.
        let again = copy(asked).expect("copied");
        assert_eq!((again.files, again.unchanged), (2, 0));
    }
}
