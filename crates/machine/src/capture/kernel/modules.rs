//! Kernel modules: which are there, their versions, and the parameters that decide a route.

use crowfly_route::snapshot::Observation;

use super::super::recorder::Recorder;
use crate::root::refusal;

const MODULES: &str = "/sys/module";
/// Some three hundred modules of a hundred bytes; a kernel with everything loaded has ten times that.
const MAX_TABLE_BYTES: usize = 512 << 10;

/// Modules whose presence, version or parameters some rule looks at.
const WATCHED: &[(&str, &[&str])] = &[
    (
        "nvidia",
        &[
            "NVreg_EnableResizableBar",
            "NVreg_OpenRmEnableUnsupportedGpus",
        ],
    ),
    ("nvidia_uvm", &["uvm_disable_hmm"]),
    (
        "nvidia_peermem",
        &["peerdirect_support", "persistent_api_support"],
    ),
    ("nv_peer_mem", &[]),
    (
        "nvidia_fs",
        &["peer_stats_enabled", "rw_stats_enabled", "max_batch_io"],
    ),
    ("gdrdrv", &[]),
    ("nouveau", &[]),
    ("amdgpu", &["pcie_p2p", "use_xgmi_p2p", "vis_vramlimit"]),
    ("xe", &[]),
    ("i915", &[]),
    ("habanalabs", &[]),
    (
        "nvme",
        &[
            "use_cmb_sqes",
            "max_host_mem_size_mb",
            "poll_queues",
            "io_queue_depth",
        ],
    ),
    (
        "nvme_core",
        &["multipath", "io_timeout", "default_ps_max_latency_us"],
    ),
    ("nvme_rdma", &[]),
    ("nvme_tcp", &[]),
    ("ib_core", &[]),
    ("ib_uverbs", &[]),
    ("rdma_cm", &[]),
    ("mlx5_core", &["prof_sel"]),
    ("mlx5_ib", &[]),
    ("mlx4_core", &[]),
    ("bnxt_re", &[]),
    ("irdma", &[]),
    ("ionic_rdma", &[]),
    ("efa", &[]),
    ("hfi1", &[]),
    ("rdma_rxe", &[]),
    ("siw", &[]),
    ("xpmem", &[]),
    ("knem", &[]),
    ("vfio_pci", &[]),
    ("lustre", &[]),
    ("lnet", &[]),
    ("beegfs", &[]),
    ("mmfs26", &[]),
    ("rpcrdma", &[]),
];

pub(super) fn look(r: &mut Recorder<'_>) {
    table(r);
    for (module, parameters) in WATCHED {
        let directory = format!("{MODULES}/{module}");
        // Its entries say that it is there, loaded or built in with parameters.
        if r.list(directory.as_str()).is_empty() {
            continue;
        }
        r.texts(
            &directory,
            &["version", "srcversion", "initstate", "refcnt", "taint"],
        );
        for parameter in *parameters {
            r.text(format!("{directory}/parameters/{parameter}"));
        }
    }
}

/// Records `/proc/modules` without the addresses at which modules lie: they help an attacker and
/// no rule. Absent on a kernel without loadable modules.
fn table(r: &mut Recorder<'_>) {
    let path = "/proc/modules";
    let seen = match r.root().whole(path, MAX_TABLE_BYTES) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            Observation::text(
                text.lines()
                    .map(without_address)
                    .collect::<Vec<_>>()
                    .join("\n"),
            )
        }
        Err(why) => refusal(why),
    };
    r.record(path, seen);
}

/// `nvme 53248 2 - Live 0xffffffffc0a00000 (OE)` without its sixth column.
fn without_address(line: &str) -> String {
    let fields = line.split_whitespace();
    let kept: Vec<&str> = fields.filter(|field| !field.starts_with("0x")).collect();
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::without_address;

    #[test]
    fn a_module_keeps_its_users_and_taint_and_loses_its_address() {
        assert_eq!(
            without_address("ib_core 446464 3 ib_uverbs,mlx5_ib, Live 0xffffffffc0a00000 (OE)"),
            "ib_core 446464 3 ib_uverbs,mlx5_ib, Live (OE)"
        );
    }
}
