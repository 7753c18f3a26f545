//! The two ends of one file's copy.

use std::fs;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crowfly_machine::usage;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;

use super::plan::{From, To};
use super::{Terms, Watch};
use crate::engine::since;
use crate::fabric::RegionDescriptor;
use crate::fabric::provider::Registration;
use crate::memory::Region;
use crate::objects::{
    self, Confirmed, Duplicate, Fate, Object, ObjectError, ObjectUrl, Properties, Upload,
};
use crate::pass;
use crate::service::account::{Doing, Legs, over_http, unseen};
use crate::service::attributes::{Attributes, Wanted};
use crate::service::client::Opened;
use crate::service::error::ServiceError;
use crate::service::exports::tag;
use crate::service::journal::Pieces;
use crate::service::limits::PART;
use crate::service::message::{Request, Tag};
use crate::service::name::Name;
use crate::service::partial::{Partial, Plan, names};
use crate::service::ring::{Slot, Staging, through_host};
use crate::service::session::{hashed, of_storage, same};
use crate::source::Source;

/// Where parts come from.
pub(super) enum Origin {
    File(Box<Source>),
    Remote {
        file: u32,
        size: u64,
        tag: Tag,
        attributes: Option<Attributes>,
        shown: String,
    },
    Memory {
        descriptor: Box<RegionDescriptor>,
        name: Name,
    },
    Object(Arc<Object>),
    /// It lies where the peer reads it.
    Loaded(Region),
}

impl Origin {
    pub(super) fn open(from: &From, terms: &Terms) -> Result<Self, ServiceError> {
        let (name, path) = match from {
            From::File(path) => return Ok(Self::File(Box::new(Source::open(path)?))),
            From::Loaded(region) => return Ok(Self::Loaded(region.clone())),
            From::Object(url) => {
                let object = Object::find(terms.source_store()?, url, terms.request_until())?;
                if terms.policy == Policy::Require {
                    let from = Place::Object(url.to_string());
                    let obstacle = match terms.within {
                        true => unseen(url),
                        false => over_http(url),
                    };
                    return Err(refused(obstacle, from, terms.here.clone()));
                }
                return Ok(Self::Object(Arc::new(object)));
            }
            From::Served(name, path) => (name, path),
        };
        match terms
            .source()?
            .open(name, path, terms.policy, terms.until)?
        {
            Opened::File {
                file,
                size,
                tag,
                attributes,
            } => Ok(Self::Remote {
                file,
                size,
                tag,
                attributes,
                shown: format!("{name}/{path}"),
            }),
            Opened::Memory(descriptor) => Ok(Self::Memory {
                descriptor,
                name: name.clone(),
            }),
            Opened::Folder(_) => Err(ServiceError::WrongKind {
                path: format!("{name}/{path}"),
                found: "a folder",
                wanted: "a file",
            }),
        }
    }

    pub(super) fn size(&self) -> u64 {
        match self {
            Self::File(source) => source.size(),
            Self::Remote { size, .. } => *size,
            Self::Memory { descriptor, .. } => descriptor.len(),
            Self::Object(object) => object.size(),
            Self::Loaded(region) => region.len() as u64,
        }
    }

    /// Where a part is, or comes to: in a buffer, or where it was loaded.
    pub(super) fn slot<'r>(&self, range: &Range<u64>, buffer: &Slot<'r>) -> Slot<'r> {
        match self {
            Self::Loaded(_) => buffer.from(range.start),
            _ => *buffer,
        }
    }

    /// What identifies its state; `None` of memory, which has none.
    fn tag(&self) -> Option<Tag> {
        match self {
            Self::File(source) => Some(tag(&source.stamp())),
            Self::Remote { tag, .. } => Some(*tag),
            Self::Memory { .. } | Self::Loaded(_) => None,
            Self::Object(object) => Some(object_tag(object)),
        }
    }

    /// What it has besides its bytes, if that is anything.
    fn attributes(&self) -> Option<Attributes> {
        match self {
            Self::File(source) => Attributes::of_file(source.buffered()),
            Self::Remote { attributes, .. } => *attributes,
            Self::Memory { .. } | Self::Object(_) | Self::Loaded(_) => None,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::File(source) => source.path().display().to_string(),
            Self::Remote { shown, .. } => shown.clone(),
            Self::Memory { name, .. } => name.to_string(),
            Self::Object(object) => object.url().to_string(),
            Self::Loaded(region) => region.place().to_string(),
        }
    }

    /// Brings a part into a buffer; the checksums of its pieces, if any are made.
    pub(super) fn fetch(
        &self,
        range: &Range<u64>,
        slot: &Slot<'_>,
        terms: &Terms,
        legs: &Legs,
    ) -> Result<Vec<u64>, ServiceError> {
        let len = (range.end - range.start) as usize;
        match self {
            Self::File(source) => {
                let policy = of_storage(terms.policy);
                let ledger = pass::read(source, range.clone(), &slot.spot()?, policy)?;
                legs.stored(Doing::Reading, ledger);
                Ok(match terms.sums() {
                    true => hashed(slot, len, legs, Doing::Reading)?,
                    false => Vec::new(),
                })
            }
            Self::Remote { file, .. } => {
                let client = terms.source()?;
                let part = (range.start, len);
                let left = client.read(*file, part, slot, terms.verify, terms.until)?;
                // What NICs wrote into a GPU's memory is shown to it before anybody looks.
                slot.show().into_iter().for_each(|said| legs.shown(said));
                self.compared(range, &left, slot, terms, legs)
            }
            Self::Memory { descriptor, name } => {
                let client = terms.source()?;
                let options = client.options(terms.policy, terms.until)?;
                let there = descriptor.slice(range.clone())?;
                let here = slot.of(client.ring(), len)?;
                let delivery = client.peer().read(&here, &there, options).wait()?;
                slot.show().into_iter().for_each(|said| legs.shown(said));
                legs.crossed(Doing::Crossing, delivery);
                let left = match terms.verify {
                    true => client.sums_of(name, range.start, len, terms.until)?,
                    false => Vec::new(),
                };
                self.compared(range, &left, slot, terms, legs)
            }
            Self::Object(object) => {
                let cpu = usage::this_thread();
                let spot = slot.spot()?;
                let target = spot.memory.target(spot.at..spot.at + len);
                let put = |at: usize, bytes: &[u8]| target.put(at, bytes);
                let read = object.read(range, terms.request_until(), &put);
                // A request that ends at the time of all of the copy says so.
                let retries = read.or_else(|error| terms.in_time().and(Err(error.into())))?;
                legs.downloaded(object, len as u64, since(cpu), retries);
                Ok(match terms.sums() {
                    true => hashed(slot, len, legs, Doing::Crossing)?,
                    false => Vec::new(),
                })
            }
            Self::Loaded(region) => {
                if let Some(staging) = slot.staging() {
                    let cpu = usage::this_thread();
                    staging.leave(region, range, slot)?;
                    legs.staged(Doing::Reading, staging, len as u64, since(cpu));
                } else if let Ok(spot) = slot.spot() {
                    // What goes on by HTTP is gathered in a buffer; what peers read lies where it was loaded.
                    let part = region.part(range.start as usize..range.end as usize);
                    let bytes = part.as_ref().and_then(Region::as_slice);
                    let bytes = bytes.ok_or_else(|| ServiceError::WrongKind {
                        path: region.place().to_string(),
                        found: "memory whose bytes can vanish",
                        wanted: "plain memory of this process",
                    })?;
                    spot.memory.target(spot.at..spot.at + len).put(0, bytes);
                }
                Ok(match terms.sums() {
                    true => hashed(slot, len, legs, Doing::Crossing)?,
                    false => Vec::new(),
                })
            }
        }
    }

    /// The checksums of what arrived, held against those of what left.
    fn compared(
        &self,
        range: &Range<u64>,
        left: &[u64],
        slot: &Slot<'_>,
        terms: &Terms,
        legs: &Legs,
    ) -> Result<Vec<u64>, ServiceError> {
        if !terms.sums() {
            return Ok(Vec::new());
        }
        let len = (range.end - range.start) as usize;
        let arrived = hashed(slot, len, legs, Doing::Crossing)?;
        if terms.verify {
            same(&self.shown(), range.start, left, &arrived)?;
        }
        Ok(arrived)
    }

    /// Looks whether it is still what it was when the copy began, and lets go of it.
    pub(super) fn end(&self, terms: &Terms, legs: &Legs) -> Result<(), ServiceError> {
        match self {
            Self::File(source) => Ok(source.unchanged()?),
            Self::Remote { file, .. } => {
                let (_, told) = terms.source()?.end(*file, false, terms.until)?;
                legs.told(&told, Doing::Crossing);
                Ok(())
            }
            // Each request named the version that it was of.
            Self::Memory { .. } | Self::Object(_) | Self::Loaded(_) => Ok(()),
        }
    }
}

/// That policy rules a store out.
fn refused(obstacle: Obstacle, from: Place, to: Place) -> ServiceError {
    let mut obstacles = vec![obstacle];
    let gpu = [&from, &to]
        .into_iter()
        .find(|place| matches!(place, Place::Gpu(_)));
    obstacles.extend(gpu.map(through_host));
    let refused = crate::error::TransferError::Refused {
        from: Box::new(from),
        to: Box::new(to),
        policy: Policy::Require,
        obstacles,
    };
    refused.into()
}

/// What identifies a version of an object.
fn object_tag(object: &Object) -> Tag {
    let mut hash = blake3::Hasher::new_derive_key("crowfly object version 1");
    for part in [&object.url().to_string(), object.version()] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(&object.size().to_le_bytes());
    let mut tag = [0; 16];
    hash.finalize_xof().fill(&mut tag);
    Tag(tag)
}

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

/// Begins an object.
fn upload(url: &ObjectUrl, origin: &Origin, terms: &Terms) -> Result<Goal, ServiceError> {
    if terms.policy == Policy::Require {
        let to = Place::Object(url.to_string());
        return Err(refused(over_http(url), terms.here.clone(), to));
    }
    let (size, until) = (origin.size(), terms.request_until());
    let source = match origin {
        Origin::Object(object) if terms.within && size > 0 => {
            Some(Duplicate::of(object, terms.replace, until)?)
        }
        _ => None,
    };
    let wanted = objects::Wanted {
        size,
        resume: terms.resume,
        checked: terms.sums() && source.is_none(),
        replace: terms.replace,
        properties: match origin {
            Origin::Object(object) => object.properties().clone(),
            _ => Properties::default(),
        },
        source,
    };
    let upload = Upload::begin(terms.goal_store()?, url, wanted, until)?;
    if size == 0 {
        // What has no parts is none that anybody would deliver.
        upload.put(&(0..0), &[], &AtomicBool::new(false), terms.request_until())?;
    }
    Ok(Goal::Object(Box::new(upload)))
}

/// Brings a part of an object to its store; whether it was not there before.
pub(super) fn deliver(
    upload: &Upload,
    range: &Range<u64>,
    bytes: &[u8],
    stop: &AtomicBool,
    terms: &Terms,
    legs: &Legs,
) -> Result<bool, ServiceError> {
    let cpu = usage::this_thread();
    let put = upload.put(range, bytes, stop, terms.far_until(bytes.len() as u64));
    let fate = in_time(put, stop, terms)?;
    let (moved, retries) = match fate {
        Fate::Sent(retries) => (bytes.len() as u64, retries),
        Fate::There => (0, 0),
    };
    legs.uploaded(
        terms.crossing_to_store(),
        upload,
        moved,
        since(cpu),
        (retries, terms.apart),
    );
    Ok(matches!(fate, Fate::Sent(_)))
}

/// Has a store copy a part by itself; whether it was not there before.
pub(super) fn duplicate(
    upload: &Upload,
    range: &Range<u64>,
    stop: &AtomicBool,
    terms: &Terms,
    legs: &Legs,
) -> Result<bool, ServiceError> {
    terms.in_time()?;
    let cpu = usage::this_thread();
    let bytes = range.end - range.start;
    let copied = upload.copy(range.start, stop, terms.far_until(bytes));
    let (moved, retries) = match in_time(copied, stop, terms)? {
        Fate::Sent(retries) => (bytes, retries),
        Fate::There => (0, 0),
    };
    legs.within(upload, moved, since(cpu), retries);
    Ok(moved > 0)
}

/// What a store answered, unless its request ended with all of the copy, or at its time.
fn in_time<T>(
    answered: Result<T, ObjectError>,
    stop: &AtomicBool,
    terms: &Terms,
) -> Result<T, ServiceError> {
    answered.or_else(|error| match stop.load(Ordering::Acquire) {
        true => Err(crate::error::TransferError::Cancelled.into()),
        false => terms.in_time().and(Err(error.into())),
    })
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
    fs::create_dir_all(folder).map_err(failed("make the folder of"))?;
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
