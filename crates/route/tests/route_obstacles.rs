//! Given a machine with one fault, when a route is asked for, then this obstacle, proved by what
//! was seen, with this fix.

use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen4, gen5, machines, speed};
use crowfly_route::hop::{Candidate, Standing};
use crowfly_route::obstacle::{Code, Confidence, Effect, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::search::{self, SearchError};
use crowfly_route::snapshot::{Observation, Value};
use crowfly_route::units::{Bytes, BytesPerSecond, PciAddress};

fn place(text: &str) -> Place {
    text.parse().expect(text)
}

fn search(machine: &Fixture, from: &str, to: &str) -> Result<Vec<Candidate>, SearchError> {
    let (snapshot, topology) = (machine.snapshot(), machine.topology());
    search::candidates(&topology, Some(&snapshot), &place(from), &place(to))
}

fn candidate(machine: &Fixture, from: &str, to: &str, name: &str) -> Candidate {
    let found = search(machine, from, to).expect("both exist");
    let names: Vec<String> = found.iter().map(|c| c.route.name.clone()).collect();
    let named = |c: &Candidate| c.route.name == name;
    found
        .into_iter()
        .find(named)
        .unwrap_or_else(|| panic!("no {name} among {names:?}"))
}

fn codes(candidate: &Candidate) -> Vec<(&'static str, Effect)> {
    let coded = |o: &Obstacle| (o.code.as_str(), o.effect);
    candidate.obstacles.iter().map(coded).collect()
}

fn obstacle(candidate: &Candidate, code: Code) -> &Obstacle {
    let found = candidate.obstacles.iter().find(|o| o.code == code);
    found.unwrap_or_else(|| panic!("no {code} among {:?}", codes(candidate)))
}

/// A Sapphire Rapids or other server with one switch on socket 0: an H100, a ConnectX-7 `mlx5_0`
/// and the drive `nvme0` with xfs on /data behind it, the drive `nvme1` on a root port of its own.
struct Server {
    machine: Fixture,
    gpu: PciAddress,
    nic: PciAddress,
    drive: PciAddress,
}

impl Server {
    fn new(cpu: fn(&mut Fixture)) -> Self {
        let mut machine = Fixture::new();
        cpu(&mut machine);
        let socket = machine.socket();
        let root_port = machine.root_port(socket, gen5(16));
        let switch = machine.switch(root_port, gen5(16));
        let slot = machine.slot(switch, gen5(16));
        let gpu = machine.gpu(slot, &GpuModel::H100);
        let slot = machine.slot(switch, gen5(16));
        let nic = machine.nic(slot, "mlx5_0", &NicModel::CONNECTX7);
        let slot = machine.slot(switch, gen4(4));
        let drive = machine.nvme(slot, "nvme0");
        let slot = machine.root_port(socket, gen4(4));
        machine.nvme(slot, "nvme1");
        machine.mount("nvme0n1", "/data", "xfs");
        Self {
            machine,
            gpu,
            nic,
            drive,
        }
    }

    /// All of NVIDIA's and the kernel's software in order.
    fn ready(cpu: fn(&mut Fixture)) -> Self {
        let mut ready = Self::new(cpu);
        let machine = &mut ready.machine;
        for module in ["nvidia_fs", "nvidia_peermem"] {
            let list = Observation::Value(Value::List(vec!["version".into()]));
            machine.observe(format!("/sys/module/{module}"), list);
        }
        machine
            .text("kallsyms:nvme_v2_register_nvfs_dma_ops", "t [nvme]")
            .text("kconfig:CONFIG_PCI_P2PDMA", "y")
            .text("nvml:driver_version", "570.86.10")
            .text(
                "/proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10",
            )
            .text(
                "/proc/driver/nvidia/params",
                "ResmanDebugLevel: 4294967295\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"",
            )
            .text("/sys/module/nvme_core/parameters/multipath", "N")
            .text(
                "/etc/cufile.json",
                "{\n  // switches\n  \"properties\": {\n    \"use_pci_p2pdma\": true,\n  }\n}",
            );
        ready
    }
}

fn xeon(_: &mut Fixture) {}

fn desktop(machine: &mut Fixture) {
    machine.processor(
        "GenuineIntel",
        6,
        183,
        "13th Gen Intel(R) Core(TM) i9-13900K",
    );
}

fn epyc(machine: &mut Fixture) {
    machine.processor("AuthenticAMD", 25, 17, "AMD EPYC 9354 32-Core Processor");
}

/// The host bridges of a desktop are on no list.
fn unlist_host_bridges(machine: &mut Fixture) {
    for bus in ["10", "18"] {
        machine.text(
            format!("/sys/bus/pci/devices/0000:{bus}:00.0/device"),
            "0xa700",
        );
    }
}

// --- everything in order

#[test]
fn given_all_software_in_order_both_ways_of_gpudirect_storage_are_open_and_come_first() {
    let ready = Server::ready(xeon);
    let found = search(&ready.machine, "/data/m.safetensors", "gpu:0").expect("both exist");
    let order: Vec<(&str, Standing)> = found
        .iter()
        .map(|c| (c.route.name.as_str(), c.standing()))
        .collect();
    assert_eq!(
        order,
        [
            ("gpudirect-storage", Standing::Open),
            ("gpudirect-storage-p2pdma", Standing::Open),
            ("o-direct", Standing::Open),
            ("page-cache", Standing::Open),
        ]
    );
    assert_eq!(codes(&found[0]), []);
    assert_eq!(codes(&found[1]), []);
    let rdma = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    assert_eq!(codes(&rdma), []);
}

// --- the PCIe path

#[test]
fn given_acs_redirect_on_the_drives_port_the_kernel_refuses_and_the_bits_to_clear_are_printed() {
    let mut ready = Server::ready(desktop);
    unlist_host_bridges(&mut ready.machine);
    let port = ready.machine.port_above(ready.drive);
    ready.machine.access_control(port, 0x005d);
    let by_kernel = candidate(
        &ready.machine,
        "/data/m",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    let refused = obstacle(&by_kernel, Code::AcsRedirect);
    assert_eq!(refused.effect, Effect::Blocks);
    assert!(
        refused.summary.contains(&port.to_string()),
        "{}",
        refused.summary
    );
    assert_eq!(
        refused.evidence[0].at,
        format!("/sys/bus/pci/devices/{port}/config")
    );
    assert_eq!(refused.evidence[0].shows, "ACS control 0x005d at 0x148+6");
    assert_eq!(
        refused.fix[0].command.as_deref(),
        Some(format!("sudo setpci -s {port} ECAP_ACS+6.w=0051").as_str())
    );
    assert_eq!(
        refused.fix[0].check.as_deref(),
        Some(format!("sudo setpci -s {port} ECAP_ACS+6.w").as_str())
    );
    assert!(
        refused.fix[1]
            .what
            .contains("the kernel keeps refusing this pair"),
        "{}",
        refused.fix[1].what
    );
    assert!(
        refused.fix[2]
            .what
            .contains(&format!("pci=disable_acs_redir={port}"))
    );

    let by_driver = candidate(&ready.machine, "/data/m", "gpu:0", "gpudirect-storage");
    let slowed = obstacle(&by_driver, Code::AcsRedirect);
    assert_eq!(
        (slowed.effect, slowed.confidence),
        (Effect::Slows, Confidence::Likely)
    );
    assert!(
        !slowed
            .fix
            .iter()
            .any(|fix| fix.what.contains("keeps refusing")),
        "a driver that does not ask remembers no refusal"
    );
}

#[test]
fn given_acs_redirect_and_a_cpu_that_routes_peers_the_kernel_takes_the_longer_way() {
    let mut ready = Server::ready(epyc);
    let port = ready.machine.port_above(ready.gpu);
    ready.machine.access_control(port, 0x001d);
    let direct = candidate(
        &ready.machine,
        "/data/m",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    assert_eq!(codes(&direct), [("acs-redirect", Effect::Slows)]);
    assert_eq!(direct.standing(), Standing::Open);
}

#[test]
fn given_acs_with_source_validation_alone_nothing_is_in_the_way() {
    let mut ready = Server::ready(desktop);
    for device in [ready.drive, ready.gpu] {
        let port = ready.machine.port_above(device);
        ready.machine.access_control(port, 0x0001);
    }
    let direct = candidate(
        &ready.machine,
        "/data/m",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    assert_eq!(codes(&direct), []);
}

#[test]
fn given_acs_redirect_on_a_port_beside_the_path_it_does_not_count() {
    let mut ready = Server::ready(desktop);
    let port = ready.machine.port_above(ready.nic);
    ready.machine.access_control(port, 0x001d);
    let root_port = ready.machine.port_above(ready.machine.port_above(port));
    ready.machine.access_control(root_port, 0x001d);
    let direct = candidate(
        &ready.machine,
        "/data/m",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    assert_eq!(codes(&direct), []);
}

#[test]
fn given_a_plain_user_what_acs_does_is_open_and_the_direct_way_unproven() {
    let mut ready = Server::ready(desktop);
    unlist_host_bridges(&mut ready.machine);
    ready.machine.as_plain_user();
    let direct = candidate(
        &ready.machine,
        "/data/m",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    let unreadable = obstacle(&direct, Code::PathUnreadable);
    assert_eq!(unreadable.effect, Effect::Unproven);
    assert_eq!(unreadable.evidence[0].shows, "the first 64 bytes of 4096");
    assert_eq!(direct.standing(), Standing::Unproven);
}

#[test]
fn given_a_plain_user_on_a_cpu_that_routes_peers_the_way_is_open_whatever_acs_does() {
    let mut ready = Server::ready(epyc);
    ready.machine.as_plain_user();
    let direct = candidate(
        &ready.machine,
        "/data/m",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    assert_eq!(codes(&direct), [("path-unreadable", Effect::Slows)]);
}

#[test]
fn given_no_common_switch_the_kernel_refuses_on_a_desktop_and_allows_on_listed_cpus() {
    let verdict = |cpu: fn(&mut Fixture), listed: bool| {
        let mut ready = Server::ready(cpu);
        if !listed {
            unlist_host_bridges(&mut ready.machine);
        }
        codes(&candidate(
            &ready.machine,
            "drive:nvme1",
            "gpu:0",
            "gpudirect-storage-p2pdma",
        ))
    };
    assert_eq!(
        verdict(desktop, false),
        [("no-common-switch", Effect::Blocks)]
    );
    assert_eq!(
        verdict(xeon, true),
        [("through-host-bridge", Effect::Slows)]
    );
    assert_eq!(
        verdict(epyc, false),
        [("through-host-bridge", Effect::Slows)]
    );
}

#[test]
fn given_no_common_switch_the_refusal_quotes_the_cpu_and_its_host_bridges() {
    let mut ready = Server::ready(desktop);
    unlist_host_bridges(&mut ready.machine);
    let direct = candidate(
        &ready.machine,
        "drive:nvme1",
        "gpu:0",
        "gpudirect-storage-p2pdma",
    );
    let evidence = &obstacle(&direct, Code::NoCommonSwitch).evidence;
    let shown: Vec<(&str, &str)> = evidence
        .iter()
        .map(|e| (e.at.as_str(), e.shows.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("/proc/cpuinfo", "GenuineIntel family 0x6"),
            (
                "/sys/bus/pci/devices/0000:18:00.0/device",
                "host bridge 8086:a700"
            ),
            (
                "/sys/bus/pci/devices/0000:10:00.0/device",
                "host bridge 8086:a700"
            ),
        ]
    );
}

#[test]
fn given_a_xeon_of_2013_only_ports_of_one_host_bridge_reach_each_other() {
    let mut machine = Fixture::new();
    machine.processor("GenuineIntel", 6, 63, "Intel(R) Xeon(R) CPU E5-2680 v3");
    let socket = machine.socket();
    let first = machine.root_port(socket, gen4(16));
    let gpu = machine.gpu(first, &GpuModel::MI300X);
    let beside = machine.root_port_beside(first, gen4(4));
    machine.nvme(beside, "nvme0");
    let elsewhere = machine.root_port(socket, gen4(4));
    machine.nvme(elsewhere, "nvme1");
    machine.text("kconfig:CONFIG_PCI_P2PDMA", "y");
    for bus in ["10", "18"] {
        machine.text(
            format!("/sys/bus/pci/devices/0000:{bus}:00.0/device"),
            "0x2f00",
        );
    }
    let verdict = |drive: &str| codes(&candidate(&machine, drive, "gpu:0", "hipfile"));
    assert_eq!(
        verdict("drive:nvme0"),
        [("through-host-bridge", Effect::Slows)]
    );
    assert_eq!(
        verdict("drive:nvme1"),
        [("no-common-switch", Effect::Blocks)]
    );
    assert_eq!(machine.port_above(gpu).bus, 0x10);
}

#[test]
fn given_devices_on_two_sockets_the_link_between_them_is_named_with_both_nodes() {
    let machine = machines::dgx_h100();
    let direct = candidate(&machine, "nic:mlx5_0", "gpu:4", "gpudirect-rdma");
    let across = obstacle(&direct, Code::AcrossSockets);
    assert_eq!(across.effect, Effect::Slows);
    let shown: Vec<&str> = across.evidence.iter().map(|e| e.shows.as_str()).collect();
    assert_eq!(shown[..2], ["0", "1"]);
    assert!(across.evidence[0].at.ends_with("/numa_node"));
}

#[test]
fn given_an_iommu_that_translates_nvidias_way_is_blocked_and_pt_is_the_fix() {
    let mut ready = Server::ready(xeon);
    for (address, group) in [(ready.nic, 7), (ready.gpu, 8)] {
        ready.machine.link(
            format!("/sys/bus/pci/devices/{address}/iommu_group"),
            format!("../../../kernel/iommu_groups/{group}"),
        );
        ready
            .machine
            .text(format!("/sys/kernel/iommu_groups/{group}/type"), "DMA-FQ");
    }
    let direct = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    let translated = obstacle(&direct, Code::IommuTranslates);
    assert_eq!(
        (translated.effect, translated.confidence),
        (Effect::Blocks, Confidence::Likely)
    );
    assert_eq!(translated.evidence[0].at, "/sys/kernel/iommu_groups/7/type");
    assert_eq!(translated.evidence[0].shows, "DMA-FQ");
    assert!(translated.fix[0].what.contains("iommu=pt"));

    for group in [7, 8] {
        ready
            .machine
            .text(format!("/sys/kernel/iommu_groups/{group}/type"), "identity");
    }
    let direct = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    assert_eq!(codes(&direct), []);
}

#[test]
fn given_a_degraded_link_it_is_named_with_what_it_costs() {
    let mut ready = Server::ready(xeon);
    ready.machine.degrade(ready.nic, speed(3, 8));
    let direct = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    let degraded = obstacle(&direct, Code::LinkDegraded);
    assert!(
        degraded
            .summary
            .contains(&format!("{} runs at Gen3 x8", ready.nic)),
        "{}",
        degraded.summary
    );
    let cost = degraded.cost.expect("the link binds");
    assert!((cost.now.as_gb() - 7.877).abs() < 0.001, "{cost:?}");
    assert_eq!(cost.without, BytesPerSecond::gb(50.0));
    assert_eq!(
        degraded.evidence[0].at,
        format!("/sys/bus/pci/devices/{}/current_link_speed", ready.nic)
    );
    assert_eq!(degraded.evidence[0].shows, "8.0 GT/s PCIe");
}

#[test]
fn given_firmware_that_does_not_tell_the_node_whether_the_way_leaves_the_socket_is_open() {
    let mut machine = machines::dgx_h100();
    let nowhere: Vec<String> = machine
        .snapshot()
        .iter()
        .map(|(key, _)| key.to_owned())
        .filter(|key| key.ends_with("/numa_node"))
        .collect();
    for key in nowhere {
        machine.text(key, "-1");
    }
    let direct = candidate(&machine, "drive:nvme0", "gpu:4", "gpudirect-storage");
    let unknown = obstacle(&direct, Code::PathUnreadable);
    assert_eq!(unknown.effect, Effect::Unproven);
    let doubt = &unknown.evidence[0].shows;
    assert!(doubt.starts_with("the NUMA node of "), "{doubt}");
}

#[test]
fn given_an_amd_machine_an_adapter_without_relaxed_ordering_is_slow() {
    let verdict = |cpu: fn(&mut Fixture)| {
        let mut ready = Server::ready(cpu);
        let key = format!("/sys/bus/pci/devices/{}/config", ready.nic);
        let mut bytes = ready
            .machine
            .snapshot()
            .bytes(&key)
            .expect("readable")
            .to_vec();
        // Device Control of the PCI Express capability, bit 4.
        let express = usize::from(bytes[0x34]);
        bytes[express + 8] &= !0x10;
        ready
            .machine
            .observe(key, Observation::Value(Value::Bytes(bytes)));
        codes(&candidate(
            &ready.machine,
            "nic:mlx5_0",
            "gpu:0",
            "gpudirect-rdma",
        ))
    };
    assert_eq!(verdict(epyc), [("relaxed-ordering-off", Effect::Slows)]);
    assert_eq!(verdict(xeon), []);
}

#[test]
fn given_a_virtual_machine_the_ports_seen_are_not_the_real_ones() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .text("/sys/class/dmi/id/sys_vendor", "QEMU")
        .text(
            "/proc/cpuinfo",
            "vendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu hypervisor\n",
        );
    let direct = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    let outside = obstacle(&direct, Code::BehindHypervisor);
    assert_eq!(outside.effect, Effect::Unproven);
    assert_eq!(outside.evidence[0].shows, "QEMU");
}

// --- the kernel and the GPU

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

// --- adapters

#[test]
fn given_the_nearest_port_is_down_the_next_adapter_is_offered_beside_it() {
    let mut machine = machines::dgx_h100();
    let key = "/sys/class/infiniband/mlx5_0/ports/1/state";
    machine.text(key, "1: DOWN");
    let found = search(&machine, "gpu:0", "remote:gpu:0").expect("both exist");
    let by: Vec<(String, Standing)> = found
        .iter()
        .filter(|c| c.route.name == "rdma")
        .map(|c| (c.route.hops[2].from.to_string(), c.standing()))
        .collect();
    assert_eq!(
        by,
        [
            ("mlx5_1".to_owned(), Standing::Open),
            ("mlx5_0".to_owned(), Standing::Blocked)
        ]
    );
    let blocked = found.iter().find(|c| c.standing() == Standing::Blocked);
    let down = obstacle(blocked.expect("mlx5_0"), Code::PortDown);
    assert_eq!(down.evidence[0].at, key);
    assert_eq!(down.evidence[0].shows, "1: DOWN");
}

#[test]
fn given_no_rdma_device_the_sockets_are_what_is_left() {
    let mut machine = machines::laptop();
    machine.observe("/sys/class/infiniband", Observation::Absent);
    let found = search(&machine, "host", "remote:host").expect("both exist");
    let order: Vec<(&str, Standing)> = found
        .iter()
        .map(|c| (c.route.name.as_str(), c.standing()))
        .collect();
    assert_eq!(
        order,
        [("sockets", Standing::Open), ("rdma", Standing::Blocked)]
    );
    let none = obstacle(&found[1], Code::NoRdmaDevice);
    assert_eq!(none.evidence[0].shows, "absent");
}

#[test]
fn given_a_file_of_pci_functions_alone_whether_an_adapter_does_rdma_is_open() {
    let mut ready = Server::ready(xeon);
    for class in ["infiniband", "net"] {
        ready.machine.forget(&format!("/sys/class/{class}"));
    }
    let topology = ready.machine.topology();
    let way = |from: &str, to: &str, name: &str| {
        let found = search::candidates(&topology, None, &place(from), &place(to));
        let named = |c: &Candidate| c.route.name == name;
        found
            .expect("both exist")
            .into_iter()
            .find(named)
            .expect(name)
    };
    let nic = format!("nic:{}", ready.nic);
    let rdma = way(&nic, "host", "rdma");
    assert_eq!(codes(&rdma), [("no-rdma-device", Effect::Unproven)]);
    let sockets = way(&nic, "host", "sockets");
    assert_eq!(codes(&sockets), [("port-down", Effect::Unproven)]);
    let remote = way("gpu:0", "remote:gpu:0", "gpudirect-rdma");
    assert_eq!(remote.standing(), Standing::Unproven);
    assert_eq!(remote.route.counters().pcie_hops, 4);
}

#[test]
fn given_an_interface_whose_state_was_not_looked_at_it_is_not_called_down() {
    let mut ready = Server::ready(xeon);
    ready.machine.forget("/sys/class/net/ib0/operstate");
    let sockets = candidate(&ready.machine, "nic:mlx5_0", "host", "sockets");
    assert_eq!(codes(&sockets), [("port-down", Effect::Unproven)]);
}

#[test]
fn given_small_read_requests_sending_is_slow_and_receiving_is_not() {
    let ready = Server::ready(xeon);
    let sending = candidate(&ready.machine, "gpu:0", "nic:mlx5_0", "gpudirect-rdma");
    let small = obstacle(&sending, Code::SmallReadRequests);
    assert_eq!(small.evidence[0].shows, "MaxReadReq 512");
    let command = format!("sudo setpci -s {} CAP_EXP+8.w=5000:7000", ready.nic);
    assert_eq!(small.fix[0].command.as_deref(), Some(command.as_str()));
    let receiving = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    assert_eq!(codes(&receiving), []);
}

#[test]
fn given_a_memlock_limit_rdma_is_slowed_and_sockets_are_not() {
    let mut ready = Server::ready(xeon);
    ready.machine.text("limit:memlock", "8388608");
    let rdma = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "rdma");
    assert_eq!(codes(&rdma), [("memlock-too-small", Effect::Slows)]);
    let sockets = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "sockets");
    assert_eq!(codes(&sockets), []);
}

#[test]
fn given_a_container_without_the_rdma_devices_they_cannot_be_opened() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .observe("/dev/infiniband", Observation::Absent);
    let rdma = candidate(&ready.machine, "nic:mlx5_0", "host", "rdma");
    assert_eq!(codes(&rdma), [("no-rdma-device", Effect::Blocks)]);
}

#[test]
fn given_an_adapter_without_an_interface_up_sockets_are_blocked() {
    let mut ready = Server::ready(xeon);
    ready.machine.text("/sys/class/net/ib0/operstate", "down");
    let sockets = candidate(&ready.machine, "nic:mlx5_0", "host", "sockets");
    let down = obstacle(&sockets, Code::PortDown);
    assert_eq!(
        down.fix[0].command.as_deref(),
        Some("sudo ip link set ib0 up")
    );
}

// --- files and drives

/// The standings of the two modes of GPUDirect Storage, with the codes that concern the file.
fn placement(machine: &Fixture, path: &str) -> [Vec<(&'static str, Effect)>; 2] {
    ["gpudirect-storage", "gpudirect-storage-p2pdma"]
        .map(|name| codes(&candidate(machine, path, "gpu:0", name)))
}

#[test]
fn given_ext4_its_journal_has_to_be_ordered_which_it_is_unless_told_otherwise() {
    let mut ready = Server::ready(xeon);
    ready.machine.mount("nvme0n1", "/e", "ext4");
    assert_eq!(placement(&ready.machine, "/e/m"), [vec![], vec![]]);
    let table = "1 0 0:1 / / rw - rootfs rootfs rw\n2 1 259:0 / /e rw - ext4 /dev/nvme0n1 rw,data=writeback";
    ready.machine.text("/proc/self/mountinfo", table);
    let blocked = vec![("file-system-unsupported", Effect::Blocks)];
    assert_eq!(
        placement(&ready.machine, "/e/m"),
        [blocked.clone(), blocked]
    );
}

#[test]
fn given_a_file_system_that_gpudirect_storage_does_not_know_it_is_blocked() {
    let mut ready = Server::ready(xeon);
    ready.machine.mount("nvme0n1", "/b", "btrfs");
    let blocked = vec![("file-system-unsupported", Effect::Blocks)];
    assert_eq!(
        placement(&ready.machine, "/b/m"),
        [blocked.clone(), blocked]
    );
}

#[test]
fn given_an_overlay_the_real_file_system_is_hidden_and_o_direct_still_works() {
    let mut ready = Server::ready(xeon);
    let table = format!(
        "{}\n9 1 0:99 / /merged rw - overlay overlay rw,lowerdir=/data/l,upperdir=/data/u,workdir=/data/w",
        ready
            .machine
            .snapshot()
            .text("/proc/self/mountinfo")
            .unwrap_or_default()
    );
    ready.machine.text("/proc/self/mountinfo", table);
    let direct = candidate(&ready.machine, "/merged/m", "gpu:0", "gpudirect-storage");
    assert_eq!(
        codes(&direct),
        [("file-system-unsupported", Effect::Blocks)]
    );
    let staged = candidate(&ready.machine, "/merged/m", "gpu:0", "o-direct");
    assert_eq!(codes(&staged), []);
}

#[test]
fn given_a_tmpfs_the_bytes_are_in_ram_already() {
    let mut ready = Server::ready(xeon);
    ready.machine.mount_from("tmpfs", "/dev/shm", "tmpfs");
    let direct = candidate(&ready.machine, "/dev/shm/m", "gpu:0", "gpudirect-storage");
    assert_eq!(codes(&direct), [("drive-not-on-pcie", Effect::Blocks)]);
    let found = search(&ready.machine, "/dev/shm/m", "gpu:0").expect("both exist");
    let copied = &found[0].route;
    assert_eq!(copied.name, "page-cache");
    assert_eq!((copied.hops.len(), copied.counters().pcie_hops), (2, 2));
}

#[test]
fn given_raid_0_nvidia_fs_sees_through_and_the_kernels_mode_does_not() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .md("md0", "raid0", &["nvme0n1", "nvme1n1"])
        .mount("md0", "/r", "xfs")
        .md("md1", "raid1", &["nvme0n1", "nvme1n1"])
        .mount("md1", "/s", "xfs");
    let side = ("through-host-bridge", Effect::Slows);
    let layered = ("layered-block-device", Effect::Blocks);
    assert_eq!(
        placement(&ready.machine, "/r/m"),
        [vec![side], vec![layered, side]]
    );
    assert_eq!(
        placement(&ready.machine, "/s/m"),
        [vec![layered, side], vec![layered, side]]
    );
}

#[test]
fn given_an_encrypted_drive_a_core_decrypts_every_byte() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .mapping("dm-0", "luks", "CRYPT", &["nvme0n1"])
        .mount("dm-0", "/c", "xfs");
    let layered = vec![("layered-block-device", Effect::Blocks)];
    assert_eq!(
        placement(&ready.machine, "/c/m"),
        [layered.clone(), layered]
    );
    let staged = candidate(&ready.machine, "/c/m", "gpu:0", "o-direct");
    assert_eq!(codes(&staged), []);
    let counters = staged.route.counters();
    assert_eq!((counters.cpu_touches, counters.host_ram_passes), (1, 4));
}

#[test]
fn given_lvm_the_kernels_mode_cannot_be_proved() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .mapping("dm-0", "vg-data", "LVM", &["nvme0n1"])
        .mount("dm-0", "/l", "xfs");
    assert_eq!(
        placement(&ready.machine, "/l/m"),
        [
            vec![("layered-block-device", Effect::Blocks)],
            vec![("layered-block-device", Effect::Unproven)]
        ]
    );
}

#[test]
fn given_a_paravirtual_disk_no_dma_of_its_own_reaches_a_gpu() {
    let mut ready = Server::ready(xeon);
    let socket = ready.machine.socket();
    let slot = ready.machine.root_port(socket, gen4(4));
    ready.machine.virtio_disk(slot, "vda");
    ready.machine.mount("vda", "/v", "ext4");
    let direct = candidate(&ready.machine, "/v/m", "gpu:0", "gpudirect-storage");
    let virtual_disk = obstacle(&direct, Code::DriveNotOnPcie);
    assert_eq!(virtual_disk.evidence[0].at, "/sys/block/vda");
    let to_host = candidate(&ready.machine, "/v/m", "host", "o-direct");
    assert_eq!(
        (to_host.standing(), to_host.route.ceiling()),
        (Standing::Open, None)
    );
}

#[test]
fn given_a_path_on_no_mount_that_was_seen_the_drive_is_unknown() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let slot = machine.root_port(socket, gen5(16));
    machine.gpu(slot, &GpuModel::H100);
    let direct = candidate(&machine, "/data/m", "gpu:0", "gpudirect-storage");
    let unresolved = obstacle(&direct, Code::FileUnresolved);
    assert_eq!(unresolved.effect, Effect::Unproven);
    assert_eq!(unresolved.evidence[0].at, "/proc/self/mountinfo");
    assert_eq!(unresolved.evidence[0].shows, "not looked at");
}

// --- peer memory

#[test]
fn given_published_memory_behind_the_drives_switch_the_drive_reaches_it() {
    let mut ready = Server::ready(desktop);
    let gpu = ready.gpu;
    ready.machine.publish(gpu, Bytes::gib(1));
    let peer = format!("peer:{gpu}");
    let found = search(&ready.machine, "/data/m", &peer).expect("both exist");
    let order: Vec<(&str, Standing, u32)> = found
        .iter()
        .map(|c| {
            let touches = c.route.counters().cpu_touches;
            (c.route.name.as_str(), c.standing(), touches)
        })
        .collect();
    assert_eq!(
        order,
        [
            ("peer-to-peer", Standing::Open, 0),
            ("page-cache", Standing::Open, 1)
        ]
    );
    let back = candidate(&ready.machine, &peer, "/data/m", "page-cache");
    assert_eq!(codes(&back), [("cpu-reads-device", Effect::Slows)]);
}

#[test]
fn given_no_published_memory_or_none_left_the_two_are_told_apart() {
    let mut ready = Server::ready(desktop);
    let peer = format!("peer:{}", ready.gpu);
    let none = candidate(&ready.machine, "/data/m", &peer, "peer-to-peer");
    obstacle(&none, Code::NoPeerMemory);
    let gpu = ready.gpu;
    ready.machine.publish(gpu, Bytes::gib(1));
    let key = format!("/sys/bus/pci/devices/{gpu}/p2pmem/available");
    ready.machine.text(key.as_str(), "0");
    let used_up = candidate(&ready.machine, "/data/m", &peer, "peer-to-peer");
    let exhausted = obstacle(&used_up, Code::PeerMemoryExhausted);
    assert_eq!(exhausted.evidence[0].at, key);
}

// --- network file systems and objects

#[test]
fn given_nfs_over_tcp_the_kernels_client_copies_in_host_ram() {
    let mut ready = Server::ready(xeon);
    ready.machine.mount_from("nas:/models", "/nfs", "nfs4");
    let direct = candidate(&ready.machine, "/nfs/m", "gpu:0", "gpudirect-storage");
    let client = obstacle(&direct, Code::NetworkFileSystem);
    assert!(client.fix[0].what.contains("proto=rdma"));
    let found = search(&ready.machine, "/nfs/m", "gpu:0").expect("both exist");
    let counters = found[0].route.counters();
    assert_eq!(found[0].route.name, "sockets");
    assert_eq!((counters.copies, counters.cpu_touches), (3, 1));
    let cached = candidate(&ready.machine, "/nfs/m", "gpu:0", "page-cache");
    let counters = cached.route.counters();
    assert_eq!(
        (
            counters.copies,
            counters.cpu_touches,
            counters.host_ram_passes
        ),
        (4, 2, 6)
    );
}

#[test]
fn given_lustre_over_rdma_the_adapter_reaches_the_gpu_if_its_client_knows_nvidia_fs() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .mount_from("10.0.0.1@o2ib:/fs", "/lustre", "lustre")
        .text("kallsyms:lnet_register_nvfs_dma_ops", "T [lnet]");
    let direct = candidate(&ready.machine, "/lustre/m", "gpu:0", "gpudirect-storage");
    assert_eq!(codes(&direct), []);
    let counters = direct.route.counters();
    assert_eq!(
        (
            counters.copies,
            counters.pcie_hops,
            counters.host_ram_passes
        ),
        (1, 2, 0)
    );
    for key in [
        "kallsyms:lnet_register_nvfs_dma_ops",
        "kallsyms:lustre_v1_register_nvfs_dma_ops",
    ] {
        ready.machine.observe(key, Observation::Absent);
    }
    let direct = candidate(&ready.machine, "/lustre/m", "gpu:0", "gpudirect-storage");
    assert_eq!(codes(&direct), [("no-storage-driver", Effect::Blocks)]);
    let staged = candidate(&ready.machine, "/lustre/m", "gpu:0", "rdma");
    assert_eq!(staged.standing(), Standing::Open);
}

/// Turns a drive into one that is reached over the network.
fn over_fabrics(machine: &mut Fixture, drive: &str, transport: &str) {
    let at = format!("/sys/class/nvme/{drive}");
    machine.link(
        at.as_str(),
        format!("../../devices/virtual/nvme-fabrics/ctl/{drive}"),
    );
    machine.text(format!("{at}/transport"), transport);
    machine.text(format!("{at}/address"), "traddr=10.0.0.1,trsvcid=4420");
}

#[test]
fn given_a_drive_reached_by_tcp_its_data_comes_through_the_network_stack() {
    let mut ready = Server::ready(xeon);
    over_fabrics(&mut ready.machine, "nvme1", "tcp");
    let direct = candidate(&ready.machine, "drive:nvme1", "gpu:0", "gpudirect-storage");
    let client = obstacle(&direct, Code::NetworkFileSystem);
    assert_eq!(client.evidence[0].at, "/sys/class/nvme/nvme1/transport");
    assert_eq!(client.evidence[0].shows, "tcp");
    let sockets = candidate(&ready.machine, "drive:nvme1", "gpu:0", "sockets");
    assert_eq!(codes(&sockets), []);
    assert_eq!(sockets.route.counters().cpu_touches, 1);
}

#[test]
fn given_a_drive_reached_by_rdma_the_adapter_delivers_it() {
    let mut ready = Server::ready(xeon);
    over_fabrics(&mut ready.machine, "nvme1", "rdma");
    ready.machine.text(
        "kallsyms:nvme_rdma_v1_register_nvfs_dma_ops",
        "t [nvme_rdma]",
    );
    let direct = candidate(&ready.machine, "drive:nvme1", "gpu:0", "gpudirect-storage");
    assert_eq!(codes(&direct), []);
    assert_eq!(direct.route.hops[1].carrier.to_string(), "DMA by mlx5_0");
    let written = candidate(&ready.machine, "gpu:0", "drive:nvme1", "gpudirect-storage");
    assert_eq!(written.route.counters().host_ram_passes, 0);
}

#[test]
fn given_an_object_store_the_straight_way_is_blocked_by_http() {
    let ready = Server::ready(xeon);
    let direct = candidate(&ready.machine, "s3://bucket/m", "gpu:0", "gpudirect-rdma");
    assert_eq!(codes(&direct), [("object-store", Effect::Blocks)]);
    assert!(direct.route.hops.is_empty());
}

// --- what does not exist

#[test]
fn given_a_laptop_without_gpu_the_answer_is_what_is_missing_and_the_way_to_host_memory() {
    let machine = machines::laptop();
    let found = search(&machine, "/home/me/m.safetensors", "gpu:0").expect("an answer");
    let last = found.last().expect("the blocked one");
    assert_eq!(codes(last), [("no-gpu", Effect::Blocks)]);
    assert_eq!(last.route.to, Place::Gpu(0));
    let missing = obstacle(last, Code::NoGpu);
    assert_eq!(missing.evidence[0].at, "/sys/bus/pci/devices");
    assert!(
        missing.evidence[1]
            .shows
            .contains("graphics without memory of its own")
    );
    let instead: Vec<(&str, &Place, Standing)> = found
        .iter()
        .take(found.len() - 1)
        .map(|c| (c.route.name.as_str(), &c.route.to, c.standing()))
        .collect();
    let host = Place::Host(None);
    assert_eq!(instead.len(), 3);
    for (name, to, standing) in instead {
        assert_eq!((to, standing), (&host, Standing::Open), "{name}");
    }
}

#[test]
fn given_no_pci_device_was_seen_the_absence_of_a_gpu_is_not_proved() {
    let machine = Fixture::new();
    let found = search(&machine, "/m", "gpu:0").expect("an answer");
    let last = found.last().expect("one");
    assert_eq!(codes(last), [("no-gpu", Effect::Unproven)]);
}

#[test]
fn given_a_name_that_does_not_exist_the_nearest_and_all_that_exist_are_told() {
    let machine = machines::dgx_h100();
    let wrong = |from: &str, to: &str| match search(&machine, from, to) {
        Err(error @ SearchError::NoSuchDevice { .. }) => {
            (error.to_string(), error.hint().unwrap_or_default())
        }
        other => panic!("{other:?}"),
    };
    let (message, hint) = wrong("nic:mlx50", "gpu:0");
    assert_eq!(message, "nic:mlx50 does not exist on this machine");
    assert!(hint.starts_with("did you mean nic:mlx5_0 or "), "{hint}");
    assert!(hint.contains("nic:eno1"), "{hint}");
    let (_, hint) = wrong("drive:nvme0", "gpu:8");
    for gpu in 0..8 {
        let named = hint.matches(&format!("gpu:{gpu}")).count();
        assert_eq!(named, 1, "gpu:{gpu} in {hint}");
    }
    for (from, to) in [
        ("host:9", "gpu:0"),
        ("drive:sdq", "gpu:0"),
        ("peer:0000:ff:00.0", "host"),
        ("gpu:0", "remote:gpu:8"),
    ] {
        wrong(from, to);
    }
}

#[test]
fn given_places_between_which_nothing_moves_at_once_the_error_says_how_to_ask() {
    let machine = machines::dgx_h100();
    let error = |from: &str, to: &str| search(&machine, from, to).expect_err("no route");
    assert_eq!(error("gpu:0", "gpu:0").code(), "same-place");
    let halves = error("/data/m", "remote:gpu:0");
    assert_eq!(halves.code(), "no-route");
    assert_eq!(
        halves.hint().as_deref(),
        Some("ask for the two halves: from file:/data/m to host, and from host to remote:gpu:0")
    );
}

#[test]
fn given_no_snapshot_at_all_the_topology_alone_is_quoted() {
    let topology = machines::dgx_h100().topology();
    let found = search::candidates(&topology, None, &place("nic:mlx5_0"), &place("gpu:4"))
        .expect("both exist");
    let direct = found.iter().find(|c| c.route.name == "gpudirect-rdma");
    let direct = direct.expect("planned");
    assert_eq!(direct.standing(), Standing::Unproven);
    let across = obstacle(direct, Code::AcrossSockets);
    let shown: Vec<&str> = across.evidence.iter().map(|e| e.shows.as_str()).collect();
    assert_eq!(shown[..2], ["0", "1"]);
}

#[test]
fn given_a_blocked_better_way_its_obstacles_say_what_they_cost() {
    let mut ready = Server::ready(xeon);
    ready
        .machine
        .text("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
    let blocked = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    let cost = obstacle(&blocked, Code::PortDown).cost;
    let cost = cost.expect("sockets are open, and slower");
    assert_eq!((cost.now.as_gb(), cost.without.as_gb()), (10.0, 50.0));
    let direct = candidate(&ready.machine, "s3://bucket/m", "gpu:0", "gpudirect-rdma");
    let unpriced = obstacle(&direct, Code::ObjectStore).cost;
    assert_eq!(unpriced, None, "nothing is known of a way without hops");
}
