//! Memory to memory between processes and servers, with proof of the path.

mod descriptor;
mod error;
mod fields;
mod gate;
mod identity;
mod memory;
pub mod provider;
mod region;
pub mod verbs;

pub use descriptor::{
    BadDescriptor, DESCRIPTOR_VERSION, Grant, MAX_DESCRIPTOR, MAX_GRANTS, MAX_NIC_KEY,
    MAX_NIC_NAME, RegionDescriptor, RemoteSlice,
};
pub use error::{FabricError, SharedIo};
pub use gate::{Gate, Inside};
pub use identity::{BadKey, Incarnation, SharedKey};
pub use memory::{Backing, Buffer, Keeper};
pub use region::{Access, LocalSlice, Region, RegionCore};
