//! The security token service, which exchanges what one has for a key of a role.

use std::time::{Duration, Instant};

use super::{Credentials, Giver, Line, ObjectError, Service, time};
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

/// Headers of a request for a body, made anew each time: a signature does not count for long.
pub(super) type Headers<'h> = &'h dyn Fn(&str) -> Vec<(&'static str, String)>;

/// Amazon's service in a region.
pub(super) fn endpoint_in(region: Option<&str>) -> String {
    match region {
        Some(region) => format!("https://sts.{region}.amazonaws.com"),
        None => "https://sts.amazonaws.com".to_owned(),
    }
}

/// The service at an endpoint.
pub(super) fn service<'s>(
    endpoint: &'s str,
    by: Giver,
    line: &'s Line,
    settings: &StoreSettings,
) -> Result<Service<'s>, ObjectError> {
    Service::afar(endpoint.trim_end_matches('/'), by, line, settings)
}

/// Asks the service for a key.
pub(super) fn key(
    service: &Service<'_>,
    (action, parameters): (&str, &[(&str, &str)]),
    headers: Headers<'_>,
    until: Instant,
) -> Result<Credentials, ObjectError> {
    let until = until.min(Instant::now() + PATIENCE);
    let mut all = vec![("Action", action), ("Version", VERSION)];
    all.extend(parameters);
    let body = query(&all);
    let mut tries = 0;
    let (status, text) = loop {
        let headers = headers(&body);
        let form = ("content-type", "application/x-www-form-urlencoded");
        let mut with: Vec<(&str, &str)> = vec![form];
        with.extend(headers.iter().map(|(name, value)| (*name, value.as_str())));
        let said = service.ask(("POST", "/"), &with, &body, until);
        let unwell = match &said {
            Ok((status, _)) => *status >= 500,
            Err(_) => true,
        };
        let late = until <= Instant::now() + WAIT;
        if !unwell || tries >= AGAIN || late || service.call.is_over() {
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
        let word = |name| child(error, name).map(super::in_short);
        Some(format!("{}: {}", word("Code")?, word("Message")?))
    });
    match said {
        Some(said) => format!("status {status} {said}"),
        None => format!("status {status}"),
    }
}
