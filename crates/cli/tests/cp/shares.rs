//! What is exposed under which name, and what a hint says of it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use super::stage::{cp, crowfly, document, folder};

/// Code, status, message and hint of a server that does not start.
fn told(folder: &std::path::Path, shares: &[&OsStr]) -> (String, i32, String, String) {
    let start = ["serve", "--json", "--listen", "127.0.0.1:0"];
    let output = crowfly(folder, &start).args(shares).output();
    let output = output.expect("it starts");
    let error = document(&output)["error"].clone();
    let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    let status = output.status.code().expect("not killed");
    (text("code"), status, text("message"), text("hint"))
}

#[test]
fn given_shares_that_cannot_be_each_is_refused_with_a_hint_that_fits() {
    let folder = folder("serve-shares");
    fs::write(folder.join("m"), b"bytes").expect("written");
    fs::write(folder.join("a name"), b"bytes").expect("written");
    let long = format!("{}=m", "n".repeat(65));
    // Shares, code, status, what the message names, what the hint says.
    type Case<'a> = (&'a [&'a [u8]], &'a str, i32, &'a str, &'a str);
    let cases: &[Case<'_>] = &[
        (&[b"=m"], "usage", 64, "`=m` has no name", "NAME=PATH"),
        (&[b"="], "usage", 64, "`=` has no name", "NAME=PATH"),
        (&[b"m="], "usage", 64, "`m=` has no path", "NAME=PATH"),
        (&[b""], "usage", 64, "is no path", "NAME=PATH"),
        (&[b"/"], "usage", 64, "last component", "NAME=/"),
        (&[b"a=b=m"], "input-not-found", 66, "b=m", ""),
        (
            &[b"a/b=m"],
            "input-not-found",
            66,
            "a/b=m",
            "in front of the `=`",
        ),
        (&[b"..=m"], "bad-name", 64, "`..` is no name", "NAME=PATH"),
        (&[b"a b=m"], "bad-name", 64, "`a b` is no name", "NAME=PATH"),
        (&[b"a\x01b=m"], "bad-name", 64, "is no name", "NAME=PATH"),
        (&[b"a\xffb=m"], "bad-name", 64, "is no name", "NAME=PATH"),
        (
            &[long.as_bytes()],
            "bad-name",
            64,
            "64 characters",
            "NAME=PATH",
        ),
        (&[b"a name"], "bad-name", 64, "is no name", "NAME=a name"),
        (&[b"none"], "input-not-found", 66, "none", ""),
        (&[b"x=none"], "input-not-found", 66, "none", ""),
        (&[b"m", b"m"], "name-taken", 64, "`m`", "NAME=PATH"),
        (&[b"/dev/null"], "not-a-file", 66, "character device", ""),
    ];
    for (shares, code, status, says, hint) in cases {
        let shares: Vec<&OsStr> = shares
            .iter()
            .map(|share| OsStr::from_bytes(share))
            .collect();
        let told = told(&folder, &shares);
        assert_eq!(
            (told.0.as_str(), told.1),
            (*code, *status),
            "{shares:?}: {told:?}"
        );
        assert!(told.2.contains(says), "{shares:?}: {told:?}");
        assert!(told.3.contains(hint), "{shares:?}: {told:?}");
        assert!(
            !told.3.contains("crowfly://"),
            "no location is asked for: {told:?}"
        );
    }
}

#[test]
fn given_addresses_that_cannot_be_each_is_refused_with_what_is_missing() {
    let folder = folder("cp-addresses");
    let told = |address: &str| {
        let (document, status) = cp(&folder, &[address, "out"]);
        let text = |field: &str| {
            document["error"][field]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        (text("code"), status, text("message"), text("hint"))
    };
    for (address, code, status, says, hint) in [
        (
            "crowfly://",
            "bad-location",
            64,
            "host",
            "crowfly://HOST:PORT/NAME",
        ),
        (
            "crowfly:///x",
            "bad-location",
            64,
            "host",
            "crowfly://HOST:PORT/NAME",
        ),
        (
            "crowfly://h/",
            "bad-location",
            64,
            "port is missing",
            "HOST:PORT",
        ),
        (
            "crowfly://h:1/",
            "bad-location",
            64,
            "name is missing",
            "/NAME",
        ),
        (
            "crowfly://h:0/x",
            "bad-location",
            64,
            "1 to 65535",
            "HOST:PORT",
        ),
        (
            "crowfly://h:65536/x",
            "bad-location",
            64,
            "1 to 65535",
            "HOST:PORT",
        ),
        (
            "crowfly://h:+7/x",
            "bad-location",
            64,
            "1 to 65535",
            "HOST:PORT",
        ),
        (
            "crowfly://::1/x",
            "bad-location",
            64,
            "brackets",
            "HOST:PORT",
        ),
        (
            "crowfly://[::1]/x",
            "bad-location",
            64,
            "port is missing",
            "HOST:PORT",
        ),
        (
            "crowfly://[::1]:1/x",
            "peer-unreachable",
            66,
            "[::1]:1",
            "listening",
        ),
        ("crowfly://h h:1/x", "bad-location", 64, "host", "HOST:PORT"),
        ("crowfly://u@h:1/x", "bad-location", 64, "host", "HOST:PORT"),
        (
            "crowfly://h:1/a%20b",
            "bad-location",
            64,
            "letters",
            "/NAME",
        ),
        ("crowfly://h:1/x/a%2fb", "bad-location", 64, "%2F", "/NAME"),
        ("crowfly://h:1/x/%00", "bad-location", 64, "NUL", "/NAME"),
        (
            "crowfly://h.invalid:1/x",
            "no-such-host",
            66,
            "h.invalid",
            "getent hosts",
        ),
        ("file:", "not-a-place", 64, "no path", ""),
    ] {
        let told = told(address);
        assert_eq!(
            (told.0.as_str(), told.1),
            (code, status),
            "{address}: {told:?}"
        );
        assert!(told.2.contains(says), "{address}: {told:?}");
        assert!(told.3.contains(hint), "{address}: {told:?}");
    }
    assert!(!folder.join("out").exists());
}
