//! What can be copied to what.

use std::path::PathBuf;
use std::sync::Arc;

use crowfly_route::place::Place;
use crowfly_route::policy::Policy;

use super::Asked;
use crate::gpu::Gpu;
use crate::memory::Region;
use crate::objects::ObjectUrl;
use crate::service::error::ServiceError;
use crate::service::name::Location;

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// A file or folder of this machine.
    File(PathBuf),
    /// Host memory, where the bytes are dropped as soon as they have arrived.
    Host,
    /// A GPU's memory, where the bytes are dropped as soon as they have arrived and, if that is asked for,
    /// were compared there. They come from a server or a store.
    Gpu(Arc<Gpu>),
    /// What was loaded into this process's memory or a GPU's, as the source. It goes to a server or, from a
    /// GPU's memory, to a store.
    Loaded(Region),
    /// What a server exposes.
    Served(Location),
    /// An object in a store, or all that is below a prefix.
    Object(ObjectUrl),
}

impl Side {
    /// As it stands in receipts.
    pub fn place(&self) -> Place {
        match self {
            Self::File(path) => {
                let absolute = std::path::absolute(path);
                let path = absolute.as_deref().unwrap_or(path);
                Place::File(path.display().to_string())
            }
            Self::Host => Place::Host(None),
            Self::Gpu(gpu) => gpu.place(),
            Self::Loaded(region) => region.place(),
            Self::Served(location) => Place::Served(location.to_string()),
            Self::Object(url) => Place::Object(url.to_string()),
        }
    }

    /// Whether the bytes are dropped as soon as they are there.
    pub const fn drops(&self) -> bool {
        matches!(self, Self::Host | Self::Gpu(_))
    }
}

/// Refuses what no copy could be.
pub(super) fn sensible(asked: &Asked) -> Result<(), ServiceError> {
    let refuse = |why| {
        Err(ServiceError::NotCopied {
            from: asked.from.place().to_string(),
            to: asked.to.place().to_string(),
            why,
        })
    };
    match (&asked.from, &asked.to) {
        (Side::Host, _) => refuse("host memory holds nothing that could be copied"),
        (Side::Gpu(_), _) => {
            refuse("memory that nothing was loaded into holds nothing to be copied")
        }
        (Side::Object(from), Side::Object(to)) if asked.one_store() && is_below(from, to) => {
            refuse("the destination is the source, or lies in it")
        }
        (Side::Object(_), _) | (_, Side::Object(_)) if asked.preserve => {
            refuse("-p preserves permissions and times, which objects have none of")
        }
        (_, to) if !asked.replace && !matches!(to, Side::Object(_)) => {
            refuse("only a store is asked not to replace what is there")
        }
        (_, Side::Loaded(_)) => refuse("what was loaded can only be read"),
        (Side::Loaded(_), to) if !matches!(to, Side::Served(_) | Side::Object(_)) => refuse(
            "what was loaded is copied from here to servers and stores; within the machine, `gpu::copy` does",
        ),
        (from, Side::Gpu(_)) if !matches!(from, Side::Served(_) | Side::Object(_)) => {
            refuse("what comes from a server or a store is copied into a GPU's memory from here")
        }
        (Side::Loaded(_), _) | (_, Side::Gpu(_)) if asked.recursive => {
            refuse("a folder is not copied into or out of memory")
        }
        (Side::Loaded(_), _) if asked.resume => {
            refuse("bytes in memory have no version by which their copy could be resumed")
        }
        (Side::Loaded(_), _) if asked.preserve => {
            refuse("bytes in memory have no permissions and times to be preserved")
        }
        (Side::Served(from), Side::Served(to)) if is_within(from, to) => {
            refuse("the destination is the source, or lies in it")
        }
        (Side::File(_), Side::Host | Side::File(_)) if asked.policy == Policy::Socket => {
            refuse("a file of this machine is not read through a socket")
        }
        (_, to) if to.drops() && asked.resume => refuse("bytes that are dropped cannot be resumed"),
        (_, to) if to.drops() && asked.preserve => {
            refuse("bytes that are dropped have no permissions and times to be preserved")
        }
        _ if asked.policy == Policy::Staged => {
            refuse("choose the policy require, prefer or socket")
        }
        _ => Ok(()),
    }
}

/// Whether one object is the other, or below the prefix that the other is.
fn is_below(outer: &ObjectUrl, inner: &ObjectUrl) -> bool {
    let same = outer == inner;
    let below = outer.is_folder() && inner.key().starts_with(outer.key());
    same || below && outer.bucket() == inner.bucket()
}

/// Whether one location is the other or lies below it, as far as their names tell.
fn is_within(outer: &Location, inner: &Location) -> bool {
    let same = (&outer.server, &outer.name) == (&inner.server, &inner.name);
    let mut below = inner.path.components();
    same && outer
        .path
        .components()
        .all(|part| below.next() == Some(part))
}
