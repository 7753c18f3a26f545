//! Which files a copy consists of, and where each belongs.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::{Asked, Side, Terms};
use crate::service::client::Opened;
use crate::service::error::ServiceError;
use crate::service::exports;
use crate::service::limits::{MAX_DEPTH, MAX_LISTED};
use crate::service::message::{Entry, Kind};
use crate::service::name::{Location, Name, RelativePath};

/// Where a file comes from.
pub(super) enum From {
    File(PathBuf),
    Served(Name, RelativePath),
}

/// Where it goes.
pub(super) enum To {
    File(PathBuf),
    Host,
    Served(Name, RelativePath),
    /// Into exposed memory.
    Memory(Name),
}

/// One file of a copy.
pub(super) struct FilePlan {
    pub from: From,
    pub to: To,
    /// Its length when it was looked at, for the progress.
    pub size: u64,
}

/// All of them, and how many entries of folders were left out.
pub(super) struct Planned {
    pub files: Vec<FilePlan>,
    pub skipped: u64,
}

/// What is at the source.
enum Source {
    /// One file, or exposed memory, and its length.
    One(u64),
    /// Paths below a folder, each with its length.
    Many(Vec<(RelativePath, u64)>, u64),
}

pub(super) fn files(asked: &Asked, terms: &Terms) -> Result<Planned, ServiceError> {
    let (source, name) = match &asked.from {
        Side::File(path) => (local(path, asked)?, last_of(path)),
        Side::Served(location) => (served(location, asked, terms)?, below(location)),
        Side::Host => (Source::One(0), None),
    };
    match source {
        Source::One(size) => {
            let from = match &asked.from {
                Side::Served(location) => {
                    From::Served(location.name.clone(), location.path.clone())
                }
                Side::File(path) => From::File(path.clone()),
                Side::Host => From::File(PathBuf::new()),
            };
            let to = target(asked, terms, name.as_deref())?;
            if let (From::File(from), To::File(to)) = (&from, &to) {
                different(asked, from, to)?;
            }
            Ok(Planned {
                files: vec![FilePlan { from, to, size }],
                skipped: 0,
            })
        }
        Source::Many(paths, skipped) => {
            let mut files = Vec::with_capacity(paths.len());
            for (path, size) in paths {
                let from = match &asked.from {
                    Side::Served(location) => {
                        From::Served(location.name.clone(), under(&location.path, &path)?)
                    }
                    Side::File(folder) => From::File(folder.join(path.as_str())),
                    Side::Host => continue,
                };
                let to = match &asked.to {
                    Side::Host => To::Host,
                    Side::File(folder) => To::File(folder.join(path.as_str())),
                    Side::Served(location) => {
                        To::Served(location.name.clone(), under(&location.path, &path)?)
                    }
                };
                if let (From::File(from), To::File(to)) = (&from, &to) {
                    different(asked, from, to)?;
                }
                files.push(FilePlan { from, to, size });
            }
            Ok(Planned { files, skipped })
        }
    }
}

fn last_of(path: &Path) -> Option<String> {
    path.file_name()?.to_str().map(str::to_owned)
}

fn below(location: &Location) -> Option<String> {
    let last = location.path.parted().map(|(_, last)| last.to_owned());
    last.or_else(|| Some(location.name.to_string()))
}

fn under(folder: &RelativePath, path: &RelativePath) -> Result<RelativePath, ServiceError> {
    let joined = match folder.is_empty() {
        true => path.as_str().to_owned(),
        false => format!("{folder}/{path}"),
    };
    Ok(joined.parse()?)
}

fn refused(asked: &Asked, why: &'static str) -> ServiceError {
    ServiceError::NotCopied {
        from: asked.from.place().to_string(),
        to: asked.to.place().to_string(),
        why,
    }
}

const FOLDER: &str = "it is a folder; `-r` copies folders with what is in them";

fn local(path: &Path, asked: &Asked) -> Result<Source, ServiceError> {
    let failed = |error| crate::error::TransferError::Open {
        path: path.display().to_string(),
        source: error,
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_dir() {
        return Ok(Source::One(metadata.len()));
    }
    if !asked.recursive {
        return Err(refused(asked, FOLDER));
    }
    walk(&mut |folder: &RelativePath| {
        let at = match folder.is_empty() {
            true => path.to_owned(),
            false => path.join(folder.as_str()),
        };
        let shown = at.display().to_string();
        let opened = fs::File::open(&at);
        let opened: OwnedFd = opened
            .map_err(|error| ServiceError::file("list", shown.clone(), error))?
            .into();
        exports::list(&opened, &shown)
    })
}

fn served(location: &Location, asked: &Asked, terms: &Terms) -> Result<Source, ServiceError> {
    let client = terms.client()?;
    let (name, path) = (&location.name, &location.path);
    match client.open(name, path, asked.policy, terms.until)? {
        Opened::File { file, size, .. } => {
            client.end(file, false, terms.until)?;
            Ok(Source::One(size))
        }
        Opened::Memory(descriptor) => Ok(Source::One(descriptor.len())),
        Opened::Folder if !asked.recursive => Err(refused(asked, FOLDER)),
        Opened::Folder => walk(&mut |folder: &RelativePath| {
            let at = match folder.is_empty() {
                true => path.clone(),
                false => under(path, folder)?,
            };
            let mut all: Vec<Entry> = Vec::new();
            loop {
                let after = all.last().map_or("", |entry| entry.name.as_str());
                let (entries, more, skipped) = client.list(name, &at, after, terms.until)?;
                all.extend(entries);
                if all.len() > MAX_LISTED {
                    return Err(too_many());
                }
                if !more {
                    return Ok((all, skipped));
                }
            }
        }),
    }
}

fn too_many() -> ServiceError {
    ServiceError::TooMany {
        what: "files in one copy",
        limit: MAX_LISTED,
    }
}

/// All files below a folder, depth first.
fn walk(
    list: &mut dyn FnMut(&RelativePath) -> Result<exports::Entries, ServiceError>,
) -> Result<Source, ServiceError> {
    let mut files = Vec::new();
    let mut skipped = 0;
    let mut folders = vec![(RelativePath::default(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let (entries, left_out) = list(&folder)?;
        skipped += u64::from(left_out);
        for entry in entries {
            let path = folder.join(&entry.name)?;
            match entry.kind {
                Kind::File => files.push((path, entry.size)),
                Kind::Folder if depth + 1 >= MAX_DEPTH => {
                    return Err(ServiceError::TooMany {
                        what: "folders in each other",
                        limit: MAX_DEPTH,
                    });
                }
                Kind::Folder => folders.push((path, depth + 1)),
            }
            if files.len() + folders.len() > MAX_LISTED {
                return Err(too_many());
            }
        }
    }
    Ok(Source::Many(files, skipped))
}

/// Where one file goes; into a folder it goes under its own name.
fn target(asked: &Asked, terms: &Terms, name: Option<&str>) -> Result<To, ServiceError> {
    match &asked.to {
        Side::Host => Ok(To::Host),
        Side::File(path) => {
            let folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
            match (folder, name) {
                (false, _) => Ok(To::File(path.clone())),
                (true, Some(name)) => Ok(To::File(path.join(name))),
                (true, None) => Err(refused(asked, "the source has no name to be copied under")),
            }
        }
        Side::Served(location) => {
            let client = terms.client()?;
            let there = client.open(&location.name, &location.path, asked.policy, terms.until);
            let into = || match name {
                Some(name) => Ok(To::Served(location.name.clone(), location.path.join(name)?)),
                None => Err(refused(asked, "the source has no name to be copied under")),
            };
            match there {
                Ok(Opened::Memory(_)) => Ok(To::Memory(location.name.clone())),
                Ok(Opened::Folder) => into(),
                Ok(Opened::File { file, .. }) => {
                    client.end(file, false, terms.until)?;
                    Ok(To::Served(location.name.clone(), location.path.clone()))
                }
                Err(error) if error.code() == "not-found" => match location.folder {
                    true => into(),
                    false => Ok(To::Served(location.name.clone(), location.path.clone())),
                },
                Err(error) => Err(error),
            }
        }
    }
}

/// Refuses to copy a file over itself.
fn different(asked: &Asked, from: &Path, to: &Path) -> Result<(), ServiceError> {
    use std::os::unix::fs::MetadataExt;
    let (Ok(from), Ok(to)) = (fs::metadata(from), fs::metadata(to)) else {
        return Ok(());
    };
    match (from.dev(), from.ino()) == (to.dev(), to.ino()) {
        true => Err(refused(asked, "both are the same file")),
        false => Ok(()),
    }
}
