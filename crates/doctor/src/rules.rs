//! The rules, one module for each family.

mod amd;
mod cloud;
mod container;
mod gds;
mod gpu;
mod join;
mod kernel;
mod nccl;
mod rdma;
mod tests;

use crate::rule::Rule;

/// Every family's rules, in the order in which they are listed.
pub(crate) const FAMILIES: &[&[Rule]] = &[
    nccl::RULES,
    kernel::RULES,
    gds::RULES,
    rdma::RULES,
    container::RULES,
    cloud::RULES,
    amd::RULES,
    gpu::RULES,
    tests::RULES,
    join::RULES,
];
