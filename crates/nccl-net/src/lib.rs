//! crowfly as a network of NCCL: unchanged programs that use NCCL move their bytes between servers by
//! the fabric, with receipts, with `require`, and with rails that stand in for each other.
//!
//! NCCL opens the library and takes the newest table of functions that it knows
//! (`ncclNetPlugin_v8` to `_v11`).
//!
//! Read in this order: [`abi`] (NCCL's layouts), `entry` (the functions that NCCL calls, and the
//! only place of C's pointers), `plugin` (what all communicators share), `door` (how two ranks find
//! each other), `receiver` and `sender` (how a message finds its buffer: `records` are what they
//! write to each other), `account` (the receipts), `calls` (what NCCL tells of its own calls, where the
//! library is its profiler as well: `ncclProfiler_v4` and `_v5`).

pub mod abi;
pub mod account;
pub mod calls;
mod comm;
mod device;
mod door;
mod entry;
mod error;
mod gpus;
mod handle;
mod logger;
mod memory;
mod plugin;
mod receiver;
mod records;
mod ring;
mod sender;
mod settings;
mod table;

pub use error::NetError;
pub use settings::Settings;
