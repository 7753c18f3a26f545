//! Why something asked of an RDMA device failed.

use std::io;

/// Why something asked of an RDMA device failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not there, or is too old to have the function.
    #[error("{library} is needed for this and has no `{symbol}`: {why}")]
    Unsupported {
        /// The library's file name.
        library: &'static str,
        /// The function and its version, or the library itself when it could not be opened.
        symbol: &'static str,
        /// What the loader said.
        why: String,
    },
    /// No device has that name.
    #[error("there is no RDMA device `{name}` (there are: {})", if known.is_empty() { "none".into() } else { known.join(", ") })]
    NoSuchDevice {
        /// The name given.
        name: String,
        /// The devices there are.
        known: Vec<String>,
    },
    /// A call failed.
    #[error("{device}: {call}: {source}")]
    Call {
        /// The device.
        device: String,
        /// The call with the values that matter.
        call: String,
        /// The kernel's or the driver's answer.
        source: io::Error,
    },
    /// The port has no address of the kind that is needed.
    #[error("{device} port {port} has no address to be reached at{}", wanted.as_ref().map(|w| format!(" ({w})")).unwrap_or_default())]
    NoAddress {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// What was asked for.
        wanted: Option<String>,
    },
    /// A range lies outside of a region.
    #[error("{start}..{end} lies outside of a region of {len} bytes")]
    OutOfBounds {
        /// First byte asked for.
        start: usize,
        /// End of what was asked for.
        end: usize,
        /// Bytes of the region.
        len: usize,
    },
    /// The region was not registered for this.
    #[error("the region is not registered for {what}")]
    AccessMissing {
        /// What was attempted.
        what: &'static str,
    },
    /// The queue has no room for more requests until some complete.
    #[error("queue pair {qp_num} has room for {room} more requests, {wanted} were to be posted")]
    QueueFull {
        /// The queue pair's number.
        qp_num: u32,
        /// How many fit.
        room: usize,
        /// How many there are.
        wanted: usize,
    },
    /// A request is larger than the queue pair takes.
    #[error("{what}: {value} is more than the {limit} that queue pair {qp_num} takes")]
    TooLarge {
        /// The queue pair's number.
        qp_num: u32,
        /// What is too large.
        what: &'static str,
        /// How large.
        value: usize,
        /// How large it may be.
        limit: usize,
    },
}

impl VerbsError {
    /// A stable code for JSON output.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "unsupported",
            Self::NoSuchDevice { .. } => "no-such-nic",
            Self::Call { .. } => "verbs-call-failed",
            Self::NoAddress { .. } => "no-rdma-address",
            Self::OutOfBounds { .. } => "out-of-bounds",
            Self::AccessMissing { .. } => "access-missing",
            Self::QueueFull { .. } => "queue-full",
            Self::TooLarge { .. } => "request-too-large",
        }
    }

    /// The error number behind it, where a call failed with one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}
