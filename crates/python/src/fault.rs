//! The libraries' errors become Python's, here and nowhere else.
//!
//! Which class an error is of says what a caller can do about it; the stable code says which one it is.

use std::io;

use crowfly_machine::RootError;
use crowfly_mover::checkpoint::CheckpointError;
use crowfly_mover::checkpoint::header::{HeaderError, HeaderReadError};
use crowfly_mover::checkpoint::select::{BadRankSlice, SelectError};
use crowfly_mover::ckpt::{ArchiveError, SaveError, StepError};
use crowfly_mover::{MemoryError, TransferError};
use crowfly_route::cause::sentence;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::BadPlace;
use crowfly_route::search::SearchError;
use pyo3::prelude::*;

/// The classes of `crowfly.errors`.
#[derive(Clone, Copy, Debug)]
pub enum Class {
    /// A policy that no open route satisfies, or a device that cannot be reached.
    RouteRefused,
    /// Malformed or contradictory input.
    Format,
    /// What was asked for is not there.
    NotFound,
    /// It may not be read or written.
    AccessDenied,
    /// Reading or writing failed.
    Io,
    /// There is not enough memory.
    OutOfMemory,
    /// The bytes are not those that they should be.
    DataDiffers,
    /// The caller gave up.
    Cancelled,
    /// The call makes no sense.
    Usage,
    /// An index lies outside of a tensor.
    Index,
    /// There is no tensor of that name.
    TensorNotFound,
    /// The element type or memory layout cannot be had in that form.
    Layout,
}

impl Class {
    const fn name(self) -> &'static str {
        match self {
            Self::RouteRefused => "RouteRefused",
            Self::Format => "FormatError",
            Self::NotFound => "NotFoundError",
            Self::AccessDenied => "AccessDeniedError",
            Self::Io => "TransferError",
            Self::OutOfMemory => "OutOfMemoryError",
            Self::DataDiffers => "DataDiffersError",
            Self::Cancelled => "CancelledError",
            Self::Usage => "UsageError",
            Self::Index => "TensorIndexError",
            Self::TensorNotFound => "TensorNotFoundError",
            Self::Layout => "LayoutError",
        }
    }
}

/// Why something could not be done.
#[derive(Debug)]
pub struct Fault {
    class: Class,
    code: String,
    message: String,
    hint: Option<String>,
    obstacles: Vec<Obstacle>,
}

impl Fault {
    /// A fault with its stable kebab-case code and a sentence naming object, operation and values.
    pub fn new(class: Class, code: &str, message: impl Into<String>) -> Self {
        Self {
            class,
            code: code.to_owned(),
            message: message.into(),
            hint: None,
            obstacles: Vec::new(),
        }
    }

    /// The call makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Class::Usage, "usage", message)
    }

    /// Adds what the caller can do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// This machine has no such GPU, or none that a runtime opens.
    pub fn no_gpu(device: &impl std::fmt::Display, obstacles: Vec<Obstacle>) -> Self {
        let what = format!("{device} cannot be loaded into on this machine");
        Self {
            obstacles,
            ..Self::new(Class::RouteRefused, "no-gpu", what)
        }
        .hint("load to device=\"cpu\"; crowfly.doctor() says what the machine lacks")
    }

    /// As Python's exception.
    pub fn raise(self, py: Python<'_>) -> PyErr {
        let obstacles = serde_json::to_string(&self.obstacles).unwrap_or_default();
        let made = || {
            let errors = py.import("crowfly.errors")?;
            let class = errors.getattr(self.class.name())?;
            let made = class.call1((&self.message, &self.code, &self.hint, obstacles))?;
            Ok(PyErr::from_value(made))
        };
        made().unwrap_or_else(|error: PyErr| error)
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        Python::attach(|py| fault.raise(py))
    }
}

/// The class of an answer of the system.
fn class_of(error: &io::Error) -> Class {
    match error.kind() {
        io::ErrorKind::NotFound => Class::NotFound,
        io::ErrorKind::PermissionDenied => Class::AccessDenied,
        io::ErrorKind::OutOfMemory => Class::OutOfMemory,
        _ => Class::Io,
    }
}

/// The class of a header that could not be read.
fn class_of_header(error: &HeaderReadError) -> Class {
    match error {
        HeaderReadError::Io(error) => class_of(error),
        HeaderReadError::NoMemory { .. } => Class::OutOfMemory,
        HeaderReadError::Shrank { .. } => Class::Io,
        _ => Class::Format,
    }
}

impl From<HeaderReadError> for Fault {
    fn from(error: HeaderReadError) -> Self {
        let hint = error.hint().map(Into::into);
        let class = class_of_header(&error);
        Self::new(class, error.code(), sentence(&error)).maybe_hint(hint)
    }
}

impl From<CheckpointError> for Fault {
    fn from(error: CheckpointError) -> Self {
        use CheckpointError as E;
        let class = match &error {
            E::NotFound { .. } | E::DanglingLink { .. } | E::MissingShard { .. } => Class::NotFound,
            E::Denied { .. } => Class::AccessDenied,
            E::Io { source, .. } => class_of(source),
            E::Header { source, .. } => class_of_header(source),
            _ => Class::Format,
        };
        Self::new(class, error.code(), sentence(&error)).maybe_hint(error.hint().map(Into::into))
    }
}

impl From<HeaderError> for Fault {
    fn from(error: HeaderError) -> Self {
        let hint = error.hint().map(Into::into);
        Self::new(Class::Format, error.code(), sentence(&error)).maybe_hint(hint)
    }
}

impl From<SelectError> for Fault {
    fn from(error: SelectError) -> Self {
        let hint = error.hint().map(Into::into);
        Self::new(Class::Usage, error.code(), sentence(&error)).maybe_hint(hint)
    }
}

impl From<BadRankSlice> for Fault {
    fn from(error: BadRankSlice) -> Self {
        Self::usage(sentence(&error))
    }
}

impl From<BadPlace> for Fault {
    fn from(error: BadPlace) -> Self {
        Self::new(Class::Usage, "not-a-place", error.to_string())
    }
}

impl From<MemoryError> for Fault {
    fn from(error: MemoryError) -> Self {
        Self::new(Class::OutOfMemory, error.code(), sentence(&error))
    }
}

impl From<TransferError> for Fault {
    fn from(error: TransferError) -> Self {
        use TransferError as E;
        let class = match &error {
            E::Refused { .. } => Class::RouteRefused,
            E::PathCannotReach { .. } | E::PathForbidden { .. } | E::BudgetTooSmall { .. } => {
                Class::Usage
            }
            E::NotAFile { .. } | E::OutOfRange { .. } => Class::Format,
            E::Open { source, .. } => class_of(source),
            E::Memory(_) => Class::OutOfMemory,
            E::Differs { .. } => Class::DataDiffers,
            E::Cancelled => Class::Cancelled,
            _ => Class::Io,
        };
        let hint = match &error {
            // The library speaks of the command's options.
            E::Refused { .. } => Some(
                "policy=\"prefer\" takes the best way there is and names the detour".to_owned(),
            ),
            E::Memory(MemoryError::NoRoom { .. }) => {
                Some("take a part (tensors=, shard=), or map the file (path=\"mapped\")".to_owned())
            }
            other => other.hint(),
        };
        let fault = Self::new(class, error.code(), sentence(&error)).maybe_hint(hint);
        match error {
            E::Refused { obstacles, .. } => Self { obstacles, ..fault },
            _ => fault,
        }
    }
}

impl From<SearchError> for Fault {
    fn from(error: SearchError) -> Self {
        let class = match &error {
            SearchError::NoSuchDevice { .. } => Class::RouteRefused,
            _ => Class::Usage,
        };
        Self::new(class, error.code(), sentence(&error)).maybe_hint(error.hint())
    }
}

impl From<RootError> for Fault {
    fn from(error: RootError) -> Self {
        Self::new(class_of(&error.source), error.code(), sentence(&error))
    }
}

impl From<StepError> for Fault {
    fn from(error: StepError) -> Self {
        use StepError as E;
        let class = match &error {
            E::NotFound { .. }
            | E::NoSteps { .. }
            | E::NoSuchStep { .. }
            | E::MissingFile { .. } => Class::NotFound,
            E::Denied { .. } => Class::AccessDenied,
            E::Io { source, .. } => class_of(source),
            _ => Class::Format,
        };
        let hint = error.hint().map(Into::into);
        Self::new(class, error.code(), sentence(&error)).maybe_hint(hint)
    }
}

impl From<ArchiveError> for Fault {
    fn from(error: ArchiveError) -> Self {
        use ArchiveError as E;
        let class = match error {
            E::Step(error) => return error.into(),
            E::Checkpoint(error) => return error.into(),
            E::Transfer(error) => return error.into(),
            E::Memory(error) => return error.into(),
            E::NoSuchTensor { .. } => Class::TensorNotFound,
            E::OutsideTensor { .. } => Class::Index,
            E::Mismatch { .. } | E::InsideByte { .. } => Class::Layout,
            E::Corrupt { .. } => Class::DataDiffers,
            _ => Class::Format,
        };
        Self::new(class, error.code(), sentence(&error)).maybe_hint(error.hint())
    }
}

impl From<SaveError> for Fault {
    fn from(error: SaveError) -> Self {
        use SaveError as E;
        let class = match error {
            E::Header(error) => return error.into(),
            E::Transfer(error) => return error.into(),
            E::Memory(error) => return error.into(),
            E::BadTensor { .. } => Class::Layout,
            E::BadState { .. } | E::BudgetTooSmall { .. } | E::StepExists { .. } => Class::Usage,
            E::Denied { .. } => Class::AccessDenied,
            _ => Class::Io,
        };
        Self::new(class, error.code(), sentence(&error)).maybe_hint(error.hint())
    }
}
