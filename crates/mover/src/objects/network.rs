//! The way to a store: by the proxies that lead out of where this process is, trusting whom is to be trusted.

use std::fmt;
use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Proxy};

use super::{ObjectError, StoreSettings};

/// Connections that are kept for the next request.
const KEPT: usize = 32;
/// The longest file of authorities that is read, in bytes.
const MAX_AUTHORITIES: u64 = 8 << 20;

/// Which proxies lead to stores, as URLs: `http://[USER:PASSWORD@]HOST[:PORT]`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// To what is asked by `https`.
    pub https: Option<String>,
    /// To what is asked by `http`.
    pub http: Option<String>,
    /// What is asked without them: hosts and all below them, addresses, networks (`10.0.0.0/8`) or `*`, with
    /// commas between. The port of one may follow it.
    pub none: String,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &Option<String>| url.as_deref().map(shown);
        f.debug_struct("Proxies")
            .field("https", &shown(&self.https))
            .field("http", &shown(&self.http))
            .field("none", &self.none)
            .finish()
    }
}

impl Proxies {
    /// The proxy that leads to a scheme and host, if one does.
    fn towards(&self, base: &str) -> Option<&str> {
        let (scheme, host) = base.split_once("://")?;
        let (proxy, usual) = match scheme {
            "https" => (&self.https, "443"),
            _ => (&self.http, "80"),
        };
        let proxy = proxy.as_deref().filter(|proxy| !proxy.is_empty())?;
        let (host, port) = parted(host);
        let mut without = self.none.split([',', ' ']).filter(|one| !one.is_empty());
        let is_without = without.any(|one| covers(one, host, port.unwrap_or(usual)));
        (!is_without).then_some(proxy)
    }
}

/// A URL without the word that lets one in.
fn shown(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((who, host)) => {
            let scheme = who.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("{scheme}://…@{host}")
        }
        None => url.to_owned(),
    }
}

/// Host and port.
fn parted(host: &str) -> (&str, Option<&str>) {
    if let Some((name, rest)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (name, rest.strip_prefix(':'));
    }
    match host.split_once(':') {
        // An address of the sixth version without brackets has no port.
        Some((name, port)) if !port.contains(':') => (name, Some(port)),
        _ => (host, None),
    }
}

/// Whether a host is one that a word of the list covers.
fn covers(word: &str, host: &str, port: &str) -> bool {
    if word == "*" {
        return true;
    }
    if let Some((network, bits)) = word.split_once('/') {
        let all = network.parse().ok().zip(bits.parse().ok());
        return all
            .zip(host.parse().ok())
            .is_some_and(|((network, bits), host)| is_in(network, bits, host));
    }
    let (name, only) = parted(word);
    if only.is_some_and(|only| only != port) {
        return false;
    }
    let name = name.strip_prefix('*').unwrap_or(name);
    let name = name.strip_prefix('.').unwrap_or(name).to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    !name.is_empty() && (host == name || host.ends_with(&format!(".{name}")))
}

fn is_in(network: IpAddr, bits: u32, host: IpAddr) -> bool {
    let (network, host, all): (u128, u128, u32) = match (network, host) {
        (IpAddr::V4(network), IpAddr::V4(host)) => (
            u128::from(network.to_bits()),
            u128::from(host.to_bits()),
            32,
        ),
        (IpAddr::V6(network), IpAddr::V6(host)) => (network.to_bits(), host.to_bits(), 128),
        _ => return false,
    };
    match all.checked_sub(bits) {
        Some(rest) => network.checked_shr(rest) == host.checked_shr(rest),
        None => false,
    }
}

/// What asks a store at a scheme and host, and which proxy it goes by.
///
/// # Errors
/// When the authorities cannot be read, or the proxy is none.
pub(super) fn towards(
    settings: &StoreSettings,
    base: &str,
) -> Result<(Agent, Option<String>), ObjectError> {
    let proxy = settings.proxies.towards(base);
    let by = proxy.map(|url| {
        Proxy::new(url).map_err(|_| ObjectError::Proxy {
            proxy: shown(url),
            why: "it is written http://HOST:PORT",
        })
    });
    let config = plain().proxy(by.transpose()?);
    let config = match &settings.authorities {
        None => config,
        Some(path) => {
            let trusted = RootCerts::new_with_certs(&authorities(path)?);
            config.tls_config(TlsConfig::builder().root_certs(trusted).build())
        }
    };
    Ok((config.build().into(), proxy.map(shown)))
}

/// What asks a service beside this process.
pub(super) fn direct() -> Agent {
    plain().build().into()
}

fn plain() -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_idle_connections(KEPT)
        .max_idle_connections_per_host(KEPT)
        .proxy(None)
}

/// The certificates in a file.
fn authorities(path: &Path) -> Result<Vec<Certificate<'static>>, ObjectError> {
    let failed = |why: String| ObjectError::Authorities {
        path: path.display().to_string(),
        why,
    };
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(MAX_AUTHORITIES + 1).read_to_end(&mut text);
    if read.map_err(|error| failed(error.to_string()))? as u64 > MAX_AUTHORITIES {
        return Err(failed(format!("it is longer than {MAX_AUTHORITIES} bytes")));
    }
    let mut all = Vec::new();
    for item in parse_pem(&text) {
        match item {
            Ok(PemItem::Certificate(one)) => all.push(one),
            Ok(_) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    match all.is_empty() {
        true => Err(failed("there is no certificate in it".into())),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_gone_by_save_to_what_the_list_covers() {
        let proxies = |none: &str| Proxies {
            https: Some("http://u:secret@p:1".into()),
            http: Some("http://q:2".into()),
            none: none.into(),
        };
        let by = |none: &str, base: &str| proxies(none).towards(base).map(shown);
        assert_eq!(by("", "https://a.b").as_deref(), Some("http://…@p:1"));
        assert_eq!(by("", "http://a.b").as_deref(), Some("http://q:2"));
        for covering in ["*", "b", "a.b", ".b", "*.b", "x, A.B", "x a.b", "a.b:443"] {
            assert_eq!(by(covering, "https://a.b"), None, "{covering}");
        }
        for other in ["c", "ab", "a.b.c", "a.b:80", ".", "10.0.0.0/8"] {
            assert!(by(other, "https://a.b").is_some(), "{other}");
        }
        assert_eq!(by("10.0.0.0/8", "http://10.1.2.3:9000"), None);
        assert_eq!(by("fd00::/8", "http://[fd00::1]:9000"), None);
        assert_eq!(by("::/0", "http://[fd00::1]"), None);
        for other in ["11.0.0.0/8", "10.0.0.0/33", "fd00::/8", "10.0.0.0/x"] {
            assert!(by(other, "http://10.1.2.3").is_some(), "{other}");
        }
        assert_eq!(Proxies::default().towards("https://a.b"), None);
        assert!(!format!("{:?}", proxies("")).contains("secret"));
    }

    #[test]
    fn what_is_no_proxy_is_an_error_that_does_not_tell_its_password() {
        let settings = StoreSettings {
            proxies: Proxies {
                https: Some("gopher://u:secret@p".into()),
                ..Proxies::default()
            },
            ..StoreSettings::default()
        };
        let error = towards(&settings, "https://a").map(drop).expect_err("none");
        assert_eq!(error.code(), "bad-proxy");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn a_file_without_certificates_is_no_file_of_authorities() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca.pem");
        let why = |path: &Path| {
            let error = authorities(path).expect_err("none");
            assert_eq!(error.code(), "bad-authorities");
            error.to_string()
        };
        assert!(why(&path).contains("No such file"));
        fs::write(&path, "no certificate").expect("written");
        assert!(why(&path).contains("there is no certificate in it"));
    }
}
