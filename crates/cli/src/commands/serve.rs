//! `crowfly serve`.

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use clap::Args;
use crowfly_mover::service::{Auth, BadName, Export, Limits, Name, Server, ServerSettings, Totals};
use crowfly_route::units::Bytes;
use serde::Serialize;

use super::connection::{ConnectionArgs, Missing};
use super::directory::own_name;
use crate::failure::{Exit, Failure, errno};
use crate::interrupt;
use crate::output::Output;
use crate::path::shown;
use crate::render;

/// The version of the JSON form of what `serve` did.
pub const SERVE_SCHEMA: &str = "crowfly.serve/1";
/// How often it is looked whether anybody can be let in.
const LOOK: Duration = Duration::from_millis(100);
/// Where it listens when nobody says.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7878);

/// Arguments of `crowfly serve`.
#[derive(Args, Debug)]
#[command(
    after_long_help = "Requests are authenticated by the key or protected by TLS. The bytes \
themselves are neither encrypted nor authenticated on their way, like those of RDMA: checksums find \
what went wrong by accident, not by intent. Use networks that you trust."
)]
pub struct ServeArgs {
    /// Files and folders to expose, each under a name of its own or under that of its last component
    #[arg(value_name = "[NAME=]PATH", required_unless_present_any = ["memory", "on_gpu"])]
    paths: Vec<OsString>,
    /// Zeroed memory to expose, which whoever connects reads and writes; may be given several times
    #[arg(long, value_name = "NAME=SIZE")]
    memory: Vec<MemoryArg>,
    /// A file to load into a GPU's memory, which whoever connects reads from there; may be given several
    /// times
    #[arg(long, value_name = "NAME=gpu:N:FILE")]
    on_gpu: Vec<OnGpuArg>,
    /// Let files be written into the folders
    #[arg(long)]
    writable: bool,
    /// Where to listen; beyond loopback only with a key or certificates. Port 0 takes any that is free
    #[arg(long, value_name = "ADDR", default_value_t = LISTEN)]
    listen: SocketAddr,
    /// Write down in --directory where this is, under NAME or the rank that torchrun, mpirun or srun gave:
    /// crowfly://@NAME/... or crowfly://@rankN/... finds it there
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    announce: Option<String>,
    /// Where to answer GET /metrics, as Prometheus reads them; whoever reaches it may read them
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// How the two ends know each other.
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Its limits.
    #[command(flatten)]
    limits: LimitArgs,
}

/// The limits of a server.
#[derive(Args, Debug)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Peers at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    max_peers: u16,
    /// Requests of one peer at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    max_requests: u16,
    /// Open files of one peer
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    max_files: u16,
    /// Send a peer away that asks for nothing for so long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    idle: Duration,
    /// Memory for bytes on their way between storage and network
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    buffers: Bytes,
}

/// A name and how much memory.
#[derive(Clone, Debug)]
struct MemoryArg {
    name: Name,
    bytes: Bytes,
}

impl std::str::FromStr for MemoryArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, size) = text.split_once('=').ok_or("write NAME=SIZE")?;
        Ok(Self {
            name: name.parse().map_err(|error| format!("{error}"))?,
            bytes: size.parse().map_err(|error| format!("{error}"))?,
        })
    }
}

/// A name, a GPU and a file.
#[derive(Clone, Debug)]
struct OnGpuArg {
    name: Name,
    gpu: u32,
    file: PathBuf,
}

impl std::str::FromStr for OnGpuArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write NAME=gpu:N:FILE";
        let (name, rest) = text.split_once('=').ok_or(FORM)?;
        let (gpu, file) = rest
            .strip_prefix("gpu:")
            .and_then(|rest| rest.split_once(':'))
            .filter(|(_, file)| !file.is_empty())
            .ok_or(FORM)?;
        Ok(Self {
            name: name.parse().map_err(|error| format!("{error}"))?,
            gpu: gpu.parse().map_err(|_| FORM)?,
            file: file.into(),
        })
    }
}

impl OnGpuArg {
    fn load(&self, out: &Output) -> Result<Export, Failure> {
        let loaded = super::gpu::load(&self.file, self.gpu, &super::gpu::Way::default(), out)?;
        let region = loaded.regions.into_iter().next();
        let region = region.ok_or_else(|| Failure::usage("the file has no bytes to serve"))?;
        Ok(Export::Loaded {
            name: self.name.clone(),
            region,
        })
    }
}

/// What was served.
#[derive(Debug, Serialize)]
pub struct Serve {
    schema: &'static str,
    /// Where it listened.
    pub address: SocketAddr,
    /// The signal that ended it.
    pub ended_by: &'static str,
    /// What it did.
    #[serde(flatten)]
    pub totals: Totals,
}

/// Serves until a signal comes.
pub fn run(args: &ServeArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut exports = Vec::new();
    for text in &args.paths {
        exports.push(export(text, args.writable)?);
    }
    if args.writable && !exports.iter().any(|e| matches!(e, Export::Folder { .. })) {
        return Err(Failure::usage(
            "--writable applies to folders, and none is exposed",
        ));
    }
    for wanted in &args.on_gpu {
        exports.push(wanted.load(out)?);
    }
    exports.extend(args.memory.iter().map(|memory| Export::Memory {
        name: memory.name.clone(),
        bytes: memory.bytes,
    }));
    let names: Vec<String> = exports.iter().map(described).collect();
    let auth = args.connection.auth(Missing::Made, out)?;
    let how = match &auth {
        Auth::Open => "whoever is on this machine may connect",
        Auth::Key(_) => "whoever has the key may connect; the bytes are not encrypted",
        Auth::Certificates(_) => {
            "whoever has a certificate may connect; requests are encrypted, the bytes are not"
        }
    };
    let announced = match &args.announce {
        None if args.connection.directory.is_given() => {
            return Err(Failure::usage("--directory applies to --announce here"));
        }
        None => None,
        Some(name) => Some((own_name(name)?, args.connection.directory.open()?)),
    };
    let signal = interrupt::asks_first();
    let server = Server::start(ServerSettings {
        listen: args.listen,
        auth,
        exports,
        metrics: args.metrics,
        limits: Limits {
            peers: args.limits.max_peers.into(),
            requests: args.limits.max_requests.into(),
            files: args.limits.max_files.into(),
            idle: args.limits.idle,
            buffers: args.limits.buffers,
            ..Limits::default()
        },
        fabric: args.connection.fabric()?,
    })?;
    let address = server.address();
    let mut present = None;
    if let Some((name, directory)) = &announced {
        present = Some(server.announce(&**directory, name)?);
        out.note(&format!("Found as crowfly://@{name}"));
    }
    for name in names {
        out.note(&format!("Serving crowfly://{address}/{name}"));
    }
    if let Some(metrics) = server.metrics_address() {
        out.note(&format!("Metrics at http://{metrics}/metrics"));
    }
    out.note(&format!("Until interrupted; {how}."));
    let ended_by = await_end(&signal, &server, out);
    drop(present);
    let serve = Serve {
        schema: SERVE_SCHEMA,
        address,
        ended_by,
        totals: server.stop(),
    };
    out.show(&serve, |columns| render::serve::render(&serve, columns))?;
    Ok(Exit::Ok)
}

/// Waits for the signal that ends it; says meanwhile when nobody can be let in, and when that is over.
fn await_end(signal: &Receiver<&'static str>, server: &Server, out: &mut Output) -> &'static str {
    let mut short = false;
    loop {
        match signal.recv_timeout(LOOK) {
            Ok(name) => return name,
            Err(RecvTimeoutError::Disconnected) => return "a signal",
            Err(RecvTimeoutError::Timeout) => {}
        }
        match (server.shortage(), short) {
            (Some(error), false) => {
                let hint = errno::hint(&error).map_or(String::new(), |hint| format!("; {hint}"));
                out.note(&format!("Nobody can be let in: {error}{hint}"));
                short = true;
            }
            (None, true) => {
                out.note("Whoever comes is let in again.");
                short = false;
            }
            _ => {}
        }
    }
}

fn described(export: &Export) -> String {
    match export {
        Export::File { name, path } => format!("{name}: the file {}", shown(path)),
        Export::Folder {
            name,
            path,
            writable,
        } => {
            let may = if *writable { ", writable" } else { "" };
            format!("{name}: the folder {}{may}", shown(path))
        }
        Export::Loaded { name, region } => {
            let bytes = Bytes(region.len() as u64);
            format!("{name}: {bytes} in the memory of {}", region.place())
        }
        Export::Memory { name, bytes } => format!("{name}: {bytes} of memory"),
    }
}

/// `NAME=PATH`, or a path whose last component is the name.
fn export(text: &OsStr, writable: bool) -> Result<Export, Failure> {
    let bytes = text.as_bytes();
    let sign = bytes.iter().position(|byte| matches!(byte, b'=' | b'/'));
    let named = sign.filter(|at| bytes.get(*at) == Some(&b'='));
    let named = named.and_then(|at| Some((bytes.get(..at)?, bytes.get(at + 1..)?)));
    let incomplete = |what| {
        Failure::usage(format!("`{}` {what}", shown(Path::new(text))))
            .hint("write NAME=PATH, or a PATH whose last component is the name")
    };
    match named {
        Some((&[], _)) => return Err(incomplete("has no name before the `=`")),
        Some((_, &[])) => return Err(incomplete("has no path after the `=`")),
        None if bytes.is_empty() => return Err(incomplete("is no path")),
        _ => {}
    }
    let (name, path): (Name, &Path) = match named {
        Some((name, path)) => (
            String::from_utf8_lossy(name).parse()?,
            Path::new(OsStr::from_bytes(path)),
        ),
        None => {
            let path = Path::new(text);
            let whole = path.canonicalize().map_err(|error| {
                let failure = Failure::reading(path, &error);
                match bytes.contains(&b'=') {
                    true => failure.hint("a `/` is in front of the `=`, so that it is all a path"),
                    false => failure,
                }
            })?;
            let anew =
                |failure: Failure| failure.hint(format!("give it a name: NAME={}", shown(path)));
            let Some(last) = whole.file_name() else {
                return Err(anew(incomplete(
                    "has no last component that could be its name",
                )));
            };
            let name = last.to_string_lossy().parse();
            let name = name.map_err(|error: BadName| anew(Failure::from(error)))?;
            (name, path)
        }
    };
    let path: PathBuf = path.to_owned();
    let metadata = path
        .metadata()
        .map_err(|error| Failure::reading(&path, &error))?;
    Ok(match metadata.is_dir() {
        true => Export::Folder {
            name,
            path,
            writable,
        },
        false => Export::File { name, path },
    })
}
