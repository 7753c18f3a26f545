//! GPUs, through their makers' runtimes opened at run time: CUDA's driver API, and HIP.
//!
//! [`Runtime`] finds the GPUs and opens one ([`Gpu`]); on it memory is allocated
//! ([`DeviceMemory`]), host memory is pinned for it ([`HostRegistration`]) and copies are queued on
//! a [`Stream`]. A queued copy holds both memories until the GPU is done with them ([`InFlight`]),
//! and everything holds what it was made of, so that nothing is freed under a device.
//!
//! HIP has CUDA's functions under other names, so one table ([`Functions`]) with two columns of
//! symbols serves both, and a stand-in for either can be put in its place. What of a function is
//! missing is reported by library and symbol when it is asked for, never by a crash.

mod abi;
mod device;
mod error;
mod export;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
mod functions;
mod memory;
mod pinned;
mod runtime;
mod stream;
pub mod trial;

pub use abi::IpcHandle;
pub use device::{Facts, Gpu, PeerRefusal, WriteFlush};
pub use error::GpuError;
pub(crate) use error::unsupported;
pub use export::GpuExporter;
pub use functions::{Dialect, Functions};
pub use memory::{DeviceMemory, Keeper, Making, Shared};
pub use pinned::HostRegistration;
pub use runtime::Runtime;
pub use stream::{Event, InFlight, Stream};
