//! Objects in stores that speak S3's protocol: read by ranges, written whole or in parts, listed. Each
//! request is signed; reads name the version of the object that they are of, and what is written appears
//! only once all of it is there.
//!
//! Nothing is read from the environment here: whoever asks says where the store is and who they are.

use std::path::PathBuf;

mod answer;
mod error;
mod instance;
mod listing;
mod object;
mod sign;
mod store;
mod upload;
mod url;

pub use error::ObjectError;
pub use instance::Instance;
pub use sign::Credentials;
pub use url::ObjectUrl;

pub(crate) use listing::{Listed, list};
pub(crate) use object::Object;
pub(crate) use store::Store;
pub(crate) use upload::{Fate, Upload, Wanted, at_a_time, time_for};

/// Where a store is, and as whom it is asked.
#[derive(Clone, Debug, Default)]
pub struct StoreSettings {
    /// `http://HOST[:PORT]` or `https://HOST[:PORT]`; Amazon's when `None`.
    pub endpoint: Option<String>,
    /// The region, which is part of each signature; `us-east-1` when `None`.
    pub region: Option<String>,
    /// Who asks; nobody in particular when `None`, and then nothing is signed.
    pub credentials: Option<Credentials>,
    /// A file of the authorities that are trusted, as PEM; those that browsers trust when `None`.
    pub authorities: Option<PathBuf>,
}
