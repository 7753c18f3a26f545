//! What is to be done, the same for all ranks, and what of it cannot be.

use std::path::{Path, PathBuf};

use crowfly_route::units::Bytes;
use serde::{Deserialize, Serialize};

use super::model::STATE_BYTES_PER_PARAMETER;

/// The most ranks of a run.
pub const MAX_RANKS: u32 = 64;
/// The most steps of a run.
pub const MAX_STEPS: u64 = 100_000;
/// The largest batch of one rank, in bytes.
pub const MAX_BATCH: u64 = 8 << 30;
/// The most parameters of the scaled model.
pub const MAX_PARAMETERS: u64 = 1 << 33;
/// The longest that an exchange may be given, or a rank wait for others to save, in seconds: a day.
pub const MAX_DEADLINE: f64 = 86_400.0;
/// What every batch is a multiple of: the block of a drive.
const BLOCK: u64 = 4096;
/// The longest that the computation of one step may be asked to take, in seconds.
const MAX_WORK_SECONDS: f64 = 3600.0;
/// The most arithmetic of one step of one rank.
const MAX_WORK_FLOPS: f64 = 1e16;
/// Complete checkpoints that stay, and the one that is being written beside them.
pub(super) const KEPT: usize = 2;
/// What a checkpoint has besides its tensors: headers, checksums and the manifest, at most.
const CHECKPOINT_OVERHEAD: u64 = 4 << 20;
/// Gradients of a parameter in memory: single precision while they are summed, half when exchanged.
const GRADIENT_BYTES: u64 = 6;

/// How much is computed in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The gradients once.
    Once,
    /// The gradients again and again for so many seconds.
    Seconds(f64),
    /// The gradients as often as it takes for so many floating point operations.
    Flops(f64),
}

/// What becomes of a run that lost a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Another process takes its place.
    #[default]
    Restart,
    /// The others go on without it.
    Shrink,
}

impl Recovery {
    /// The word used in options and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Shrink => "shrink",
        }
    }
}

/// A rank that is to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Which one.
    pub rank: u32,
    /// In which step, counted from 1: when it has computed, before it exchanges.
    pub step: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Ranks at the beginning.
    pub ranks: u32,
    /// Steps, counted from 1.
    pub steps: u64,
    /// Parameters of the model as it is run here.
    pub parameters: u64,
    /// Layers that they are spread over.
    pub layers: u32,
    /// What everything that is made up follows from.
    pub seed: u64,
    /// What each rank reads in a step.
    pub batch: Bytes,
    /// The files that batches are read from, in order.
    pub data: Vec<PathBuf>,
    /// How much is computed.
    pub work: Work,
    /// A checkpoint is saved after every so many steps; never when `None`.
    pub every: Option<u64>,
    /// The folder of the checkpoints.
    pub checkpoints: PathBuf,
    /// What becomes of the run when a rank is lost.
    pub recovery: Recovery,
    /// The rank that is killed, if any.
    pub kill: Option<Kill>,
    /// How long an exchange may take, and a rank wait for others to save, in seconds.
    pub deadline: f64,
    /// The GPU whose memory batches are read into; host memory when `None`.
    pub gpu: Option<u32>,
}

/// What cannot be done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum BadOrder {
    #[error("{ranks} ranks: a run has 1 to {MAX_RANKS}")]
    Ranks { ranks: u32 },
    #[error("{steps} steps: a run has 1 to {MAX_STEPS}")]
    Steps { steps: u64 },
    #[error(
        "a model of {parameters} parameters in {layers} layers: it has 1 to {MAX_PARAMETERS} parameters, one a layer at least"
    )]
    Model { parameters: u64, layers: u32 },
    #[error("a batch of {batch} bytes: it is a multiple of {BLOCK}, and {MAX_BATCH} at most")]
    Batch { batch: u64 },
    #[error("a computation of {given} {unit} a step: it is above 0 and {most} at most")]
    Work {
        given: f64,
        unit: &'static str,
        most: f64,
    },
    #[error("a checkpoint every 0 steps: it is every 1 at least")]
    Never,
    #[error("rank {rank} cannot be killed: the {ranks} ranks count from 0 to {}", .ranks.saturating_sub(1))]
    NoSuchRank { rank: u32, ranks: u32 },
    #[error("no rank can be killed in step {step}: the steps count from 1 to {steps}")]
    NoSuchStep { step: u64, steps: u64 },
    #[error("the only rank cannot be killed when the run is to shrink: nobody would be left")]
    NobodyLeft,
    #[error("a deadline of {seconds} s: it is above 0 and {MAX_DEADLINE} at most")]
    Deadline { seconds: f64 },
    #[error("{found} bytes of data hold no batch of {batch}")]
    DataTooSmall { found: u64, batch: u64 },
    #[error("{folder:?} has {free} bytes free; the run needs {needed}: {what}")]
    DiskTooSmall {
        folder: PathBuf,
        free: u64,
        needed: u64,
        what: String,
    },
    #[error("{room} bytes of memory are free; {ranks} ranks need {needed}")]
    MemoryTooSmall { room: u64, ranks: u32, needed: u64 },
}

impl BadOrder {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Ranks { .. } => "step-bad-ranks",
            Self::Steps { .. } => "step-bad-steps",
            Self::Model { .. } => "step-bad-model",
            Self::Batch { .. } => "step-bad-batch",
            Self::Work { .. } => "step-bad-work",
            Self::Never => "step-never-saves",
            Self::NoSuchRank { .. } => "step-no-such-rank",
            Self::NoSuchStep { .. } => "step-no-such-step",
            Self::NobodyLeft => "step-nobody-left",
            Self::Deadline { .. } => "step-bad-deadline",
            Self::DataTooSmall { .. } => "step-data-too-small",
            Self::DiskTooSmall { .. } => "disk-too-small",
            Self::MemoryTooSmall { .. } => "memory-too-small",
        }
    }

    /// What to do about it.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Never => Some("leave `--every` away, or say `--no-checkpoints`"),
            Self::NobodyLeft => Some("choose `--after-loss restart`, or more ranks"),
            Self::DiskTooSmall { .. } => Some(
                "choose a smaller `--scale` or `--batch`, or a folder on a larger drive with `--dir`",
            ),
            Self::MemoryTooSmall { .. } => Some("choose a smaller `--scale`, or fewer ranks"),
            Self::DataTooSmall { .. } => Some("choose a smaller `--batch`, or more data"),
            _ => None,
        }
    }
}

impl Order {
    /// Whether it can be done, as far as it can be told without looking at the machine.
    ///
    /// # Errors
    /// The first thing that cannot.
    pub fn check(&self) -> Result<(), BadOrder> {
        let &Self { ranks, steps, .. } = self;
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(BadOrder::Ranks { ranks });
        }
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(BadOrder::Steps { steps });
        }
        let (parameters, layers) = (self.parameters, self.layers);
        if parameters > MAX_PARAMETERS || layers == 0 || parameters < u64::from(layers) {
            return Err(BadOrder::Model { parameters, layers });
        }
        let batch = self.batch.0;
        if batch == 0 || batch > MAX_BATCH || !batch.is_multiple_of(BLOCK) {
            return Err(BadOrder::Batch { batch });
        }
        let (given, unit, most) = match self.work {
            Work::Once => (1.0, "passes", 1.0),
            Work::Seconds(seconds) => (seconds, "s", MAX_WORK_SECONDS),
            Work::Flops(flops) => (flops, "FLOP", MAX_WORK_FLOPS),
        };
        if !(given > 0.0 && given <= most) {
            return Err(BadOrder::Work { given, unit, most });
        }
        if self.every == Some(0) {
            return Err(BadOrder::Never);
        }
        if let Some(Kill { rank, step }) = self.kill {
            if rank >= ranks {
                return Err(BadOrder::NoSuchRank { rank, ranks });
            }
            if !(1..=steps).contains(&step) {
                return Err(BadOrder::NoSuchStep { step, steps });
            }
            if ranks == 1 && self.recovery == Recovery::Shrink {
                return Err(BadOrder::NobodyLeft);
            }
        }
        if !(self.deadline > 0.0 && self.deadline <= MAX_DEADLINE) {
            let seconds = self.deadline;
            return Err(BadOrder::Deadline { seconds });
        }
        Ok(())
    }

    /// The gradients that are exchanged in a step: half precision.
    pub const fn gradient_bytes(&self) -> Bytes {
        Bytes(2 * self.parameters)
    }

    /// The tensors of a checkpoint.
    pub const fn checkpoint_bytes(&self) -> Bytes {
        Bytes(STATE_BYTES_PER_PARAMETER * self.parameters)
    }

    /// Whether the drive of a folder has room for the checkpoints and for `made` bytes of data.
    ///
    /// # Errors
    /// [`BadOrder::DiskTooSmall`]. A folder that cannot be asked is taken to have room: the writing
    /// will tell.
    pub fn check_disk(&self, folder: &Path, made: Bytes) -> Result<(), BadOrder> {
        let saved = match self.every {
            Some(_) => self
                .checkpoint_bytes()
                .0
                .saturating_add(CHECKPOINT_OVERHEAD),
            None => 0,
        };
        let checkpoints = saved.saturating_mul(KEPT as u64 + 1);
        let needed = checkpoints.saturating_add(made.0);
        let Ok(room) = rustix::fs::statvfs(folder) else {
            return Ok(());
        };
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if free >= needed {
            return Ok(());
        }
        let what = format!(
            "{made} of data, and {} checkpoints of {}",
            KEPT + 1,
            Bytes(saved)
        );
        Err(BadOrder::DiskTooSmall {
            folder: folder.to_owned(),
            free,
            needed,
            what,
        })
    }

    /// Whether this machine's memory has room for all ranks.
    ///
    /// # Errors
    /// [`BadOrder::MemoryTooSmall`].
    pub fn check_memory(&self) -> Result<(), BadOrder> {
        let state = STATE_BYTES_PER_PARAMETER + GRADIENT_BYTES;
        let staged = match self.every {
            Some(_) => self
                .checkpoint_bytes()
                .0
                .div_ceil(u64::from(self.ranks).max(1)),
            None => 0,
        };
        let one = state
            .saturating_mul(self.parameters)
            .saturating_add(self.batch.0)
            .saturating_add(staged);
        let needed = one.saturating_mul(u64::from(self.ranks));
        match crowfly_machine::limits::memory_room() {
            Some(room) if room < needed => Err(BadOrder::MemoryTooSmall {
                room,
                ranks: self.ranks,
                needed,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        Order {
            ranks: 2,
            steps: 4,
            parameters: 1000,
            layers: 4,
            seed: 1,
            batch: Bytes(8192),
            data: Vec::new(),
            work: Work::Once,
            every: Some(2),
            checkpoints: "checkpoints".into(),
            recovery: Recovery::Restart,
            kill: None,
            deadline: 10.0,
            gpu: None,
        }
    }

    fn refused(change: impl FnOnce(&mut Order)) -> &'static str {
        let mut order = order();
        change(&mut order);
        order.check().expect_err("refused").code()
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_a_code_of_its_own() {
        assert_eq!(order().check(), Ok(()));
        assert_eq!(refused(|o| o.ranks = 0), "step-bad-ranks");
        assert_eq!(refused(|o| o.ranks = MAX_RANKS + 1), "step-bad-ranks");
        assert_eq!(refused(|o| o.steps = 0), "step-bad-steps");
        assert_eq!(refused(|o| o.parameters = 3), "step-bad-model");
        assert_eq!(refused(|o| o.batch = Bytes(0)), "step-bad-batch");
        assert_eq!(refused(|o| o.batch = Bytes(4097)), "step-bad-batch");
        assert_eq!(refused(|o| o.work = Work::Seconds(0.0)), "step-bad-work");
        assert_eq!(refused(|o| o.work = Work::Flops(f64::NAN)), "step-bad-work");
        assert_eq!(refused(|o| o.every = Some(0)), "step-never-saves");
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 86_401.0, 1e19] {
            assert_eq!(refused(|o| o.deadline = seconds), "step-bad-deadline");
        }
        let kill = |rank, step| move |o: &mut Order| o.kill = Some(Kill { rank, step });
        assert_eq!(refused(kill(2, 1)), "step-no-such-rank");
        assert_eq!(refused(kill(1, 5)), "step-no-such-step");
        assert_eq!(refused(kill(1, 0)), "step-no-such-step");
        let alone = |o: &mut Order| {
            o.ranks = 1;
            o.recovery = Recovery::Shrink;
            o.kill = Some(Kill { rank: 0, step: 1 });
        };
        assert_eq!(refused(alone), "step-nobody-left");
    }

    #[test]
    fn a_drive_or_a_memory_that_is_too_small_is_named_with_what_is_needed() {
        let mut large = order();
        large.parameters = MAX_PARAMETERS;
        large.ranks = MAX_RANKS;
        let folder = std::env::temp_dir();
        let error = large
            .check_disk(&folder, Bytes(1 << 60))
            .expect_err("no such drive");
        assert_eq!(error.code(), "disk-too-small");
        assert!(
            error.to_string().contains("3 checkpoints of 120 GB"),
            "{error}"
        );
        let error = large.check_memory().expect_err("no such memory");
        assert_eq!(error.code(), "memory-too-small");
        assert_eq!(order().check_disk(&folder, Bytes(1)), Ok(()));
        assert_eq!(order().check_memory(), Ok(()));
    }
}
