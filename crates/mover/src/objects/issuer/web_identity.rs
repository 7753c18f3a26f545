//! A role that is taken on with a token in a file: what clusters give to their pods, exchanged for a key by
//! the security token service.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Credentials, ObjectError, Service, time, token};
use crate::objects::StoreSettings;
use crate::objects::answer::{child, parsed};
use crate::objects::sign::query;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often it is asked again that is unwell.
const AGAIN: u32 = 2;
/// How long it is left alone before that.
const WAIT: Duration = Duration::from_millis(200);
/// The version of what it is asked.
const VERSION: &str = "2011-06-15";

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
        match region {
            Some(region) => format!("https://sts.{region}.amazonaws.com"),
            None => "https://sts.amazonaws.com".to_owned(),
        }
    }

    pub(super) fn key(
        &self,
        settings: &StoreSettings,
        until: Instant,
    ) -> Result<Credentials, ObjectError> {
        let until = until.min(Instant::now() + PATIENCE);
        let base = self.endpoint.trim_end_matches('/');
        let service = Service::afar(base, settings)?;
        let token = token(&self.token_file)?;
        let body = query(&[
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", VERSION),
            ("RoleArn", &self.role),
            ("RoleSessionName", &self.session),
            ("WebIdentityToken", &token),
        ]);
        let form = ("content-type", "application/x-www-form-urlencoded");
        let mut tries = 0;
        let (status, text) = loop {
            let said = service.ask(("POST", "/"), &[form], &body, until);
            let unwell = match &said {
                Ok((status, _)) => *status >= 500,
                Err(_) => true,
            };
            if !unwell || tries >= AGAIN || until <= Instant::now() + WAIT {
                break said?;
            }
            tries += 1;
            std::thread::sleep(WAIT);
        };
        match status {
            200 => key_in(&text).ok_or_else(|| service.refused("what it answers is no key")),
            _ => Err(service.refused(reason(status, &text))),
        }
    }
}

fn key_in(text: &str) -> Option<Credentials> {
    let document = parsed(text)?;
    let mut nodes = document.descendants();
    let key = nodes.find(|node| node.tag_name().name() == "Credentials")?;
    let word = |name| child(key, name).map(|word| word.trim().to_owned());
    Some(Credentials {
        access_key: word("AccessKeyId")?,
        secret_key: word("SecretAccessKey")?,
        session_token: word("SessionToken"),
        expires: time(word("Expiration").as_deref()),
    })
}

/// Why it refused, in its own words where they are short.
fn reason(status: u16, text: &str) -> String {
    let said = parsed(text).and_then(|document| {
        let mut nodes = document.descendants();
        let error = nodes.find(|node| node.tag_name().name() == "Error")?;
        let word = |name| {
            let word = child(error, name)?.trim();
            let plain = word.chars().filter(|c| !c.is_control());
            Some(plain.take(200).collect::<String>())
        };
        Some(format!("{}: {}", word("Code")?, word("Message")?))
    });
    match said {
        Some(said) => format!("status {status} {said}"),
        None => format!("status {status}"),
    }
}
