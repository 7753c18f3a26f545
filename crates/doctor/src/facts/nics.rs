//! How many NICs a job may use, against how many GPUs share them.

use super::flows::{Span, span};
use super::settings::{Setting, settings};
use crate::case::Case;

/// NCCL_IB_HCA names at most half as many NICs as a node of the job has GPUs.
#[derive(Clone, Debug)]
pub(crate) struct FewNics<'a> {
    pub(crate) setting: Setting<'a>,
    pub(crate) nics: usize,
    pub(crate) gpus: usize,
}

impl FewNics<'_> {
    /// `1 NIC`, `2 NICs`.
    pub(crate) fn counted(&self) -> String {
        match self.nics {
            1 => "1 NIC".to_owned(),
            nics => format!("{nics} NICs"),
        }
    }
}

/// Whether a job over several nodes is held to few NICs by a variable; `None` also when the evidence
/// does not show how many GPUs a node has.
pub(crate) fn few_nics(case: &Case) -> Option<FewNics<'_>> {
    let setting = settings(case, "NCCL_IB_HCA").into_iter().next()?;
    let names: Vec<&str> = setting.value.trim_start_matches('=').split(',').collect();
    // A name without a number stands for every device that begins with it.
    let exact = names.iter().all(|n| {
        n.bytes().any(|b| b.is_ascii_digit()) && !n.ends_with("mlx5") && !n.ends_with("mlx4")
    });
    if setting.value.starts_with('^') || !exact {
        return None;
    }
    let in_tests = case
        .tests()
        .flat_map(|t| &t.devices)
        .map(|d| d.value.device);
    let in_logs = case
        .nccl_logs()
        .flat_map(|log| &log.processes)
        .filter_map(|p| p.device);
    let gpus = in_tests.chain(in_logs).max()? as usize + 1;
    let many_hosts = case.tests().any(|t| {
        t.devices
            .iter()
            .any(|d| Some(&d.value.host) != t.devices.first().map(|f| &f.value.host))
    }) || case.nccl_logs().any(|log| span(log) == Span::ManyNodes);
    (names.len() * 2 <= gpus && many_hosts).then_some(FewNics {
        nics: names.len(),
        setting,
        gpus,
    })
}
