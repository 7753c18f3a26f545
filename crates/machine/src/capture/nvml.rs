//! What NVIDIA's management library says of the GPUs. Only of the live machine.
//!
//! | key | value |
//! |---|---|
//! | `nvml:init` | an error when the library loads but does not start; else the number of GPUs |
//! | `nvml:driver_version`, `nvml:nvml_version`, `nvml:cuda_version` | versions |
//! | `nvml:N/bus_id`, `nvml:N/name`, `nvml:N/uuid` | which GPU is number N |
//! | `nvml:N/memory`, `nvml:N/bar1` | sizes in bytes |
//! | `nvml:N/compute_capability` | `9.0` |
//! | `nvml:N/performance_state` | 0 (busy) to 15 (idle); links of an idle GPU slow down |
//! | `nvml:N/pcie_generation`, `pcie_generation_max`, `pcie_width`, `pcie_width_max` | its link |
//! | `nvml:N/mig`, `nvml:N/persistence` | `0` or `1` |
//! | `nvml:N/nvlink/L/state` | `active` or `inactive` |
//! | `nvml:N/nvlink/L/version`, `remote_bus_id`, `remote_type` | of an active link; the type is `gpu`, `switch`, `npu` |
//! | `nvml:N/p2p/M/read`, `write`, `nvlink` | `ok`, or why GPU N cannot reach GPU M that way |
//! | `nvml:N/topology/M` | the nearest common ancestor: `single`, `multiple`, `host-bridge`, `node`, `system` |
//!
//! What a GPU or driver does not support is absent.

use std::ffi::OsStr;
use std::fmt::Display;

use crowfly_route::snapshot::Observation;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};

use super::recorder::Recorder;

const LIBRARY: &str = "libnvidia-ml.so.1";
/// More GPUs than any host has.
const MAX_GPUS: u32 = 256;
/// NVML counts at most 18 links a GPU today; it answers when one asks beyond.
const MAX_LINKS: u32 = 64;

pub(super) fn look(r: &mut Recorder<'_>) {
    look_through(r, LIBRARY.as_ref());
}

fn look_through(r: &mut Recorder<'_>, library: &OsStr) {
    let nvml = match Nvml::builder().lib_path(library).init() {
        Ok(nvml) => nvml,
        // Whether the library is there is recorded with the other libraries.
        Err(NvmlError::LibloadingError(_)) => return,
        Err(error) => return r.record("nvml:init", Observation::Error(error.to_string())),
    };
    let count = nvml.device_count();
    let gpus = *count.as_ref().unwrap_or(&0).min(&MAX_GPUS);
    r.record("nvml:init", answer(count));
    r.record("nvml:driver_version", answer(nvml.sys_driver_version()));
    r.record("nvml:nvml_version", answer(nvml.sys_nvml_version()));
    let cuda = nvml.sys_cuda_driver_version();
    let cuda = cuda.map(|v| format!("{}.{}", v / 1000, v % 1000 / 10));
    r.record("nvml:cuda_version", answer(cuda));
    let devices: Vec<(u32, Device<'_>)> = (0..gpus)
        .filter_map(|index| match nvml.device_by_index(index) {
            Ok(device) => Some((index, device)),
            Err(error) => {
                r.record(format!("nvml:{index}/bus_id"), refused(&error));
                None
            }
        })
        .collect();
    for (index, device) in &devices {
        gpu(r, *index, device);
        links(r, &nvml, *index, device);
        for (other, peer) in devices.iter().filter(|(other, _)| other != index) {
            pair(r, &nvml, (*index, device), (*other, peer));
        }
    }
}

fn gpu(r: &mut Recorder<'_>, index: u32, gpu: &Device<'_>) {
    let mut record = |what: &str, seen| r.record(format!("nvml:{index}/{what}"), seen);
    record("bus_id", answer(gpu.pci_info().map(|info| info.bus_id)));
    record("name", answer(gpu.name()));
    record("uuid", answer(gpu.uuid()));
    record("memory", answer(gpu.memory_info().map(|info| info.total)));
    record(
        "bar1",
        answer(gpu.bar1_memory_info().map(|info| info.total)),
    );
    let capability = gpu.cuda_compute_capability();
    record(
        "compute_capability",
        answer(capability.map(|c| format!("{}.{}", c.major, c.minor))),
    );
    let state = gpu.performance_state();
    record("performance_state", answer(state.map(|state| state.as_c())));
    record("pcie_generation", answer(gpu.current_pcie_link_gen()));
    record("pcie_generation_max", answer(gpu.max_pcie_link_gen()));
    record("pcie_width", answer(gpu.current_pcie_link_width()));
    record("pcie_width_max", answer(gpu.max_pcie_link_width()));
    record("mig", answer(gpu.mig_mode().map(|mode| mode.current)));
    record(
        "persistence",
        answer(gpu.is_in_persistent_mode().map(u8::from)),
    );
}

fn links(r: &mut Recorder<'_>, nvml: &Nvml, index: u32, gpu: &Device<'_>) {
    for number in 0..MAX_LINKS {
        let link = gpu.link_wrapper_for(number);
        let state = link.is_active();
        // A GPU without NVLink does not support the first question; one with it refuses the
        // argument after its last link.
        if matches!(state, Err(NvmlError::NotSupported | NvmlError::InvalidArg)) {
            return;
        }
        let active = matches!(state, Ok(true));
        let mut record =
            |what: &str, seen| r.record(format!("nvml:{index}/nvlink/{number}/{what}"), seen);
        record(
            "state",
            answer(state.map(|on| if on { "active" } else { "inactive" })),
        );
        if active {
            record("version", answer(link.version()));
            record(
                "remote_bus_id",
                answer(link.remote_pci_info().map(|info| info.bus_id)),
            );
            record("remote_type", answer(remote_type(nvml, gpu, number)));
        }
    }
}

/// What is at the other end of a link. The wrapper's own function discards the answer
/// (nvml-wrapper 0.13), so the library's is called.
fn remote_type(nvml: &Nvml, gpu: &Device<'_>, link: u32) -> Result<&'static str, NvmlError> {
    let function = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref();
    let function = *function.map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
    let mut kind = u32::MAX;
    // SAFETY: the handle comes from this `nvml`, which outlives the call; `kind` is writable.
    nvml_try(unsafe { function(gpu.handle(), link, &raw mut kind) })?;
    // `nvmlIntNvLinkDeviceType_t` of nvml.h.
    Ok(match kind {
        0 => "gpu",
        1 => "npu",
        2 => "switch",
        _ => "unknown",
    })
}

fn pair(
    r: &mut Recorder<'_>,
    nvml: &Nvml,
    (index, gpu): (u32, &Device<'_>),
    (other, peer): (u32, &Device<'_>),
) {
    for (what, capability) in [
        ("read", P2pCapabilitiesIndex::Read),
        ("write", P2pCapabilitiesIndex::Write),
        ("nvlink", P2pCapabilitiesIndex::NvLink),
    ] {
        let status = gpu.p2p_status(peer, capability).map(status_name);
        r.record(format!("nvml:{index}/p2p/{other}/{what}"), answer(status));
    }
    let level = nvml.topology_common_ancestor(gpu, peer).map(level_name);
    r.record(format!("nvml:{index}/topology/{other}"), answer(level));
}

const fn status_name(status: P2pStatus) -> &'static str {
    match status {
        P2pStatus::Ok => "ok",
        P2pStatus::ChipsetNotSupported => "chipset-not-supported",
        P2pStatus::GpuNotSupported => "gpu-not-supported",
        P2pStatus::IohTopologyNotSupported => "topology-not-supported",
        P2pStatus::DisabledByRegkey => "disabled-by-driver-setting",
        P2pStatus::NotSupported => "not-supported",
        P2pStatus::Unknown => "unknown",
    }
}

const fn level_name(level: TopologyLevel) -> &'static str {
    match level {
        TopologyLevel::Internal => "internal",
        TopologyLevel::Single => "single",
        TopologyLevel::Multiple => "multiple",
        TopologyLevel::HostBridge => "host-bridge",
        TopologyLevel::Node => "node",
        TopologyLevel::System => "system",
    }
}

fn answer<T: Display>(answer: Result<T, NvmlError>) -> Observation {
    answer.map_or_else(
        |error| refused(&error),
        |value| Observation::text(value.to_string()),
    )
}

fn refused(error: &NvmlError) -> Observation {
    match error {
        NvmlError::NotSupported | NvmlError::NotFound => Observation::Absent,
        NvmlError::NoPermission => Observation::Denied,
        error => Observation::Error(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use crowfly_route::snapshot::Snapshot;

    use super::*;
    use crate::capture::Options;
    use crate::root::Root;

    /// What is recorded through the library built from `tests/fake/nvml.rs`; `None` where there is
    /// no compiler.
    fn through_fake_library() -> Option<Snapshot> {
        let folder = tempfile::tempdir().expect("a directory");
        let library = folder.path().join("libfake.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/nvml.rs");
        let compiler = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let built = Command::new(compiler)
            .args(["--edition=2024", "--crate-type=cdylib", "-o"])
            .args([&library, &source])
            .output()
            .ok()?;
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let root = Root::tree(folder.path()).expect("a directory");
        let mut recorder = Recorder::new(&root, &Options::default());
        look_through(&mut recorder, library.as_os_str());
        Some(recorder.into_snapshot())
    }

    #[test]
    fn a_library_that_answers_half_the_questions_is_asked_all() {
        let Some(seen) = through_fake_library() else {
            crowfly_waive::waived!("rustc is not on the path");
        };
        for (key, value) in [
            ("nvml:init", "2"),
            ("nvml:driver_version", "570.86.15"),
            ("nvml:cuda_version", "12.8"),
            ("nvml:0/bus_id", "00000000:1B:00.0"),
            ("nvml:1/bus_id", "00000000:1C:00.0"),
            ("nvml:0/name", "NVIDIA H100 80GB HBM3"),
            ("nvml:0/memory", "85899345920"),
            ("nvml:0/compute_capability", "9.0"),
            ("nvml:0/performance_state", "8"),
            ("nvml:0/nvlink/0/state", "active"),
            ("nvml:0/nvlink/0/version", "4"),
            ("nvml:0/nvlink/0/remote_bus_id", "00000000:05:00.0"),
            ("nvml:0/nvlink/0/remote_type", "switch"),
            ("nvml:0/nvlink/1/state", "inactive"),
            ("nvml:0/p2p/1/read", "ok"),
            ("nvml:0/p2p/1/write", "chipset-not-supported"),
            ("nvml:1/p2p/0/read", "chipset-not-supported"),
            ("nvml:0/topology/1", "node"),
        ] {
            assert_eq!(seen.text(key), Some(value), "{key}");
        }
        assert_eq!(
            seen.under("nvml:0/nvlink/").count(),
            5,
            "two links, one of them down"
        );
        assert_eq!(seen.under("nvml:1/nvlink/").count(), 0);
        assert_eq!(
            seen.get("nvml:1/memory"),
            Some(&Observation::Absent),
            "not supported"
        );
        assert_eq!(seen.get("nvml:1/uuid"), Some(&Observation::Denied));
        let Some(Observation::Error(missing)) = seen.get("nvml:0/bar1") else {
            panic!("a missing function is an error")
        };
        assert!(missing.contains("nvmlDeviceGetBAR1MemoryInfo"), "{missing}");
    }

    #[test]
    fn without_the_library_nothing_is_recorded() {
        let root = Root::live().expect("the live machine");
        let mut recorder = Recorder::new(&root, &Options::default());
        look_through(&mut recorder, "libno-such-library.so.1".as_ref());
        assert!(recorder.into_snapshot().is_empty());
    }
}
