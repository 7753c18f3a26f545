//! Certificates that are not to be trusted, from the command line.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};

use super::stage::{Server, cp, folder, refusal};

struct Authority<'f> {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: &'f Path,
}

fn put(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set");
}

impl<'f> Authority<'f> {
    fn new(folder: &'f Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("signed");
        put(&folder.join(format!("{name}.pem")), &issuer.pem());
        Self { issuer, folder }
    }

    /// A certificate for loopback, valid until the year `until`.
    fn sign(&self, name: &str, until: i32) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        put(&self.folder.join(format!("{name}.pem")), &certificate.pem());
        put(
            &self.folder.join(format!("{name}.key")),
            &key.serialize_pem(),
        );
    }
}

fn options(name: &str, trusts: &str) -> [String; 6] {
    [
        "--tls-cert",
        &format!("{name}.pem"),
        "--tls-key",
        &format!("{name}.key"),
        "--tls-ca",
        trusts,
    ]
    .map(str::to_owned)
}

/// How a copy ends: the code of its error, if it is one, and its status.
fn outcome(folder: &Path, server: &Server, name: &str, trusts: &str) -> (String, i32) {
    let from = server.at("data/m");
    let options = options(name, trusts);
    let mut arguments = vec![from.as_str(), "host:"];
    arguments.extend(options.iter().map(String::as_str));
    let (document, status) = cp(folder, &arguments);
    let code = document["error"]["code"].as_str().unwrap_or("none");
    (code.to_owned(), status)
}

fn serve(folder: &Path, name: &str) -> Server {
    let options = options(name, "ours.pem");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Server::start(folder, &options)
}

#[test]
fn given_certificates_of_strangers_old_ones_or_none_each_end_says_why() {
    let folder = folder("cp-certificates");
    fs::write(folder.join("data/m"), b"bytes").expect("written");
    let ours = Authority::new(&folder, "ours");
    let theirs = Authority::new(&folder, "theirs");
    ours.sign("good", 4096);
    ours.sign("old", 2021);
    theirs.sign("alien", 4096);
    let server = serve(&folder, "good");
    let with = |name: &str, trusts: &str| outcome(&folder, &server, name, trusts);
    assert_eq!(with("good", "ours.pem"), ("none".into(), 0));
    assert_eq!(with("good", "theirs.pem"), ("peer-not-trusted".into(), 66));
    assert_eq!(with("alien", "ours.pem"), ("not-authenticated".into(), 66));
    assert_eq!(with("old", "ours.pem"), ("not-authenticated".into(), 66));
    assert_eq!(with("good", "none.pem"), ("input-not-found".into(), 66));
    assert_eq!(with("good", "data/m"), ("bad-certificate".into(), 65));
    let expired = serve(&folder, "old");
    let ended = outcome(&folder, &expired, "good", "ours.pem");
    assert_eq!(ended, ("peer-not-trusted".into(), 66));
}

#[test]
fn given_two_certificates_of_one_authority_the_one_that_did_not_announce_itself_is_not_taken_for_the_other()
 {
    let folder = folder("cp-certificates-replaced");
    fs::write(folder.join("data/m"), b"bytes").expect("written");
    let ours = Authority::new(&folder, "ours");
    ours.sign("one", 4096);
    ours.sign("other", 4096);
    ours.sign("peer", 4096);
    let named = |name: &str| {
        let options = options(name, "ours.pem");
        let announced = format!("--announce={name}");
        let mut all: Vec<&str> = options.iter().map(String::as_str).collect();
        all.extend(["--directory", "names", announced.as_str()]);
        Server::start(&folder, &all)
    };
    let (one, other) = (named("one"), named("other"));
    let entry = |name: &str| {
        let path = folder.join("names").join(name);
        let text = fs::read_to_string(&path).expect("announced");
        (path, text)
    };
    let ((path, first), (_, second)) = (entry("one"), entry("other"));
    let mixed: Vec<&str> = first.split_whitespace().take(2).collect();
    let address = second.split_whitespace().nth(2).expect("an address");
    // As if the one had ended, and the other had its address by now.
    fs::write(&path, format!("{} {address}", mixed.join(" "))).expect("written");
    let options = options("peer", "ours.pem");
    let mut with: Vec<&str> = options.iter().map(String::as_str).collect();
    with.extend(["--directory", "names"]);
    let down = [&with[..], &["crowfly://@one/data/m", "copy"]].concat();
    let up = [&with[..], &["data/m", "crowfly://@one/data/n"]].concat();
    assert_eq!(refusal(&folder, &down), ("peer-replaced".into(), 69));
    assert_eq!(refusal(&folder, &up), ("peer-replaced".into(), 69));
    assert!(!folder.join("copy").exists() && !folder.join("data/n").exists());
    let by_its_name = [&with[..], &["crowfly://@other/data/m", "copy"]].concat();
    assert_eq!(cp(&folder, &by_its_name).1, 0, "it is trusted");
    fs::write(&path, first).expect("as it was");
    for arguments in [down, up] {
        let (told, status) = cp(&folder, &arguments);
        assert_eq!(status, 0, "{told}");
    }
    drop((one, other));
}
