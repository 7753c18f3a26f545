//! What NCCL and PyTorch warned of, and runs that ended in an error: N25.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::{Ending, NcclLog, Note, Sighting, Warning};
use crate::finding::{Finding, Severity};
use crate::rule::{Family, Page, Rule};

use super::errors::sentence;

pub(super) const ENDED_IN_ERROR: Rule = Rule {
    id: "N25",
    name: "run-failed",
    family: Family::Nccl,
    summary: "the library returned an error or the communicator was aborted",
    page: Page {
        condition: "NCCL left with an error code, or a rank aborted.",
        detection: "Warnings of NCCL and the watchdog of PyTorch, known ones by their words; lines `file.cc:n -> code` with a code other than 0 and 7 (in progress), or `Abort COMPLETE`, together with a warning.",
        consequence: "The run ended. What its channels show of the data path still holds.",
        fix: "The first warning of all ranks names the cause.",
        source: "NCCL nccl.h, ncclResult_t",
        false_alarms: "Frameworks abort communicators when they shut down; that alone is a note.",
    },
    check: ended_in_error,
};

/// `ncclResult_t`: 7 is in progress.
const IN_PROGRESS: u32 = 7;

/// Warnings that NCCL itself goes on after.
const BENIGN: [&str; 9] = [
    "Missing \"iommu=pt\"",
    "NUMA auto balancing",
    "Failed to initialize sendrecv protocol",
    "Failed to initialize rdma protocol",
    "initialization failed",
    "Initializing plugin failed",
    "MSCCL",
    "destroy_process_group",
    "Could not find",
];

/// A warning whose meaning is known.
struct Known {
    /// All of these are in its text, case set aside.
    words: &'static [&'static str],
    severity: Severity,
    title: &'static str,
    fix: &'static str,
    command: &'static str,
}

impl Known {
    fn is_in(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        self.words
            .iter()
            .all(|word| text.contains(&word.to_ascii_lowercase()))
    }
}

const KNOWN: &[Known] = &[
    Known {
        words: &["Watchdog caught"],
        severity: Severity::Broken,
        title: "A collective did not end in time: one rank is missing or behind, or a transfer hangs",
        fix: "Find the rank that stopped first: it alone has not entered the collective that the others wait in.",
        command: "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 NCCL_DEBUG=INFO <job>",
    },
    Known {
        words: &["Duplicate GPU detected"],
        severity: Severity::Broken,
        title: "Two ranks use the same GPU",
        fix: "Give each rank a GPU of its own, by its local rank.",
        command: "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES",
    },
    Known {
        words: &["no socket interface found"],
        severity: Severity::Broken,
        title: "No network interface fits NCCL_SOCKET_IFNAME, so ranks cannot find each other",
        fix: "Name an interface that exists on every node.",
        command: "ip -br addr; unset NCCL_SOCKET_IFNAME",
    },
    Known {
        words: &["ibv_modify_qp", "failed"],
        severity: Severity::Broken,
        title: "Two NICs could not be connected: no route between them, or GIDs or link layers that do not fit",
        fix: "Compare the address tables and link layers of both nodes, and leave NCCL_IB_GID_INDEX unset.",
        command: "show_gids; ibv_devinfo | grep -E 'hca_id|link_layer|state'",
    },
    Known {
        words: &["Connection refused"],
        severity: Severity::Broken,
        title: "A rank refused the connection for set-up: it had ended, or listens on another interface",
        fix: "See which interface each rank listens on, and whether a rank died first.",
        command: "NCCL_DEBUG=INFO <job> 2>&1 | grep -E 'Bootstrap|WARN'",
    },
    Known {
        words: &["No route to host"],
        severity: Severity::Broken,
        title: "A rank cannot be reached over the interface that NCCL chose",
        fix: "Name the interface that reaches the other nodes, and open the firewall between them.",
        command: "export NCCL_SOCKET_IFNAME=<interface>",
    },
    Known {
        words: &["onnect", "timed out"],
        severity: Severity::Broken,
        title: "Connecting to a rank took too long: another interface, or a firewall",
        fix: "Name the interface that reaches the other nodes, and open the firewall between them.",
        command: "export NCCL_SOCKET_IFNAME=<interface>",
    },
    Known {
        words: &["peer access is not supported"],
        severity: Severity::Fault,
        title: "The driver refuses peer access between two GPUs",
        fix: "See between which, and why.",
        command: "nvidia-smi topo -p2p r",
    },
    Known {
        words: &["libibverbs"],
        severity: Severity::Warning,
        title: "libibverbs could not be used, so NCCL has no RDMA of its own",
        fix: "Install rdma-core in the image.",
        command: "ldconfig -p | grep libibverbs",
    },
    Known {
        words: &["Cuda failure"],
        severity: Severity::Broken,
        title: "A CUDA call failed",
        fix: "The message names the error; look for Xid messages of that time.",
        command: "sudo dmesg | grep -i xid",
    },
    Known {
        words: &["HIP failure"],
        severity: Severity::Broken,
        title: "A HIP call failed",
        fix: "The message names the error; look at the kernel's messages of that time.",
        command: "sudo dmesg | grep -i amdgpu",
    },
    Known {
        words: &["NCCL error"],
        severity: Severity::Broken,
        title: "NCCL returned an error to PyTorch",
        fix: "The first warning of all ranks names the cause.",
        command: "grep -h 'NCCL WARN' <logs of all ranks> | sort | head",
    },
    Known {
        words: &["ncclRemoteError"],
        severity: Severity::Broken,
        title: "A remote process ended, or the network failed",
        fix: "The rank that ended first names the cause.",
        command: "grep -h 'NCCL WARN' <logs of all ranks> | sort | head",
    },
    Known {
        words: &["SHARP"],
        severity: Severity::Note,
        title: "Reduction in the network's switches (SHARP) could not start; NCCL reduces on the GPUs instead, which is no fault of the data path",
        fix: "Where SHARP is wanted, see that the aggregation manager runs and that the job may use it.",
        command: "sharp_hello -d <nic>:1; NCCL_COLLNET_ENABLE=0 <job>   # silences it",
    },
];

/// Warnings that rules with more to say about them report.
fn is_elsewhere(text: &str) -> bool {
    let memlock = text.contains("ibv_") && text.contains("Cannot allocate memory");
    let shm = text.contains("No space left") || text.contains("shared memory segment");
    memlock || shm
}

fn known(log: &NcclLog) -> Option<(&'static Known, Vec<&Sighting<Warning>>)> {
    KNOWN.iter().find_map(|known| {
        let seen: Vec<_> = log
            .warnings
            .iter()
            .filter(|w| !is_elsewhere(&w.what.text))
            .filter(|w| known.is_in(&w.what.text))
            .collect();
        (!seen.is_empty()).then_some((known, seen))
    })
}

fn ended_in_error(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter(|log| log.completions.is_empty())
        .filter_map(|log| match known(log) {
            Some((known, seen)) => Some(
                rule.finding(known.severity, known.title)
                    .quoting_all(seen.iter().map(|w| &w.first))
                    .fixed_by(Fix::run(known.fix, known.command))
                    .doubting("The first error of all ranks is the cause; others follow from it."),
            ),
            None => unknown(rule, log),
        })
        .collect()
}

/// Errors and warnings that no other rule knows.
fn unknown(rule: &Rule, log: &NcclLog) -> Option<Finding> {
    let traced = log
        .notes
        .iter()
        .find(|n| matches!(n.what, Note::ErrorTrace(code) if code != 0 && code != IN_PROGRESS));
    let aborted = log
        .members
        .iter()
        .filter_map(|m| m.ended.as_ref())
        .find(|(ending, _)| *ending == Ending::Aborted);
    let warnings: Vec<_> = log
        .warnings
        .iter()
        .filter(|w| !is_elsewhere(&w.what.text))
        .filter(|w| !BENIGN.iter().any(|b| w.what.text.contains(b)))
        .collect();
    let severity = match (traced, aborted, warnings.first()) {
        (Some(_), _, Some(_)) | (None, Some(_), Some(_)) => Severity::Broken,
        (Some(_), Some(_), None) | (None, None, Some(_)) => Severity::Warning,
        (None, Some(_), None) => Severity::Note,
        // A code on the way out of a probe, such as one for dma-buf, is no error by itself.
        (_, None, None) => return None,
    };
    let title = match (severity, warnings.first()) {
        (Severity::Broken, Some(w)) => {
            format!("The run ended in an error: {}", sentence(&w.what.text))
        }
        (_, Some(w)) => format!("NCCL warned: {}", sentence(&w.what.text)),
        (Severity::Note, None) => {
            "A communicator was aborted; nothing in the log says why".to_owned()
        }
        (_, None) => "NCCL returned an error; nothing in the log says why".to_owned(),
    };
    Some(
        rule.finding(severity, title)
            .quoting_all(warnings.iter().map(|w| &w.first).take(4))
            .quoting_all(traced.map(|t| &t.first))
            .quoting_all(aborted.map(|(_, cite)| cite))
            .doubting("The first error of all ranks is the cause; others follow from it."),
    )
}
