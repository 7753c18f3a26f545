//! Facts that several rules and the judge draw from the same evidence.

pub(crate) mod flows;
pub(crate) mod host;
pub(crate) mod job;
pub(crate) mod level;
pub(crate) mod measured;
pub(crate) mod nics;
pub(crate) mod rdma;
pub(crate) mod settings;
pub(crate) mod site;
pub(crate) mod storage;
pub(crate) mod ucx;
