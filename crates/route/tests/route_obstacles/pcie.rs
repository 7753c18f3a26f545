//! The PCIe path.

use crowfly_route::fixture::{Fixture, GpuModel, gen4, machines, speed};
use crowfly_route::hop::Standing;
use crowfly_route::obstacle::{Code, Confidence, Effect};
use crowfly_route::snapshot::{Observation, Value};
use crowfly_route::units::BytesPerSecond;

use crate::machine::{
    Server, candidate, codes, desktop, epyc, obstacle, unlist_host_bridges, xeon,
};

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
