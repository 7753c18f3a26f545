//! An authority of certificates that exists for one test.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::fs;
use std::path::Path;

use crowfly_mover::service::{Auth, Identity};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};

/// An authority, and a folder for what it signs.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub folder: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("signed");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("written");
        Self { issuer, folder }
    }

    /// Files of a certificate for `host`, valid until the year `until`.
    pub fn sign(&self, name: &str, host: &str, until: i32) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let write = |end: &str, text: String| {
            fs::write(self.folder.path().join(format!("{name}.{end}")), text).expect("written");
        };
        write("pem", certificate.pem());
        write("key", key.serialize_pem());
    }

    pub fn ca(&self) -> std::path::PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// What was signed under a name, trusting the authorities in a file.
    pub fn identity(&self, name: &str, trusts: &Path) -> Auth {
        let at = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        let identity = Identity::read(&at("pem"), &at("key"), trusts).expect("an identity");
        Auth::Certificates(identity)
    }
}
