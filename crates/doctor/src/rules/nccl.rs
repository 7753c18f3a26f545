//! NCCL and RCCL: what their logs and topologies say, and how it is misread.

mod differences;
mod distance;
mod errors;
mod evidence;
mod gdr;
mod network;
mod peers;
mod settings;
mod topology;
mod warnings;

use crate::rule::Rule;

pub(crate) use distance::{list, ranks};

pub(crate) const RULES: &[Rule] = &[
    distance::TOO_FAR,
    distance::NUMBERS,
    distance::NO_PAIR_LINES,
    gdr::PEERMEM_NOT_SEEN,
    gdr::PEERMEM_NOT_LOADED,
    gdr::DMABUF,
    evidence::DMABUF_AVAILABLE,
    evidence::CHANNELS,
    evidence::RING_SUMMARY,
    evidence::READ_AND_WRITE,
    settings::SELF_INFLICTED,
    differences::NOT_ON_ALL_RANKS,
    network::NO_RDMA,
    network::WRONG_INTERFACE,
    peers::SHM_INSTEAD,
    peers::DEFAULT_LEVEL,
    network::NO_PXN,
    peers::NO_NVLS,
    errors::LOCAL_PROTECTION,
    errors::RETRIES_EXCEEDED,
    topology::LINK_SPEEDS,
    topology::MODEL,
    errors::PEER_UNREACHABLE,
    errors::OTHER_COMPLETION,
    warnings::ENDED_IN_ERROR,
    network::PLUGIN_FAILED,
    network::IDLE_NICS,
];
