//! RDMA, InfiniBand and RoCE.

mod loss;
mod ports;
mod stack;

use crate::rule::Rule;

pub(crate) const RULES: &[Rule] = &[
    ports::NOT_ACTIVE,
    ports::RATES,
    ports::MTU,
    loss::GID,
    loss::TRAFFIC_CLASS,
    loss::COUNTERS,
    stack::FIRMWARE,
    stack::BUILD_ORDER,
    stack::UCX_STAGES,
    stack::ENGINE_ERRORS,
];
