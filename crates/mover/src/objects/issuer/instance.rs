//! The key that a cloud gives to a machine of its own: version 2 of the instance metadata service.

use std::time::{Duration, Instant};

use super::container::Given;
use super::{Credentials, Giver, Line, ObjectError, Service};

/// Where it answers on every machine of Amazon's.
const ENDPOINT: &str = "http://169.254.169.254";
/// How long a token to ask with counts, in seconds.
const TOKEN_LIVES: &str = "60";
/// How long it may take: it is a service of the host.
const PATIENCE: Duration = Duration::from_secs(2);

/// The metadata service of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    endpoint: String,
}

impl Instance {
    /// The service at its usual address, or at `http://HOST[:PORT]`.
    pub fn at(endpoint: Option<&str>) -> Self {
        let endpoint = endpoint.unwrap_or(ENDPOINT);
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
        }
    }

    /// The key of the role that the machine has.
    pub(super) fn key(&self, line: &Line, until: Instant) -> Result<Credentials, ObjectError> {
        let until = until.min(Instant::now() + PATIENCE);
        let service = Service::beside(&self.endpoint, Giver::Machine, line)?;
        let said = |(status, text): (u16, String)| match status {
            200 => Ok(text),
            404 => Err(service.refused("the machine has no role (status 404)")),
            _ => Err(service.refused(format!("status {status}"))),
        };
        let lives = ("x-aws-ec2-metadata-token-ttl-seconds", TOKEN_LIVES);
        let token = said(service.ask(("PUT", "/latest/api/token"), &[lives], "", until)?)?;
        let roles = "/latest/meta-data/iam/security-credentials/";
        let with = [("x-aws-ec2-metadata-token", token.as_str())];
        let of = |path: &str| said(service.ask(("GET", path), &with, "", until)?);
        let role = of(roles)?;
        let role = role.lines().next().unwrap_or_default().trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "+=,.@_-".contains(c);
        if role.is_empty() || !role.chars().all(plain) {
            return Err(service.refused("it names no role that the machine has"));
        }
        let given = Given::read(&of(&format!("{roles}{role}"))?);
        given.ok_or_else(|| service.refused("what it answers is no key of a role"))
    }
}
