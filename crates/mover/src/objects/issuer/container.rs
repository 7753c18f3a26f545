//! The key that a container is given by a service beside it, as on ECS and EKS.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::{Credentials, Giver, Line, ObjectError, Service, time, token};
use crate::objects::network::endpoint;

/// Where it answers in containers of ECS.
const ENDPOINT: &str = "http://169.254.170.2";
/// Addresses besides loopback that are asked without TLS: those of ECS and of EKS.
const BESIDE: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];
/// How long it may take: it is a service of the host.
const PATIENCE: Duration = Duration::from_secs(5);

/// The service beside a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    base: String,
    path: String,
    token: Option<Token>,
}

/// What it is asked with.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// This text.
    Text(String),
    /// What is in a file, which is read each time.
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

impl Container {
    /// What `path` names at the usual address.
    pub fn of(path: &str, token: Option<Token>) -> Self {
        let slash = if path.starts_with('/') { "" } else { "/" };
        Self {
            base: ENDPOINT.to_owned(),
            path: format!("{slash}{path}"),
            token,
        }
    }

    /// What is at a URL. A key is not asked for over a network that anyone could listen to.
    ///
    /// # Errors
    /// When it is no URL, or of another host without TLS.
    pub fn at(url: &str, token: Option<Token>) -> Result<Self, ObjectError> {
        let bad = |why| ObjectError::Endpoint {
            endpoint: url.to_owned(),
            why,
        };
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let at = rest.find('/').unwrap_or(rest.len());
        let (host, path) = rest.split_at_checked(at).unwrap_or((rest, ""));
        match scheme {
            "https" => {}
            "http" if is_beside(host) => {}
            "http" => {
                return Err(bad(
                    "keys come without TLS only from this host's own services",
                ));
            }
            _ => return Err(bad("it begins with http:// or https://")),
        }
        Ok(Self {
            base: endpoint(&format!("{scheme}://{host}"))?,
            path: if path.is_empty() { "/" } else { path }.to_owned(),
            token,
        })
    }

    /// The key of the role that the container has.
    pub(super) fn key(&self, line: &Line, until: Instant) -> Result<Credentials, ObjectError> {
        let until = until.min(Instant::now() + PATIENCE);
        let service = Service::beside(&self.base, Giver::Container, line)?;
        let token = match &self.token {
            None => None,
            Some(Token::Text(text)) => Some(text.clone()),
            Some(Token::File(path)) => Some(token(path)?),
        };
        let with: Vec<(&str, &str)> = token
            .iter()
            .map(|token| ("authorization", token.as_str()))
            .collect();
        let (status, text) = service.ask(("GET", &self.path), &with, "", until)?;
        match status {
            200 => {}
            _ => return Err(service.refused(format!("status {status}"))),
        }
        Given::read(&text).ok_or_else(|| service.refused("what it answers is no key of a role"))
    }
}

/// Whether a host, perhaps with a port, is this one, or a service that only it can reach.
fn is_beside(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) => name,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let loopback = |address: IpAddr| address.is_loopback();
    name == "localhost" || BESIDE.contains(&name) || name.parse().is_ok_and(loopback)
}

/// A key as services beside a process answer it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Given {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Option<String>,
}

impl Given {
    pub(super) fn read(text: &str) -> Option<Credentials> {
        let given: Self = serde_json::from_str(text).ok()?;
        Some(Credentials {
            access_key: given.access_key_id,
            secret_key: given.secret_access_key,
            session_token: given.token,
            expires: time(given.expiration.as_deref()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_asked_for_without_tls_only_of_this_hosts_own_services() {
        let at = |url: &str| Container::at(url, None).map(|at| (at.base, at.path));
        let pair = |base: &str, path: &str| (base.to_owned(), path.to_owned());
        for beside in [
            "127.0.0.1:80",
            "localhost",
            "[::1]:8",
            "169.254.170.23",
            "[fd00:ec2::23]",
        ] {
            let base = format!("http://{beside}");
            assert_eq!(
                at(&format!("{base}/v1")).expect("beside"),
                pair(&base, "/v1")
            );
        }
        assert_eq!(
            at("https://keys.far").expect("by TLS"),
            pair("https://keys.far", "/")
        );
        for far in [
            "http://keys.far/",
            "http://10.0.0.1/",
            "http://127.0.0.1.far/",
            "ftp://a",
            "x",
        ] {
            assert_eq!(
                at(far).expect_err("refused").code(),
                "bad-endpoint",
                "{far}"
            );
        }
        let of = Container::of("v2/credentials/x", None);
        assert_eq!(
            (of.base.as_str(), of.path.as_str()),
            (ENDPOINT, "/v2/credentials/x")
        );
        let shown = format!("{:?}", Token::Text("secret".into()));
        assert!(!shown.contains("secret"));
    }
}
