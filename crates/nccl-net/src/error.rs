//! Why a call of NCCL's failed, and what NCCL is told.

use std::ffi::c_int;

use crowfly_mover::fabric::FabricError;
use crowfly_route::obstacle::Obstacle;

use crate::abi;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The fabric refused, or the peer or the way to it failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A variable of the environment makes no sense.
    #[error("{variable}={value}: {why}")]
    Variable {
        /// Its name.
        variable: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The plugin was called before `init`, or after it was finalized.
    #[error("the plugin is not initialized")]
    NotInitialized,
    /// There is no NIC to offer.
    #[error("there is no NIC to use")]
    NoDevice {
        /// Why each there is cannot be used.
        obstacles: Vec<Obstacle>,
    },
    /// A device was named that does not exist.
    #[error("there is no device {device}; there are {count}")]
    NoSuchDevice {
        /// Its number.
        device: c_int,
        /// How many there are.
        count: usize,
    },
    /// A pointer is null, or a number is out of range.
    #[error("{argument} makes no sense: {why}")]
    Argument {
        /// Which argument.
        argument: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The 128 bytes are no handle.
    #[error("these bytes are no handle of this plugin: {0}")]
    Handle(&'static str),
    /// An object that was not given out, or is closed.
    #[error("there is no such {0}: it was never given out, or was closed")]
    Unknown(&'static str),
    /// More receives in one group than there may be.
    #[error("{asked} receives in one group; there can be {limit}")]
    TooManyReceives {
        /// How many there are.
        asked: c_int,
        /// How many there can be.
        limit: usize,
    },
    /// A message is longer than the buffer that the receiver gave for it.
    #[error(
        "a message of {bytes} bytes with tag {tag} does not fit the {room} bytes of its receive"
    )]
    Truncated {
        /// Its length.
        bytes: u64,
        /// Its tag.
        tag: i32,
        /// The buffer's length.
        room: u64,
    },
    /// Bytes that are not in the memory they were said to be in.
    #[error("{len} bytes at {address:#x} are not inside of the registered memory")]
    Outside {
        /// Where they start.
        address: usize,
        /// How many there are.
        len: usize,
    },
    /// Memory that this device cannot register.
    #[error("memory of type {kind} cannot be registered: {why}")]
    Memory {
        /// NCCL's number of the type.
        kind: c_int,
        /// Why not.
        why: String,
    },
    /// Where the handle leads, another process listens.
    #[error("{address} leads to another process than the one that gave the handle")]
    Stranger {
        /// The address.
        address: String,
    },
    /// The peer did not keep to this plugin's protocol.
    #[error("the peer broke the plugin's protocol: {0}")]
    Protocol(&'static str),
    /// A comm that failed before.
    #[error("the comm has failed before: {0}")]
    Failed(Box<NetError>),
    /// A request, a receipt or memory went wrong in a way that is this plugin's own fault.
    #[error("a fault of this plugin: {0}")]
    Panic(String),
}

impl NetError {
    /// A stable code, for logs and receipts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Fabric(error) => error.code(),
            Self::Variable { .. } => "bad-variable",
            Self::NotInitialized => "not-initialized",
            Self::NoDevice { .. } => "no-device",
            Self::NoSuchDevice { .. } => "no-such-device",
            Self::Argument { .. } => "bad-argument",
            Self::Handle(_) => "bad-handle",
            Self::Unknown(_) => "unknown-object",
            Self::TooManyReceives { .. } => "too-many-receives",
            Self::Truncated { .. } => "message-truncated",
            Self::Outside { .. } => "outside-of-memory",
            Self::Memory { .. } => "memory-type",
            Self::Stranger { .. } => "another-process",
            Self::Protocol(_) => "protocol-violation",
            Self::Failed(error) => error.code(),
            Self::Panic(_) => "plugin-fault",
        }
    }

    /// What NCCL is told.
    pub fn result(&self) -> c_int {
        match self {
            Self::Fabric(error) => match error {
                FabricError::PeerLost { .. }
                | FabricError::Unreachable { .. }
                | FabricError::NoSuchHost { .. }
                | FabricError::NotAuthenticated { .. }
                | FabricError::WrongVersion { .. }
                | FabricError::Protocol { .. }
                | FabricError::NoSuchRegion { .. }
                | FabricError::StaleDescriptor { .. }
                | FabricError::Deadline { .. } => abi::REMOTE_ERROR,
                _ => abi::SYSTEM_ERROR,
            },
            Self::Stranger { .. } | Self::Protocol(_) => abi::REMOTE_ERROR,
            Self::NoDevice { .. } | Self::Memory { .. } => abi::SYSTEM_ERROR,
            Self::Variable { .. } | Self::Truncated { .. } | Self::NotInitialized => {
                abi::INVALID_USAGE
            }
            Self::NoSuchDevice { .. }
            | Self::Argument { .. }
            | Self::Handle(_)
            | Self::Unknown(_)
            | Self::TooManyReceives { .. }
            | Self::Outside { .. } => abi::INVALID_ARGUMENT,
            Self::Failed(error) => error.result(),
            Self::Panic(_) => abi::INTERNAL_ERROR,
        }
    }

    /// What stands in the way of better routes, where the error knows.
    pub fn obstacles(&self) -> &[Obstacle] {
        match self {
            Self::Fabric(error) => error.obstacles(),
            Self::NoDevice { obstacles } => obstacles,
            Self::Failed(error) => error.obstacles(),
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_is_told_whose_fault_it_is() {
        let lost = NetError::from(FabricError::Deadline {
            what: "the transfer",
            after: std::time::Duration::from_secs(1),
        });
        assert_eq!(lost.result(), abi::REMOTE_ERROR);
        let refused = NetError::from(FabricError::Registration { obstacles: vec![] });
        assert_eq!(
            (refused.result(), refused.code()),
            (abi::SYSTEM_ERROR, "registration-refused")
        );
        assert_eq!(NetError::Unknown("comm").result(), abi::INVALID_ARGUMENT);
        assert_eq!(NetError::Panic("x".into()).result(), abi::INTERNAL_ERROR);
        let again = NetError::Failed(Box::new(lost));
        assert_eq!(
            (again.result(), again.code()),
            (abi::REMOTE_ERROR, "deadline-exceeded")
        );
    }
}
