//! Why something asked of cuFile or hipFile failed.

use std::io;

use super::abi;
use crate::gpu::GpuError;

/// Why something asked of cuFile or hipFile failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The library is not there, or lacks the function.
    #[error("{}", crate::gpu::unsupported(library, symbol, why))]
    Unsupported {
        /// The library.
        library: String,
        /// The function, or the library itself when it could not be opened.
        symbol: String,
        /// What the loader said.
        why: String,
    },
    /// A call failed.
    #[error("{call} returned {code}{}: {}", gpu_part(*.gpu_code), abi::meaning(*.code))]
    Refused {
        /// The function.
        call: &'static str,
        /// The library's code, above 5000.
        code: i32,
        /// The GPU driver's code behind it, or 0.
        gpu_code: i32,
    },
    /// Moving bytes failed with the kernel's answer.
    #[error("{call}: {source}")]
    Io {
        /// The function.
        call: &'static str,
        /// The answer.
        source: io::Error,
    },
    /// The GPU's runtime failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

fn gpu_part(code: i32) -> String {
    match code {
        0 => String::new(),
        code => format!(" (and the GPU's driver {code})"),
    }
}

impl StorageError {
    /// A stable code for JSON output.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "storage-unsupported",
            Self::Refused { .. } => "storage-call-failed",
            Self::Io { .. } => "storage-io-failed",
            Self::Gpu(error) => error.code(),
        }
    }

    /// The function that failed, and its code, where the library itself refused.
    pub const fn refusal(&self) -> Option<(&'static str, i32)> {
        match self {
            Self::Refused { call, code, .. } => Some((call, *code)),
            _ => None,
        }
    }
}
