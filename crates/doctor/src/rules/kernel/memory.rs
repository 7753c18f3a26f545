//! Memory windows: K6.

use crowfly_route::obstacle::Fix;
use crowfly_route::topology::GpuVendor;
use crowfly_route::units::Bytes;

use crate::case::Case;
use crate::evidence::kernel::Topic;
use crate::facts::site::is_gpu;
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};

pub(super) const SMALL_BAR: Rule = Rule {
    id: "K6",
    name: "small-bar",
    family: Family::Kernel,
    summary: "a GPU shows only a part of its memory on PCIe",
    page: Page {
        condition: "The window through which peers reach a GPU's memory is smaller than the memory.",
        detection: "BAR 1 of an NVIDIA GPU (BAR 0 of an AMD one) at or below 256 MiB, or smaller than the GPU's memory; kernel messages that a BAR found no space.",
        consequence: "Only that much can be registered at a time: registrations fail, and GPUDirect Storage uses small buffers.",
        fix: "Above 4G decoding and resizable BAR in the firmware; for some boards the vendor's mode switch.",
        source: "practice; NVIDIA GPUDirect RDMA documentation, BAR sizes",
        false_alarms: "A window that covers the memory is right; on GPUs without resizable BAR the small one is all there is.",
    },
    check: small_bar,
};

const MIB: u64 = 1 << 20;

/// The window that all boards had before resizable BARs.
const CLASSIC: Bytes = Bytes::mib(256);

fn small_bar(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for machine in &case.machines {
        for gpu in &machine.topology.gpus {
            let (Some(bar), Some(address)) = (gpu.bar, gpu.address) else {
                continue;
            };
            let real = matches!(gpu.vendor, GpuVendor::Nvidia | GpuVendor::Amd)
                && crate::facts::site::is_compute(gpu.vendor, &gpu.name);
            let partial = gpu.memory.is_some_and(|memory| bar < memory);
            if real && (bar <= CLASSIC || partial) {
                let title = format!("{address} ({}) shows {bar} of its memory on PCIe", gpu.name);
                findings.push(fixed(rule.warning(title)).quoting(Quote::device(
                    machine.source.clone(),
                    address.to_string(),
                    &format!("largest BAR {bar}"),
                )));
            }
        }
    }
    for list in case.pci_lists() {
        for function in list.functions.iter().filter(|f| is_gpu(&f.name)) {
            let window = function
                .details
                .regions
                .iter()
                .filter(|r| r.value.prefetchable && r.value.wide)
                .max_by_key(|r| r.value.size.0);
            if let Some(window) = window
                && window.value.size <= CLASSIC
            {
                let title = format!(
                    "{} shows {} MiB of its memory on PCIe",
                    function.address,
                    window.value.size.0 / MIB
                );
                findings.push(fixed(rule.warning(title)).quoting(&window.cite));
            }
        }
    }
    for check in case.gds_checks() {
        for gpu in &check.gpus {
            if let Some(size) = gpu.value.bar1_mib
                && Bytes::mib(size) <= CLASSIC
            {
                let title = format!(
                    "GPU {} shows {size} MiB of its memory on PCIe",
                    gpu.value.index
                );
                findings.push(fixed(rule.warning(title)).quoting(&gpu.cite));
            }
        }
    }
    findings.extend(unplaced(rule, case));
    findings.truncate(Finding::MAX_EVIDENCE);
    findings
}

/// The kernel found no room for a window.
fn unplaced(rule: &Rule, case: &Case) -> Option<Finding> {
    let said: Vec<_> = case
        .kernel_logs()
        .flat_map(|log| &log.messages)
        .filter(|m| m.what.topic == Topic::BarAssignment)
        .collect();
    let device = said.first()?.what.device;
    let of = device.map_or_else(|| "a device".to_owned(), |d| d.to_string());
    Some(fixed(
        rule.fault(format!(
            "The kernel found no room for a memory window (BAR) of {of}: peers cannot reach its memory"
        ))
        .quoting_all(said.iter().map(|m| &m.first))
        .doubting("The kernel tries again with less; a later line that assigns the same BAR settles it. Windows of virtual functions that nobody uses do not matter."),
    ))
}

fn fixed(finding: Finding) -> Finding {
    finding
        .fixed_by(
            Fix::by_hand("Switch on Above 4G decoding and resizable BAR in the firmware's settings.")
                .checked_by("nvidia-smi -q -d MEMORY | grep -A3 'BAR1'"),
        )
        .doubting("Some boards have no larger window; then less memory can be registered at a time, and nothing more is lost.")
}
