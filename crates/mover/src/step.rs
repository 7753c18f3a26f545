//! Training steps, live: what ranks that train a model together do with their bytes.
//!
//! Each step a rank reads its batch from storage into memory, works out gradients, reduces them with
//! the others, updates its parameters, and every so many steps saves a checkpoint in the background.
//! When a rank is lost, the others learn of it by the same typed error; a new group is formed, of
//! those that are left or with another process in the place of the lost one, everyone restores the
//! last complete checkpoint, and the run goes on. Storage, gradients and checkpoints go by this
//! crate's own engine, collectives and savers; only the computation is a *stand-in*: real numbers
//! from the batch and the parameters, of a size or time that is chosen.
//!
//! Read in this order: `order` (what is to be done), `moment` (what a rank tells of it), `batches`
//! (where its data is), `model` (the stand-in), `rank` (the run itself).

mod batches;
mod error;
mod model;
mod moment;
mod order;
mod rank;

pub use batches::{Batches, SHARD, Shards};
pub use error::RunError;
pub use model::{FLOPS_PER_PAIR, STATE_BYTES_PER_PARAMETER};
pub use moment::{Exchanged, Lost, Moment, Moved, Restored, Saved, Stepped, Times};
pub use order::{
    BadOrder, Kill, MAX_BATCH, MAX_PARAMETERS, MAX_RANKS, MAX_STEPS, Order, Recovery, Work,
};
pub use rank::{Crew, Ended, MAX_LOSSES, train};
