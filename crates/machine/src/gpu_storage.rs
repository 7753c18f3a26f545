//! GPUDirect Storage: cuFile for NVIDIA's GPUs and hipFile for AMD's, opened at run time.
//!
//! Both libraries answer "success" whether a drive wrote into the GPU's memory or a core copied the
//! bytes there through host memory. Which it was is told by counters ([`Counters`]), never by
//! return codes. Opening cuFile's driver can hang, and can close descriptor 0, so it is tried in a
//! child process first ([`Probe`](probe::Probe)), with a time limit; only what worked there is done in this process.
//!
//! hipFile has cuFile's functions under other names, so one table ([`Functions`]) serves both.

mod abi;
mod batch;
mod driver;
mod error;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
mod functions;
pub mod probe;
mod statistics;

pub use batch::{Batch, BatchOutcome, BatchRead};
pub use driver::{Compat, Driver, MAX_REQUEST, MemoryRegistration, Queued, StorageFile};
pub use error::StorageError;
pub use functions::Functions;
pub use statistics::{Counters, NvidiaFsCounters, Ways};
