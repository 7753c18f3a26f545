//! Containers and limits: C1 to C4.

use std::collections::{BTreeMap, BTreeSet};

use crowfly_route::obstacle::Fix;
use crowfly_route::units::Bytes;

use crate::case::Case;
use crate::evidence::Sighting;
use crate::evidence::nccl_log::{NcclLog, Transport, Warning};
use crate::facts::flows::host_of_ranks;
use crate::facts::host::has_rdma;
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::rules::nccl::ranks;
use crate::verdict::{PairKind, Verdict};

pub(crate) const RULES: &[Rule] = &[MEMLOCK, NO_DEVICES, SMALL_SHM, ONE_GPU_EACH];

const MEMLOCK: Rule = Rule {
    id: "C1",
    name: "memlock-limit",
    family: Family::Container,
    summary: "the locked-memory limit keeps buffers from being registered",
    page: Page {
        condition: "The process may lock less memory than RDMA registers.",
        detection: "`ulimit -l` below unlimited where RDMA devices are, inside the launcher's own limits; NCCL or UCX saying that ibv_reg_mr, a queue or a buffer failed with `Cannot allocate memory`.",
        consequence: "Registration fails with ENOMEM: the run ends, or falls back.",
        fix: "memlock unlimited for the launcher: --ulimit memlock=-1, the capability IPC_LOCK, limits.conf, LimitMEMLOCK of slurmd or kubelet.",
        source: "NVIDIA/nccl-tests issue 206",
        false_alarms: "A process with CAP_IPC_LOCK is not limited. The limit of a login shell is not that of the job.",
    },
    check: memlock,
};

fn unlimited(finding: Finding) -> Finding {
    finding.fixed_by(
        Fix::run(
            "Lift the limit where the job is launched.",
            "docker run --ulimit memlock=-1 --cap-add IPC_LOCK …   # slurmd: LimitMEMLOCK=infinity",
        )
        .checked_by("<launcher> bash -c 'ulimit -l'   # unlimited is right"),
    )
}

/// NCCL's warnings that say something about one of these words, all of them.
fn warned<'a>(log: &'a NcclLog, words: &[&str]) -> Option<&'a Sighting<Warning>> {
    log.warnings
        .iter()
        .find(|w| words.iter().all(|word| w.what.text.contains(word)))
}

fn memlock(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        let failed = [
            "ibv_reg_mr",
            "ibv_create_cq",
            "ibv_create_qp",
            "ibv_reg_dmabuf_mr",
            "ibv_create_srq",
        ]
        .iter()
        .find_map(|call| warned(log, &[call, "Cannot allocate memory"]));
        if let Some(failed) = failed {
            findings.push(unlimited(
                rule.broken("Memory could not be registered with the NIC: the locked-memory limit is too small")
                    .quoting(&failed.first)
                    .doubting("A GPU's small BAR can be full as well (K6)."),
            ));
        }
    }
    for log in case.ucx_logs() {
        let failed = log.problems.iter().find(|p| {
            let text = p.what.text.to_ascii_lowercase();
            text.contains("memlock")
                || text.contains("max locked memory")
                || (text.contains("ibv_reg_mr") && text.contains("allocate memory"))
        });
        if let Some(failed) = failed {
            findings.push(unlimited(
                rule.broken("UCX could not register memory: the locked-memory limit is too small")
                    .quoting(&failed.first),
            ));
        }
    }
    for machine in &case.machines {
        let limit = machine
            .text("limit:memlock")
            .and_then(|text| text.parse::<u64>().ok());
        let exempt = machine
            .text("/proc/self/status")
            .and_then(capabilities)
            .is_some_and(|bits| bits & CAP_IPC_LOCK != 0);
        if let (Some(limit), true, false) = (limit, has_rdma(machine), exempt) {
            findings.push(unlimited(
                rule.warning(format!("Processes may lock {} of memory at most; RDMA registers more", Bytes(limit)))
                    .quoting_all(machine.quote("limit:memlock"))
                    .doubting("This is the limit of the process that was looked at, which need not be the job's."),
            ));
        }
    }
    findings
}

/// Linux capability 14.
const CAP_IPC_LOCK: u64 = 1 << 14;

fn capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("CapEff:"))?;
    u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
}

const NO_DEVICES: Rule = Rule {
    id: "C2",
    name: "no-rdma-in-container",
    family: Family::Container,
    summary: "the container sees RDMA devices in /sys and not in /dev",
    page: Page {
        condition: "/dev/infiniband was not passed into the container.",
        detection: "RDMA devices under /sys/class/infiniband while /dev/infiniband is absent.",
        consequence: "NCCL finds no RDMA device and uses TCP.",
        fix: "The RDMA device plugin, or --device /dev/infiniband.",
        source: "NCCL documentation, docker; practice",
        false_alarms: "None.",
    },
    check: no_devices,
};

fn no_devices(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.machines
        .iter()
        .filter(|machine| has_rdma(machine) && machine.lacks("/dev/infiniband"))
        .map(|machine| {
            rule.fault(format!(
                "{} has RDMA devices, and /dev/infiniband is not there",
                machine.source
            ))
            .quoting_all(machine.quote("/dev/infiniband"))
            .quoting_all(machine.quote("/sys/class/infiniband"))
            .implying(PairKind::GpuNic, Verdict::Socket)
            .fixed_by(
                Fix::run(
                    "Pass the devices in.",
                    "docker run --device /dev/infiniband …   # Kubernetes: the RDMA device plugin",
                )
                .checked_by("ls /dev/infiniband"),
            )
            .doubting("On a host, the module ib_uverbs is not loaded instead.")
        })
        .collect()
}

const SMALL_SHM: Rule = Rule {
    id: "C3",
    name: "small-dev-shm",
    family: Family::Container,
    summary: "/dev/shm is too small for shared buffers",
    page: Page {
        condition: "The container has the default 64 MiB of shared memory.",
        detection: "The size of /dev/shm; NCCL's messages about shared memory segments and `No space left on device`.",
        consequence: "Bus errors, or NCCL fails while it starts.",
        fix: "--shm-size=8g or --ipc=host; in Kubernetes an emptyDir of medium Memory on /dev/shm.",
        source: "NCCL documentation, docker",
        false_alarms: "Where GPUs all go peer to peer, less is needed.",
    },
    check: small_shm,
};

/// What container runtimes give by default.
const DEFAULT_SHM: Bytes = Bytes::mib(64);

fn small_shm(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding.fixed_by(
            Fix::run(
                "Give the container more.",
                "docker run --shm-size=8g …   # or --ipc=host",
            )
            .checked_by("df -h /dev/shm"),
        )
    };
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        let failed = warned(log, &["shared memory", "No space left"])
            .or_else(|| warned(log, &["/dev/shm", "No space left"]))
            .or_else(|| warned(log, &["shared memory segment", "rror"]));
        if let Some(failed) = failed {
            findings.push(fixed(
                rule.broken("NCCL could not get shared memory: /dev/shm is too small")
                    .quoting(&failed.first),
            ));
        }
    }
    const TOTAL: &str = "statfs:/dev/shm/total";
    for machine in &case.machines {
        let small = machine
            .text(TOTAL)
            .and_then(|text| text.parse::<u64>().ok())
            .is_some_and(|total| Bytes(total) <= DEFAULT_SHM);
        if small {
            findings.push(fixed(
                rule.warning("/dev/shm has 64 MiB or less")
                    .quoting_all(machine.quote(TOTAL)),
            ));
        }
    }
    findings
}

const ONE_GPU_EACH: Rule = Rule {
    id: "C4",
    name: "one-gpu-per-container",
    family: Family::Container,
    summary: "GPUs of one host reach each other over the network",
    page: Page {
        condition: "Ranks of one host cannot use peer-to-peer DMA or shared memory, because each lives in a container of its own.",
        detection: "NET channels between two ranks of one host; or every rank is alone on what NCCL takes for a node (localRanks 1) while each sees a single GPU.",
        consequence: "Data that could cross NVLink goes out of the NIC and back.",
        fix: "All GPUs of a node in one container, or containers that share the IPC and process namespaces and /dev/shm.",
        source: "NCCL src/init.cc, hostHash and shmDev",
        false_alarms: "Jobs that really have one GPU a host look like the second form, which is therefore a note. Host names of containers hide the host.",
    },
    check: one_gpu_each,
};

fn one_gpu_each(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding.fixed_by(
            Fix::by_hand("Give all GPUs of a node to one container, or let the containers share the IPC and process namespaces and /dev/shm.")
                .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep -c 'via P2P'"),
        )
    };
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        let hosts = host_of_ranks(log);
        let inside: BTreeMap<(u32, u32), _> = log
            .connections
            .iter()
            .filter(|c| matches!(c.what.transport, Transport::Net { .. }))
            .filter_map(|c| {
                let (from, to) = (c.what.from, c.what.to?);
                let same = from != to && hosts.get(&from)? == hosts.get(&to)?;
                same.then_some(((from.min(to), from.max(to)), &c.first))
            })
            .collect();
        // Nodes that share a host name cannot be told apart.
        let distinct: BTreeSet<&str> = hosts.values().copied().collect();
        let nodes = log.members.iter().filter_map(|m| m.nodes).max();
        let told_apart = nodes.is_none_or(|nodes| distinct.len() >= nodes as usize);
        if !inside.is_empty() && told_apart {
            let listed = ranks(inside.keys().flat_map(|(a, b)| [*a, *b]));
            findings.push(fixed(
                rule.fault(format!(
                    "One host holds {listed}, which reach each other over the network"
                ))
                .quoting_all(inside.values().copied())
                .implying(PairKind::GpuGpu, Verdict::Staged),
            ));
            continue;
        }
        let alone = !log.members.is_empty()
            && log.members.iter().all(|m| {
                m.local_ranks == Some(1) && m.nodes.is_some_and(|n| n > 1) && m.device == Some(0)
            });
        if alone && let Some(started) = log.members.iter().find_map(|m| m.started.as_ref()) {
            findings.push(fixed(
                rule.note("Every rank is alone on its node and sees one GPU: if these are containers of one host, their GPUs cannot use NVLink or shared memory")
                    .quoting(started)
                    .doubting("Hosts with one GPU each look the same."),
            ));
        }
    }
    findings
}
