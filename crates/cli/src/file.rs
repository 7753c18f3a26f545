//! Files that a command writes for the user: whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::Builder;

use crate::failure::{Exit, Failure};

/// As `creat(2)` makes files: the umask takes away what the user does not want.
const MODE: u32 = 0o666;

/// Puts `bytes` at `path` in one step, replacing the file that is there. What is there and is not a
/// regular file, such as a device, is left alone; a symbolic link stays and its target is replaced.
/// `cancelled` is asked before the step that makes the new file seen.
pub fn replace(
    path: &Path,
    bytes: &[u8],
    cancelled: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let writing = |error: io::Error| Failure::writing(path, &error);
    let target = match fs::metadata(path) {
        Ok(there) if there.is_file() => fs::canonicalize(path).map_err(writing)?,
        Ok(_) => {
            let what = format!(
                "could not write {}: it is not a regular file",
                path.display()
            );
            return Err(Failure::new("output-not-a-file", Exit::CannotCreate, what)
                .hint("leave the option away to write to standard output"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(writing(error)),
    };
    let directory = match target.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mode = std::os::unix::fs::PermissionsExt::from_mode(MODE);
    let mut file = Builder::new()
        .prefix(".crowfly-")
        .permissions(mode)
        .tempfile_in(directory)
        .map_err(writing)?;
    file.write_all(bytes).map_err(writing)?;
    // A file that is seen after a power cut must be whole.
    file.as_file().sync_all().map_err(writing)?;
    cancelled()?;
    file.persist(&target)
        .map_err(|error| writing(error.error))?;
    Ok(())
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
        replace(&link, b"new", || Ok(())).expect("replaced");
        assert_eq!(fs::read(&target).expect("there"), b"new");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(entries(folder.path()), ["link", "target"]);
    }

    #[test]
    fn given_what_is_no_file_it_is_left_alone() {
        for place in ["/dev/null", "/"] {
            let failure = replace(Path::new(place), b"new", || Ok(())).expect_err("refused");
            assert_eq!(failure.code(), "output-not-a-file");
        }
        let null = fs::metadata("/dev/null").expect("there").file_type();
        assert!(std::os::unix::fs::FileTypeExt::is_char_device(&null));
    }

    #[test]
    fn given_an_interruption_the_old_file_stays_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "old").expect("written");
        let failure = replace(&path, b"new", || Err(Failure::interrupted("it")));
        assert_eq!(failure.expect_err("interrupted").exit(), Exit::Interrupted);
        assert_eq!(fs::read(&path).expect("there"), b"old");
        assert_eq!(entries(folder.path()), ["file"]);
    }

    #[test]
    fn given_a_new_file_its_mode_is_what_the_user_gives_new_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ours, usual) = (folder.path().join("ours"), folder.path().join("usual"));
        replace(&ours, b"", || Ok(())).expect("created");
        fs::write(&usual, "").expect("created");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&ours), mode(&usual));
    }

    #[test]
    fn given_a_missing_folder_the_failure_names_the_file() {
        let failure = replace(Path::new("/no/such/file"), b"", || Ok(())).expect_err("refused");
        assert_eq!(failure.code(), "output-not-created");
        assert!(failure.message().contains("/no/such/file"));
    }
}
