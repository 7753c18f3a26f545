//! A server on this host that exposes a folder, and copies to and from it.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crowfly_mover::fabric::{Settings, SharedKey};
use crowfly_mover::service::{
    Asked, Auth, Copied, Copy, Dialing, Export, Limits, Server, ServerSettings, ServiceError, Side,
};
use crowfly_route::policy::Policy;
use crowfly_route::units::Bytes;

/// Long enough for a busy machine, short enough to fail in.
pub const SOON: Duration = Duration::from_secs(30);

pub fn key() -> SharedKey {
    SharedKey::derive("a stage")
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let step = |n: usize| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed;
    (0..len).map(step).collect()
}

pub struct Stage {
    pub server: Server,
    /// What is exposed as `data` (read only) and `inbox` (writable).
    pub folder: tempfile::TempDir,
    pub shm: bool,
    pub auth: Auth,
}

pub fn settings(folder: &Path, shm: bool, auth: Auth) -> ServerSettings {
    let name = |text: &str| text.parse().expect("a name");
    ServerSettings {
        listen: "127.0.0.1:0".parse().expect("an address"),
        auth,
        exports: vec![
            Export::Folder {
                name: name("data"),
                path: folder.to_owned(),
                writable: false,
            },
            Export::Folder {
                name: name("inbox"),
                path: folder.to_owned(),
                writable: true,
            },
            Export::Memory {
                name: name("pool"),
                bytes: Bytes(9 << 20),
            },
        ],
        metrics: Some("127.0.0.1:0".parse().expect("an address")),
        limits: Limits::default(),
        fabric: fabric(shm),
    }
}

pub fn fabric(shm: bool) -> Settings {
    Settings {
        shm,
        silence: Duration::from_millis(1_500),
        ..Settings::new(key())
    }
}

impl Stage {
    pub fn new(shm: bool) -> Self {
        Self::with(shm, Auth::Key(key()), |_| {})
    }

    pub fn with(shm: bool, auth: Auth, change: impl FnOnce(&mut ServerSettings)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(folder.path(), shm, auth.clone());
        change(&mut settings);
        let server = Server::start(settings).expect("a server");
        Self {
            server,
            folder,
            shm,
            auth,
        }
    }

    pub fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("inside")).expect("made");
        std::fs::write(&path, bytes).expect("written");
        path
    }

    pub fn at(&self, name: &str) -> Side {
        let url = format!("crowfly://{}/{name}", self.server.address());
        Side::Served(url.parse().expect("a location"))
    }

    pub fn asked(&self, from: Side, to: Side) -> Asked {
        asked(from, to, self.shm, self.auth.clone())
    }

    pub fn copy(&self, from: Side, to: Side) -> Result<Copied, ServiceError> {
        copy(self.asked(from, to))
    }
}

pub fn asked(from: Side, to: Side, shm: bool, auth: Auth) -> Asked {
    Asked {
        from,
        to,
        recursive: false,
        follow: false,
        preserve: false,
        resume: false,
        verify: true,
        policy: Policy::Prefer,
        timeout: Some(SOON),
        replace: true,
        dialing: Dialing {
            lives: [None; 2],
            auth,
            goal_auth: None,
            fabric: fabric(shm),
            patience: SOON,
        },
        store: crowfly_mover::objects::StoreSettings::default(),
        goal_store: None,
        watch: None,
    }
}

pub fn copy(asked: Asked) -> Result<Copied, ServiceError> {
    Copy::start(asked)?.wait()
}

/// What the metrics say under a name, labels included.
pub fn metric(stage: &Stage, name: &str) -> f64 {
    let text = scrape(stage, "GET /metrics HTTP/1.1\r\n\r\n");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
        .unwrap_or(f64::NAN)
}

/// What is answered over HTTP.
pub fn scrape(stage: &Stage, request: &str) -> String {
    let address = stage.server.metrics_address().expect("metrics");
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(request.as_bytes()).expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    text
}
