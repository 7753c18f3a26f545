//! The key that a cloud gives to a machine of its own: version 2 of the instance metadata service.

use std::io::Read;
use std::time::Duration;

use serde::Deserialize;
use ureq::{Agent, http};

use super::{Credentials, ObjectError};

/// Where it answers on every machine of Amazon's.
const ENDPOINT: &str = "http://169.254.169.254";
/// How long a token to ask with counts, in seconds.
const TOKEN_LIVES: &str = "60";
/// How long it may take: it is a service of the host.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer that is read, in bytes.
const MAX_ANSWER: u64 = 64 << 10;

/// The metadata service of a machine.
#[derive(Clone, Debug)]
pub struct Instance {
    endpoint: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Key {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
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
    ///
    /// # Errors
    /// When the service does not answer, or the machine has no role.
    pub fn credentials(&self) -> Result<Credentials, ObjectError> {
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .build()
            .into();
        let token = self.ask(
            &agent,
            ("PUT", "/latest/api/token"),
            ("x-aws-ec2-metadata-token-ttl-seconds", TOKEN_LIVES),
        )?;
        let roles = "/latest/meta-data/iam/security-credentials/";
        let of = |path: &str| self.ask(&agent, ("GET", path), ("x-aws-ec2-metadata-token", &token));
        let role = of(roles)?;
        let role = role.lines().next().unwrap_or_default().trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "+=,.@_-".contains(c);
        if role.is_empty() || !role.chars().all(plain) {
            return Err(self.odd("no role that the machine has"));
        }
        let key: Key = serde_json::from_str(&of(&format!("{roles}{role}"))?)
            .map_err(|_| self.odd("no key of the role"))?;
        Ok(Credentials {
            access_key: key.access_key_id,
            secret_key: key.secret_access_key,
            session_token: key.token,
        })
    }

    fn ask(
        &self,
        agent: &Agent,
        (method, path): (&str, &str),
        (name, value): (&str, &str),
    ) -> Result<String, ObjectError> {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint))
            .header(name, value.trim());
        let request = request.body(()).map_err(|_| ObjectError::Endpoint {
            endpoint: self.endpoint.clone(),
            why: "nothing can be asked of it over HTTP",
        })?;
        let io = |source| ObjectError::Io {
            store: self.endpoint.clone(),
            url: "the key of this machine".into(),
            source,
        };
        let mut answer = agent.run(request).map_err(|error| match error {
            ureq::Error::Io(source) => io(source),
            ureq::Error::Timeout(_) => io(std::io::ErrorKind::TimedOut.into()),
            other => io(std::io::Error::other(other)),
        })?;
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(self.odd(&format!("status {status}")));
        }
        let mut text = String::new();
        let body = answer.body_mut().as_reader().take(MAX_ANSWER);
        { body }.read_to_string(&mut text).map_err(io)?;
        Ok(text)
    }

    fn odd(&self, what: &str) -> ObjectError {
        ObjectError::Odd {
            store: self.endpoint.clone(),
            url: "the key of this machine".into(),
            what: what.to_owned(),
        }
    }
}
