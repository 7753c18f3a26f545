//! Whether a request to the store of the tests is signed as the store would sign it.

use ring::{digest, hmac};

use super::wire::Request;

pub const SECRET: &str = "a secret";
pub const REGION: &str = "eu-test-1";

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// Works the signature out once more from what came over the wire.
pub fn check(request: &Request, address: &str, service: &str) -> Result<(), String> {
    let header = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
    if header("host") != address {
        return Err(format!("another host: {}", header("host")));
    }
    let authorization = header("authorization");
    let field = |name: &str| {
        let at = authorization.find(name).ok_or(format!("no {name}"))?;
        let value = authorization[at + name.len()..].split(',').next();
        Ok::<_, String>(value.unwrap_or_default().to_owned())
    };
    let (credential, names, signature) = (
        field("Credential=")?,
        field("SignedHeaders=")?,
        field("Signature=")?,
    );
    let mut needed = vec!["host", "x-amz-date", "x-amz-content-sha256"];
    if service == "s3" {
        // The store knows one key, which counts for a limited time.
        needed.push("x-amz-security-token");
    }
    let amazons = request.headers.keys().map(String::as_str);
    needed.extend(amazons.filter(|name| name.starts_with("x-amz-")));
    for name in needed {
        if !names.split(';').any(|signed| signed == name) {
            return Err(format!("{name} is not signed"));
        }
    }
    if header("x-amz-content-sha256") != sha256(&request.body) {
        return Err("another body than was signed".into());
    }
    let date = header("x-amz-date");
    let day = date.get(..8).ok_or("no date")?;
    let scope = format!("{day}/{REGION}/{service}/aws4_request");
    if credential != format!("someone/{scope}") {
        return Err(format!("another scope: {credential}"));
    }
    let mut query: Vec<&str> = request.query.split('&').collect();
    query.sort_unstable();
    let lines: String = names
        .split(';')
        .map(|name| {
            let value = header(name);
            let words: Vec<&str> = value.split_whitespace().collect();
            format!("{name}:{}\n", words.join(" "))
        })
        .collect();
    let canonical = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{}",
        request.method,
        request.path,
        query.join("&"),
        header("x-amz-content-sha256")
    );
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
        sha256(canonical.as_bytes())
    );
    let sign = |key: &[u8], text: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
    };
    let key = sign(format!("AWS4{SECRET}").as_bytes(), day);
    let key = sign(&sign(&sign(&key, REGION), service), "aws4_request");
    match hex(&sign(&key, &text)) == signature {
        true => Ok(()),
        false => Err("another signature".into()),
    }
}
