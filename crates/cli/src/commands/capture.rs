//! `crowfly capture`.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use clap::Args;
use crowfly_machine::TRUNCATED;
use crowfly_route::snapshot::{Observation, Snapshot};
use crowfly_route::topology::Topology;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::machine::MachineArgs;
use crate::output::Output;
use crate::path::as_optional_text;
use crate::{file, render};

/// The version of the JSON form of what `capture` wrote to a file.
pub const CAPTURE_SCHEMA: &str = "crowfly.capture/1";

/// Arguments of `crowfly capture`.
#[derive(Args, Debug)]
pub struct CaptureArgs {
    /// The file to write; without it or with `-`, standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Keep host names, user names, serial numbers and addresses as they are
    #[arg(long)]
    unredacted: bool,
    /// What decides the stand-ins, so that snapshots of several machines fit together; without it,
    /// chance
    #[arg(long, value_name = "NUMBER", conflicts_with = "unredacted")]
    salt: Option<u64>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// What was captured.
#[derive(Debug, Default, Serialize)]
pub struct Capture {
    /// [`CAPTURE_SCHEMA`].
    pub schema: &'static str,
    /// The file that was written; `None` for standard output.
    #[serde(serialize_with = "as_optional_text")]
    pub file: Option<PathBuf>,
    /// The size of the snapshot's JSON.
    pub bytes: usize,
    /// Whether stand-ins replace what identifies.
    pub redacted: bool,
    /// How many observations there are.
    pub observations: usize,
    /// How many have a value.
    pub values: usize,
    /// How many say that nothing is there.
    pub absent: usize,
    /// Where this user may not look.
    pub denied: Vec<String>,
    /// Where looking failed, and how.
    pub errors: Vec<Failed>,
    /// Why the snapshot is not whole, when it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<String>,
    /// How many accelerators were made out.
    pub gpus: usize,
    /// How many network adapters were made out.
    pub nics: usize,
    /// How many drives were made out.
    pub drives: usize,
    /// How many PCI functions are listed.
    pub pci_functions: usize,
}

/// A look that failed.
#[derive(Debug, Serialize)]
pub struct Failed {
    /// Where.
    pub key: String,
    /// The system's words.
    pub error: String,
}

impl CaptureArgs {
    /// The file to write; `None` for standard output.
    fn file(&self) -> Option<&PathBuf> {
        let output = self.output.as_ref();
        output.filter(|path| path.as_os_str() != file::STREAM)
    }
}

/// Looks at the machine and writes the snapshot.
pub fn run(args: &CaptureArgs, out: &mut Output) -> Result<Exit, Failure> {
    let seen = args.machine.look()?;
    let snapshot = if args.unredacted {
        seen
    } else {
        // The standard library's hash keys are the system's random numbers.
        let salt = args.salt.unwrap_or_else(|| RandomState::new().hash_one(0));
        seen.redacted(salt)
    };
    let json = snapshot.to_json();
    let capture = summary(args, &snapshot, json.len());
    match args.file() {
        None => {
            out.bytes(json.as_bytes())?;
            let text = render::capture::render(&capture, out.columns(), out.verbose());
            out.note(text.trim_end());
        }
        Some(path) => {
            file::replace(path, json.as_bytes())?;
            let verbose = out.verbose();
            out.show(&capture, |columns| {
                render::capture::render(&capture, columns, verbose)
            })?;
        }
    }
    Ok(Exit::Ok)
}

fn summary(args: &CaptureArgs, snapshot: &Snapshot, bytes: usize) -> Capture {
    let topology = Topology::from_snapshot(snapshot);
    let mut capture = Capture {
        schema: CAPTURE_SCHEMA,
        file: args.file().cloned(),
        bytes,
        redacted: snapshot.redacted,
        observations: snapshot.len(),
        gpus: topology.gpus.len(),
        nics: topology.nics.len(),
        drives: topology.drives.len(),
        pci_functions: snapshot.list("/sys/bus/pci/devices").len(),
        ..Capture::default()
    };
    for (key, seen) in snapshot.iter() {
        match seen {
            Observation::Value(_) => capture.values += 1,
            Observation::Absent => capture.absent += 1,
            Observation::Denied => capture.denied.push(key.to_owned()),
            Observation::Error(why) if key == TRUNCATED => capture.truncated = Some(why.clone()),
            Observation::Error(why) => capture.errors.push(Failed {
                key: key.to_owned(),
                error: why.clone(),
            }),
        }
    }
    capture
}
