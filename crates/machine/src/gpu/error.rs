//! Why something asked of a GPU failed.

use crowfly_route::units::PciAddress;

/// Why something asked of a GPU failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The runtime's library is not there, or lacks the function.
    #[error("{}", unsupported(library, symbol, why))]
    Unsupported {
        /// The library's file name.
        library: &'static str,
        /// The function, or the library itself when it could not be opened.
        symbol: &'static str,
        /// What the loader said.
        why: String,
    },
    /// The runtime shows no GPU there.
    #[error("{library} shows no GPU at {address} (it shows: {})", list(known))]
    NoSuchGpu {
        /// The library asked.
        library: &'static str,
        /// The PCIe address asked for.
        address: PciAddress,
        /// The addresses it shows.
        known: Vec<PciAddress>,
    },
    /// A call failed.
    #[error("{gpu}: {call} returned {code}: {meaning}")]
    Call {
        /// The GPU, as people call it, or the library.
        gpu: String,
        /// The function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// What the runtime says that means.
        meaning: String,
    },
    /// A range lies outside of a memory.
    #[error("{start}..{end} lies outside of a memory of {len} bytes")]
    OutOfBounds {
        /// First byte asked for.
        start: usize,
        /// End of what was asked for.
        end: usize,
        /// Bytes of the memory.
        len: usize,
    },
    /// Memory cannot be opened by other processes.
    #[error("memory of {gpu} cannot be sent to another process: {why}")]
    NotShareable {
        /// The GPU.
        gpu: String,
        /// Why not.
        why: String,
    },
    /// An address that was handed in is not of that GPU's memory.
    #[error("{address:#x} is not memory of {gpu}: {found}")]
    NotItsMemory {
        /// The GPU.
        gpu: String,
        /// The address.
        address: u64,
        /// What it is.
        found: String,
    },
}

/// A library that is not there is one thing, a function that it lacks another.
pub(crate) fn unsupported(library: &str, symbol: &str, why: &str) -> String {
    match symbol == library {
        true => format!("{library} cannot be loaded: {why}"),
        false => format!("{library} has no `{symbol}`: {why}"),
    }
}

fn list(known: &[PciAddress]) -> String {
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    match known.is_empty() {
        true => "none".into(),
        false => known.join(", "),
    }
}

impl GpuError {
    /// A stable code for JSON output.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "gpu-unsupported",
            Self::NoSuchGpu { .. } => "no-such-gpu",
            Self::Call { .. } => "gpu-call-failed",
            Self::OutOfBounds { .. } => "out-of-bounds",
            Self::NotShareable { .. } => "not-shareable",
            Self::NotItsMemory { .. } => "not-gpu-memory",
        }
    }

    /// The function that failed or is missing, where one was called.
    pub const fn call(&self) -> Option<&'static str> {
        match self {
            Self::Unsupported { symbol, .. } => Some(symbol),
            Self::Call { call, .. } => Some(call),
            _ => None,
        }
    }

    /// What the runtime returned, where a call failed.
    pub const fn answer(&self) -> Option<i32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the GPU has no memory left.
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self.answer(), Some(super::abi::OUT_OF_MEMORY))
    }
}
