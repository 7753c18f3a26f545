//! What is asked of a store that a copy goes to: the object begun, its parts brought or copied there.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crowfly_machine::usage;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;

use super::Terms;
use super::goal::Goal;
use super::origin::Origin;
use crate::engine::since;
use crate::objects::{self, Duplicate, Fate, ObjectError, ObjectUrl, Properties, Upload};
use crate::service::account::{Legs, over_http};
use crate::service::error::ServiceError;
use crate::service::ring::through_host;

/// That policy rules a store out.
pub(super) fn refused(obstacle: Obstacle, from: Place, to: Place) -> ServiceError {
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

/// Begins an object.
pub(super) fn upload(
    url: &ObjectUrl,
    origin: &Origin,
    terms: &Terms,
) -> Result<Goal, ServiceError> {
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
