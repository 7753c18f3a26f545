//! `crowfly cp SRC DST`.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use crowfly_mover::fabric::Incarnation;
use crowfly_mover::objects::StoreSettings;
use crowfly_mover::service::{Asked, Auth, Copied, Copy, Dialing, Leg, Location, Side, Watch};
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::place::{Place, SERVED_SCHEME};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Receipt;
use crowfly_route::units::Bytes;
use serde::Serialize;

use super::connection::{CONNECTION, ConnectionArgs, Missing};
use super::{key, store};
use crate::failure::{Exit, Failure};
use crate::interrupt::{self, Leftover};
use crate::output::Output;
use crate::path::shown;
use crate::render;

mod gpus;
mod host;

/// The version of the JSON form of what `cp` did.
pub const CP_SCHEMA: &str = "crowfly.copy/1";
/// How long a request may wait for its answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Under what the help tells of stores.
const STORES: &str = "Stores";
/// Bytes of a pattern when nobody says.
const SIZE: Bytes = Bytes(256 << 20);
/// How often a running copy is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Arguments of `crowfly cp`.
#[derive(Args, Debug)]
#[command(
    after_long_help = "Stores: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL says where (else Amazon's), AWS_REGION \
in which region, AWS_CA_BUNDLE or SSL_CERT_FILE whom to trust. The key is that of AWS_ACCESS_KEY_ID, \
AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or of the profile AWS_PROFILE in ~/.aws/credentials and \
~/.aws/config (its credential_process is run), or given for a limited time: for a role by another key \
(role_arn with source_profile or credential_source), for a token in AWS_WEB_IDENTITY_TOKEN_FILE, by the last \
`aws sso login`, by the container's service, or by the machine's on EC2 (elsewhere with \
AWS_EC2_METADATA_DISABLED=false). HTTPS_PROXY, http_proxy, ALL_PROXY and NO_PROXY say by which proxies. Large \
objects are written in parts, which are removed when the copy fails or is interrupted, and kept with --resume."
)]
pub struct CpArgs {
    /// What to copy: a file or folder of this machine, crowfly://HOST:PORT/NAME[/PATH], an object
    /// s3://BUCKET/KEY (see below), or `host:` or gpu:N to measure: a pattern in its memory
    #[arg(value_name = "SRC")]
    from: OsString,
    /// Where to: a file or folder, crowfly://HOST:PORT/NAME[/PATH], an object s3://BUCKET/KEY, or `host:` or
    /// gpu:N to measure: into memory, and dropped there
    #[arg(value_name = "DST")]
    to: OsString,
    /// Copy what is in the folder SRC, or the objects below the prefix SRC, into the folder or below the
    /// prefix DST; links, devices, sockets and pipes are left out and counted
    #[arg(short, long)]
    recursive: bool,
    /// With -r: copy what links lead to. At a server that is only what lies beneath what it exposes
    #[arg(short = 'L', long, requires = "recursive")]
    dereference: bool,
    /// Preserve permissions and the time of the last change exactly, but no set-user, set-group and sticky
    /// bits. Without it new files and folders get the permissions of their sources less the umask, and a
    /// file that was there keeps its own
    #[arg(short, long)]
    preserve: bool,
    /// Go on where an earlier copy was interrupted, and leave what can be gone on with. Of a folder, files
    /// that were whole are read and left alone where they match the checksums that the copy kept
    #[arg(long)]
    resume: bool,
    /// With an object as DST: fail where there is one already, and replace nothing
    #[arg(short, long)]
    no_clobber: bool,
    /// Leave out the comparison of the checksums that both ends make
    #[arg(long)]
    no_verify: bool,
    /// How far the bytes may stray: require (every leg direct, or fail before the first byte), prefer, or
    /// socket
    #[arg(long, value_name = "POLICY", default_value_t)]
    policy: Policy,
    /// How long all of it may take, such as 90s or 2h
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// With `host:` or gpu:N as SRC: how many bytes of a pattern are put into that memory, to be copied from it
    /// [default: 256 MiB]
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// With an object as SRC: the profile in ~/.aws/credentials and ~/.aws/config that says where its store
    /// is and whose key is used, before all variables
    #[arg(long, value_name = "NAME", help_heading = STORES)]
    from_profile: Option<String>,
    /// The same of DST. Between two stores, or by two keys, the bytes pass this machine; one store copies by
    /// itself
    #[arg(long, value_name = "NAME", help_heading = STORES)]
    to_profile: Option<String>,
    /// How the two ends know each other.
    #[command(flatten)]
    connection: ConnectionArgs,
    /// The key of the server of SRC, where another than --key-file, or none, is that of DST
    #[arg(long, value_name = "FILE", help_heading = CONNECTION)]
    from_key_file: Option<PathBuf>,
    /// The key of the server of DST, where another than --key-file, or none, is that of SRC
    #[arg(long, value_name = "FILE", help_heading = CONNECTION)]
    to_key_file: Option<PathBuf>,
}

/// What was copied, and what copying it took.
#[derive(Debug, Serialize)]
pub struct Cp {
    schema: &'static str,
    /// From.
    pub from: Place,
    /// To.
    pub to: Place,
    /// Files that are whole at their destination.
    pub files: u64,
    /// Folders that are there, empty ones among them.
    pub folders: u64,
    /// Of those, files that an earlier copy had finished: every byte was held against its checksums.
    pub unchanged: u64,
    /// Bytes that were there already, from an earlier copy.
    pub resumed: Bytes,
    /// Entries of folders that were left out.
    pub skipped: u64,
    /// Whether the bytes were kept.
    pub kept: bool,
    /// What went each leg of the way, at either end.
    pub legs: Vec<Leg>,
    /// All of it.
    pub receipt: Receipt,
}

impl CpArgs {
    /// How this end shows who it is to the servers of both sides. What is said to a side that is at no
    /// server does not matter.
    fn auths(&self, served: [bool; 2], out: &mut Output) -> Result<[Auth; 2], Failure> {
        let own = [&self.from_key_file, &self.to_key_file];
        let mut auths = [Auth::Open, Auth::Open];
        for ((auth, own), served) in auths.iter_mut().zip(own).zip(served) {
            *auth = match own {
                Some(file) => Auth::Key(key::from_file(file)?),
                None if served => self.connection.auth(Missing::Refused, out)?,
                None => continue,
            };
        }
        Ok(auths)
    }

    /// Refuses the size of a pattern where none is copied.
    fn size_applies(&self, from: &OsStr) -> Result<(), Failure> {
        let place = from.to_str().and_then(|text| text.parse().ok());
        let memory = from == "host:" || matches!(place, Some(Place::Host(_) | Place::Gpu(_)));
        match self.size {
            Some(_) if !memory => Err(Failure::usage(
                "--size applies to a pattern in memory, and SRC is none: choose `host:` or gpu:N",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses the profile of a side that is no object, by its option's name.
    fn own_profiles_apply(&self, objects: [bool; 2]) -> Result<(), Failure> {
        let own = [
            ("--from-profile", &self.from_profile, "SRC"),
            ("--to-profile", &self.to_profile, "DST"),
        ];
        for ((option, profile, side), object) in own.into_iter().zip(objects) {
            if profile.is_some() && !object {
                return Err(Failure::usage(format!(
                    "{option} applies to a store, and {side} is in none"
                )));
            }
        }
        Ok(())
    }

    /// Refuses the key of a side that is at no server, by its option's name.
    fn own_keys_apply(&self, served: [bool; 2]) -> Result<(), Failure> {
        let own = [
            ("--from-key-file", &self.from_key_file, "SRC"),
            ("--to-key-file", &self.to_key_file, "DST"),
        ];
        for ((option, file, side), served) in own.into_iter().zip(served) {
            if file.is_some() && !served {
                return Err(Failure::usage(format!(
                    "{option} applies to a connection, and {side} is at no server"
                )));
            }
        }
        Ok(())
    }
}

const fn is_object(side: &Side) -> bool {
    matches!(side, Side::Object(_))
}

/// Copies.
pub fn run(args: &CpArgs, out: &mut Output) -> Result<Exit, Failure> {
    let located = |text| args.connection.directory.located(text);
    let ((from, from_life), (to, to_life)) = (located(&args.from)?, located(&args.to)?);
    let lives = [from_life, to_life];
    args.size_applies(&from)?;
    if let Some(errand) = gpus::Errand::read(&from, &to) {
        return gpus::run(args, &errand, lives, out);
    }
    let (from, to) = (side(&from)?, side(&to)?);
    args.own_profiles_apply([is_object(&from), is_object(&to)])?;
    let served = [&from, &to].map(|side| matches!(side, Side::Served(_)));
    if from == Side::Host && matches!(to, Side::Object(_) | Side::Served(_)) {
        args.own_keys_apply(served)?;
        if !served.contains(&true) {
            args.connection.is_not_given()?;
        }
        return host::run(args, to, (served, lives), out);
    }
    let dialing = match served.contains(&true) {
        true => dialing(args, (served, lives), out)?,
        false => {
            args.own_keys_apply(served)?;
            args.connection.is_not_given()?;
            Dialing::by(Auth::Open)?
        }
    };
    let cp = carry(args, (from, to), dialing, out)?;
    show(&cp, out)
}

/// How the servers of the sides that are at any are connected to.
fn dialing(
    args: &CpArgs,
    (served, lives): ([bool; 2], [Option<Incarnation>; 2]),
    out: &mut Output,
) -> Result<Dialing, Failure> {
    args.own_keys_apply(served)?;
    let [auth, goal_auth] = args.auths(served, out)?;
    Ok(Dialing {
        auth,
        goal_auth: Some(goal_auth),
        lives,
        fabric: args.connection.fabric()?,
        patience: PATIENCE,
    })
}

fn show(cp: &Cp, out: &mut Output) -> Result<Exit, Failure> {
    let detailed = out.verbose();
    out.show(cp, |columns| render::cp::render(cp, columns, detailed))?;
    Ok(Exit::Ok)
}

/// Copies from one side to the other, with the progress on the screen.
fn carry(
    args: &CpArgs,
    (from, to): (Side, Side),
    dialing: Dialing,
    out: &Output,
) -> Result<Cp, Failure> {
    let asked = Asked {
        from: from.clone(),
        to: to.clone(),
        recursive: args.recursive,
        follow: args.dereference,
        preserve: args.preserve,
        resume: args.resume,
        verify: !args.no_verify,
        policy: args.policy,
        timeout: args.timeout,
        dialing,
        replace: !args.no_clobber,
        store: match is_object(&from) || is_object(&to) && args.to_profile.is_none() {
            true => store::from_environment(args.from_profile.as_deref())?,
            false => StoreSettings::default(),
        },
        goal_store: match (is_object(&to), &args.from_profile, &args.to_profile) {
            (true, _, Some(profile)) => Some(store::from_environment(Some(profile))?),
            (true, Some(_), None) => Some(store::from_environment(None)?),
            _ => None,
        },
        watch: Some(leftovers()),
    };
    // What is unfinished at a store is removed there before the process ends, and so is a command that was
    // run for a key.
    let of_a_store = is_object(&from) || is_object(&to);
    let asked_first = of_a_store.then(interrupt::asks_first);
    let copied = follow(Copy::start(asked)?, &from, asked_first.as_ref(), out)?;
    Ok(Cp {
        schema: CP_SCHEMA,
        from: from.place(),
        to: copied.to,
        files: copied.files,
        unchanged: copied.unchanged,
        folders: copied.folders,
        resumed: copied.resumed,
        skipped: copied.skipped,
        kept: !to.drops(),
        legs: copied.legs,
        receipt: copied.receipt,
    })
}

/// Waits for a copy, with its progress on the screen.
fn follow(
    copy: Copy,
    from: &Side,
    signal: Option<&Receiver<&'static str>>,
    out: &Output,
) -> Result<Copied, Failure> {
    let progress = out.progress();
    let what = match from {
        Side::File(path) => shown(path),
        other => other.place().to_string(),
    };
    progress.start(&format!("copying {what}"), 0);
    let started = Instant::now();
    while !copy.is_finished() {
        if let Some(name) = signal.and_then(|signal| signal.try_recv().ok()) {
            copy.cancel();
            // It may have become whole before it heard of it.
            return copy.wait().map_err(|_| Failure::interrupted(name));
        }
        progress.of(copy.total().0);
        progress.at(copy.moved().0);
        // What ends early is noticed early.
        sleep((started.elapsed() / 50).clamp(Duration::from_micros(50), LOOK));
    }
    Ok(copy.wait()?)
}

/// Has unfinished files removed should a signal end the process.
fn leftovers() -> Watch {
    let kept: Mutex<HashMap<PathBuf, Leftover>> = Mutex::default();
    Arc::new(move |path: &Path, begins: bool| {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !begins {
            kept.remove(path);
            return;
        }
        let made = Leftover::make(|| Ok::<_, Infallible>(path.to_owned()), PathBuf::as_path);
        let Ok((path, leftover)) = made;
        kept.insert(path, leftover);
    })
}

/// One side of a copy, as it was written.
fn side(text: &OsStr) -> Result<Side, Failure> {
    if text.is_empty() {
        return Err(
            Failure::usage("SRC or DST is empty, and names nothing that could be copied")
                .hint("`.` is the folder that this is run in"),
        );
    }
    if text == "host:" {
        return Ok(Side::Host);
    }
    let starts = |scheme: &str| text.as_bytes().starts_with(scheme.as_bytes());
    if starts(SERVED_SCHEME) {
        return Ok(Side::Served(Location::of(text)?));
    }
    let Some(text) = text.to_str() else {
        // A path is any bytes; every other place is text.
        let path = text.as_bytes().strip_prefix(b"file:");
        let path = path.map_or(text, OsStr::from_bytes);
        return Ok(Side::File(path.into()));
    };
    let place: Place = match text.parse() {
        Ok(place) => place,
        // A plain name, of a file; but what begins as a place or a URL was meant to be one.
        Err(_) if !meant_as_place(text) => return Ok(Side::File(text.into())),
        Err(error) => return Err(error.into()),
    };
    match place {
        Place::Host(None) => Ok(Side::Host),
        Place::File(path) if text.contains("://") && !text.starts_with("file:") => {
            Err(Failure::usage(format!(
                "{} is no place that this build knows",
                shown(Path::new(&path))
            ))
            .hint(format!("`./{path}` is a file of that name")))
        }
        Place::File(path) => Ok(Side::File(path.into())),
        Place::Object(url) if url.starts_with("s3://") => Ok(Side::Object(url.parse()?)),
        Place::Gpu(_) | Place::Object(_) => {
            let what = match place {
                Place::Gpu(_) => format!(
                    "between {place} and what is on the other side this build copies nothing: name a file, \
host:, another GPU, crowfly://HOST:PORT/NAME or s3://BUCKET/KEY"
                ),
                _ => format!("this build has no engine that copies from or to {place}"),
            };
            Err(Failure::new("not-built", Exit::Unavailable, &what)
                .with_obstacles(vec![Obstacle::blocks(Code::NotBuilt, what)]))
        }
        other => Err(Failure::new(
            "not-a-side",
            Exit::Usage,
            format!("nothing is copied from or to {other}"),
        )
        .hint("choose a path, host:, or crowfly://HOST:PORT/NAME; `./name` is a file of any name")),
    }
}

fn meant_as_place(text: &str) -> bool {
    const KINDS: [&str; 7] = ["host", "gpu", "peer", "nic", "drive", "file", "remote"];
    let kind = text.split_once(':').map(|(kind, _)| kind);
    text.contains("://") || kind.is_some_and(|kind| KINDS.contains(&kind)) || text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_read_as_it_was_meant() {
        let read = |text: &str| side(OsStr::new(text)).expect("a side");
        assert_eq!(read("host:"), Side::Host);
        assert_eq!(read("host"), Side::Host);
        assert_eq!(read("./host"), Side::File("./host".into()));
        assert_eq!(read("m.bin"), Side::File("m.bin".into()));
        assert_eq!(read("file:m.bin"), Side::File("m.bin".into()));
        assert_eq!(read("a:b"), Side::File("a:b".into()));
        assert!(matches!(read("crowfly://host:1/m/x"), Side::Served(_)));
        assert!(matches!(read("s3://bucket/key"), Side::Object(_)));
        assert!(matches!(read("s3://bucket"), Side::Object(_)));
        let odd = OsStr::from_bytes(b"m\xff.bin");
        let file = OsStr::from_bytes(b"file:m\xff.bin");
        assert_eq!(side(odd).expect("a side"), Side::File(odd.into()));
        assert_eq!(side(file).expect("a side"), Side::File(odd.into()));
        let served = OsStr::from_bytes(b"crowfly://host:1/m/\xff");
        assert_eq!(
            side(served).expect("a side"),
            read("crowfly://host:1/m/%FF")
        );
    }

    #[test]
    fn what_is_no_side_says_why_with_a_code_and_a_status() {
        let refused = |text: &str| {
            let failure = side(OsStr::new(text)).expect_err("no side");
            (failure.code(), failure.exit())
        };
        assert_eq!(refused("gpu:0"), ("not-built", Exit::Unavailable));
        assert_eq!(refused("gs://bucket/key"), ("not-built", Exit::Unavailable));
        assert_eq!(refused("s3://bucket/../x"), ("bad-object-url", Exit::Usage));
        assert_eq!(refused("host:1"), ("not-a-side", Exit::Usage));
        assert_eq!(refused("nic:eth0"), ("not-a-side", Exit::Usage));
        assert_eq!(refused("gpu:x"), ("not-a-place", Exit::Usage));
        assert_eq!(refused("ftp://host/x"), ("usage", Exit::Usage));
        assert_eq!(refused("crowfly://host/x"), ("bad-location", Exit::Usage));
        assert_eq!(refused(""), ("usage", Exit::Usage));
    }
}
