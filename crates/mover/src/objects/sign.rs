//! Signatures of requests, as S3 asks for them (AWS Signature Version 4; the steps and the example of the
//! test are those of the documentation of Amazon S3's REST API, "Signature Calculations for the
//! Authorization Header").

use std::fmt;
use std::time::SystemTime;

use ring::{digest, hmac};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A key of a store, which never shows in output.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its public half.
    pub access_key: String,
    /// Its secret half.
    pub secret_key: String,
    /// What goes with a key for a limited time.
    pub session_token: Option<String>,
    /// Until when it counts, where that is said.
    pub expires: Option<SystemTime>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, …)", self.access_key)
    }
}

/// What a body that is not hashed is signed as: its connection is encrypted.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// The hash of a body, as it is signed.
pub(super) fn hashed(body: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, body).as_ref())
}

/// A request to be signed.
pub(super) struct Signed<'r> {
    pub method: &'r str,
    /// As it is sent: already [`encoded`].
    pub path: &'r str,
    /// As it is sent, by [`query`].
    pub query: &'r str,
    /// What [`hashed`] says of its body, or [`UNSIGNED`].
    pub body: &'r str,
    /// What is asked: `s3`, or another service of the same make.
    pub service: &'r str,
    pub region: &'r str,
    pub at: SystemTime,
}

impl Signed<'_> {
    /// These headers, and those that sign them.
    pub(super) fn headers<'h>(
        &self,
        credentials: &Credentials,
        mut headers: Vec<(&'h str, String)>,
    ) -> Vec<(&'h str, String)> {
        let now = humantime::format_rfc3339_seconds(self.at).to_string();
        let now = now.replace(['-', ':'], "");
        let day = now.get(..8).unwrap_or_default();
        headers.push(("x-amz-content-sha256", self.body.to_owned()));
        headers.push(("x-amz-date", now.clone()));
        if let Some(token) = &credentials.session_token {
            headers.push(("x-amz-security-token", token.clone()));
        }
        headers.sort_unstable();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines = headers
            .iter()
            .map(|(name, value)| format!("{name}:{}\n", plain(value)));
        let lines: String = lines.collect();
        let request = format!(
            "{}\n{}\n{}\n{lines}\n{names}\n{}",
            self.method, self.path, self.query, self.body
        );
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let request = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
        let text = format!("{ALGORITHM}\n{now}\n{scope}\n{request}");
        let mut key = format!("AWS4{}", credentials.secret_key).into_bytes();
        for part in [day, self.region, self.service, "aws4_request"] {
            key = keyed(&key, part.as_bytes());
        }
        let signature = hex(&keyed(&key, text.as_bytes()));
        let who = &credentials.access_key;
        headers.push((
            "authorization",
            format!(
                "{ALGORITHM} Credential={who}/{scope},SignedHeaders={names},Signature={signature}"
            ),
        ));
        headers
    }
}

/// A value as it is signed: without spaces around it, and with one where there are several.
fn plain(value: &str) -> String {
    let mut words = value.trim().split(' ').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| all + " " + word)
}

fn keyed(key: &[u8], text: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text).as_ref().to_vec()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key as it stands in the path of a request: every byte but letters, digits, `-._~` and `/` as `%XX`.
pub(super) fn encoded(key: &[u8]) -> String {
    escaped(key, b"/")
}

/// The query of a request, in the order that is signed.
pub(super) fn query(parameters: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| {
        let (name, value) = (
            escaped(name.as_bytes(), b""),
            escaped(value.as_bytes(), b""),
        );
        format!("{name}={value}")
    };
    let mut pairs: Vec<String> = parameters.iter().map(pair).collect();
    pairs.sort_unstable();
    pairs.join("&")
}

fn escaped(bytes: &[u8], plain: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(*byte));
            }
            other if plain.contains(other) => text.push(char::from(*other)),
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// 24 May 2013, midnight: when the documentation's requests were made.
    const WHEN: Duration = Duration::from_secs(1_369_353_600);

    fn credentials() -> Credentials {
        Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
            expires: None,
        }
    }

    /// The signature of a request to the documentation's bucket.
    fn signature(
        (method, path, query): (&str, &str, &str),
        body: &[u8],
        more: &[(&'static str, &str)],
    ) -> String {
        let body = hashed(body);
        let request = Signed {
            method,
            path,
            query,
            body: &body,
            service: "s3",
            region: "us-east-1",
            at: UNIX_EPOCH + WHEN,
        };
        let mut headers = vec![("host", "examplebucket.s3.amazonaws.com".to_owned())];
        headers.extend(
            more.iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        let signed = request.headers(&credentials(), headers);
        let (name, value) = signed.last().expect("headers");
        assert_eq!(*name, "authorization");
        let signature = value.rsplit_once("Signature=").expect("a signature").1;
        signature.to_owned()
    }

    #[test]
    fn the_documentations_requests_have_their_signatures() {
        let first = signature(("GET", "/test.txt", ""), b"", &[("range", "bytes=0-9")]);
        let expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert_eq!(first, expected);
        let listing = query(&[("prefix", "J"), ("max-keys", "2")]);
        assert_eq!(listing, "max-keys=2&prefix=J");
        let listed = signature(("GET", "/", &listing), b"", &[]);
        let expected = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7";
        assert_eq!(listed, expected);
        let put = signature(
            ("PUT", "/test%24file.text", ""),
            b"Welcome to Amazon S3.",
            &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
        );
        let expected = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        assert_eq!(put, expected);
        assert!(!format!("{:?}", credentials()).contains("wJalr"));
    }

    #[test]
    fn a_key_is_encoded_byte_by_byte() {
        assert_eq!(encoded("a b/ü+~".as_bytes()), "a%20b/%C3%BC%2B~");
        assert_eq!(query(&[("k", "a/b c"), ("acl", "")]), "acl=&k=a%2Fb%20c");
    }
}
