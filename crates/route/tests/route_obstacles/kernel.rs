//! The kernel and the GPU.

use crowfly_route::fixture::machines;
use crowfly_route::hop::Standing;
use crowfly_route::obstacle::{Code, Effect};
use crowfly_route::snapshot::Observation;
use crowfly_route::units::Bytes;

use crate::machine::{Server, candidate, codes, obstacle, search, xeon};

#[test]
fn given_a_kernel_without_p2pdma_only_the_ways_that_need_it_are_blocked() {
    let mut ready = Server::ready(xeon);
    ready.machine.text("kconfig:CONFIG_PCI_P2PDMA", "n");
    let by_kernel = candidate(
        &ready.machine,
        "/data/m",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    let missing = obstacle(&by_kernel, Code::KernelWithoutP2pdma);
    assert_eq!(missing.effect, Effect::Blocks);
    assert_eq!(missing.evidence[0].shows, "n");
    let by_module = candidate(&ready.machine, "/data/m", "gpu:0", "gpudirect-storage");
    assert_eq!(codes(&by_module), []);
}

#[test]
fn given_neither_nvidia_fs_nor_what_p2pdma_mode_needs_each_missing_thing_is_named() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .observe("/sys/module/nvidia_fs", Observation::Absent)
        .observe("/proc/driver/nvidia-fs/version", Observation::Absent)
        .text("uname:release", "5.15.0-91-generic")
        .text("nvml:driver_version", "550.54.15")
        .text("/sys/module/nvme_core/parameters/multipath", "Y")
        .observe("/etc/cufile.json", Observation::Absent);
    let by_module = candidate(&ready.machine, "/data/m", "gpu:0", "gpudirect-storage");
    let missing = obstacle(&by_module, Code::NoStorageDriver);
    assert_eq!(missing.effect, Effect::Blocks);
    assert_eq!(
        missing.fix[0].command.as_deref(),
        Some("sudo modprobe nvidia-fs")
    );
    let by_kernel = candidate(
        &ready.machine,
        "/data/m",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    let missing = obstacle(&by_kernel, Code::NoStorageDriver);
    for what in ["Linux 6.2", "driver 565", "multipath off", "use_pci_p2pdma"] {
        assert!(
            missing.summary.contains(what),
            "{what}: {}",
            missing.summary
        );
    }
    assert!(!missing.summary.contains("open kernel modules"));
    assert_eq!(missing.evidence.len(), 4);
    assert_eq!(missing.evidence[0].shows, "5.15.0-91-generic");
}

#[test]
fn given_nvidia_fs_without_its_hook_in_the_nvme_driver_the_way_is_blocked() {
    let mut ready = Server::ready(xeon);
    for version in ["v1", "v2"] {
        let key = format!("kallsyms:nvme_{version}_register_nvfs_dma_ops");
        ready.machine.observe(key, Observation::Absent);
    }
    let direct = candidate(&ready.machine, "/data/m", "gpu:0", "gpudirect-storage");
    let missing = obstacle(&direct, Code::NoStorageDriver);
    assert!(missing.summary.contains("NVMe driver with its hook"));
}

#[test]
fn given_no_way_for_the_rdma_stack_to_gpu_memory_peermem_is_the_fix() {
    let mut ready = Server::ready(xeon);
    for key in [
        "/sys/module/nvidia_peermem",
        "/sys/module/nv_peer_mem",
        "/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    ] {
        ready.machine.observe(key, Observation::Absent);
    }
    let direct = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    assert_eq!(codes(&direct), [], "dma-buf of the open driver is enough");
    ready.machine.text(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10",
    );
    let direct = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    let missing = obstacle(&direct, Code::NoPeerMemoryClient);
    assert_eq!(missing.effect, Effect::Blocks);
    assert_eq!(
        missing.fix[0].command.as_deref(),
        Some("sudo modprobe nvidia-peermem")
    );
    let staged = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "rdma");
    assert_eq!(staged.standing(), Standing::Open);
}

#[test]
fn given_a_geforce_no_other_device_reaches_its_memory() {
    let mut ready = Server::ready(xeon);
    ready.machine.text("nvml:0/name", "NVIDIA GeForce RTX 4090");
    for (from, name) in [
        ("/data/m", "gpudirect-storage"),
        ("nic:mlx5_0", "gpudirect-rdma"),
    ] {
        let direct = candidate(&ready.machine, from, "gpu:0", name);
        let refused = obstacle(&direct, Code::GpuWithoutPeerAccess);
        assert_eq!(refused.effect, Effect::Blocks);
        assert_eq!(refused.evidence[0].shows, "NVIDIA GeForce RTX 4090");
    }
    let staged = candidate(&ready.machine, "/data/m", "gpu:0", "o-direct");
    assert_eq!(staged.standing(), Standing::Open);
}

#[test]
fn given_a_small_bar_registering_the_whole_memory_is_slow() {
    let mut ready = Server::ready(xeon);
    let (start, end) = (0x20_0000_0000u64, 0x20_0fff_ffffu64);
    ready.machine.text(
        format!("/sys/bus/pci/devices/{}/resource", ready.gpu),
        format!("{start:#018x} {end:#018x} 0x000000000014220c"),
    );
    let direct = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    let small = obstacle(&direct, Code::SmallBar);
    assert_eq!(small.effect, Effect::Slows);
    assert_eq!(
        small.evidence[0].shows,
        format!("largest BAR {}", Bytes::mib(256))
    );
}

#[test]
fn given_a_gpu_without_its_makers_driver_no_way_leads_into_it() {
    let mut ready = Server::ready(xeon);
    ready.machine.link(
        format!("/sys/bus/pci/devices/{}/driver", ready.gpu),
        "../../../../bus/pci/drivers/vfio-pci",
    );
    for found in search(&ready.machine, "/data/m", "gpu:0").expect("both exist") {
        assert_eq!(found.standing(), Standing::Blocked, "{}", found.route.name);
        obstacle(&found, Code::NoGpuRuntime);
    }
}

#[test]
fn given_the_runtime_library_does_not_load_no_way_leads_into_the_gpu() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .observe("library:libcuda.so.1", Observation::Absent);
    let staged = candidate(&ready.machine, "/data/m", "gpu:0", "o-direct");
    assert_eq!(codes(&staged), [("no-gpu-runtime", Effect::Blocks)]);
}

#[test]
fn given_nvidias_driver_refuses_two_gpus_as_peers_its_answer_is_the_proof() {
    let mut machine = machines::pcie_box();
    machine.text("nvml:0/p2p/1/read", "chipset-not-supported");
    let direct = candidate(&machine, "gpu:0", "gpu:1", "gpu-peer-to-peer");
    let refused = obstacle(&direct, Code::GpuWithoutPeerAccess);
    assert_eq!(refused.evidence[0].at, "nvml:0/p2p/1/read");
    assert_eq!(refused.evidence[0].shows, "chipset-not-supported");
    let nvlink = candidate(&machine, "gpu:0", "gpu:1", "nvlink");
    assert_eq!(codes(&nvlink), [("no-gpu-link", Effect::Blocks)]);
    assert!(nvlink.route.hops.is_empty());
}
