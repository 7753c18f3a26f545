//! Whether the storage library of a GPU's maker works here, for a file and a GPU, and which way it
//! goes: found out by doing it once in a child process ([`Trial`]).

use std::path::PathBuf;

use crowfly_route::obstacle::{Evidence, Obstacle};
use crowfly_route::units::PciAddress;
use serde::{Deserialize, Serialize};

use super::functions::Functions;
use crate::gpu::Dialect;
use crate::trial::{Outcome, Question, Trial};

pub(crate) mod child;
mod surroundings;
mod verdict;

pub use surroundings::Surroundings;

/// What a child is to find out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageQuestion {
    /// Whether it is hipFile rather than cuFile.
    pub hip: bool,
    /// The library's file; where the loader finds it when `None`.
    pub library: Option<PathBuf>,
    /// A file to read from; nothing is read when `None`.
    pub file: Option<PathBuf>,
    /// The GPU to read into; host memory when `None`.
    pub gpu: Option<PciAddress>,
    /// Whether it may go through host memory, as it is allowed to by default.
    pub allow_compat: bool,
}

impl StorageQuestion {
    /// Whose library it is about.
    pub const fn dialect(&self) -> Dialect {
        match self.hip {
            true => Dialect::Hip,
            false => Dialect::Cuda,
        }
    }
}

/// Which way the library went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the kernel's PCIe peer-to-peer DMA.
    Peer,
    /// By the maker's kernel module (nvidia-fs), or hipFile's fast path.
    Module,
    /// Through host memory.
    Compat,
    /// Nothing tells.
    Unproven,
}

impl Mode {
    /// Whether the drive's DMA reaches the GPU's memory.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Peer | Self::Module)
    }
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Which way it went; `None` when nothing was read.
    pub mode: Option<Mode>,
    /// What proves the mode.
    pub evidence: Vec<Evidence>,
    /// The library's version, where it says.
    pub version: Option<(u32, u32)>,
    /// What stands in the way: blocking where it does not work at all, and where it does not go
    /// straight.
    pub obstacles: Vec<Obstacle>,
}

impl Probe {
    /// Tries it in a child.
    pub fn run(trial: &Trial, question: &StorageQuestion) -> Self {
        let variable = question
            .dialect()
            .of("CUFILE_ALLOW_COMPAT_MODE", "HIPFILE_ALLOW_COMPAT_MODE");
        let trial = match question.allow_compat {
            true => trial.clone(),
            // hipFile listens to it; cuFile is told by a function where it has one.
            false => trial.clone().with(variable, "false"),
        };
        let outcome = trial.run(&Question::Storage(question.clone()));
        Self::of(
            &outcome,
            question,
            &Surroundings::of(question.file.as_deref()),
        )
    }

    /// What an outcome comes to, in its surroundings.
    pub fn of(outcome: &Outcome, question: &StorageQuestion, around: &Surroundings) -> Self {
        verdict::judge(outcome, question, around)
    }

    /// Whether the library may be used in this process, whichever way it goes.
    pub fn works(&self) -> bool {
        self.mode.is_some()
    }
}

/// The functions that a question is about.
fn functions(question: &StorageQuestion) -> Result<std::sync::Arc<Functions>, super::StorageError> {
    match &question.library {
        Some(file) => Functions::load_from(question.dialect(), file.as_os_str()),
        None => Functions::load(question.dialect()),
    }
}

#[cfg(test)]
mod tests;
