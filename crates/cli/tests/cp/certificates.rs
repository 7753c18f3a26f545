//! Certificates that are not to be trusted, from the command line.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};

use super::stage::{Server, cp, folder};

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
