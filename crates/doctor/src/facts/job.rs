//! Which logs are of one job.

use std::collections::BTreeSet;

use crate::case::Case;
use crate::evidence::nccl_log::NcclLog;

/// The logs of a job whose ranks, or nodes, wrote one file each; `None` when there are not several, or
/// nothing shows that they belong together.
pub(crate) fn split_logs(case: &Case) -> Option<Vec<&NcclLog>> {
    let logs: Vec<&NcclLog> = case.nccl_logs().collect();
    let (first, others) = logs.split_first()?;
    let together = !others.is_empty()
        && (others.iter().all(|log| share_group(first, log)) || are_parts(&logs));
    together.then_some(logs)
}

/// Whether both name the same communicator by its identity across processes.
fn share_group(a: &NcclLog, b: &NcclLog) -> bool {
    let groups = |log: &NcclLog| -> BTreeSet<String> {
        log.members.iter().filter_map(|m| m.group.clone()).collect()
    };
    !groups(a).is_disjoint(&groups(b))
}

/// Whether their largest communicators have the same size, and no rank is in two of them.
fn are_parts(logs: &[&NcclLog]) -> bool {
    let mut seen = BTreeSet::new();
    let mut size = None;
    logs.iter().all(|log| {
        let largest = log.members.iter().map(|m| m.ranks).max();
        let ranks: BTreeSet<u32> = log
            .members
            .iter()
            .filter(|m| Some(m.ranks) == largest)
            .map(|m| m.rank)
            .collect();
        let fits = largest.is_some() && (size.is_none() || size == largest);
        size = largest;
        fits && ranks.into_iter().all(|rank| seen.insert(rank))
    })
}
