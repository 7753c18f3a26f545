//! A role that is taken on with a key: the security token service is asked with that one, and gives one of
//! the role.

use std::time::{Instant, SystemTime};

use super::{Credentials, Giver, Issuer, Line, ObjectError, tokens};
use crate::objects::StoreSettings;
use crate::objects::network::endpoint;
use crate::objects::sign::{Signed, hashed};

/// What is signed for.
const SERVICE: &str = "sts";

/// A role, and the key that it is taken on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedRole {
    /// Where the service is, as `https://HOST`.
    pub endpoint: String,
    /// The region that requests to it are signed for.
    pub region: String,
    /// The role's name, as `arn:aws:iam::…`.
    pub role: String,
    /// What the session is called.
    pub session: String,
    /// The word by which whoever owns the role knows who may take it on, if they want one.
    pub external_id: Option<String>,
    /// For how many seconds the key is to count; as long as the service likes when `None`.
    pub seconds: Option<u32>,
    /// The key that it is taken on with.
    pub with: With,
}

/// The key that a role is taken on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum With {
    /// This one.
    Key(Credentials),
    /// What somebody gives.
    Issuer(Box<Issuer>),
}

impl AssumedRole {
    /// Where Amazon's service is asked, and the region that this is signed for.
    pub fn endpoint_in(region: Option<&str>) -> (String, String) {
        /// That of the service that is in none.
        const EVERYWHERE: &str = "us-east-1";
        (
            tokens::endpoint_in(region),
            region.unwrap_or(EVERYWHERE).to_owned(),
        )
    }

    pub(super) fn key(
        &self,
        settings: &StoreSettings,
        line: &Line,
        until: Instant,
    ) -> Result<Credentials, ObjectError> {
        let with = match &self.with {
            With::Key(key) => key.clone(),
            With::Issuer(issuer) => issuer.key(settings, line, until)?,
        };
        let base = endpoint(&self.endpoint)?;
        let host = base.split_once("://").map_or("", |(_, host)| host);
        let seconds = self.seconds.map(|seconds| seconds.to_string());
        let mut parameters = vec![
            ("RoleArn", self.role.as_str()),
            ("RoleSessionName", &self.session),
        ];
        parameters.extend(self.external_id.as_deref().map(|id| ("ExternalId", id)));
        parameters.extend(seconds.as_deref().map(|time| ("DurationSeconds", time)));
        let signed = |body: &str| {
            let request = Signed {
                method: "POST",
                path: "/",
                query: "",
                body: &hashed(body.as_bytes()),
                service: SERVICE,
                region: &self.region,
                at: SystemTime::now(),
            };
            let headers = request.headers(&with, vec![("host", host.to_owned())]);
            // The host is put in by whoever sends it.
            let others = headers.into_iter().filter(|(name, _)| *name != "host");
            others.collect()
        };
        let asked = ("AssumeRole", &parameters[..]);
        let service = tokens::service(&base, Giver::Role, line, settings)?;
        tokens::key(&service, asked, &signed, until)
    }
}
