//! Files that a command writes for the user: whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::failure::{Exit, Failure};
use crate::interrupt::Leftover;
use crate::path::shown;

/// As `creat(2)` makes files: the umask takes away what the user does not want.
const MODE: u32 = 0o666;
/// How standard output is named where a file is expected.
pub const STREAM: &str = "-";
/// See `path_resolution(7)`.
const MAX_LINKS: usize = 40;

/// Puts `bytes` at `path` in one step, replacing the file that is there. What is there and is not a
/// regular file, such as a device, is left alone; a symbolic link stays and its target is replaced.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    not_a_stream(path)?;
    let creating = |error: io::Error| Failure::creating(path, &error);
    let target = match fs::metadata(path) {
        Ok(there) if there.is_file() => fs::canonicalize(path).map_err(creating)?,
        Ok(_) => {
            let what = format!("could not write {}: it is not a regular file", shown(path));
            return Err(Failure::new("output-not-a-file", Exit::CannotCreate, what)
                .hint("leave the option away to write to standard output"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => past_links(path),
        Err(error) => return Err(creating(error)),
    };
    let directory = match target.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mode = std::os::unix::fs::PermissionsExt::from_mode(MODE);
    let make = || {
        let mut named = Builder::new();
        let named = named.prefix(".crowfly-").permissions(mode);
        named.tempfile_in(directory)
    };
    let made = Leftover::make(make, NamedTempFile::path);
    let creating = |error: io::Error| creating(without_path(error));
    let (mut file, _unfinished) = made.map_err(creating)?;
    file.write_all(bytes).map_err(creating)?;
    // A file that is seen after a power cut must be whole.
    file.as_file().sync_all().map_err(creating)?;
    file.persist(&target)
        .map_err(|error| creating(error.error))?;
    Ok(())
}

/// Refuses `-`, by which many programs mean standard output: the answer goes there, and a picture or
/// report in the middle of it would be neither.
pub fn not_a_stream(path: &Path) -> Result<(), Failure> {
    if path.as_os_str() != STREAM {
        return Ok(());
    }
    Err(
        Failure::usage("standard output (`-`) takes the answer; a picture or report needs a file")
            .hint("name a file, or `./-` for one of that name"),
    )
}

/// Finds out before long work, not after it, that a file has nowhere to go.
pub fn check_folder(file: &Path) -> Result<(), Failure> {
    not_a_stream(file)?;
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let looked = folder.metadata();
    match looked {
        Ok(folder) if folder.is_dir() => Ok(()),
        Ok(_) => Err(Failure::creating(
            file,
            &std::io::ErrorKind::NotADirectory.into(),
        )),
        Err(error) => Err(Failure::creating(file, &error)),
    }
}

/// Where a file that is not there yet will lie: at the end of the links that lead to it.
fn past_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // The kernel has just followed them, and never follows more than this.
    for _ in 0..MAX_LINKS {
        let Ok(points) = fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(points);
    }
    path
}

/// The system's answer alone: the name of a temporary file means nothing to anyone. What makes
/// temporary files keeps only the text of the answer, in which its number stands.
pub fn without_path(error: io::Error) -> io::Error {
    let told = error.to_string();
    let Some((answer, _)) = told.rsplit_once(" at path ") else {
        return error;
    };
    let number = answer.rsplit_once("(os error ");
    let number = number.and_then(|(_, number)| number.strip_suffix(')')?.parse().ok());
    match number {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), answer),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn entries(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let name = |entry: io::Result<fs::DirEntry>| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn given_a_link_its_target_is_replaced_and_the_link_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "old").expect("written");
        symlink("target", &link).expect("linked");
        replace(&link, b"new").expect("replaced");
        assert_eq!(fs::read(&target).expect("there"), b"new");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(entries(folder.path()), ["link", "target"]);
    }

    #[test]
    fn given_what_is_no_file_it_is_left_alone() {
        for place in ["/dev/null", "/"] {
            let failure = replace(Path::new(place), b"new").expect_err("refused");
            assert_eq!(failure.code(), "output-not-a-file");
        }
        let null = fs::metadata("/dev/null").expect("there").file_type();
        assert!(std::os::unix::fs::FileTypeExt::is_char_device(&null));
    }

    #[test]
    fn given_the_name_of_standard_output_no_file_of_that_name_is_made() {
        let failure = replace(Path::new("-"), b"new").expect_err("refused");
        assert_eq!((failure.code(), failure.exit()), ("usage", Exit::Usage));
        assert!(!Path::new("-").exists());
    }

    #[test]
    fn given_a_new_file_its_mode_is_what_the_user_gives_new_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ours, usual) = (folder.path().join("ours"), folder.path().join("usual"));
        replace(&ours, b"").expect("created");
        fs::write(&usual, "").expect("created");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&ours), mode(&usual));
    }

    #[test]
    fn given_an_answer_about_a_temporary_file_its_number_stays_and_the_path_goes() {
        let made = NamedTempFile::new_in("/no/such/folder").expect_err("nowhere");
        assert_eq!(
            (made.raw_os_error(), made.kind()),
            (None, io::ErrorKind::NotFound)
        );
        let answer = without_path(made);
        assert_eq!(answer.raw_os_error(), Some(2));
        assert_eq!(answer.to_string(), "No such file or directory (os error 2)");
        assert_eq!(without_path(io::Error::other("torn")).to_string(), "torn");
    }

    #[test]
    fn given_a_link_to_a_file_that_is_not_there_yet_it_is_made_where_the_link_points() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("link");
        symlink("target", &link).expect("linked");
        replace(&link, b"new").expect("created");
        assert_eq!(
            fs::read(folder.path().join("target")).expect("there"),
            b"new"
        );
        assert_eq!(entries(folder.path()), ["link", "target"]);
    }

    #[test]
    fn given_a_file_that_cannot_be_made_the_failure_names_it_and_no_temporary_one() {
        let loops = tempfile::tempdir().expect("a folder");
        let looped = loops.path().join("loop");
        symlink("loop", &looped).expect("linked");
        let long = loops.path().join("x".repeat(300));
        let below_a_file = Path::new("/dev/null/file");
        for path in [Path::new("/no/such/file"), below_a_file, &looped, &long] {
            let failure = replace(path, b"").expect_err("refused");
            assert_eq!(failure.code(), "output-not-created");
            assert_eq!(failure.exit(), Exit::CannotCreate);
            assert!(failure.message().contains(&shown(path)), "{failure:?}");
            assert!(!failure.message().contains(".crowfly-"), "{failure:?}");
        }
        assert_eq!(entries(loops.path()), ["loop"]);
    }
}
