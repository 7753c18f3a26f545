//! What the capturing process itself lives under: kernel name, limits, environment, system calls.
//! Only of the live machine.

use crowfly_route::snapshot::{Observation, Value};
use rustix::fs::StatVfs;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::recorder::{MAX_TEXT_BYTES, Recorder};
use crate::root::{Refusal, refusal};

/// Prefixes of environment variables that steer a data path or say which rank this is.
const PREFIXES: &[&str] = &[
    "NCCL_", "RCCL_", "UCX_", "CUFILE_", "HIPFILE_", "FI_", "MC_", "CUDA_", "NVIDIA_", "HIP_",
    "HSA_", "ROCR_", "NIXL_", "IBV_", "MLX5_", "NVSHMEM_", "KVIKIO_", "CROWFLY_",
];
/// Whole names, for families of which most variables are of no use here and some are private.
const NAMES: &[&str] = &[
    "OMP_NUM_THREADS",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "container",
    "KUBERNETES_SERVICE_HOST",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMI_RANK",
    "PMI_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK",
    "OMPI_MCA_pml",
    "OMPI_MCA_btl",
    "OMPI_MCA_osc",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NNODES",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_CPUS_PER_TASK",
];
/// Status lines that say what this process may do and where it may run.
const STATUS_LINES: &[&str] = &[
    "CapPrm:",
    "CapEff:",
    "CapBnd:",
    "NoNewPrivs:",
    "Seccomp:",
    "Cpus_allowed_list:",
    "Mems_allowed_list:",
];

pub(super) fn look(r: &mut Recorder<'_>) {
    let uname = rustix::system::uname();
    for (name, text) in [
        ("sysname", uname.sysname()),
        ("nodename", uname.nodename()),
        ("release", uname.release()),
        ("version", uname.version()),
        ("machine", uname.machine()),
    ] {
        r.record(
            format!("uname:{name}"),
            Observation::text(text.to_string_lossy()),
        );
    }
    for (name, resource) in [
        ("memlock", Resource::Memlock),
        ("nofile", Resource::Nofile),
        ("nproc", Resource::Nproc),
        ("as", Resource::As),
    ] {
        let limit = getrlimit(resource);
        r.record(format!("limit:{name}"), bound(limit.current));
        r.record(format!("limit:{name}-hard"), bound(limit.maximum));
    }
    environment(r);
    status(r);
    file_system(r, "/dev/shm");
    file_system(r, "/dev/hugepages");
    io_uring(r);
}

fn bound(limit: Option<u64>) -> Observation {
    Observation::text(limit.map_or("unlimited".to_owned(), |limit| limit.to_string()))
}

/// Records the variables that were looked for as `env:NAME`, and the prefixes and names looked for as
/// `capture:environment`: an unset variable that one of them covers is absent, any other was not
/// looked at.
fn environment(r: &mut Recorder<'_>) {
    let looked_for = PREFIXES.iter().map(|prefix| format!("{prefix}*"));
    let looked_for = looked_for.chain(NAMES.iter().map(|name| (*name).to_owned()));
    let mut looked_for: Vec<String> = looked_for.collect();
    looked_for.sort_unstable();
    r.record(
        "capture:environment",
        Observation::Value(Value::List(looked_for)),
    );
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if NAMES.contains(&&*name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            let seen = if value.len() <= MAX_TEXT_BYTES {
                Observation::text(value)
            } else {
                Observation::Error(format!("more than {MAX_TEXT_BYTES} bytes"))
            };
            r.record(format!("env:{name}"), seen);
        }
    }
}

/// Records the lines of `/proc/self/status` that matter, not the ones that name the process.
fn status(r: &mut Recorder<'_>) {
    let path = "/proc/self/status";
    let seen = match r.root().text(path, MAX_TEXT_BYTES) {
        Observation::Value(Value::Text(text)) => {
            let kept = |line: &&str| STATUS_LINES.iter().any(|start| line.starts_with(start));
            Observation::text(text.lines().filter(kept).collect::<Vec<_>>().join("\n"))
        }
        other => other,
    };
    r.record(path, seen);
}

/// Records the size of a file system as `statfs:PATH/total` and `statfs:PATH/available`, in bytes.
fn file_system(r: &mut Recorder<'_>, path: &str) {
    let asked = rustix::fs::statvfs(path);
    let mut record = |what: &str, blocks: fn(&StatVfs) -> u64| {
        let seen = match &asked {
            Ok(stat) => Observation::text(blocks(stat).saturating_mul(stat.f_frsize).to_string()),
            Err(errno) => refusal(Refusal::System(*errno)),
        };
        r.record(format!("statfs:{path}/{what}"), seen);
    };
    record("total", |stat| stat.f_blocks);
    record("available", |stat| stat.f_bavail);
}

/// Asks for the smallest ring and closes it. Records the kernel's feature bits as `call:io_uring`;
/// absent where the kernel has no io_uring, denied where a container or a setting forbids it.
fn io_uring(r: &mut Recorder<'_>) {
    let mut params = rustix::io_uring::io_uring_params::default();
    // SAFETY: `params` asks for nothing by address; the kernel writes its answer into it, and the
    // descriptor it returns is owned and closed here without ever being mapped.
    let ring = unsafe { rustix::io_uring::io_uring_setup(1, &mut params) };
    let seen = match ring {
        Ok(_) => Observation::text(format!("{:#x}", params.features.bits())),
        Err(Errno::NOSYS) => Observation::Absent,
        Err(errno) => refusal(Refusal::System(errno)),
    };
    r.record("call:io_uring", seen);
}
