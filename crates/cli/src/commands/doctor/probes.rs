//! What GPUs, NICs and drives let each other do, found out by doing it once in a child process.

use std::io::Write;

use crowfly_doctor::Machine;
use crowfly_machine::gpu::Dialect;
use crowfly_machine::gpu::trial::GpuQuestion;
use crowfly_machine::gpu_storage::probe::{Mode, Probe, StorageQuestion};
use crowfly_machine::trial::{Answer, End, Outcome, Question, Trial};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::snapshot::Observation;
use crowfly_route::topology::Topology;
use crowfly_route::units::{Bytes, PciAddress};
use serde::Serialize;

use crate::commands::gpu;

/// File systems on which a storage library of a GPU's maker may read.
const FILE_SYSTEMS: [&str; 9] = [
    "ext4", "xfs", "nfs", "nfs4", "lustre", "wekafs", "beegfs", "gpfs", "overlay",
];
/// The most mounts that are tried.
const MAX_MOUNTS: usize = 16;
/// As much as a trial reads.
const SAMPLE: usize = 1 << 20;

/// What was tried out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Probes {
    /// By each runtime: GPUs opened, memory exported, registered with NICs, and reached by others.
    pub gpus: Vec<OfRuntime>,
    /// What the driver says of the window through which others reach a GPU's memory.
    pub windows: Vec<Tried>,
    /// Which way the storage library goes, for each mount.
    pub storage: Vec<Mounted>,
}

/// What one runtime let be done.
#[derive(Clone, Debug, Serialize)]
pub struct OfRuntime {
    /// `CUDA` or `HIP`.
    pub runtime: String,
    /// How the child ended, where it did not by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The steps.
    pub steps: Vec<Tried>,
}

/// One thing that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// What.
    pub what: String,
    /// Whether it worked.
    pub works: bool,
    /// What was seen, or why it did not work.
    pub says: String,
}

/// How a storage library reads files of one mount.
#[derive(Clone, Debug, Serialize)]
pub struct Mounted {
    /// Where the file system is mounted.
    pub mount: String,
    /// Its type.
    pub file_system: String,
    /// `peer-to-peer`, `kernel module`, `through host memory`, `not told` or `does not work`.
    pub mode: &'static str,
    /// Why not straight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<Obstacle>,
}

impl Probes {
    /// Tries everything out on this machine.
    pub fn run(machine: &Machine) -> Self {
        let Some(trial) = gpu::trial() else {
            return Self::default();
        };
        let runtimes = Dialect::ALL.map(|dialect| OfRuntime::run(&trial, dialect));
        let first = machine.topology.gpus.first().and_then(|gpu| gpu.address);
        Self {
            gpus: runtimes.into(),
            windows: windows(machine),
            storage: storage(&trial, &machine.topology, first),
        }
    }
}

impl OfRuntime {
    fn run(trial: &Trial, dialect: Dialect) -> Self {
        let question = GpuQuestion {
            hip: dialect == Dialect::Hip,
            nics: true,
        };
        Self::of(dialect, trial.run(&Question::Gpus(question)))
    }

    fn of(dialect: Dialect, outcome: Outcome) -> Self {
        let ended = match (&outcome.end, outcome.unended()) {
            (End::Finished, _) => None,
            (End::TimedOut(limit), step) => Some(format!(
                "{} did not end within {} s",
                step.unwrap_or("it"),
                limit.as_secs_f64()
            )),
            (End::Died(how), step) => Some(format!("{} ended it: {how}", step.unwrap_or("it"))),
            (End::NotStarted(why), _) => Some(format!("it was not started: {why}")),
        };
        let steps = outcome.steps.into_iter().filter_map(|step| {
            let (works, says) = match step.answer {
                Answer::Began => return None,
                Answer::Done(seen) => (true, seen),
                Answer::Refused { why, .. } => (false, why),
            };
            Some(Tried {
                what: step.step,
                works,
                says,
            })
        });
        Self {
            runtime: dialect.to_string(),
            ended,
            steps: steps.collect(),
        }
    }
}

/// BAR1 of each GPU that NVIDIA's management library tells of: the window through which NICs, drives and
/// the CPU reach its memory. One that is smaller than the memory does not fail, it fills up.
fn windows(machine: &Machine) -> Vec<Tried> {
    let Some(snapshot) = machine.snapshot.as_deref() else {
        return Vec::new();
    };
    let told = snapshot.under("nvml:").filter_map(|(key, seen)| {
        let gpu = key.strip_suffix("/bar1")?;
        let size = |seen: &Observation| seen.as_number().map(Bytes);
        let memory = snapshot.get(&format!("{gpu}/memory")).and_then(size);
        let at = snapshot.text(&format!("{gpu}/bus_id")).unwrap_or(gpu);
        let (works, says) = match (size(seen), memory) {
            (None, _) => (false, format!("not told: {}", seen.shows())),
            (Some(window), None) => (
                false,
                format!("{window} of a memory whose size is not told"),
            ),
            (Some(window), Some(memory)) if window >= memory => {
                (true, format!("{window}, all of its {memory} at once"))
            }
            (Some(window), Some(memory)) => (
                false,
                format!("{window} of its {memory}: no more can be registered at a time"),
            ),
        };
        Some(Tried {
            what: format!("BAR1 of {at}"),
            works,
            says,
        })
    });
    told.collect()
}

fn storage(trial: &Trial, topology: &Topology, gpu: Option<PciAddress>) -> Vec<Mounted> {
    let known = topology.mounts.iter();
    let known = known.filter(|mount| FILE_SYSTEMS.contains(&mount.fs_type.as_str()));
    let hip = topology
        .gpus
        .first()
        .is_some_and(|gpu| gpu.vendor == crowfly_route::topology::GpuVendor::Amd);
    let mut found: Vec<Mounted> = Vec::new();
    for mount in known.take(MAX_MOUNTS) {
        // Where nobody may write, there is no file of our own to read.
        let Ok(mut file) = tempfile::NamedTempFile::new_in(&mount.point) else {
            continue;
        };
        if file.write_all(&vec![0x3c; SAMPLE]).is_err() || file.as_file().sync_all().is_err() {
            continue;
        }
        let question = StorageQuestion {
            hip,
            file: Some(file.path().to_owned()),
            gpu,
            ..StorageQuestion::default()
        };
        let probe = Probe::run(trial, &question);
        found.push(Mounted {
            mount: mount.point.clone(),
            file_system: mount.fs_type.clone(),
            mode: words(probe.mode),
            obstacles: probe.obstacles,
        });
        // A library that is not there is missing for every mount.
        if probe.mode.is_none() && found.len() == 1 && !library_is_there(&found) {
            break;
        }
    }
    found
}

fn library_is_there(found: &[Mounted]) -> bool {
    use crowfly_route::obstacle::Code;
    let met = found.iter().flat_map(|mounted| &mounted.obstacles);
    let mut codes = met.map(|obstacle| obstacle.code);
    !codes.any(|code| matches!(code, Code::NoStorageLibrary | Code::StorageDriverRefused))
}

const fn words(mode: Option<Mode>) -> &'static str {
    match mode {
        Some(Mode::Peer) => "peer-to-peer",
        Some(Mode::Module) => "kernel module",
        Some(Mode::Compat) => "through host memory",
        Some(Mode::Unproven) => "not told",
        None => "does not work",
    }
}

#[cfg(test)]
mod tests;
