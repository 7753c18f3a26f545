//! Given a machine's observations, when decoded, then this graph.

use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen4, gen5, machines, speed};
use crowfly_route::snapshot::{Observation, Snapshot, Value};
use crowfly_route::topology::{
    AcsState, DriveTransport, GpuLinkKind, GpuVendor, PcieLink, PortKind, Topology,
};
use crowfly_route::units::{Bytes, BytesPerSecond, NumaNode, PciAddress};
use proptest::prelude::*;

fn address(text: &str) -> PciAddress {
    text.parse().expect("a PCI address")
}

#[test]
fn given_a_dgx_h100_then_every_device_is_found_in_its_place() {
    let topology = machines::dgx_h100().topology();

    assert_eq!(topology.oddities, []);
    assert_eq!(topology.numa.len(), 2);
    assert_eq!(topology.host.sockets, Some(2));
    assert_eq!(topology.host.cpu_model, Some(143));
    let names: Vec<&str> = topology.nics.iter().map(|n| n.name.as_str()).collect();
    let nics = [
        "eno1", "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7",
    ];
    assert_eq!(names, nics);
    let drives: Vec<&str> = topology.drives.iter().map(|d| d.name.as_str()).collect();
    let expected = [
        "nvme0", "nvme1", "nvme2", "nvme3", "nvme4", "nvme5", "nvme6", "nvme7", "nvme8",
    ];
    assert_eq!(drives, expected);

    let gpu = &topology.gpus[0];
    assert_eq!(gpu.name, "NVIDIA H100 80GB HBM3");
    assert_eq!(gpu.vendor, GpuVendor::Nvidia);
    assert_eq!(
        (gpu.memory, gpu.bar),
        (Some(Bytes::gib(80)), Some(Bytes::gib(128)))
    );
    let function = &topology.pci[&gpu.address.expect("on the bus")];
    assert_eq!(function.numa, Some(NumaNode(0)));
    let full = PcieLink {
        current: Some(gen5(16)),
        maximum: Some(gen5(16)),
        rate: None,
    };
    assert_eq!(function.link, Some(full));
    assert_eq!(function.max_read_request, Some(512));
    assert_eq!(function.relaxed_ordering, Some(true));
    let kinds: Vec<_> = topology.above(function.address).map(|b| b.port).collect();
    assert_eq!(
        kinds,
        [
            Some(PortKind::Downstream),
            Some(PortKind::Upstream),
            Some(PortKind::Root)
        ]
    );

    assert_eq!(topology.gpu_links.len(), 28);
    for link in &topology.gpu_links {
        assert_eq!((link.kind, link.count), (GpuLinkKind::NvLink, 18));
        assert_eq!(link.rate, Some(BytesPerSecond::gb(450.0)));
    }
}

#[test]
fn given_a_plain_user_then_ports_are_told_by_their_place_and_registers_stay_unread() {
    let root = machines::dgx_h100().topology();
    let plain = machines::dgx_h100().as_plain_user().topology();

    let ports = |t: &Topology| t.pci.values().map(|f| f.port).collect::<Vec<_>>();
    assert_eq!(ports(&plain), ports(&root));
    let links = |t: &Topology| t.pci.values().map(|f| f.link).collect::<Vec<_>>();
    assert_eq!(links(&plain), links(&root));
    assert!(plain.pci.values().all(|f| f.acs == AcsState::Unreadable));
    assert!(plain.pci.values().all(|f| f.max_read_request.is_none()));
}

#[test]
fn given_a_narrow_port_then_the_maximum_is_what_both_ends_can_do() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let slot = machine.root_port(socket, gen4(8));
    let gpu = machine.gpu(slot, &GpuModel::H100);

    let link = machine.topology().pci[&gpu].link.expect("on a port");
    assert_eq!(link.maximum, Some(gen4(8)));
    assert_eq!(link.current, Some(gen4(8)));
}

#[test]
fn given_a_link_that_says_unknown_then_nothing_is_claimed_about_its_speed() {
    let mut machine = machines::pcie_box();
    let gpu = machine.topology().gpus[0].address.expect("on the bus");
    let at = format!("/sys/bus/pci/devices/{gpu}");
    machine.text(format!("{at}/current_link_speed"), "Unknown");
    machine.text(format!("{at}/current_link_width"), "63");

    let link = machine.topology().pci[&gpu].link.expect("still on a port");
    assert_eq!(link.current, None);
    assert_eq!(link.maximum, Some(gen4(16)));
}

#[test]
fn given_intel_vmd_then_its_drives_hang_below_the_vmd_function() {
    let mut machine = Fixture::new();
    machine.socket();
    let chain = "pci0000:5d/0000:5d:05.5/pci10000:e0/10000:e0:02.0/10000:e1:00.0";
    for (function, class, depth) in [
        ("0000:5d:05.5", "0x010400", 2),
        ("10000:e0:02.0", "0x060400", 4),
        ("10000:e1:00.0", "0x010802", 5),
    ] {
        let path: Vec<&str> = chain.split('/').take(depth).collect();
        let at = format!("/sys/bus/pci/devices/{function}");
        machine.link(&at, format!("../../../devices/{}", path.join("/")));
        machine.text(format!("{at}/vendor"), "0x8086");
        machine.text(format!("{at}/device"), "0x201d");
        machine.text(format!("{at}/class"), class);
    }

    let topology = machine.topology();
    assert_eq!(topology.oddities, []);
    let drive = &topology.pci[&address("10000:e1:00.0")];
    let above: Vec<_> = topology.above(drive.address).map(|f| f.address).collect();
    assert_eq!(above, [address("10000:e0:02.0"), address("0000:5d:05.5")]);
    assert_eq!(
        drive.root.map(|r| r.to_string()).as_deref(),
        Some("pci0000:5d")
    );
    assert_eq!(topology.pci[&above[0]].port, Some(PortKind::Root));
    assert!(drive.link.is_some());
}

#[test]
fn given_a_removed_function_then_it_is_kept_and_said() {
    let mut machine = machines::pcie_box();
    let nic = machine.topology().nics[0].address.expect("on the bus");
    let at = format!("/sys/bus/pci/devices/{nic}");
    for file in ["vendor", "device", "class"] {
        let gone = Observation::Error("No such device (os error 19)".into());
        machine.observe(format!("{at}/{file}"), gone);
    }
    let ones = Observation::Value(Value::Bytes(vec![0xff; 4096]));
    machine.observe(format!("{at}/config"), ones);

    let topology = machine.topology();
    assert_eq!(topology.pci[&nic].vendor, 0xffff);
    assert_eq!(topology.pci[&nic].acs, AcsState::Unreadable);
    assert_eq!(topology.oddities.len(), 1);
    assert_eq!(topology.oddities[0].at, at);
    assert!(topology.oddities[0].what.contains("does not answer"));
}

#[test]
fn given_no_link_text_then_the_function_is_taken_as_below_a_host_bridge_and_that_is_said() {
    let mut machine = machines::pcie_box();
    let gpu = machine.topology().gpus[0].address.expect("on the bus");
    machine.observe(format!("/sys/bus/pci/devices/{gpu}"), Observation::Denied);

    let topology = machine.topology();
    assert_eq!(topology.pci[&gpu].parent, None);
    assert_eq!(
        topology.oddities[0].what,
        "`permission denied` does not lead to the function; taken as directly below some host bridge"
    );
}

#[test]
fn given_a_bridge_that_was_not_looked_at_then_a_stand_in_keeps_the_tree_whole() {
    let mut machine = machines::pcie_box();
    let before = machine.topology();
    let gpu = before.gpus[0].address.expect("on the bus");
    let port = before.pci[&gpu].parent.expect("below a port");
    machine.forget(&format!("/sys/bus/pci/devices/{port}"));

    let topology = machine.topology();
    assert_eq!(topology.pci[&gpu].parent, Some(port));
    assert_eq!(topology.pci[&port].parent, before.pci[&port].parent);
    assert_eq!(topology.pci[&port].port, Some(PortKind::Downstream));
    assert_eq!(topology.oddities.len(), 1);
}

#[test]
fn given_links_that_contradict_each_other_then_the_circle_is_broken() {
    let mut machine = Fixture::new();
    let (a, b) = ("0000:01:00.0", "0000:02:00.0");
    for (upper, lower) in [(a, b), (b, a)] {
        machine.link(
            format!("/sys/bus/pci/devices/{lower}"),
            format!("../../../devices/pci0000:00/{upper}/{lower}"),
        );
    }
    let topology = machine.topology();
    assert!(topology.oddities.iter().any(|o| o.what.contains("circle")));
    assert_eq!(
        topology.above(address(b)).count() + topology.above(address(a)).count(),
        1
    );
}

#[test]
fn given_odd_addresses_then_they_are_decoded_or_named() {
    let mut machine = Fixture::new();
    let odd = "ffff:ff:1f.7";
    let at = format!("/sys/bus/pci/devices/{odd}");
    machine.link(&at, format!("../../../devices/pciffff:ff/{odd}"));
    machine.text(format!("{at}/vendor"), "0x10de");
    machine.text(format!("{at}/device"), "0x2330");
    machine.text(format!("{at}/class"), "0x030200");
    machine.text(format!("{at}/numa_node"), "-1");
    machine.text("/sys/bus/pci/devices/nonsense/vendor", "0x10de");

    let topology = machine.topology();
    assert_eq!(topology.gpus[0].address, Some(address(odd)));
    assert_eq!(topology.pci[&address(odd)].numa, None);
    assert_eq!(topology.oddities[0].what, "not a PCI address; left out");
}

#[test]
fn given_displays_that_are_no_accelerators_then_there_is_no_gpu() {
    let laptop = machines::laptop().topology();
    assert_eq!(laptop.gpus, []);
    assert_eq!(laptop.host.hypervisor, None);

    // The graphics of QEMU, of VMware and of a management controller.
    for (vendor, device) in [
        ("0x1234", "0x1111"),
        ("0x15ad", "0x0405"),
        ("0x1a03", "0x2000"),
    ] {
        let mut machine = machines::laptop();
        let graphics = "/sys/bus/pci/devices/0000:00:02.0";
        machine.text(format!("{graphics}/vendor"), vendor);
        machine.text(format!("{graphics}/device"), device);
        assert_eq!(machine.topology().gpus, [], "{vendor}");
    }
}

#[test]
fn given_published_memory_of_a_device_that_is_no_drive_then_it_stands_in_for_a_gpu() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let slot = machine.root_port(socket, gen4(4));
    let drive = machine.nvme(slot, "nvme0");
    machine.publish(drive, Bytes::mib(64));
    assert_eq!(machine.topology().gpus, []);

    let slot = machine.root_port_beside(slot, gen4(4));
    let device = machine.stand_in(slot, Bytes::mib(256));
    let gpus = machine.topology().gpus;
    assert_eq!(gpus.len(), 1);
    assert_eq!(
        (gpus[0].address, gpus[0].vendor),
        (Some(device), GpuVendor::StandIn)
    );
    assert_eq!(gpus[0].memory, Some(Bytes::mib(256)));
}

#[test]
fn given_virtual_functions_of_a_card_then_the_card_counts_once() {
    let mut machine = machines::pcie_box();
    let gpu = machine.topology().gpus[0].address.expect("on the bus");
    let path = format!("/sys/bus/pci/devices/{gpu}");
    let virtual_function = PciAddress { function: 1, ..gpu };
    let function = format!("/sys/bus/pci/devices/{virtual_function}");
    let snapshot = machine.snapshot();
    let (above, _) = snapshot
        .link(&path)
        .and_then(|l| l.rsplit_once('/'))
        .expect("a link");
    machine.link(&function, format!("{above}/{virtual_function}"));
    for file in ["vendor", "device", "class"] {
        let text = snapshot.text(&format!("{path}/{file}")).expect("there");
        machine.text(format!("{function}/{file}"), text);
    }
    machine.link(format!("{function}/physfn"), format!("../{gpu}"));

    let topology = machine.topology();
    assert_eq!(topology.gpus.len(), 4);
    let function = &topology.pci[&virtual_function];
    assert_eq!(function.physical_function, Some(gpu));
    assert_eq!(function.parent, topology.pci[&gpu].parent);
}

#[test]
fn given_rdma_and_net_of_one_function_then_they_are_one_adapter_and_virtual_ones_are_none() {
    let mut machine = machines::pcie_box();
    for name in ["lo", "docker0", "veth12ab", "bond0"] {
        machine.link(
            format!("/sys/class/net/{name}"),
            format!("../../devices/virtual/net/{name}"),
        );
    }
    let topology = machine.topology();
    assert_eq!(topology.nics.len(), 1);
    let nic = &topology.nics[0];
    assert_eq!(nic.name, "mlx5_0");
    assert_eq!(nic.interfaces[0].name, "eth0");
    assert_eq!(
        nic.interfaces[0].rate,
        Some(BytesPerSecond::from_gbps(100.0))
    );
    assert_eq!(nic.ports[0].active, Some(true));
    assert_eq!(nic.ports[0].rate, Some(BytesPerSecond::from_gbps(100.0)));
    assert_eq!(nic.ports[0].gids[0].kind.as_deref(), Some("RoCE v2"));
}

#[test]
fn given_soft_roce_then_the_software_device_has_no_function_and_the_interface_keeps_its_own() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let slot = machine.root_port(socket, speed(3, 4));
    let nic = machine.nic(slot, "eth0", &NicModel::X550);
    machine.link(
        "/sys/class/infiniband/rxe0",
        "../../devices/virtual/infiniband/rxe0",
    );
    machine.text("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN");

    let nics = machine.topology().nics;
    let seen: Vec<_> = nics.iter().map(|n| (n.name.as_str(), n.address)).collect();
    assert_eq!(seen, [("eth0", Some(nic)), ("rxe0", None)]);
    assert_eq!(nics[1].ports[0].active, Some(false));
}

#[test]
fn given_stacked_block_devices_then_a_file_leads_to_its_physical_drives() {
    let dgx = machines::dgx_h100().topology();
    let under = |topology: &Topology, path: &str| -> Vec<String> {
        let mount = topology.mount_of(path).expect("mounted");
        let block = topology.block_of(mount).expect("on a block device");
        let drives = topology.drives_under(block);
        drives.iter().map(|d| d.name.clone()).collect()
    };
    assert_eq!(
        under(&dgx, "/data/model"),
        ["nvme0", "nvme1", "nvme2", "nvme3"]
    );
    assert_eq!(under(&dgx, "/scratch5"), ["nvme5"]);
    assert_eq!(under(&dgx, "/home/x"), ["nvme8"]);
    assert_eq!(under(&dgx, "/scratch"), ["nvme8"], "no prefix by letters");

    let laptop = machines::laptop().topology();
    assert_eq!(under(&laptop, "/etc/passwd"), ["nvme0"]);
    let kinds: Vec<_> = laptop
        .stack_under("dm-1")
        .iter()
        .map(|(_, b)| b.kind.clone())
        .collect();
    assert_eq!(kinds, ["dm lvm", "dm crypt", "partition", "disk"]);
}

#[test]
fn given_native_multipath_then_the_namespace_leads_to_every_controller() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    for name in ["nvme0", "nvme1"] {
        let slot = machine.root_port(socket, gen4(4));
        machine.nvme(slot, name);
        let snapshot = machine.snapshot();
        let link = snapshot
            .link(&format!("/sys/block/{name}n1"))
            .expect("a link");
        let hidden = format!("nvme0c{}n1", &name[4..]);
        let path = link.replace(&format!("{name}n1"), &hidden);
        machine.link(format!("/sys/block/{hidden}"), path);
        machine.forget(&format!("/sys/block/{name}n1"));
    }
    machine.link(
        "/sys/block/nvme0n1",
        "../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
    );

    let topology = machine.topology();
    assert!(topology.blocks["nvme0n1"].multipath);
    let drives = topology.drives_under("nvme0n1");
    let names: Vec<_> = drives.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["nvme0", "nvme1"]);
    assert_eq!(topology.drives.len(), 2);
}

#[test]
fn given_a_paravirtual_disk_then_its_function_is_found_through_the_virtio_device() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let slot = machine.root_port(socket, gen4(4));
    let disk = machine.virtio_disk(slot, "vda");
    let topology = machine.topology();
    assert_eq!(topology.drives[0].address, Some(disk));
    assert_eq!(topology.drives[0].transport, DriveTransport::Virtio);
    assert_eq!(topology.blocks["vda"].logical_block, Some(512));
}

#[test]
fn given_stacks_that_run_in_circles_then_the_walk_ends() {
    let mut machine = Fixture::new();
    machine.md("md0", "raid1", &["md1"]);
    machine.md("md1", "raid1", &["md0"]);
    let topology = machine.topology();
    assert_eq!(topology.stack_under("md0").len(), 2);
    assert_eq!(topology.drives_under("md0").len(), 0);
}

#[test]
fn given_mounts_that_cover_each_other_then_a_path_leads_to_the_one_on_top() {
    let mut snapshot = Snapshot::new("test", "");
    let lines = [
        "1 0 259:1 / / rw - ext4 /dev/a rw",
        "2 1 259:2 / /data rw - xfs /dev/b rw",
        "3 2 259:3 / /data/deep rw - xfs /dev/c rw",
        // Mounted over /data, this hides /data/deep as well.
        r"4 2 259:4 / /data rw,noatime - ext4 /dev/d rw,data=ordered",
        r"5 1 259:5 / /with\040space rw - ext4 /dev/e rw",
        "not a mount",
    ];
    snapshot.record("/proc/self/mountinfo", Observation::text(lines.join("\n")));
    let topology = Topology::from_snapshot(&snapshot);

    let source = |path| topology.mount_of(path).map(|m| m.source.as_str());
    assert_eq!(source("/data/deep/file"), Some("/dev/d"));
    assert_eq!(source("/database"), Some("/dev/a"));
    assert_eq!(source("/with space/file"), Some("/dev/e"));
    assert_eq!(source("/"), Some("/dev/a"));
    let options = &topology.mount_of("/data").expect("mounted").options;
    assert_eq!(options, &["rw", "noatime", "data=ordered"]);
    let odd: Vec<_> = topology.oddities.iter().map(|o| o.at.as_str()).collect();
    assert_eq!(odd, ["/sys/bus/pci/devices", "/proc/self/mountinfo:6"]);
}

#[test]
fn given_amd_gpus_then_xgmi_links_come_from_the_driver_s_own_graph() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    for node in 1..=2u32 {
        let slot = machine.root_port(socket, gen5(16));
        let gpu = machine.gpu(slot, &GpuModel::MI300X);
        let at = format!("/sys/class/kfd/kfd/topology/nodes/{node}");
        let location = u32::from(gpu.bus) << 8;
        machine.text(
            format!("{at}/properties"),
            format!("domain 0\nlocation_id {location}"),
        );
        let link = format!(
            "type 11\nnode_from {node}\nnode_to {}\nmin_bandwidth 64000\nmax_bandwidth 128000",
            3 - node
        );
        machine.text(format!("{at}/io_links/0/properties"), link);
    }
    let topology = machine.topology();
    assert_eq!(topology.gpus[0].name, "AMD Instinct MI300X");
    assert_eq!(topology.gpus[0].memory, Some(Bytes::gib(192)));
    assert_eq!(topology.gpu_links.len(), 1);
    let link = &topology.gpu_links[0];
    assert_eq!(
        (link.a, link.b, link.kind, link.count),
        (0, 1, GpuLinkKind::Xgmi, 2)
    );
    assert_eq!(link.rate, Some(BytesPerSecond::gb(128.0)));
}

#[test]
fn given_no_pci_functions_then_it_is_said_whether_anybody_looked() {
    let seen = |observation: Option<Observation>| {
        let mut snapshot = Snapshot::new("test", "");
        if let Some(observation) = observation {
            snapshot.record("/sys/bus/pci/devices", observation);
        }
        let mut topology = Topology::from_snapshot(&snapshot);
        let oddity = topology.oddities.pop();
        assert_eq!(topology, Topology::default());
        oddity.map(|oddity| oddity.what)
    };
    let what = |text: &str| Some(text.to_owned());
    assert_eq!(seen(None), what("no PCI functions: not looked at"));
    let absent = seen(Some(Observation::Absent));
    assert_eq!(absent, what("no PCI functions: absent"));
    let denied = seen(Some(Observation::Denied));
    assert_eq!(denied, what("no PCI functions: permission denied"));
    let none = Observation::Value(Value::List(Vec::new()));
    assert_eq!(seen(Some(none)), None);
}

#[test]
fn given_a_virtual_machine_in_a_container_then_both_are_named() {
    let mut machine = machines::laptop();
    machine.text(
        "/proc/cpuinfo",
        "vendor_id\t: AuthenticAMD\nflags\t\t: fpu hypervisor",
    );
    machine.text("/sys/class/dmi/id/sys_vendor", "QEMU");
    machine.text("/run/.containerenv", "");
    let host = machine.topology().host;
    assert_eq!(host.hypervisor.as_deref(), Some("QEMU"));
    assert_eq!(host.container.as_deref(), Some("podman"));
}

/// Keys and values as a broken or hostile snapshot may hold them.
fn observation() -> impl Strategy<Value = Observation> {
    let text = prop_oneof![
        Just("0x10de".to_owned()),
        Just("0x060400".to_owned()),
        Just("1 1 0:1 / / rw - a b c".to_owned()),
        "[0-9a-fx:./ -]{0,40}",
        any::<String>(),
    ];
    prop_oneof![
        text.clone().prop_map(Observation::text),
        text.prop_map(|t| Observation::Value(Value::Link(t))),
        any::<Vec<u8>>().prop_map(|b| Observation::Value(Value::Bytes(b))),
        Just(Observation::Absent),
        Just(Observation::Denied),
    ]
}

proptest! {
    #[test]
    fn whatever_is_observed_decoding_never_panics(
        seen in prop::collection::vec((any::<prop::sample::Index>(), observation()), 0..40),
    ) {
        let mut machine = machines::pcie_box();
        machine.nvlink(0, 1, 4);
        let keys: Vec<String> = machine.snapshot().iter().map(|(k, _)| k.to_owned()).collect();
        for (index, observation) in seen {
            machine.observe(keys[index.index(keys.len())].clone(), observation);
        }
        let topology = machine.topology();
        for mount in &topology.mounts {
            if let Some(block) = topology.block_of(mount) {
                topology.drives_under(block);
            }
        }
    }
}
