//! Certificates of both ends: who is trusted is served, everyone else is told why not.

use std::fs;

use crowfly_mover::service::{Auth, Identity, Side};

#[path = "service_support/authority.rs"]
mod authority;
#[path = "service_support/stage.rs"]
mod stage;

use authority::Authority;
use stage::{Stage, copy};

/// How a copy of a file from a server with `server`'s certificate ends for a peer with `peer`'s.
fn outcome(server: Auth, peer: Auth) -> Result<u64, &'static str> {
    let stage = Stage::with(true, server, |_| {});
    stage.put("m", b"protected requests");
    let mut asked = stage.asked(stage.at("data/m"), Side::Host);
    asked.dialing.auth = peer;
    match copy(asked) {
        Ok(copied) => Ok(copied.receipt.requested.0),
        Err(error) => Err(error.code()),
    }
}

#[test]
fn given_certificates_that_both_trust_the_copy_is_made() {
    let authority = Authority::new();
    authority.sign("server", "127.0.0.1", 4096);
    authority.sign("peer", "somebody", 4096);
    let ca = authority.ca();
    let ended = outcome(
        authority.identity("server", &ca),
        authority.identity("peer", &ca),
    );
    assert_eq!(ended, Ok(18));
}

#[test]
fn given_a_certificate_that_expired_whoever_is_shown_it_refuses() {
    let authority = Authority::new();
    authority.sign("good", "127.0.0.1", 4096);
    authority.sign("old", "127.0.0.1", 2021);
    let ca = authority.ca();
    let is = |name| authority.identity(name, &ca);
    assert_eq!(outcome(is("old"), is("good")), Err("peer-not-trusted"));
    assert_eq!(outcome(is("good"), is("old")), Err("not-authenticated"));
}

#[test]
fn given_a_certificate_of_a_foreign_authority_whoever_is_shown_it_refuses() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    ours.sign("server", "127.0.0.1", 4096);
    foreign.sign("peer", "127.0.0.1", 4096);
    let server = ours.identity("server", &ours.ca());
    // It trusts the server, and is not trusted.
    let peer = foreign.identity("peer", &ours.ca());
    assert_eq!(outcome(server.clone(), peer), Err("not-authenticated"));
    // It would be trusted, and trusts others.
    ours.sign("peer", "127.0.0.1", 4096);
    let peer = ours.identity("peer", &foreign.ca());
    assert_eq!(outcome(server, peer), Err("peer-not-trusted"));
}

#[test]
fn given_a_certificate_for_another_host_the_peer_refuses() {
    let authority = Authority::new();
    authority.sign("server", "elsewhere.example", 4096);
    authority.sign("peer", "somebody", 4096);
    let ca = authority.ca();
    let ended = outcome(
        authority.identity("server", &ca),
        authority.identity("peer", &ca),
    );
    assert_eq!(ended, Err("peer-not-trusted"));
}

#[test]
fn given_one_end_with_a_key_and_the_other_with_certificates_both_end_with_an_error() {
    let authority = Authority::new();
    authority.sign("good", "127.0.0.1", 4096);
    let certified = authority.identity("good", &authority.ca());
    let keyed = Auth::Key(stage::key());
    let ended = outcome(certified.clone(), keyed.clone());
    assert_eq!(ended, Err("not-authenticated"), "what answers knows no key");
    let ended = outcome(keyed, certified).expect_err("no common language");
    assert!(
        ["peer-lost", "deadline-exceeded"].contains(&ended),
        "{ended}"
    );
}

#[test]
fn given_files_that_are_no_certificates_the_error_names_the_file_and_what_is_missing() {
    let authority = Authority::new();
    authority.sign("good", "127.0.0.1", 4096);
    let at = |name: &str| authority.folder.path().join(name);
    fs::write(at("empty"), "").expect("written");
    let read = |cert: &str, key: &str, ca: &str| {
        let error = Identity::read(&at(cert), &at(key), &at(ca))
            .map(drop)
            .expect_err("refused");
        assert_eq!(error.code(), "bad-certificate");
        error.to_string()
    };
    assert!(read("empty", "good.key", "ca.pem").contains("usable certificate"));
    assert!(read("good.pem", "empty", "ca.pem").contains("private key"));
    assert!(read("good.pem", "good.key", "none").contains("certificate authority"));
    authority.sign("other", "127.0.0.1", 4096);
    assert!(read("good.pem", "other.key", "ca.pem").contains("cannot be used"));
}

#[test]
fn given_hundreds_of_silent_connections_whoever_has_a_certificate_is_served_at_once() {
    let authority = Authority::new();
    for name in ["server", "peer"] {
        authority.sign(name, "127.0.0.1", 4096);
    }
    let ca = authority.ca();
    let stage = Stage::with(false, authority.identity("server", &ca), |_| {});
    stage.put("m", b"bytes");
    let silent = |_| std::net::TcpStream::connect(stage.server.address()).expect("connected");
    let _held: Vec<_> = (0..270).map(silent).collect();
    let mut asked = stage.asked(stage.at("data/m"), Side::Host);
    asked.dialing.auth = authority.identity("peer", &ca);
    let began = std::time::Instant::now();
    copy(asked).expect("served");
    // Waiting for the silent ones to be sent away would take as long as they have to introduce themselves.
    let limit = std::time::Duration::from_secs(5);
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());
}
