//! What a collective did, as one rank saw it.

use std::sync::Arc;

use crowfly_route::collective::Collective;
use crowfly_route::receipt::Path;
use crowfly_route::units::{Bytes, BytesPerSecond};
use serde::{Serialize, Serializer};

use super::choose::Algorithm;
use super::device::NcclAccount;
use super::element::Element;
use super::reduce::Reduction;

/// The version of the receipt's JSON form.
pub const COLLECTIVE_SCHEMA: &str = "crowfly.collective/1";

/// Bytes that went one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathBytes {
    /// The engine path.
    pub path: Path,
    /// Numbers' bytes that this rank sent by it, or got through memory that ranks share. What a rank that has
    /// left since did not acknowledge is not counted.
    pub bytes: Bytes,
}

/// What a collective did, as one rank saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveReceipt {
    /// [`COLLECTIVE_SCHEMA`].
    pub schema: &'static str,
    /// What was done.
    pub collective: Collective,
    /// On what kind of numbers.
    pub element: Element,
    /// How they were reduced, where they were.
    pub reduction: Option<Reduction>,
    /// Whether half precision was summed in single precision and rounded once.
    pub wide: bool,
    /// What nccl-tests calls the size: the whole buffer of one rank.
    pub size: Bytes,
    /// Which call of the group it was, from 1.
    pub number: u64,
    /// This rank.
    pub rank: usize,
    /// Ranks of the group.
    pub ranks: usize,
    /// Hosts they are on.
    pub hosts: usize,
    /// How it was done.
    pub algorithm: Algorithm,
    /// Why so.
    #[serde(serialize_with = "text")]
    pub because: Arc<str>,
    /// Bytes by the way they went, counted where they moved.
    pub moved: Vec<PathBytes>,
    /// Chunks that this rank sent.
    pub chunks: u64,
    /// All of it, in seconds.
    pub seconds: f64,
    /// The part of that in which this rank waited for others; 0 with NCCL, which does not tell.
    pub waited: f64,
    /// What NCCL says of it, where NCCL did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl: Option<Box<NcclAccount>>,
}

fn text<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}

impl CollectiveReceipt {
    /// Bytes of the buffer over time; `None` when no time passed.
    pub fn algorithm_bandwidth(&self) -> Option<BytesPerSecond> {
        self.size.per(self.seconds)
    }

    /// The same times the traffic that each rank needs at least, as nccl-tests counts it.
    pub fn bus_bandwidth(&self) -> Option<BytesPerSecond> {
        let factor = self.collective.bus_factor(self.ranks as f64);
        let rate = self.algorithm_bandwidth()?;
        Some(BytesPerSecond(rate.0 * factor))
    }
}
