//! Copies to and from a store that others wrote: moto's server, over TLS with an authority of its own.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_mover::objects::{Credentials, StoreSettings};
use crowfly_mover::service::{Asked, Auth, Copied, Copy, ServiceError, Side};
use crowfly_waive::waived;
use tempfile::TempDir;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

#[path = "service_support/stage.rs"]
mod stage;

use stage::{asked, copy, pattern};

const MIB: usize = 1 << 20;
const NO_MOTO: &str = "moto's server is not installed (PyPI: moto[s3,server])";
/// Long enough for an interpreter on a busy machine.
const SOON: Duration = Duration::from_secs(180);

struct Moto {
    child: Child,
    endpoint: String,
    authority: PathBuf,
    here: TempDir,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Moto {
    /// A server with an empty bucket `things`; `None` where there is none to be had.
    fn start() -> Option<Self> {
        let here = tempfile::tempdir().expect("a folder");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let (authority, key) = (here.path().join("ca.pem"), here.path().join("key.pem"));
        fs::write(&authority, made.cert.pem()).expect("written");
        fs::write(&key, made.signing_key.serialize_pem()).expect("written");
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("bound").port()
        };
        let port = free();
        let child = Command::new("moto_server")
            .args(["-H", "127.0.0.1", "-p", &port.to_string(), "-c"])
            .arg(&authority)
            .arg("-k")
            .arg(&key)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut moto = Self {
            child,
            endpoint: format!("https://127.0.0.1:{port}"),
            authority,
            here,
        };
        let trusted = Certificate::from_pem(made.cert.pem().as_bytes()).expect("a certificate");
        let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[trusted]));
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(5)))
            .tls_config(tls.build())
            .build()
            .into();
        let began = Instant::now();
        while agent
            .put(format!("{}/things", moto.endpoint))
            .send_empty()
            .is_err()
        {
            if moto.child.try_wait().expect("a child").is_some() {
                return None;
            }
            assert!(began.elapsed() < SOON, "moto did not start");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(moto)
    }

    fn settings(&self) -> StoreSettings {
        StoreSettings {
            endpoint: Some(self.endpoint.clone()),
            region: None,
            credentials: Some(Credentials {
                access_key: "someone".into(),
                secret_key: "a secret".into(),
                session_token: None,
            }),
            authorities: Some(self.authority.clone()),
        }
    }

    fn wanted(&self, from: Side, to: Side) -> Asked {
        Asked {
            store: self.settings(),
            timeout: Some(SOON),
            ..asked(from, to, true, Auth::Open)
        }
    }

    fn file(&self, name: &str) -> Side {
        Side::File(self.here.path().join(name))
    }
}

fn object(text: &str) -> Side {
    Side::Object(text.parse().expect("an object"))
}

fn settled(result: Result<Copied, ServiceError>) -> Copied {
    result.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn given_a_store_that_others_wrote_files_go_there_in_parts_and_come_back() {
    let Some(moto) = Moto::start() else {
        waived!("{NO_MOTO}");
    };
    let folder = moto.here.path().join("f/d");
    fs::create_dir_all(&folder).expect("made");
    let large = pattern(19 * MIB + 5, 1);
    fs::write(folder.join("large \u{fc}+&"), &large).expect("written");
    fs::write(folder.join("small"), b"small").expect("written");
    fs::write(folder.join("empty"), b"").expect("written");
    let mut up = moto.wanted(moto.file("f"), object("s3://things/p"));
    up.recursive = true;
    let copied = settled(copy(up));
    assert_eq!(copied.files, 3);
    assert!(copied.receipt.is_whole());
    let because = copied.receipt.shares[0].because.as_deref();
    assert_eq!(because, Some("the store speaks HTTP over TLS"));
    let mut down = moto.wanted(object("s3://things/p"), moto.file("back"));
    down.recursive = true;
    assert_eq!(settled(copy(down)).files, 3);
    let back = moto.here.path().join("back/d");
    assert!(fs::read(back.join("large \u{fc}+&")).expect("there") == large);
    assert_eq!(fs::read(back.join("small")).expect("there"), b"small");
    assert_eq!(fs::metadata(back.join("empty")).expect("there").len(), 0);
    // What was interrupted is gone on with.
    fs::write(moto.here.path().join("m"), pattern(32 * MIB, 2)).expect("written");
    let mut want = moto.wanted(moto.file("m"), object("s3://things/m"));
    want.resume = true;
    let begun = Copy::start(want.clone()).expect("started");
    while begun.moved().0 < 8 << 20 {
        assert!(!begun.is_finished(), "{:?}", begun.wait().map(drop));
        std::thread::sleep(Duration::from_micros(200));
    }
    begun.cancel();
    if let Err(error) = begun.wait() {
        assert_eq!(error.code(), "cancelled");
        let copied = settled(copy(want));
        assert!(copied.resumed.0 >= 8 << 20, "{} were kept", copied.resumed);
    }
    let got = moto.wanted(object("s3://things/m"), moto.file("m2"));
    settled(copy(got));
    let mut bytes = Vec::new();
    let mut file = fs::File::open(moto.here.path().join("m2")).expect("there");
    file.read_to_end(&mut bytes).expect("read");
    assert!(bytes == pattern(32 * MIB, 2));
    for (from, code) in [
        ("s3://things/none", "object-not-found"),
        ("s3://none/m", "bucket-not-found"),
    ] {
        let error = copy(moto.wanted(object(from), Side::Host))
            .map(drop)
            .expect_err("none");
        assert_eq!(error.code(), code, "{error}");
    }
    let mut stranger = moto.wanted(object("s3://things/m"), Side::Host);
    stranger.store.authorities = None;
    let error = copy(stranger).map(drop).expect_err("not trusted");
    assert_eq!(error.code(), "store-unreachable");
    assert!(error.to_string().contains("ertificate"), "{error}");
}
