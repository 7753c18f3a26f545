//! Copies to and from a store that others wrote: moto's server, over TLS with an authority of its own.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_mover::objects::{Credentials, StoreSettings};
use crowfly_mover::service::{Asked, Auth, Copied, ServiceError, Side};
use crowfly_waive::waived;
use tempfile::TempDir;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

#[path = "service_support/stage.rs"]
mod stage;

use stage::{asked, copy, pattern};

const MIB: usize = 1 << 20;
/// How much of an object goes to a store in one request.
const PART: usize = 8 * MIB;
const NO_MOTO: &str = "moto's server is not installed (PyPI: moto[s3,server])";
/// Long enough for an interpreter on a busy machine.
const SOON: Duration = Duration::from_secs(180);

struct Moto {
    child: Child,
    endpoint: String,
    authority: PathBuf,
    agent: ureq::Agent,
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
        let trusted = Certificate::from_pem(made.cert.pem().as_bytes()).expect("a certificate");
        let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[trusted]));
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(5)))
            .tls_config(tls.build())
            .build()
            .into();
        let mut moto = Self {
            child,
            endpoint: format!("https://127.0.0.1:{port}"),
            authority,
            agent,
            here,
        };
        let began = Instant::now();
        while moto
            .agent
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
                expires: None,
            }),
            authorities: Some(self.authority.clone()),
            ..StoreSettings::default()
        }
    }

    fn wanted(&self, from: Side, to: Side) -> Asked {
        Asked {
            store: self.settings(),
            timeout: Some(SOON),
            ..asked(from, to, true, Auth::Open)
        }
    }

    /// Begins an upload whose only part so far is this one.
    fn begin(&self, key: &str, number: usize, bytes: &[u8]) {
        let object = format!("{}/things/{key}", self.endpoint);
        let asked = self.agent.post(format!("{object}?uploads")).send_empty();
        let begun = asked.expect("begun").body_mut().read_to_string();
        let begun = begun.expect("text");
        let (_, after) = begun.split_once("<UploadId>").expect("an upload");
        let (id, _) = after.split_once("</UploadId>").expect("an upload");
        let part = format!("{object}?partNumber={number}&uploadId={id}");
        self.agent.put(part).send(bytes).expect("a part");
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
    // What somebody else began is gone on with.
    let bytes = pattern(32 * MIB, 2);
    fs::write(moto.here.path().join("m"), &bytes).expect("written");
    moto.begin("m", 2, &bytes[PART..2 * PART]);
    let mut want = moto.wanted(moto.file("m"), object("s3://things/m"));
    want.resume = true;
    assert_eq!(settled(copy(want)).resumed.0, PART as u64);
    let got = moto.wanted(object("s3://things/m"), moto.file("m2"));
    settled(copy(got));
    assert!(fs::read(moto.here.path().join("m2")).expect("there") == bytes);
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
