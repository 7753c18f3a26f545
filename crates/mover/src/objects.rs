//! Objects in stores that speak S3's protocol: read by ranges, written whole or in parts, listed. Each
//! request is signed; reads name the version of the object that they are of, and what is written appears
//! only once all of it is there.
//!
//! Nothing is read from the environment here: whoever asks says where the store is and who they are.

use std::path::PathBuf;

mod answer;
mod error;
mod issuer;
mod line;
mod listing;
mod network;
mod object;
mod properties;
mod sign;
mod store;
mod upload;
mod url;

pub use error::{Giver, ObjectError};
pub use issuer::{
    AssumedRole, Container, Instance, Issuer, Process, SignIn, Token, WebIdentity, With,
};
pub use network::Proxies;
pub use sign::Credentials;
pub use url::ObjectUrl;

pub(crate) use listing::{Listed, list};
pub(crate) use object::Object;
pub(crate) use properties::Properties;
pub(crate) use store::Store;
pub(crate) use upload::{Confirmed, Duplicate, Fate, Upload, Wanted, at_a_time, time_for};

/// Where a store is, and as whom it is asked.
#[derive(Clone, Debug, Default)]
pub struct StoreSettings {
    /// `http://HOST[:PORT]` or `https://HOST[:PORT]`; Amazon's when `None`.
    pub endpoint: Option<String>,
    /// The region, which is part of each signature; `us-east-1` when `None`.
    pub region: Option<String>,
    /// Who asks.
    pub credentials: Option<Credentials>,
    /// Who gives a key for a limited time where `credentials` are none. Where that is `None` as well, nobody
    /// in particular asks, and nothing is signed.
    pub issuer: Option<Issuer>,
    /// The proxies on the way.
    pub proxies: Proxies,
    /// A file of the authorities that are trusted, as PEM; those that browsers trust when `None`.
    pub authorities: Option<PathBuf>,
}

impl StoreSettings {
    /// Why the store that these name is not to copy to the one that `other` name by itself; `None` where
    /// both are one store, asked by one key.
    pub(crate) fn apart(&self, other: &Self) -> Option<&'static str> {
        let endpoint = |of: &Self| {
            let endpoint = of.endpoint.as_deref();
            endpoint.map(|whole| whole.strip_suffix('/').unwrap_or(whole).to_owned())
        };
        let key = |of: &Self| of.credentials.as_ref().map(|key| key.access_key.clone());
        if endpoint(self) != endpoint(other) {
            Some("it is another store than that of the source")
        } else if (key(self), &self.issuer) != (key(other), &other.issuer) {
            Some("the store is asked with another key than that of the source")
        } else {
            None
        }
    }
}
