//! `crowfly ckpt verify PATH`.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use crowfly_mover::Engine;
use crowfly_mover::ckpt::{Archive, ArchiveError, Found, StepError, list};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Receipt;
use crowfly_route::units::Bytes;
use serde::Serialize;

use super::ls::Fault;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::{as_text, shown};
use crate::render;

/// The version of the JSON form of a verification.
pub const VERIFY_SCHEMA: &str = "crowfly.ckpt-verify/1";

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Arguments of `crowfly ckpt verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// A folder of steps, a step, a safetensors file or model folder, or a distributed checkpoint
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// This step of a folder of steps; otherwise the latest complete one, and later ones are damaged
    #[arg(long, value_name = "N", conflicts_with = "all")]
    step: Option<u64>,
    /// All steps of a folder of steps
    #[arg(long)]
    all: bool,
}

/// What was verified.
#[derive(Debug, Serialize)]
pub struct Verification {
    schema: &'static str,
    /// What was asked for.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The checkpoints, ascending by step.
    pub checkpoints: Vec<Verdict>,
}

/// What was found about one checkpoint.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// Its step, where it has one.
    pub step: Option<u64>,
    /// Where it is.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// `crowfly`, `safetensors` or `dcp`; `null` when it could not be opened.
    pub format: Option<&'static str>,
    /// What this comes to.
    pub state: State,
    /// How many tensors it holds.
    pub tensors: usize,
    /// Bytes that match the checksums that were saved.
    pub checked: Bytes,
    /// Bytes that could be read but have no checksum.
    pub unchecked: Bytes,
    /// Everything that is damaged.
    pub faults: Vec<Fault>,
    /// What was odd, though no fault.
    pub notes: Vec<String>,
    /// Which way the bytes came.
    pub receipt: Option<Receipt>,
}

/// What a verification of one checkpoint comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Every byte matches its checksum.
    Whole,
    /// Some of it could be read, and no checksums say whether it is what was saved.
    Unsure,
    /// Something is missing, cannot be read, or is not what was saved.
    Damaged,
}

impl State {
    const fn of(faults: &[Fault], unchecked: Bytes) -> Self {
        match (faults, unchecked.0) {
            ([_, ..], _) => Self::Damaged,
            ([], 0) => Self::Whole,
            ([], _) => Self::Unsure,
        }
    }
}

impl Verification {
    fn exit(&self) -> Exit {
        let any = |state| {
            self.checkpoints
                .iter()
                .any(|verdict| verdict.state == state)
        };
        if any(State::Damaged) {
            return Exit::Broken;
        }
        match any(State::Unsure) {
            true => Exit::Unsure,
            false => Exit::Ok,
        }
    }
}

/// Verifies one checkpoint, or all.
pub fn run(args: &VerifyArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut verification = Verification {
        schema: VERIFY_SCHEMA,
        path: args.path.clone(),
        checkpoints: Vec::new(),
    };
    if args.all {
        let root = super::local(&args.path)?;
        let steps = list(&root)?.steps;
        if steps.is_empty() {
            let path = shown(&args.path);
            return Err(Failure::new(
                "no-steps",
                Exit::NoInput,
                format!("{path} holds no steps"),
            ));
        }
        for found in steps {
            verification.checkpoints.push(match found.manifest {
                Ok(_) => verdict(&Archive::open_step(&root, found.step)?, out)?,
                Err(ref error) => incomplete(&found, error),
            });
        }
    } else {
        verification.checkpoints = latest(args, out)?;
    }
    let detailed = out.verbose();
    out.show(&verification, |columns| {
        render::ckpt::verification(&verification, columns, detailed)
    })?;
    Ok(verification.exit())
}

/// The one checkpoint that was asked for; of a folder of steps the latest complete one, and all later ones,
/// which are not complete.
fn latest(args: &VerifyArgs, out: &Output) -> Result<Vec<Verdict>, Failure> {
    let incomplete = |steps: Vec<Found>| {
        let of = |found: &Found| Some(incomplete(found, found.manifest.as_ref().err()?));
        steps.iter().filter_map(of).collect::<Vec<Verdict>>()
    };
    if args.step.is_none() {
        let root = super::local(&args.path)?;
        return match Archive::open(&root) {
            Ok(archive) => {
                let mut verdicts = vec![verdict(&archive, out)?];
                verdicts.extend(incomplete(super::passed_over(&args.path, &archive)?));
                Ok(verdicts)
            }
            // Steps are there, and none of them is complete.
            Err(error @ ArchiveError::Step(StepError::NoSteps { .. })) => {
                match incomplete(list(&root)?.steps) {
                    none if none.is_empty() => Err(error.into()),
                    verdicts => Ok(verdicts),
                }
            }
            Err(error) => Err(error.into()),
        };
    }
    let archive = super::open(&args.path, args.step)?;
    Ok(vec![verdict(&archive, out)?])
}

fn incomplete(found: &Found, error: &StepError) -> Verdict {
    Verdict {
        step: Some(found.step),
        path: found.path.clone(),
        format: None,
        state: State::Damaged,
        tensors: 0,
        checked: Bytes(0),
        unchecked: Bytes(0),
        faults: vec![Fault {
            code: error.code(),
            message: error.to_string(),
        }],
        notes: Vec::new(),
        receipt: None,
    }
}

fn verdict(archive: &Archive, out: &Output) -> Result<Verdict, Failure> {
    let mut faults = archive.headers_that_differ()?;
    let reading = archive.verify(&Engine::default(), Policy::Prefer)?;
    let progress = out.progress();
    progress.start(
        &format!("verifying {}", shown(archive.path())),
        reading.total().0,
    );
    while !reading.is_finished() {
        progress.at(reading.moved().0);
        sleep(LOOK);
    }
    let found = reading.verdict()?;
    drop(progress);
    faults.extend(found.faults);
    let fault = |error: &ArchiveError| Fault {
        code: error.code(),
        message: error.to_string(),
    };
    let faults: Vec<Fault> = faults.iter().map(fault).collect();
    Ok(Verdict {
        step: super::step_of(archive),
        path: archive.path().to_owned(),
        format: Some(archive.format().word()),
        state: State::of(&faults, found.unchecked),
        tensors: archive.tensors().len(),
        checked: found.checked,
        unchecked: found.unchecked,
        faults,
        notes: archive.notes().to_vec(),
        receipt: found.receipt,
    })
}
