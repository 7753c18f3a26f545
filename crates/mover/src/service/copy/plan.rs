//! Which files a copy consists of, and where each belongs.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crowfly_route::place::Place;
use rustix::fs::{AtFlags, FileType};

use super::{Asked, Side, Terms};
use crate::memory::Region;
use crate::objects::ObjectUrl;
use crate::service::attributes::{Attributes, Wanted};
use crate::service::client::Opened;
use crate::service::error::{LIST, ServiceError};
use crate::service::exports;
use crate::service::limits::{MAX_DEPTH, MAX_LISTED};
use crate::service::message::{Entry, Kind};
use crate::service::name::{Location, Name, RelativePath};

mod object;

/// Where a file comes from.
pub(super) enum From {
    File(PathBuf),
    Served(Name, RelativePath),
    Object(ObjectUrl),
    Loaded(Region),
}

/// Where it goes.
pub(super) enum To {
    File(PathBuf),
    /// Nowhere: it is enough that they have arrived.
    Dropped,
    Served(Name, RelativePath),
    /// Into exposed memory.
    Memory(Name),
    Object(ObjectUrl),
}

impl To {
    /// As it stands in receipts.
    pub(super) fn place(&self, asked: &Asked) -> Place {
        match (self, &asked.to) {
            (Self::File(path), _) => Side::File(path.clone()).place(),
            (Self::Object(url), _) => Side::Object(url.clone()).place(),
            (Self::Served(_, path), Side::Served(location)) => Side::Served(Location {
                path: path.clone(),
                folder: false,
                ..location.clone()
            })
            .place(),
            _ => asked.to.place(),
        }
    }
}

/// One file of a copy.
pub(super) struct FilePlan {
    pub from: From,
    pub to: To,
    /// Its length when it was looked at, for the progress.
    pub size: u64,
}

/// One folder of a copy.
pub(super) struct FolderPlan {
    pub to: To,
    pub wanted: Wanted,
}

/// All of them, and how many entries of folders were left out.
pub(super) struct Planned {
    pub files: Vec<FilePlan>,
    /// Those that lie in others behind them.
    pub folders: Vec<FolderPlan>,
    pub skipped: u64,
}

/// What is at the source.
enum Source {
    /// One file, or exposed memory, and its length.
    One(u64),
    /// A folder.
    Many(Tree),
}

/// What is below a folder.
struct Tree {
    /// Each with its length.
    files: Vec<(RelativePath, u64)>,
    /// The folder itself first, then those below it.
    folders: Vec<(RelativePath, Option<Attributes>)>,
    skipped: u64,
}

pub(super) fn files(asked: &Asked, terms: &Terms) -> Result<Planned, ServiceError> {
    if let (true, Side::Object(from), Side::Object(to)) = (asked.recursive, &asked.from, &asked.to)
    {
        return Ok(Planned {
            files: object::across((from, to), terms)?,
            folders: Vec::new(),
            skipped: 0,
        });
    }
    let (source, name) = match &asked.from {
        Side::File(path) => (local(path, asked)?, last_of(path)),
        Side::Served(location) => {
            let name = last_there(location);
            (served(location, asked, terms)?, Some(name))
        }
        Side::Object(url) => (object::look(url, asked, terms)?, Some(url.name().into())),
        Side::Loaded(region) => (Source::One(region.len() as u64), None),
        Side::Host | Side::Gpu(_) => (Source::One(0), None),
    };
    match source {
        Source::One(size) => {
            let from = match &asked.from {
                Side::Served(location) => {
                    From::Served(location.name.clone(), location.path.clone())
                }
                Side::File(path) => From::File(path.clone()),
                Side::Object(url) => From::Object(url.clone()),
                Side::Loaded(region) => From::Loaded(region.clone()),
                Side::Host | Side::Gpu(_) => From::File(PathBuf::new()),
            };
            let to = target(asked, terms, name.as_deref())?;
            if let (From::File(from), To::File(to)) = (&from, &to) {
                different(asked, from, to)?;
            }
            Ok(Planned {
                files: vec![FilePlan { from, to, size }],
                folders: Vec::new(),
                skipped: 0,
            })
        }
        Source::Many(tree) => {
            if let (Side::File(from), Side::File(to)) = (&asked.from, &asked.to) {
                apart(asked, from, to)?;
            }
            let target = |path: &RelativePath| -> Result<To, ServiceError> {
                Ok(match &asked.to {
                    Side::Host | Side::Gpu(_) | Side::Loaded(_) => To::Dropped,
                    Side::Object(url) => To::Object(url.below(path.as_bytes())?),
                    Side::File(folder) => To::File(below(folder, path)),
                    Side::Served(location) => {
                        To::Served(location.name.clone(), location.path.under(path)?)
                    }
                })
            };
            let mut folders = Vec::new();
            // Stores have no folders.
            if !matches!(asked.to, Side::Host | Side::Object(_)) {
                for (path, attributes) in &tree.folders {
                    let to = target(path)?;
                    let wanted = terms.wanted(*attributes);
                    folders.push(FolderPlan { to, wanted });
                }
            }
            let mut files = Vec::with_capacity(tree.files.len());
            for (path, size) in tree.files {
                let from = match &asked.from {
                    Side::Served(location) => {
                        From::Served(location.name.clone(), location.path.under(&path)?)
                    }
                    Side::File(folder) => From::File(below(folder, &path)),
                    Side::Object(url) => From::Object(url.below(path.as_bytes())?),
                    Side::Host | Side::Gpu(_) | Side::Loaded(_) => continue,
                };
                let to = target(&path)?;
                if let (From::File(from), To::File(to)) = (&from, &to) {
                    different(asked, from, to)?;
                }
                files.push(FilePlan { from, to, size });
            }
            Ok(Planned {
                files,
                folders,
                skipped: tree.skipped,
            })
        }
    }
}

fn last_of(path: &Path) -> Option<OsString> {
    path.file_name().map(OsStr::to_owned)
}

fn last_there(location: &Location) -> OsString {
    let last = location.path.parted().map(|(_, last)| last.to_owned());
    last.unwrap_or_else(|| location.name.as_str().into())
}

/// A path below a folder of this machine; the folder itself without a `/` behind it.
fn below(folder: &Path, path: &RelativePath) -> PathBuf {
    match path.is_empty() {
        true => folder.to_owned(),
        false => folder.join(path.as_os_str()),
    }
}

fn refused(asked: &Asked, why: &'static str) -> ServiceError {
    ServiceError::NotCopied {
        from: asked.from.place().to_string(),
        to: asked.to.place().to_string(),
        why,
    }
}

const NOTHING_TO_PRESERVE: &str =
    "-p preserves permissions and times, which memory and devices have none of";
const NAMELESS: &str = "the source has no name to be copied under";
const FOLDER: &str = "it is a folder; `-r` copies folders with what is in them";

fn local(path: &Path, asked: &Asked) -> Result<Source, ServiceError> {
    let failed = |error: std::io::Error| crate::error::TransferError::Open {
        path: path.display().to_string(),
        source: error,
    };
    let stat = rustix::fs::stat(path).map_err(|error| failed(error.into()))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::Directory {
        if asked.preserve && kind != FileType::RegularFile {
            return Err(refused(asked, NOTHING_TO_PRESERVE));
        }
        return Ok(Source::One(u64::try_from(stat.st_size).unwrap_or(0)));
    }
    if !asked.recursive {
        return Err(refused(asked, FOLDER));
    }
    walk((&stat).into(), &mut |folder: &RelativePath| {
        let at = below(path, folder);
        let shown = at.display().to_string();
        let opened = fs::File::open(&at);
        let opened: OwnedFd = opened
            .map_err(|error| ServiceError::file(LIST, shown.clone(), error))?
            .into();
        let through = |name: &OsStr| rustix::fs::statat(&opened, name, AtFlags::empty()).ok();
        let through: Option<&exports::Through<'_>> = match asked.follow {
            true => Some(&through),
            false => None,
        };
        exports::list(&opened, &shown, through)
    })
}

fn served(location: &Location, asked: &Asked, terms: &Terms) -> Result<Source, ServiceError> {
    let client = terms.source()?;
    let (name, path) = (&location.name, &location.path);
    match client.open(name, path, asked.policy, terms.until)? {
        Opened::File { file, size, .. } => {
            client.end(file, false, terms.until)?;
            Ok(Source::One(size))
        }
        Opened::Memory(_) if asked.preserve => Err(refused(asked, NOTHING_TO_PRESERVE)),
        Opened::Memory(descriptor) => Ok(Source::One(descriptor.len())),
        Opened::Folder(_) if !asked.recursive => Err(refused(asked, FOLDER)),
        Opened::Folder(attributes) => walk(attributes, &mut |folder: &RelativePath| {
            let at = path.under(folder)?;
            let mut all: Vec<Entry> = Vec::new();
            loop {
                let last = all.last().map(|entry| entry.name.as_os_str());
                let after = (last.unwrap_or_default(), asked.follow);
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
        what: "files and folders in one copy",
        limit: MAX_LISTED,
    }
}

/// All files and folders below a folder, depth first. Each folder knows those that it lies in.
fn walk(
    top: Attributes,
    list: &mut dyn FnMut(&RelativePath) -> Result<exports::Entries, ServiceError>,
) -> Result<Source, ServiceError> {
    let mut tree = Tree {
        files: Vec::new(),
        folders: Vec::new(),
        skipped: 0,
    };
    let mut ahead = vec![(RelativePath::default(), top, Vec::new())];
    while let Some((folder, attributes, above)) = ahead.pop() {
        let (entries, left_out) = list(&folder)?;
        tree.skipped += u64::from(left_out);
        for entry in entries {
            let path = folder.join(&entry.name)?;
            match entry.kind {
                Kind::File => tree.files.push((path, entry.size)),
                Kind::Folder if above.contains(&entry.id) => {
                    return Err(ServiceError::Cycle {
                        path: path.to_string(),
                    });
                }
                Kind::Folder if above.len() + 1 >= MAX_DEPTH => {
                    return Err(ServiceError::TooMany {
                        what: "folders in each other",
                        limit: MAX_DEPTH,
                    });
                }
                Kind::Folder => {
                    let above = [&above[..], &[entry.id]].concat();
                    ahead.push((path, entry.attributes, above));
                }
            }
            if tree.files.len() + tree.folders.len() + ahead.len() > MAX_LISTED {
                return Err(too_many());
            }
        }
        tree.folders.push((folder, Some(attributes)));
    }
    Ok(Source::Many(tree))
}

/// Where one file goes; into a folder it goes under its own name.
fn target(asked: &Asked, terms: &Terms, name: Option<&OsStr>) -> Result<To, ServiceError> {
    match &asked.to {
        Side::Host | Side::Gpu(_) | Side::Loaded(_) => Ok(To::Dropped),
        Side::Object(url) if !url.is_folder() => Ok(To::Object(url.clone())),
        Side::Object(url) => {
            let name = name.ok_or_else(|| refused(asked, NAMELESS))?;
            Ok(To::Object(url.below(name.as_encoded_bytes())?))
        }
        Side::File(path) => {
            let folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
            match (folder, name) {
                (false, _) => Ok(To::File(path.clone())),
                (true, Some(name)) => Ok(To::File(path.join(name))),
                (true, None) => Err(refused(asked, NAMELESS)),
            }
        }
        Side::Served(location) => {
            let client = terms.goal()?;
            let there = client.open(&location.name, &location.path, asked.policy, terms.until);
            let into = || match name {
                Some(name) => Ok(To::Served(location.name.clone(), location.path.join(name)?)),
                None => Err(refused(asked, NAMELESS)),
            };
            match there {
                Ok(Opened::Memory(_)) if asked.preserve => Err(refused(asked, NOTHING_TO_PRESERVE)),
                Ok(Opened::Memory(_)) => Ok(To::Memory(location.name.clone())),
                Ok(Opened::Folder(_)) => into(),
                Ok(Opened::File { file, .. }) => {
                    client.end(file, false, terms.until)?;
                    Ok(To::Served(location.name.clone(), location.path.clone()))
                }
                // Of a source it would be that; here it is in the way.
                Err(ServiceError::Remote {
                    server,
                    code: "not-a-file",
                    message,
                }) => Err(ServiceError::Remote {
                    server,
                    code: "destination-occupied",
                    message,
                }),
                Err(error) if error.code() == "not-found" => match location.folder {
                    true => into(),
                    false => Ok(To::Served(location.name.clone(), location.path.clone())),
                },
                Err(error) => Err(error),
            }
        }
    }
}

/// Refuses to copy a folder into itself.
fn apart(asked: &Asked, from: &Path, to: &Path) -> Result<(), ServiceError> {
    // What is not there yet is made below what is.
    let there = to
        .ancestors()
        .find_map(|above| match above.as_os_str().is_empty() {
            true => fs::canonicalize(".").ok(),
            false => fs::canonicalize(above).ok(),
        });
    let (Ok(from), Some(there)) = (fs::canonicalize(from), there) else {
        return Ok(());
    };
    match there.starts_with(&from) {
        true => Err(refused(
            asked,
            "the destination is the source, or lies in it",
        )),
        false => Ok(()),
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
