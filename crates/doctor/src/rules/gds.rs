//! GPUDirect Storage.

mod module;
mod path;
mod platform;

use crate::rule::Rule;

pub(crate) const RULES: &[Rule] = &[
    module::NOT_LOADED,
    module::NVME_NOT_PATCHED,
    module::NVME_INTERFACE,
    module::P2PDMA_MODE,
    path::FILE_SYSTEM,
    path::COMPAT_HIDES,
    module::BAD_VERSION,
    platform::CONTAINER,
    path::COUNTERS,
    platform::VERIFICATION,
    path::ERRORS,
];
