//! The constants of the calibrated model, each with what it was set from.
//!
//! Latencies are those by which NCCL chooses among its algorithms (src/graph/tuning.cc). Rates are
//! what published runs reached of the links' rates. The names in parentheses are those of the
//! points in [`crate::validate`] whose use is `calibrate`.

use super::Protocol;
use crate::catalog::Transport;

/// Latencies and rate of a protocol, in seconds and as a share of Simple's rate.
#[derive(Clone, Copy, Debug)]
pub struct ProtocolConstants {
    /// Before the first step of a ring.
    pub base_ring: f64,
    /// Before the first step of a tree.
    pub base_tree: f64,
    /// A ring's step between GPUs of a domain.
    pub ring_scale_up_step: f64,
    /// A ring's step between domains.
    pub ring_network_step: f64,
    /// A tree's step between GPUs of a domain.
    pub tree_scale_up_step: f64,
    /// A tree's step between domains.
    pub tree_network_step: f64,
    /// What is left of the rate beside the flags.
    pub payload: f64,
}

/// LL: 4 B of data and 4 B of flag.
pub const LL: ProtocolConstants = ProtocolConstants {
    base_ring: 6.6e-6,
    base_tree: 6.8e-6,
    ring_scale_up_step: 0.6e-6,
    ring_network_step: 2.7e-6,
    tree_scale_up_step: 0.6e-6,
    tree_network_step: 5.0e-6,
    payload: 0.5,
};
/// LL128: 120 B of data in 128 B.
pub const LL128: ProtocolConstants = ProtocolConstants {
    base_ring: 14.0e-6,
    base_tree: 14.0e-6,
    ring_scale_up_step: 1.9e-6,
    ring_network_step: 4.0e-6,
    tree_scale_up_step: 1.25e-6,
    tree_network_step: 8.5e-6,
    payload: 120.0 / 128.0,
};
/// Simple.
pub const SIMPLE: ProtocolConstants = ProtocolConstants {
    base_ring: 8.4e-6,
    base_tree: 8.4e-6,
    ring_scale_up_step: 3.4e-6,
    ring_network_step: 14.0e-6,
    tree_scale_up_step: 4.0e-6,
    tree_network_step: 14.0e-6,
    payload: 1.0,
};

/// The most that LL moves in B/s, on one domain, on fewer than four, on more (tuning.cc, Hopper):
/// cores check a flag for every 4 B.
const LL_MOST: [f64; 3] = [141e9, 45e9, 35e9];

/// What a protocol makes of `rate` B/s among this many domains.
pub fn carried(protocol: Protocol, rate: f64, domains: u32) -> f64 {
    let payload = rate * of(protocol).payload;
    let [one, few, many] = LL_MOST;
    match (protocol, domains) {
        (Protocol::Ll, ..=1) => payload.min(one),
        (Protocol::Ll, 2..=3) => payload.min(few),
        (Protocol::Ll, 4..) => payload.min(many),
        _ => payload,
    }
}

/// Those of a protocol.
pub const fn of(protocol: Protocol) -> ProtocolConstants {
    match protocol {
        Protocol::Ll => LL,
        Protocol::Ll128 => LL128,
        Protocol::Simple => SIMPLE,
    }
}

/// What a ring reaches of the adapters' line rate with large messages: the plateau of SimAI's table
/// for 2 to 128 servers, and within the 46 to 48 GB/s of 50 that NVIDIA expects (ndr-per-nic).
pub const RING_SHARE: f64 = 0.96;
/// What pairs of GPUs reach of it: the middle of 46 to 48 of 50 GB/s (ndr-per-nic).
pub const PAIRWISE_SHARE: f64 = 0.94;
/// What a tree reaches where a ring reaches 1 (tuning.cc).
pub const TREE_SHARE: f64 = 0.92;
/// Two domains make a tree of one edge, over which each sends the data once and not twice.
pub const LARGEST_EDGE: u32 = 2;
/// The largest number of servers in SimAI's table.
pub const LARGEST_CALIBRATED_GROUP: u32 = 128;

/// Hopper without in-switch reduction: 367.2 of 450 GB/s (h200-1n-16g-ring).
const NVLINK4_SHARE: f64 = 367.2 / 450.0;
/// Ampere: 234.89 of 300 GB/s (a100-1n-16g).
const NVLINK3_SHARE: f64 = 234.89 / 300.0;
/// Blackwell: 682.2 of 900 GB/s (b200-1n-8g-ring).
const NVLINK5_SHARE: f64 = 682.2 / 900.0;
/// xGMI between eight MI300X: 312.9 of 448 GB/s (mi300x-1n-4g). Assumed of others as well.
const OTHER_SHARE: f64 = 312.9 / 448.0;
/// The newest NVLink that somebody measured.
pub const NEWEST_CALIBRATED_NVLINK: u8 = 5;

/// What a ring within a domain reaches of the scale-up fabric's rate.
pub const fn scale_up_share(nvlink: Option<u8>) -> f64 {
    match nvlink {
        Some(..=3) => NVLINK3_SHARE,
        Some(4) => NVLINK4_SHARE,
        Some(5..) => NVLINK5_SHARE,
        None => OTHER_SHARE,
    }
}

/// The first NVLink whose switches reduce.
pub const FIRST_SWITCHED_NVLINK: u8 = 4;
/// The fewest GPUs of a domain that has switches.
pub const FEWEST_SWITCHED: u32 = 4;

/// What in-switch reduction reaches of NVLink. The switches reduce, so a GPU sends its data once
/// whatever the number of GPUs; busbw 479.9 of eight is 274.2 GB/s of data through 450 GB/s
/// (h100-1n-16g), 845.67 is 483.2 through 900 GB/s (b200-1n-16g).
pub const fn switched_share(nvlink: u8) -> f64 {
    match nvlink {
        ..=4 => 479.9 / 1.75 / 450.0,
        5.. => 845.67 / 1.75 / 900.0,
    }
}

/// Before in-switch reduction begins to move data: what is left of the 27.37 µs of 1 MiB on eight
/// H100 after its transfer and the filling of the pipeline (h100-1n-1m).
pub const SWITCHED_BASE: f64 = 19.7e-6;
/// A step between domains of the tree above in-switch reduction (tuning.cc).
pub const SWITCHED_TREE_STEP: f64 = 20.9e-6;

/// A hop over EFA takes this much longer than over InfiniBand: 8 B among two p5 take 69.1 µs where
/// the tree's latency says 25.2 µs for two hops (p5-2n-8b). Of TCPX nobody published one; it is
/// assumed to be as slow.
pub const EFA_STEP: f64 = (69.1e-6 - 25.2e-6) / 2.0;

/// What a hop takes longer than over InfiniBand.
pub const fn transport_step(transport: Transport) -> f64 {
    match transport {
        Transport::Infiniband | Transport::Roce => 0.0,
        Transport::Efa | Transport::Tcpx | Transport::Tcpxo | Transport::Tcp => EFA_STEP,
    }
}

/// Whether LL128 is used: it wants writes that arrive in order, which InfiniBand and RoCE give.
pub const fn is_ordered(transport: Transport) -> bool {
    matches!(transport, Transport::Infiniband | Transport::Roce)
}

/// Larger buffers go by Simple: the table to which a flat ring was fitted has nothing else, and no
/// published run of larger ones was by LL128.
pub const LARGEST_LL128_BYTES: f64 = 67_108_864.0;

/// Channels over which NCCL spreads a collective. What one channel moves is cut into chunks, and
/// the pipeline of a tree first fills with them.
pub const CHANNELS: f64 = 16.0;
/// The least that NCCL makes of a tree's chunk while there is data enough.
pub const TREE_CHUNK_BYTES: f64 = 131_072.0;
/// The same of in-switch reduction, which cuts a channel's data among the GPUs of a domain first.
pub const SWITCHED_CHUNK_BYTES: f64 = 32_768.0;
/// The same of the tree above it.
pub const SWITCHED_TREE_CHUNK_BYTES: f64 = 65_536.0;
/// Data makes at least this many chunks.
pub const FEWEST_CHUNKS: f64 = 2.0;

/// The time to fill a pipeline of `stages` with chunks, in units of the time that all the data
/// takes. `stream` is what goes through the pipeline one chunk after the other.
pub fn pipeline_fill(stages: f64, stream: f64, chunk: f64) -> f64 {
    let chunk = chunk.min(stream / FEWEST_CHUNKS);
    (stages - 1.0).max(0.0) * chunk / stream
}

/// What streams reach of host memory's theoretical peak; assumed, as STREAM does on servers.
pub const SUSTAINED_MEMORY_SHARE: f64 = 0.8;
/// What large bf16 matrix products with all that stands between them reach of a GPU's dense rate,
/// communication apart. Assumed.
pub const COMPUTE_SHARE: f64 = 0.65;
