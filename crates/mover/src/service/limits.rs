//! Every limit of the service, in one place.

use std::time::Duration;

use crowfly_route::units::Bytes;

use crate::digest::GRID;
use crate::fabric::MAX_MESSAGE;

/// The bytes that one request moves: two pieces of the digest's grid. Larger parts cost more memory and
/// fall out of the processors' caches between the steps, smaller ones cost more requests.
pub(crate) const PART: u64 = 2 * GRID;
/// Parts that a copy has under way at a time, each with a buffer of its own.
pub(crate) const WINDOW: usize = 4;
/// The same where a store is at one end: a connection to it carries less than there is to be had.
pub(crate) const STORE_WINDOW: usize = 16;
/// The longest message of the control channel, in bytes.
pub(crate) const MAX_FRAME: usize = MAX_MESSAGE;
/// What a page of a listing may take of a message.
pub(crate) const MAX_PAGE: usize = MAX_FRAME - 2048;
/// The longest path below a name, in bytes.
pub(crate) const MAX_PATH: usize = 4000;
/// The longest component of a path, in bytes, as file systems have it.
pub(crate) const MAX_COMPONENT: usize = 255;
/// The most components of a path.
pub(crate) const MAX_DEPTH: usize = 64;
/// The longest name of an export.
pub(crate) const MAX_NAME: usize = 64;
/// The most names of one server.
pub(crate) const MAX_EXPORTS: usize = 256;
/// The most entries of one folder that are listed, and the most files of one copy.
pub const MAX_LISTED: usize = 1_000_000;
/// The longest text of an error that is sent.
pub(crate) const MAX_TEXT: usize = 1024;
/// The longest code of an error that is sent.
pub(crate) const MAX_CODE: usize = 64;
/// The most ranges by which a server says what it already has of a file.
pub(crate) const MAX_RANGES: usize = 1024;
/// The longest account of a file, as JSON, that is read.
pub(crate) const MAX_ACCOUNT: usize = MAX_FRAME - 512;
/// The obstacles that an account of the far end tells.
pub(crate) const MAX_OBSTACLES: usize = 8;
/// Peers that the metrics tell apart; what the others move is counted together.
pub(crate) const MAX_LABELLED: usize = 256;
/// The longest a server works on one request, whatever the client allows.
pub(crate) const MAX_WORK: Duration = Duration::from_secs(30);
/// How long a request may wait for its answer when nobody says.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// What a client allows a server beyond the request's own deadline, to say that it was not met.
pub(crate) const COURTESY: Duration = Duration::from_secs(2);
/// How long a peer may take to introduce itself.
pub(crate) const INTRODUCTION: Duration = Duration::from_secs(5);
/// How often a thread that waits looks whether it is still wanted.
pub(crate) const LOOK: Duration = Duration::from_millis(200);
/// How long a server that was told to stop waits for what is under way, unless told otherwise.
pub const GRACE: Duration = Duration::from_secs(5);
/// How long it then takes leave of those that are still there.
pub(crate) const PARTING: Duration = Duration::from_secs(1);

/// The limits of a server that a user may set.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Peers at a time.
    pub peers: usize,
    /// Requests of one peer that are worked on or wait at a time.
    pub requests: usize,
    /// Files that one peer has open at a time.
    pub files: usize,
    /// How long a peer may ask for nothing before it is sent away.
    pub idle: Duration,
    /// Memory for bytes on their way between storage and the fabric.
    pub buffers: Bytes,
    /// How long a server that was told to stop serves those who go on asking.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            peers: 64,
            requests: 16,
            files: 64,
            idle: Duration::from_secs(300),
            buffers: Bytes(8 * PART),
            grace: GRACE,
        }
    }
}

impl Limits {
    /// Threads that move bytes, each with a buffer: at least one.
    pub(crate) fn workers(&self) -> usize {
        const MOST: u64 = 64;
        (self.buffers.0 / PART).clamp(1, MOST) as usize
    }
}
