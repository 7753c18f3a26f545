//! A file that is begun is there whole or not at all, and goes on where it was left.

use std::path::Path;

use super::*;
use crate::memory::Memory;

const TAG: Tag = Tag([1; 16]);
const LENGTH: u64 = 3 * GRID + 100;

fn begin(folder: &Path, tag: Tag, resume: bool) -> Result<Partial, ServiceError> {
    begin_as(folder, tag, resume, false)
}

fn begin_as(
    folder: &Path,
    tag: Tag,
    resume: bool,
    remember: bool,
) -> Result<Partial, ServiceError> {
    let fd = File::open(folder).expect("a folder").into();
    Partial::begin(Plan {
        folder: fd,
        name: OsStr::new("m.bin"),
        shown: "m.bin".into(),
        length: LENGTH,
        tag,
        resume,
        remember,
        policy: Policy::Prefer,
        wanted: Wanted::default(),
    })
}

fn write(partial: &Partial, number: u64, byte: u8) -> Result<(), ServiceError> {
    let memory = Memory::host(GRID as usize, None)?;
    let range = number * GRID..((number + 1) * GRID).min(LENGTH);
    let len = (range.end - range.start) as usize;
    let path = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(path.path(), vec![byte; len]).expect("written");
    let source = crate::Source::open(path.path())?;
    let spot = Spot { memory, at: 0 };
    pass::read(&source, 0..len as u64, &spot, Policy::Prefer)?;
    let sum = digest::piece(&vec![byte; len]);
    partial.write(range, &spot, &[sum]).map(drop)
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn given_all_pieces_the_file_appears_whole_and_nothing_else_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let partial = begin(folder.path(), TAG, true).expect("begun");
    for number in [2, 0, 3, 1] {
        write(&partial, number, number as u8 + 1).expect("written");
        assert!(!folder.path().join("m.bin").exists());
    }
    assert!(partial.digest().is_some());
    partial.publish().expect("published");
    drop(partial);
    assert_eq!(entries(folder.path()), ["m.bin"]);
    let bytes = std::fs::read(folder.path().join("m.bin")).expect("read");
    assert_eq!(bytes.len() as u64, LENGTH);
    assert_eq!((bytes[0], bytes[LENGTH as usize - 1]), (1, 4));
}

#[test]
fn given_no_wish_to_resume_a_failure_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let partial = begin(folder.path(), TAG, false).expect("begun");
    write(&partial, 0, 1).expect("written");
    drop(partial);
    assert_eq!(entries(folder.path()), [""; 0]);
}

#[test]
fn given_an_interrupted_copy_it_goes_on_with_the_pieces_that_still_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    let partial = begin(folder.path(), TAG, true).expect("begun");
    for number in [0, 1, 3] {
        write(&partial, number, 7).expect("written");
    }
    drop(partial);
    assert_eq!(
        entries(folder.path()),
        [".m.bin.crowfly-journal", ".m.bin.crowfly-partial"]
    );
    let damaged = File::options()
        .write(true)
        .open(folder.path().join(".m.bin.crowfly-partial"));
    damaged
        .expect("opened")
        .write_all_at(b"x", GRID + 5)
        .expect("damaged");
    let partial = begin(folder.path(), TAG, true).expect("goes on");
    assert_eq!(partial.have(), [0..GRID, 3 * GRID..LENGTH]);
    drop(partial);
    let anew = begin(folder.path(), TAG, false).expect("begun anew");
    assert_eq!(anew.have(), []);
}

#[test]
fn given_another_source_it_does_not_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(begin(folder.path(), TAG, true).expect("begun"));
    let error = begin(folder.path(), Tag([2; 16]), true)
        .map(drop)
        .expect_err("another");
    assert_eq!(error.code(), "source-changed");
    assert_eq!(entries(folder.path()).len(), 2, "what was begun is kept");
}

/// A whole file, remembered as the copy of [`TAG`].
fn remembered(folder: &Path) {
    let partial = begin_as(folder, TAG, true, true).expect("begun");
    for number in 0..4 {
        write(&partial, number, 7).expect("written");
    }
    partial.publish().expect("published");
}

#[test]
fn given_a_finished_file_that_is_remembered_it_is_found_whole_and_not_written_again() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().expect("a folder");
    remembered(folder.path());
    let names = [".m.bin.crowfly-journal", "m.bin"];
    assert_eq!(entries(folder.path()), names);
    let inode = || folder.path().join("m.bin").metadata().expect("there").ino();
    let before = inode();
    let partial = begin_as(folder.path(), TAG, true, true).expect("found");
    assert_eq!(partial.have(), std::slice::from_ref(&(0..LENGTH)));
    let reserved = folder.path().join(".m.bin.crowfly-partial").metadata();
    assert_eq!(reserved.expect("there").len(), 0, "no space is taken");
    assert!(partial.digest().is_some());
    partial.publish().expect("left");
    drop(partial);
    assert_eq!(
        (entries(folder.path()).as_slice(), inode()),
        (&names.map(String::from)[..], before)
    );
    forget(&File::open(folder.path()).expect("a folder").into()).expect("forgotten");
    assert_eq!(entries(folder.path()), ["m.bin"]);
}

#[test]
fn given_a_finished_file_that_was_changed_or_has_another_source_now_it_is_copied_again() {
    let folder = tempfile::tempdir().expect("a folder");
    remembered(folder.path());
    let file = File::options()
        .write(true)
        .open(folder.path().join("m.bin"));
    let file = file.expect("opened");
    file.write_all_at(b"x", GRID).expect("changed");
    let partial = begin_as(folder.path(), TAG, true, true).expect("begun");
    assert_eq!(partial.have(), [], "one byte of it is another");
    drop(partial);
    remembered(folder.path());
    file.set_len(1).expect("the old one");
    let partial = begin_as(folder.path(), Tag([2; 16]), true, true).expect("begun");
    assert_eq!(partial.have(), [], "nothing of it is of this source");
}

#[test]
fn given_files_that_are_not_finished_their_journals_are_not_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(begin(folder.path(), TAG, true).expect("begun"));
    std::fs::write(folder.path().join(".crowfly-journal"), "someone's").expect("written");
    let before = entries(folder.path());
    forget(&File::open(folder.path()).expect("a folder").into()).expect("looked");
    assert_eq!(
        (entries(folder.path()).len(), entries(folder.path())),
        (3, before)
    );
}

#[test]
fn given_someone_who_writes_the_same_file_the_second_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = begin(folder.path(), TAG, false).expect("begun");
    let error = begin(folder.path(), TAG, false)
        .map(drop)
        .expect_err("busy");
    assert_eq!(error.code(), "file-busy");
    drop(first);
    begin(folder.path(), TAG, false).expect("free again");
}

#[test]
fn given_a_folder_or_a_link_in_its_place_nothing_outside_is_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("m.bin")).expect("made");
    let error = begin(folder.path(), TAG, false)
        .map(drop)
        .expect_err("a folder");
    assert_eq!(error.code(), "destination-occupied");
    std::fs::remove_dir(folder.path().join("m.bin")).expect("removed");
    let outside = tempfile::NamedTempFile::new().expect("a file");
    let hidden = folder.path().join(".m.bin.crowfly-partial");
    std::os::unix::fs::symlink(outside.path(), &hidden).expect("linked");
    let error = begin(folder.path(), TAG, false)
        .map(drop)
        .expect_err("a link");
    let told = "`.m.bin.crowfly-partial`, where `m.bin` would lie while it is copied, is in the way: it is a link";
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        ("in-the-way", told)
    );
    assert_eq!(outside.path().metadata().expect("there").len(), 0);
}

#[test]
fn given_a_range_beyond_the_end_it_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let partial = begin(folder.path(), TAG, false).expect("begun");
    let spot = Spot {
        memory: Memory::host(GRID as usize, None).expect("memory"),
        at: 0,
    };
    let error = partial.write(3 * GRID..LENGTH + 1, &spot, &[]).map(drop);
    assert_eq!(error.expect_err("beyond").code(), "out-of-range");
}

#[test]
fn given_a_link_under_its_name_it_is_refused_and_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink("nowhere", folder.path().join("m.bin")).expect("linked");
    let error = begin(folder.path(), TAG, false).map(drop);
    assert_eq!(error.expect_err("a link").code(), "destination-is-link");
    assert_eq!(entries(folder.path()), ["m.bin"]);
}

#[test]
fn given_no_permissions_yet_an_unfinished_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let _partial = begin(folder.path(), TAG, true).expect("begun");
    for name in [".m.bin.crowfly-partial", ".m.bin.crowfly-journal"] {
        let there = folder.path().join(name).metadata().expect("there");
        assert_eq!(there.permissions().mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn the_names_of_what_is_unfinished_fit_and_differ_for_every_name_that_a_file_may_have() {
    let of = |name: &[u8]| names(OsStr::from_bytes(name));
    assert_eq!(of(b"m.bin").0, ".m.bin.crowfly-partial");
    let mut all = std::collections::BTreeSet::new();
    for len in 1..=MAX_NAME {
        for last in [b'a', 0xff] {
            let mut name = vec![b'n'; len];
            name[len - 1] = last;
            let (partial, journal) = of(&name);
            for hidden in [partial, journal] {
                assert!(
                    hidden.len() <= MAX_NAME && is_unfinished(&hidden),
                    "{hidden:?}"
                );
                assert!(all.insert(hidden), "{len}");
            }
        }
    }
    // A name that is too long for a file is too long at the beginning of its copy.
    assert!(of(&[b'n'; MAX_NAME + 1]).0.len() > MAX_NAME);
}

#[test]
fn given_something_else_at_the_destination_by_the_time_that_it_is_whole_it_stays() {
    type Put = fn(&Path);
    let puts: [(Put, &str); 2] = [
        (
            |path| std::os::unix::fs::symlink("/nowhere", path).expect("linked"),
            "destination-is-link",
        ),
        (
            |path| std::fs::create_dir(path).expect("made"),
            "destination-occupied",
        ),
    ];
    for (put, code) in puts {
        let folder = tempfile::tempdir().expect("a folder");
        let partial = begin(folder.path(), TAG, false).expect("begun");
        for number in 0..4 {
            write(&partial, number, 7).expect("written");
        }
        let path = folder.path().join("m.bin");
        put(&path);
        let before = path.symlink_metadata().expect("there").file_type();
        assert_eq!(partial.publish().expect_err("refused").code(), code);
        drop(partial);
        assert_eq!(path.symlink_metadata().expect("there").file_type(), before);
        assert_eq!(entries(folder.path()), ["m.bin"]);
    }
}
