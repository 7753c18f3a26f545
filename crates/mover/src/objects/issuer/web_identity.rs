//! A role that is taken on with a token in a file: what clusters give to their pods, exchanged for a key by
//! the security token service.

use std::path::PathBuf;
use std::time::Instant;

use super::{Credentials, Giver, Line, ObjectError, token, tokens};
use crate::objects::StoreSettings;

/// A role, and the token that it is taken on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebIdentity {
    /// Where the service is, as `https://HOST`.
    pub endpoint: String,
    /// The role's name, as `arn:aws:iam::…`.
    pub role: String,
    /// What the session is called.
    pub session: String,
    /// The file of the token. It is read each time: whoever gives it renews it.
    pub token_file: PathBuf,
}

impl WebIdentity {
    /// Amazon's service in a region.
    pub fn endpoint_in(region: Option<&str>) -> String {
        tokens::endpoint_in(region)
    }

    pub(super) fn key(
        &self,
        settings: &StoreSettings,
        line: &Line,
        until: Instant,
    ) -> Result<Credentials, ObjectError> {
        let token = token(&self.token_file)?;
        let parameters = [
            ("RoleArn", self.role.as_str()),
            ("RoleSessionName", &self.session),
            ("WebIdentityToken", &token),
        ];
        let service = tokens::service(&self.endpoint, Giver::WebIdentity, line, settings)?;
        let asked = ("AssumeRoleWithWebIdentity", &parameters[..]);
        tokens::key(&service, asked, &|_| Vec::new(), until)
    }
}
