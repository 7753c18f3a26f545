//! Why something asked of NCCL failed.

use crate::gpu::GpuError;

/// Why something asked of NCCL failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The library is not there, or lacks the function.
    #[error("{}", crate::gpu::unsupported(library, symbol, why))]
    Unsupported {
        /// The library's file name.
        library: String,
        /// The function, or the library itself when it could not be opened.
        symbol: String,
        /// What the loader said.
        why: String,
    },
    /// A call failed, or what it had begun did.
    #[error("{library}: {call} returned {code}: {meaning}")]
    Call {
        /// The library's file name.
        library: String,
        /// The function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// What the library says that means, and what it wrote down last.
        meaning: String,
    },
    /// Something was not done in time.
    #[error("{library}: {what} was not done within {seconds:.3} s")]
    Late {
        /// The library's file name.
        library: String,
        /// What.
        what: &'static str,
        /// The time it was given.
        seconds: f64,
    },
    /// The communicator was given up.
    #[error("{library}: the communicator was given up")]
    Aborted {
        /// The library's file name.
        library: String,
    },
    /// A buffer is not as long as the call needs it.
    #[error("{call}: {bytes} bytes where {wanted} are needed")]
    Length {
        /// The function.
        call: &'static str,
        /// Bytes of the buffer.
        bytes: usize,
        /// Bytes that it needs.
        wanted: usize,
    },
    /// The GPU failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl NcclError {
    /// A stable code for JSON output.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "nccl-unsupported",
            Self::Call { .. } => "nccl-call-failed",
            Self::Late { .. } => "nccl-late",
            Self::Aborted { .. } => "nccl-aborted",
            Self::Length { .. } => "nccl-bad-length",
            Self::Gpu(error) => error.code(),
        }
    }

    /// Whether it tells of another rank or of the network, rather than of this one.
    pub const fn is_of_another(&self) -> bool {
        matches!(self, Self::Call { code, .. } if *code == super::abi::REMOTE_ERROR)
            || matches!(self, Self::Late { .. })
    }
}
