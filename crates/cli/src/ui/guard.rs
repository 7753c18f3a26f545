//! Who is answered: the reader's own browser, showing this page and no other.
//!
//! Any web page can make a browser send requests to 127.0.0.1. Three things keep strangers out:
//! the name in `Host` has to be the loopback's own, so that a name that was pointed at 127.0.0.1
//! afterwards (DNS rebinding) leads nowhere; a request that another page caused (`Origin`,
//! `Sec-Fetch-Site`) is refused; and the page itself may load, run and talk to nothing but this server.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::reply;
use super::server::{MAX_BODY_BYTES, Page};
use crate::failure::{Exit, Failure};

/// How long a request may take from its head to the last byte of its body and the answer.
pub const REQUEST: Duration = Duration::from_secs(120);
/// Styles inside drawings are the program's own, and nothing else on the page is. Scripts come from
/// the server alone, and put text into the page by one policy of their own (`assets/dom.js`).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
     img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types crowfly";

/// Names by which a browser on this machine reaches the loopback interface.
const NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// Refuses strangers, limits the time, and says in every answer what may be done with it.
pub async fn guard(State(page): State<Arc<Page>>, request: Request, next: Next) -> Response {
    let is_api = request.uri().path().starts_with("/api/");
    let refusal = refusal(page.port, request.headers(), is_api);
    let mut response = match refusal.or_else(|| too_long(request.headers())) {
        Some((status, failure)) => reply::refusal(status, &failure),
        None => match tokio::time::timeout(REQUEST, next.run(request)).await {
            Ok(response) => response,
            Err(_) => reply::refusal(
                StatusCode::REQUEST_TIMEOUT,
                &Failure::new(
                    "ui-too-slow",
                    Exit::Unavailable,
                    "the request took too long",
                ),
            ),
        },
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refusal(port: u16, headers: &HeaderMap, is_api: bool) -> Option<(StatusCode, Failure)> {
    let stranger = |code, what: &str| {
        let failure = Failure::new(code, Exit::Usage, what)
            .hint("open the page at the address that `crowfly ui` printed");
        Some((StatusCode::FORBIDDEN, failure))
    };
    let hosts: Vec<_> = headers.get_all(header::HOST).iter().collect();
    let [host] = hosts.as_slice() else {
        return stranger("ui-foreign-host", "a request names one host");
    };
    if !is_own(port, host.as_bytes()) {
        return stranger("ui-foreign-host", "the request is for another host");
    }
    let origins = headers.get_all(header::ORIGIN);
    let own_origin = |origin: &HeaderValue| {
        let authority = origin.as_bytes().strip_prefix(b"http://");
        authority.is_some_and(|authority| is_own(port, authority))
    };
    if !origins.iter().all(own_origin) {
        return stranger("ui-foreign-origin", "the request comes from another page");
    }
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    // Following a link to the page from somewhere else is harmless; asking it something is not.
    if is_api && !matches!(site, None | Some(b"same-origin" | b"none")) {
        return stranger("ui-foreign-origin", "the request comes from another page");
    }
    None
}

/// Refuses a body that says itself that it is too long, before it is waited for.
fn too_long(headers: &HeaderMap) -> Option<(StatusCode, Failure)> {
    let length = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    let length: u64 = length.parse().ok()?;
    (length > MAX_BODY_BYTES as u64).then(|| {
        let what = format!("the body is longer than {MAX_BODY_BYTES} bytes");
        let failure = Failure::new("ui-too-large", Exit::BadData, what);
        (StatusCode::PAYLOAD_TOO_LARGE, failure)
    })
}

/// Whether an authority is one of ours. A browser leaves out port 80.
fn is_own(port: u16, authority: &[u8]) -> bool {
    NAMES.iter().any(|name| {
        authority.eq_ignore_ascii_case(format!("{name}:{port}").as_bytes())
            || port == 80 && authority.eq_ignore_ascii_case(name.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(port: u16, headers: &[(&'static str, &str)], is_api: bool) -> Option<&'static str> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        refusal(port, &map, is_api).map(|(_, failure)| failure.code())
    }

    #[test]
    fn the_loopbacks_own_names_are_answered_and_no_other() {
        for host in [
            "127.0.0.1:2769",
            "localhost:2769",
            "LocalHost:2769",
            "[::1]:2769",
        ] {
            assert_eq!(refused(2769, &[("host", host)], true), None, "{host}");
        }
        for host in [
            "",
            "127.0.0.1",
            "localhost",
            "127.0.0.1:80",
            "127.0.0.1:27690",
            "127.0.0.2:2769",
            "evil.example:2769",
            "localhost.evil.example:2769",
            "127.0.0.1:2769.evil.example",
            "user@127.0.0.1:2769",
            "0x7f.1:2769",
            "0.0.0.0:2769",
            "127.0.0.1:2769, evil.example",
        ] {
            let code = refused(2769, &[("host", host)], false);
            assert_eq!(code, Some("ui-foreign-host"), "{host}");
        }
        assert_eq!(refused(2769, &[], false), Some("ui-foreign-host"));
        let two = [("host", "127.0.0.1:2769"), ("host", "evil.example")];
        assert_eq!(refused(2769, &two, false), Some("ui-foreign-host"));
        assert_eq!(refused(80, &[("host", "localhost")], true), None);
    }

    #[test]
    fn what_another_page_asks_is_refused_and_a_link_from_it_is_not() {
        let host = ("host", "127.0.0.1:2769");
        let from = |name, value| [host, (name, value)];
        let foreign = Some("ui-foreign-origin");
        for origin in [
            "null",
            "https://evil.example",
            "http://127.0.0.1:1",
            "https://127.0.0.1:2769",
        ] {
            assert_eq!(
                refused(2769, &from("origin", origin), true),
                foreign,
                "{origin}"
            );
        }
        let own = from("origin", "http://localhost:2769");
        assert_eq!(refused(2769, &own, true), None);
        for site in ["cross-site", "same-site"] {
            assert_eq!(refused(2769, &from("sec-fetch-site", site), true), foreign);
            assert_eq!(refused(2769, &from("sec-fetch-site", site), false), None);
        }
        for site in ["same-origin", "none"] {
            assert_eq!(refused(2769, &from("sec-fetch-site", site), true), None);
        }
    }
}
