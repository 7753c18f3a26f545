//! Where the parts of one file's copy go.

use std::fs;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crowfly_machine::usage;
use crowfly_route::place::Place;

use super::origin::Origin;
use super::plan::To;
use super::stored::upload;
use super::{Terms, Watch};
use crate::engine::since;
use crate::fabric::RegionDescriptor;
use crate::fabric::provider::Registration;
use crate::objects::{Confirmed, Upload};
use crate::service::account::{Doing, Legs};
use crate::service::attributes::Wanted;
use crate::service::client::Opened;
use crate::service::error::ServiceError;
use crate::service::journal::Pieces;
use crate::service::limits::PART;
use crate::service::message::{Request, Tag};
use crate::service::name::Name;
use crate::service::partial::{Partial, Plan, names};
use crate::service::ring::{Slot, Staging};
use crate::service::session::{hashed, of_storage, same};

/// An unfinished file of this machine, which whoever watches is told of.
pub(super) struct Watching {
    paths: Vec<PathBuf>,
    watch: Watch,
}

impl Watching {
    fn over(target: &Path, watch: &Watch) -> Self {
        let name = target.file_name().unwrap_or_default();
        let (partial, journal) = names(name);
        let paths = vec![
            target.with_file_name(partial),
            target.with_file_name(journal),
        ];
        paths.iter().for_each(|path| watch(path, true));
        let watch = watch.clone();
        Self { paths, watch }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.paths.iter().for_each(|path| (self.watch)(path, false));
    }
}

/// What is known of the bytes of a file at its destination.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// Their checksum, as this project makes it.
    Digest(u64),
    /// What the store that copied them says of them.
    AtStore(Confirmed),
}

/// Where parts go.
pub(super) enum Goal {
    Dropped,
    // The file is let go of before whoever watches it is told that it is finished.
    File {
        partial: Box<Partial>,
        _watching: Option<Watching>,
    },
    Remote {
        file: u32,
        have: Vec<Range<u64>>,
    },
    Memory {
        descriptor: Box<RegionDescriptor>,
        name: Name,
    },
    Object(Box<Upload>),
}

impl Goal {
    /// Begins, or goes on; `remember` keeps a whole file's journal until the folder it is copied with is
    /// whole too.
    pub(super) fn begin(
        to: &To,
        origin: &Origin,
        terms: &Terms,
        remember: bool,
    ) -> Result<Self, ServiceError> {
        let length = origin.size();
        let tag = || match origin.tag() {
            Some(tag) => Ok(tag),
            None if terms.resume => Err(ServiceError::SourceChanged {
                path: origin.shown(),
                why: "memory has no version by which it could be told whether it changed",
            }),
            None => Ok(Tag([0; 16])),
        };
        let wanted = terms.wanted(origin.attributes());
        match to {
            To::Dropped => Ok(Self::Dropped),
            // What is there already is told by its bytes.
            To::Object(url) => upload(url, origin, terms),
            To::File(path) => local(path, length, (tag()?, wanted, remember), terms),
            To::Served(name, path) => {
                let request = Request::Create {
                    name: name.clone(),
                    path: path.clone(),
                    size: length,
                    tag: tag()?,
                    resume: terms.resume,
                    remember,
                    policy: terms.policy,
                    wanted,
                };
                let (file, have) = terms.goal()?.create(request, terms.until)?;
                Ok(Self::Remote { file, have })
            }
            To::Memory(name) => {
                tag()?;
                let path = crate::service::RelativePath::default();
                let opened = terms.goal()?.open(name, &path, terms.policy, terms.until)?;
                let Opened::Memory(descriptor) = opened else {
                    return Err(ServiceError::WrongKind {
                        path: name.to_string(),
                        found: "something else by now",
                        wanted: "memory",
                    });
                };
                match length <= descriptor.len() {
                    true => Ok(Self::Memory {
                        descriptor,
                        name: name.clone(),
                    }),
                    false => Err(ServiceError::DoesNotFit {
                        bytes: length,
                        name: name.to_string(),
                        room: descriptor.len(),
                    }),
                }
            }
        }
    }

    /// Bytes of a part, save the last.
    pub(super) const fn unit(&self) -> u64 {
        match self {
            Self::Object(upload) => upload.unit(),
            _ => PART,
        }
    }

    /// Whether the destination itself said that what arrived is what left.
    pub(super) fn is_confirmed(&self) -> bool {
        matches!(self, Self::Object(upload) if upload.is_confirmed())
    }

    /// Ranges that are there already, and the checksums of pieces that are known.
    pub(super) fn have(&self) -> (Vec<Range<u64>>, Pieces) {
        match self {
            Self::File { partial, .. } => (partial.have(), partial.pieces()),
            Self::Remote { have, .. } => (have.clone(), Pieces::new()),
            _ => (Vec::new(), Pieces::new()),
        }
    }

    /// Takes a part out of a buffer.
    pub(super) fn store(
        &self,
        range: &Range<u64>,
        sums: Vec<u64>,
        slot: &Slot<'_>,
        terms: &Terms,
        legs: &Legs,
    ) -> Result<(), ServiceError> {
        let len = (range.end - range.start) as usize;
        match self {
            // Parts of objects are delivered, see below.
            Self::Object(_) => Ok(()),
            Self::Dropped => match slot.staging() {
                Some(staging) => enter(staging, range, &sums, slot, terms, legs),
                None => Ok(()),
            },
            Self::File { partial, .. } => {
                let ledger = partial.write(range.clone(), &slot.spot()?, &sums)?;
                legs.stored(Doing::Writing, ledger);
                Ok(())
            }
            Self::Remote { file, .. } => {
                let client = terms.goal()?;
                let sent = if terms.verify { sums } else { Vec::new() };
                client.write(*file, (range.start, len), slot, sent, terms.until)?;
                Ok(())
            }
            Self::Memory { descriptor, name } => {
                let client = terms.goal()?;
                let options = client.options(terms.policy, terms.until)?;
                let there = descriptor.slice(range.clone())?;
                let here = slot.of(client.ring(), len)?;
                let delivery = client.peer().write(&here, &there, options).wait()?;
                legs.crossed(terms.last_crossing(), delivery);
                if terms.verify {
                    let arrived = client.sums_of(name, range.start, len, terms.until)?;
                    same(name.as_str(), range.start, &sums, &arrived)?;
                }
                Ok(())
            }
        }
    }

    /// Makes it appear, whole; its checksum where that is known here or there.
    pub(super) fn finish(
        &self,
        stop: &AtomicBool,
        terms: &Terms,
        legs: &Legs,
    ) -> Result<Option<Known>, ServiceError> {
        match self {
            Self::Dropped | Self::Memory { .. } => Ok(None),
            Self::Object(upload) => {
                if upload.is_copied() {
                    let confirmed = upload.finish_copy(terms.sums(), stop, terms.request_until());
                    return Ok(confirmed?.map(Known::AtStore));
                }
                upload.finish(terms.request_until())?;
                Ok(None)
            }
            Self::File { partial, .. } => {
                partial.publish()?;
                Ok(partial.digest().map(Known::Digest))
            }
            Self::Remote { file, .. } => {
                let (digest, told) = terms.goal()?.end(*file, true, terms.until)?;
                legs.told(&told, terms.last_crossing());
                Ok(digest.map(Known::Digest))
            }
        }
    }

    /// Lets go of it, unfinished.
    pub(super) fn give_up(&self, terms: &Terms) {
        if let (Self::Remote { file, .. }, Some(client)) = (self, &terms.goal) {
            // A server that cannot be told notices that the connection is gone.
            let _ = client.end(*file, false, terms.until);
        }
    }
}

/// Brings a part that came by HTTP into a GPU's memory, and looks whether it came there as it was.
fn enter(
    staging: &Staging,
    range: &Range<u64>,
    sums: &[u64],
    slot: &Slot<'_>,
    terms: &Terms,
    legs: &Legs,
) -> Result<(), ServiceError> {
    let len = (range.end - range.start) as usize;
    let cpu = usage::this_thread();
    if !staging.enter(slot, len)? {
        return Ok(());
    }
    legs.staged(Doing::Writing, staging, len as u64, since(cpu));
    legs.shown(Registration::copied_by_the_gpu());
    if terms.verify {
        staging.bring_back(slot, len)?;
        let arrived = hashed(slot, len, legs, Doing::Writing)?;
        let place = Place::Gpu(staging.gpu()).to_string();
        same(&place, range.start, sums, &arrived)?;
    }
    Ok(())
}

/// What is there on the way to a folder and is none.
fn not_a_folder(folder: &Path) -> Option<&Path> {
    let mut there = folder.ancestors().filter_map(|path| {
        let known = fs::metadata(path).ok()?;
        Some((path, known.is_dir()))
    });
    let (path, is_folder) = there.next()?;
    (!is_folder).then_some(path)
}

/// Begins a file of this machine.
fn local(
    path: &Path,
    length: u64,
    (tag, wanted, remember): (Tag, Wanted, bool),
    terms: &Terms,
) -> Result<Goal, ServiceError> {
    let shown = path.display().to_string();
    let failed = |what: &'static str| {
        let shown = shown.clone();
        move |error: std::io::Error| ServiceError::file(what, shown, error)
    };
    // A link stays, and what it leads to is replaced; one that leads nowhere is refused.
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(_) => path.to_owned(),
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(|error| match not_a_folder(folder) {
        Some(path) => ServiceError::Occupied {
            path: path.display().to_string(),
            found: "a file or device",
            wanted: "a folder",
        },
        None => failed("make the folder of")(error),
    })?;
    let folder: OwnedFd = fs::File::open(folder)
        .map_err(failed("open the folder of"))?
        .into();
    let name = path.file_name().ok_or_else(|| ServiceError::WrongKind {
        path: shown.clone(),
        found: "the name of a folder",
        wanted: "that of a file",
    })?;
    let watch = terms.watch.as_ref().filter(|_| !terms.resume);
    let watching = watch.map(|watch| Watching::over(&path, watch));
    let partial = Partial::begin(Plan {
        folder,
        name,
        shown,
        length,
        tag,
        resume: terms.resume,
        remember,
        policy: of_storage(terms.policy),
        wanted,
    })?;
    Ok(Goal::File {
        partial: Box::new(partial),
        _watching: watching,
    })
}
