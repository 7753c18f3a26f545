//! A folder that all processes see: on one host, or on a shared file system.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Directory, MAX_ENTRY, Presence, RendezvousError, check_name};

/// A folder with one file for each entry.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder at this path; it is made when an entry is written and it does not exist.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self(path.as_ref().to_owned())
    }

    fn failed(&self, source: io::Error) -> RendezvousError {
        RendezvousError::Directory {
            directory: self.0.display().to_string(),
            source: Arc::new(source),
        }
    }
}

impl Directory for Folder {
    fn put(&self, name: &str, entry: &str) -> Result<(), RendezvousError> {
        check_name(name)?;
        // Written aside and renamed, so that nobody reads half of it.
        let aside = self.0.join(format!(".{name}.{}", std::process::id()));
        let write = || {
            fs::create_dir_all(&self.0)?;
            let mut file = File::create(&aside)?;
            file.write_all(entry.as_bytes())?;
            file.sync_all()?;
            fs::rename(&aside, self.0.join(name))
        };
        write().map_err(|error| self.failed(error))
    }

    /// A process that is killed leaves its entry behind; whoever connects to it is told by the life
    /// it names.
    fn hold(&self, name: &str, entry: &str) -> Result<Presence, RendezvousError> {
        self.put(name, entry)?;
        let (folder, name, entry) = (self.clone(), name.to_owned(), entry.to_owned());
        Ok(Presence::new(move || {
            // A successor may have written over it.
            if folder.get(&name).is_ok_and(|found| found == Some(entry)) {
                let _ = fs::remove_file(folder.0.join(&name));
            }
        }))
    }

    fn get(&self, name: &str) -> Result<Option<String>, RendezvousError> {
        check_name(name)?;
        let file = match File::open(self.0.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        let mut text = String::new();
        let mut bounded = file.take(MAX_ENTRY as u64 + 1);
        bounded
            .read_to_string(&mut text)
            .map_err(|error| self.failed(error))?;
        Ok(Some(text))
    }
}
