//! What a caller asks of the engine.

use std::ops::Range;
use std::sync::Arc;

use crowfly_route::hop::{Candidate, Capacity};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;
use crowfly_route::units::{Bytes, NumaNode, PciAddress};

use crate::gpu::Gpu;
use crate::job::Sink;
use crate::source::Source;

/// How the engine uses the machine. The defaults measure instead of assuming.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests in flight over all workers; found by watching the transfer when `None`.
    pub depth: Option<usize>,
    /// Worker threads; from the processors and the way of reading when `None`.
    pub workers: Option<usize>,
    /// The most memory that a transfer which keeps nothing may use.
    pub budget: Bytes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            depth: None,
            workers: None,
            budget: Bytes(256 << 20),
        }
    }
}

/// A range of bytes of an open file.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The file.
    pub source: Arc<Source>,
    /// Byte offsets in it.
    pub range: Range<u64>,
}

impl Piece {
    /// All of a file.
    pub fn whole(source: Arc<Source>) -> Self {
        let range = 0..source.size();
        Self { source, range }
    }
}

/// Where the bytes should go.
#[derive(Clone)]
pub enum Destination {
    /// New host memory, on the node named or else on the drive's own.
    Host(Option<NumaNode>),
    /// Memory that this function publishes for peer-to-peer DMA.
    Peer(PciAddress),
    /// New memory of this GPU.
    Gpu(Arc<Gpu>),
    /// Nowhere: the bytes pass through a bounded ring of buffers and are shown to the sink, if any.
    Transit(Option<Arc<dyn Sink>>),
}

impl Destination {
    /// The place as it stands in the receipt.
    pub fn place(&self) -> Place {
        match self {
            Self::Host(node) => Place::Host(*node),
            Self::Peer(address) => Place::Peer(*address),
            Self::Gpu(gpu) => gpu.place(),
            Self::Transit(_) => Place::Host(None),
        }
    }
}

/// Whether and how the arrived bytes are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Not at all.
    #[default]
    No,
    /// Their checksum is computed where they arrived.
    Compute,
    /// It is also compared with a second, independent reading of the source.
    Compare,
}

/// What to load.
pub struct Request {
    /// How the source is called in the receipt.
    pub from: Place,
    /// What to load; each piece becomes one region.
    pub pieces: Vec<Piece>,
    /// Where to.
    pub destination: Destination,
    /// How far the bytes may stray.
    pub policy: Policy,
    /// One engine path for all bytes, to compare; chosen per range when `None`.
    pub path: Option<Path>,
    /// Whether to check what arrived.
    pub verify: Verify,
    /// Is shown every byte where it arrived, of what is kept: of a GPU's memory, a copy read back from it.
    pub watch: Option<Arc<dyn Sink>>,
    /// The routes considered between the two places, best first, when a topology is known.
    pub candidates: Vec<Candidate>,
    /// What the rate is measured against, when the routes know no better.
    pub ceiling: Option<Capacity>,
}

impl Request {
    /// Loads all pieces into host memory by the best way there is.
    pub fn to_host(from: Place, pieces: Vec<Piece>) -> Self {
        Self {
            from,
            pieces,
            destination: Destination::Host(None),
            policy: Policy::Prefer,
            path: None,
            verify: Verify::No,
            watch: None,
            candidates: Vec::new(),
            ceiling: None,
        }
    }
}
