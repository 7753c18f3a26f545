//! How a process takes part in the fabric.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crowfly_route::policy::Policy;
use crowfly_route::topology::Topology;

use super::identity::SharedKey;
use super::nics::NicFilter;
use super::provider::{DEFAULT_DEADLINE, Provider};
use crate::gpu::Gpu;

/// Streams by peer and interface when nobody says. Assumed: enough that both ends' kernels work in
/// parallel; `bench/net` and `CROWFLY_RATE_STREAMS` show what another number does.
const STREAMS: usize = 2;
/// Silence after which a peer counts as gone when nobody says.
const SILENCE: Duration = Duration::from_secs(5);

/// How a process takes part in the fabric.
#[derive(Clone)]
pub struct Settings {
    /// The key that all processes of the fabric share.
    pub key: SharedKey,
    /// Where to listen; loopback and any port unless told otherwise.
    pub listen: SocketAddr,
    /// The NICs to use. When it is empty: all providers that are fit, the interface that the kernel
    /// chooses, and where there are several fast ones, those as well.
    pub nics: NicFilter,
    /// The machine, so that memory goes by the NICs nearest to it; all are as near when `None`.
    pub topology: Option<Arc<Topology>>,
    /// Whether memory is shared with processes of this host.
    pub shm: bool,
    /// Streams for each peer and interface; to a process of the same host no more than threads that watch
    /// sockets.
    pub streams: usize,
    /// Threads that watch sockets, and as many again that copy for `shm`; by the processors when
    /// `None`, and then half as many that watch.
    pub threads: Option<usize>,
    /// How long a peer may be silent before it counts as gone.
    pub silence: Duration,
    /// How far registered memory's transfers may stray when the transfer does not say.
    pub policy: Policy,
    /// Further providers, such as RDMA devices.
    pub providers: Vec<Arc<dyn Provider>>,
    /// GPUs that are open in this process. By their runtimes it opens what peers of this host share of
    /// theirs; memory registered here brings its own GPU along.
    pub gpus: Vec<Arc<Gpu>>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("listen", &self.listen)
            .field("nics", &self.nics.to_string())
            .field("shm", &self.shm)
            .field("streams", &self.streams)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// The usual settings with this key.
    pub fn new(key: SharedKey) -> Self {
        Self {
            key,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            nics: NicFilter::default(),
            topology: None,
            shm: true,
            streams: STREAMS,
            threads: None,
            silence: SILENCE,
            policy: Policy::Prefer,
            providers: Vec::new(),
            gpus: Vec::new(),
        }
    }
}

/// How one transfer is to be done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The time it may take; [`DEFAULT_DEADLINE`] when `None`.
    pub deadline: Option<Duration>,
    /// How far it may stray; the fabric's policy when `None`.
    pub policy: Option<Policy>,
    /// Whether both ends compute the checksum of the bytes when they are there, to compare them.
    /// Nobody may change them meanwhile. A value that comes with a write is counted before that.
    pub verify: bool,
}

impl Options {
    /// With a time limit.
    pub const fn within(deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
            policy: None,
            verify: false,
        }
    }

    /// With a policy.
    #[must_use]
    pub const fn by(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// With a comparison of both ends' checksums.
    #[must_use]
    pub const fn verified(mut self) -> Self {
        self.verify = true;
        self
    }

    pub(crate) fn allowed(&self) -> Duration {
        self.deadline.unwrap_or(DEFAULT_DEADLINE)
    }
}
