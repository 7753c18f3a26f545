//! Making what a port wrote into a GPU's memory visible to the GPU, and saying how.

use std::sync::Arc;

use crowfly_machine::gpu::{Gpu, WriteFlush};
use crowfly_machine::verbs::{Flush as Needed, MemoryRegion};
use crowfly_route::receipt::Visibility;

use super::super::provider::Flush;
use super::NicCore;
use super::loopback::Loopback;

/// The driver's function for it.
const FLUSH: &str = "cuFlushGPUDirectRDMAWrites";

/// What has to be done after a write into the region; `None` where there is nothing.
pub(super) fn flush(
    nic: &Arc<NicCore>,
    region: &Arc<MemoryRegion>,
    gpu: Option<Arc<Gpu>>,
    needed: &Needed,
) -> Option<Flush> {
    let gpu = gpu?;
    if matches!(needed, Needed::NotNeeded(_)) || region.is_empty() {
        return None;
    }
    let (nic, region, needed) = (Arc::clone(nic), Arc::clone(region), needed.clone());
    Some(Arc::new(move || {
        // The driver's flush covers its PCIe path; where data and completion take different ways, only
        // a read that takes the data's own way does.
        let by_driver = match needed {
            Needed::SplitPaths(_) => WriteFlush::Impossible("data and completion part".into()),
            _ => gpu.flush_writes(),
        };
        let why = match by_driver {
            WriteFlush::NotNeeded(why) => return Visibility::NotNeeded(why.into()),
            WriteFlush::Flushed => return Visibility::Flushed(FLUSH.into()),
            WriteFlush::Impossible(why) => why,
        };
        let loopback = nic.loopback.get_or_init(|| Loopback::new(&nic));
        let fetched = loopback.as_ref().map_err(Clone::clone);
        match fetched.and_then(|loopback| loopback.fetch(&region)) {
            Ok(()) => Visibility::Flushed(format!("a byte fetched through {}", nic.name)),
            Err(refused) => Visibility::Unknown(format!(
                "{FLUSH}: {why}; a byte fetched through {}: {refused}",
                nic.name
            )),
        }
    }))
}
