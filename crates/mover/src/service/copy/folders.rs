//! The folders of a copy: made before what belongs into them, and given what their sources have after it.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::Terms;
use super::plan::{FolderPlan, To};
use crate::service::attributes::Wanted;
use crate::service::error::ServiceError;
use crate::service::partial;

/// Folders that are there, those that lie in others behind them.
pub(super) struct Folders(Vec<(FolderPlan, bool)>);

impl Folders {
    /// Makes those that are missing.
    ///
    /// # Errors
    /// When something else is there, or the file system or the server refuses.
    pub(super) fn make(plans: Vec<FolderPlan>, terms: &Terms) -> Result<Self, ServiceError> {
        let mut folders = Vec::with_capacity(plans.len());
        for plan in plans {
            terms.in_time()?;
            let made = match &plan.to {
                To::File(path) => make(path, &plan.wanted)?,
                To::Served(name, path) => {
                    let how = (plan.wanted, false);
                    terms.goal()?.folder(name, path, how, terms.until)?
                }
                To::Dropped | To::Memory(_) | To::Object(_) => continue,
            };
            folders.push((plan, made));
        }
        Ok(Self(folders))
    }

    /// Gives those that were made here, and all where that is to be preserved, what they are to have; how
    /// many folders there are.
    ///
    /// # Errors
    /// When the file system or the server refuses.
    pub(super) fn finish(self, terms: &Terms) -> Result<u64, ServiceError> {
        let all = self.0.len() as u64;
        if terms.resume {
            self.forget(terms)?;
        }
        // What lies in a folder first: it changes the folder's time.
        for (plan, made) in self.0.iter().rev() {
            if !(*made || plan.wanted.preserved) {
                continue;
            }
            match &plan.to {
                To::File(path) => {
                    let given =
                        fs::File::open(path).and_then(|folder| plan.wanted.give(folder, None));
                    given.map_err(|error| failed("finish the folder", path, error))?;
                }
                // What is exposed itself is the server's.
                To::Served(_, path) if path.is_empty() => {}
                To::Served(name, path) => {
                    let how = (plan.wanted, true);
                    terms.goal()?.folder(name, path, how, terms.until)?;
                }
                To::Dropped | To::Memory(_) | To::Object(_) => {}
            }
        }
        Ok(all)
    }
}

impl Folders {
    /// All is there: that files were finished need not be remembered any more.
    fn forget(&self, terms: &Terms) -> Result<(), ServiceError> {
        for (plan, _) in &self.0 {
            match &plan.to {
                To::File(path) => {
                    let folder = fs::File::open(path);
                    let forgotten = folder.and_then(|folder| partial::forget(&folder.into()));
                    forgotten.map_err(|error| failed("finish the folder", path, error))?;
                }
                To::Served(name, path) => terms.goal()?.forget(name, path, terms.until)?,
                To::Dropped | To::Memory(_) | To::Object(_) => {}
            }
        }
        Ok(())
    }
}

fn failed(what: &'static str, path: &Path, error: io::Error) -> ServiceError {
    ServiceError::file(what, path.display().to_string(), error)
}

/// Makes a folder of this machine, and those on the way to it; whether it was not there before.
fn make(path: &Path, wanted: &Wanted) -> Result<bool, ServiceError> {
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above).map_err(|error| failed("make the folder", above, error))?;
    }
    match rustix::fs::mkdir(path, wanted.of_new_folder()) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) if path.is_dir() => Ok(false),
        Err(Errno::EXIST) if fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) => {
            Err(ServiceError::Link {
                path: path.display().to_string(),
            })
        }
        Err(Errno::EXIST) => Err(ServiceError::Occupied {
            path: path.display().to_string(),
            found: "a file or device",
            wanted: "a folder",
        }),
        Err(error) => Err(failed("make the folder", path, error.into())),
    }
}
