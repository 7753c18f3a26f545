//! The key that an organisation gives to someone who has signed in to it with another tool: IAM Identity
//! Center ("SSO"), by the token that `aws sso login` left in its cache.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::digest;
use serde::Deserialize;

use super::{Credentials, Giver, Line, ObjectError, Service, time, token};
use crate::objects::StoreSettings;
use crate::objects::sign::{hex, query};

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Who signed in, and as what a key is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    /// Where the service is, as `https://HOST`; Amazon's in `region` when `None`.
    pub endpoint: Option<String>,
    /// Where the organisation is.
    pub region: String,
    /// The folder in which sign-ins are kept.
    pub cache: PathBuf,
    /// What the sign-in is called: the session's name, or the URL where it began.
    pub name: String,
    /// The account's number.
    pub account: String,
    /// The role's name.
    pub role: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    access_token: String,
    expires_at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    role_credentials: Given,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Given {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    /// Milliseconds since 1970.
    expiration: u64,
}

impl SignIn {
    /// The file that the sign-in is kept in, as the tool names it.
    fn file(&self) -> PathBuf {
        let name = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, self.name.as_bytes());
        self.cache.join(format!("{}.json", hex(name.as_ref())))
    }

    pub(super) fn key(
        &self,
        settings: &StoreSettings,
        line: &Line,
        until: Instant,
    ) -> Result<Credentials, ObjectError> {
        let until = until.min(Instant::now() + PATIENCE);
        let file = self.file();
        let over = |why| ObjectError::SignedOut {
            name: self.name.clone(),
            file: file.display().to_string(),
            why,
        };
        if !file.exists() {
            return Err(over("nobody has signed in"));
        }
        let kept: Kept =
            serde_json::from_str(&token(&file)?).map_err(|_| over("the file is no sign-in"))?;
        let expires = time(Some(&kept.expires_at)).ok_or_else(|| over("it says no time"))?;
        if expires <= SystemTime::now() {
            return Err(over("its time is over"));
        }
        let usual = format!("https://portal.sso.{}.amazonaws.com", self.region);
        let base = self.endpoint.as_deref().unwrap_or(&usual);
        let service = Service::afar(base.trim_end_matches('/'), Giver::SignIn, line, settings)?;
        let whom = query(&[("account_id", &self.account), ("role_name", &self.role)]);
        let path = format!("/federation/credentials?{whom}");
        let with = ("x-amz-sso_bearer_token", kept.access_token.as_str());
        let (status, text) = service.ask(("GET", &path), &[with], "", until)?;
        match status {
            200 => {}
            401 => return Err(over("it does not count any more")),
            _ => return Err(service.refused(format!("status {status}"))),
        }
        let given: Answer = serde_json::from_str(&text)
            .map_err(|_| service.refused("what it answers is no key of a role"))?;
        let given = given.role_credentials;
        Ok(Credentials {
            access_key: given.access_key_id,
            secret_key: given.secret_access_key,
            session_token: Some(given.session_token),
            expires: UNIX_EPOCH.checked_add(Duration::from_millis(given.expiration)),
        })
    }
}
