//! The way to a store: by the proxies that lead out of where this process is, trusting whom is to be trusted.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use std::vec;

use ureq::config::Config;
use ureq::http;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Proxy};

use super::{ObjectError, StoreSettings};

/// Connections that are kept for the next request.
const KEPT: usize = 32;
/// Addresses of one host that are tried; as many as there is room for.
const MAX_ADDRESSES: usize = 16;
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
        let behind = url.split_once("://").map_or(url, |(_, rest)| rest);
        let behind = behind.rsplit_once('@').map_or(behind, |(_, host)| host);
        let host = behind.strip_suffix('/').unwrap_or(behind);
        let made = Proxy::new(url).ok().filter(|_| is_authority(host));
        made.ok_or_else(|| ObjectError::Proxy {
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
    Ok((agent(config.build()), proxy.map(shown)))
}

/// One that asks as another does, by connections of its own.
pub(super) fn anew(like: &Agent) -> Agent {
    agent(like.config().clone())
}

fn agent(config: Config) -> Agent {
    Agent::with_parts(config, DefaultConnector::default(), Lookup)
}

/// Looks hosts up without starting a thread that may not be to be had: the one that ureq has for it starts
/// one for each address, and panics where the system gives none.
#[derive(Debug)]
struct Lookup;

impl Resolver for Lookup {
    fn resolve(
        &self,
        uri: &http::Uri,
        _: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let place = uri.scheme().zip(uri.authority());
        let place = place.and_then(|(scheme, at)| DefaultResolver::host_and_port(scheme, at));
        let place = place.ok_or(ureq::Error::HostNotFound)?;
        let mut addresses = self.empty();
        match place.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => {
                let found = looked_up(place, *timeout.after);
                let found = found.ok_or(ureq::Error::Timeout(timeout.reason))??;
                found
                    .take(MAX_ADDRESSES)
                    .for_each(|one| addresses.push(one));
            }
        }
        match addresses.is_empty() {
            true => Err(ureq::Error::HostNotFound),
            false => Ok(addresses),
        }
    }
}

/// The addresses of a name; `None` when its time is over. The system's look-up has no deadline, so that a
/// thread does it that can be left to itself; where there is none, this one waits as long as the system does.
fn looked_up(place: String, time: Duration) -> Option<io::Result<vec::IntoIter<SocketAddr>>> {
    let (found, answer) = sync_channel(1);
    let wanted = place.clone();
    let started = std::thread::Builder::new()
        .name("crowfly-lookup".into())
        .spawn(move || found.send(wanted.to_socket_addrs()));
    match started {
        Ok(_) => answer.recv_timeout(time).ok(),
        Err(_) => Some(place.to_socket_addrs()),
    }
}

/// Scheme, host and port of a service, as they stand in URLs that are asked.
///
/// # Errors
/// When it is anything else: what reads it later would take a bad port for the usual one.
pub(super) fn endpoint(text: &str) -> Result<String, ObjectError> {
    let bad = |why| ObjectError::Endpoint {
        endpoint: text.to_owned(),
        why,
    };
    let whole = text.strip_suffix('/').unwrap_or(text);
    let host = whole
        .strip_prefix("http://")
        .or_else(|| whole.strip_prefix("https://"));
    match is_authority(host.ok_or_else(|| bad("it begins with http:// or https://"))?) {
        true => Ok(whole.to_owned()),
        false => Err(bad("behind the scheme are a host and perhaps a port")),
    }
}

/// Whether a text is a host, and perhaps a port behind it.
fn is_authority(text: &str) -> bool {
    let (is_host, rest) = match text.strip_prefix('[') {
        Some(inside) => match inside.split_once(']') {
            Some((address, rest)) => (address.parse::<Ipv6Addr>().is_ok(), rest),
            None => (false, ""),
        },
        None => {
            let end = text.find(':').unwrap_or(text.len());
            let (host, rest) = text.split_at_checked(end).unwrap_or((text, ""));
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            (!host.is_empty() && host.chars().all(plain), rest)
        }
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let is_port = match rest.strip_prefix(':') {
        Some(port) => digits(port) && port.parse::<u16>().is_ok_and(|port| port > 0),
        None => rest.is_empty(),
    };
    is_host && is_port
}

/// What asks a service beside this process.
pub(super) fn direct() -> Agent {
    agent(plain().build())
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
    fn an_endpoint_is_a_host_and_a_port_that_there_is() {
        for good in [
            "http://a",
            "https://a.b-c:443",
            "http://10.0.0.1:9000/",
            "http://[::1]:80",
            "http://[fd00::2]",
        ] {
            assert!(endpoint(good).is_ok(), "{good}");
        }
        for bad in [
            "http://127.0.0.1:84301",
            "http://a:abc",
            "http://a:",
            "http://a:0",
            "http://a:+8",
            "http://a:8:8",
            "http://[::1",
            "http://[::1]8",
            "http://[a]:8",
            "http://",
            "http://:80",
            "http://a/b",
            "http://u@h",
            "a:80",
            "ftp://a",
        ] {
            let error = endpoint(bad).expect_err("none");
            assert_eq!(error.code(), "bad-endpoint", "{bad}");
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn a_name_is_looked_up_by_a_thread_and_an_address_by_nobody() {
        let found = looked_up("localhost:7".into(), Duration::from_secs(30));
        let mut found = found.expect("in time").expect("known");
        assert!(found.all(|address| address.ip().is_loopback() && address.port() == 7));
        assert!(looked_up("localhost:7".into(), Duration::ZERO).is_none());
    }

    #[test]
    fn what_is_no_proxy_is_an_error_that_does_not_tell_its_password() {
        for bad in [
            "gopher://u:secret@p",
            "http://u:secret@p:84301",
            "http://u:secret@",
        ] {
            let settings = StoreSettings {
                proxies: Proxies {
                    https: Some(bad.into()),
                    ..Proxies::default()
                },
                ..StoreSettings::default()
            };
            let error = towards(&settings, "https://a").map(drop).expect_err("none");
            assert_eq!(error.code(), "bad-proxy", "{bad}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
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
