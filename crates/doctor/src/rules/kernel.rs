//! The kernel and PCI Express.

mod access;
mod events;
mod links;
mod memory;
mod settings;

use crate::rule::Rule;

pub(crate) const RULES: &[Rule] = &[
    access::ACS_REDIRECT,
    access::MAP_TYPE,
    access::REFUSED,
    access::NOT_BUILT,
    settings::IOMMU,
    memory::SMALL_BAR,
    links::DEGRADED,
    links::READ_REQUESTS,
    settings::NO_NUMA_NODE,
    settings::NUMA_BALANCING,
    events::XID,
    events::CRASHED,
    events::BUS_ERRORS,
    events::PEERMEM_MESSAGES,
];
