//! What every finding tells although its rule had nothing of its own to add: the fix and the false
//! alarms of the rule's page, and a way to see whether the fix worked.

use crowfly_route::obstacle::Fix;

use crate::finding::{Finding, Severity};
use crate::rule::{Family, Rule};

pub(super) fn complete(findings: &mut [Finding]) {
    for finding in findings {
        let Some(rule) = Rule::find(finding.code) else {
            continue;
        };
        if finding.severity == Severity::Note {
            continue;
        }
        if finding.doubts.is_empty() {
            finding.doubts.push(rule.page.false_alarms.to_owned());
        }
        if finding.fix.is_empty() {
            finding.fix.push(Fix::by_hand(rule.page.fix));
        }
        let checked = |fix: &Fix| fix.check.is_some();
        if !finding.fix.iter().any(checked)
            && let Some(last) = finding.fix.last_mut()
        {
            last.check = Some(looks_again(rule.family).to_owned());
        }
    }
}

/// The command whose output shows whether a fault of this family is gone.
const fn looks_again(family: Family) -> &'static str {
    match family {
        Family::Nccl | Family::Cloud => {
            "NCCL_DEBUG=INFO <job> 2>&1 | grep -E 'via (NET|P2P|SHM)|NCCL WARN'"
        }
        Family::Kernel => "sudo dmesg | tail -50; sudo lspci -vvv | grep -E 'LnkSta:|ACSCtl:'",
        Family::Gds => "/usr/local/cuda/gds/tools/gdscheck -p",
        Family::Rdma => "ibv_devinfo | grep -E 'hca_id|state|active_mtu'",
        Family::Container => "ulimit -l; df -h /dev/shm; ls /dev/infiniband",
        Family::Amd => "rocm-smi --showtopo; cat /proc/cmdline",
        Family::Gpu => "nvidia-smi topo -p2p r; nvidia-smi nvlink -s",
        Family::Tests => "all_reduce_perf -b 8 -e 8G -f 2 -g 1",
        Family::Join => "crowfly doctor   # on each node",
    }
}
