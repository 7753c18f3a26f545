//! Given a machine, when two devices are compared, then this distance by this path.

use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen4, gen5, machines, speed};
use crowfly_route::hop::LinkKind;
use crowfly_route::snapshot::Observation;
use crowfly_route::topology::{Device, LinkState, Relation, Topology};
use crowfly_route::units::{BytesPerSecond, NumaNode, PciAddress};
use proptest::prelude::*;

fn relation(topology: &Topology, a: &str, b: &str) -> String {
    let device = |name| topology.find(name).expect(name);
    topology.distance(device(a), device(b)).relation.to_string()
}

fn links(topology: &Topology, a: &str, b: &str) -> Vec<String> {
    let device = |name| topology.find(name).expect(name);
    let path = topology.distance(device(a), device(b)).path;
    path.crossings.into_iter().map(|c| c.link).collect()
}

#[test]
fn given_a_dgx_h100_then_the_distances_are_those_that_nvidia_smi_shows() {
    let topology = machines::dgx_h100().topology();
    for (a, b, expected) in [
        ("gpu0", "gpu0", "X"),
        ("gpu0", "gpu7", "NV18"),
        ("gpu0", "mlx5_0", "PIX"),
        ("gpu0", "nvme0", "PIX"),
        ("gpu0", "mlx5_1", "NODE"),
        ("gpu0", "mlx5_4", "SYS"),
        ("mlx5_3", "nvme3", "PIX"),
        ("gpu0", "nvme8", "NODE"),
        ("gpu7", "nvme8", "SYS"),
        ("nvme8", "eno1", "PHB"),
    ] {
        assert_eq!(relation(&topology, a, b), expected, "{a} {b}");
        assert_eq!(relation(&topology, b, a), expected, "{b} {a}");
    }
    let gpu = Device::Gpu;
    let by_pcie = topology.pcie_distance(gpu(0), gpu(7)).relation;
    assert_eq!(by_pcie, Relation::Sys);
}

#[test]
fn given_two_devices_behind_one_switch_then_the_path_crosses_their_two_links() {
    let topology = machines::dgx_h100().topology();
    assert_eq!(
        links(&topology, "nvme0", "gpu0"),
        [
            "0000:12:02.0–0000:15:00.0 Gen4 x4",
            "0000:12:00.0–0000:13:00.0 Gen5 x16"
        ]
    );
    let distance = topology.distance(Device::Drive(0), Device::Gpu(0));
    let bridges: Vec<String> = distance
        .path
        .bridges
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(bridges, ["0000:12:02.0", "0000:11:00.0", "0000:12:00.0"]);
    assert_eq!(distance.path.crossings[0].rate, Some(gen4(4).rate()));
    assert_eq!(distance.path.doubts, [""; 0]);
}

#[test]
fn given_devices_on_two_sockets_then_the_path_climbs_to_the_top_and_down_again() {
    let topology = machines::dgx_h100().topology();
    let distance = topology.distance(Device::Gpu(0), topology.find("mlx5_4").expect("there"));
    let kinds: Vec<LinkKind> = distance.path.crossings.iter().map(|c| c.kind).collect();
    let pcie = LinkKind::Pcie;
    assert_eq!(kinds, [pcie, pcie, LinkKind::Socket, pcie, pcie]);
    assert_eq!(distance.path.crossings[2].link, "numa0–numa1");
    assert_eq!(distance.path.crossings[2].rate, None);
    assert_eq!(distance.path.bridges.len(), 6);
}

#[test]
fn given_an_nvlink_pair_then_the_path_is_the_nvlink() {
    let topology = machines::dgx_h100().topology();
    let path = topology.distance(Device::Gpu(2), Device::Gpu(1)).path;
    assert_eq!(path.crossings.len(), 1);
    assert_eq!(path.crossings[0].link, "gpu2–gpu1 NV18");
    assert_eq!(path.crossings[0].rate, Some(BytesPerSecond::gb(450.0)));
}

#[test]
fn given_a_switch_behind_a_switch_then_only_the_inner_pair_is_pix() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let port = machine.root_port(socket, gen5(16));
    let outer = machine.switch(port, gen5(16));
    let slot = machine.slot(outer, gen5(16));
    machine.nic(slot, "mlx5_0", &NicModel::CONNECTX7);
    let slot = machine.slot(outer, gen5(16));
    let inner = machine.switch(slot, gen5(16));
    for _ in 0..2 {
        let slot = machine.slot(inner, gen5(16));
        machine.gpu(slot, &GpuModel::H100);
    }
    let topology = machine.topology();
    assert_eq!(relation(&topology, "gpu0", "gpu1"), "PIX");
    assert_eq!(relation(&topology, "gpu0", "mlx5_0"), "PXB");
    assert_eq!(links(&topology, "gpu0", "mlx5_0").len(), 3);
}

#[test]
fn given_two_functions_of_one_card_then_they_share_its_port() {
    let mut machine = machines::pcie_box();
    let nic = machine.topology().nics[0].address.expect("on the bus");
    let second = PciAddress { function: 1, ..nic };
    let snapshot = machine.snapshot();
    let (above, _) = snapshot
        .link(&format!("/sys/bus/pci/devices/{nic}"))
        .and_then(|l| l.rsplit_once('/'))
        .expect("a link");
    machine.link(
        format!("/sys/bus/pci/devices/{second}"),
        format!("{above}/{second}"),
    );
    let topology = machine.topology();
    let (a, b) = (Device::Function(nic), Device::Function(second));
    assert_eq!(topology.pcie_distance(a, b).relation, Relation::Pix);
}

#[test]
fn given_two_nodes_of_one_socket_then_it_is_sys_without_a_socket_crossing() {
    let mut machine = machines::dgx_h100();
    for cpu in [0, 32] {
        let package = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        machine.text(package, "0");
    }
    let topology = machine.topology();
    let distance = topology.pcie_distance(Device::Gpu(0), Device::Gpu(7));
    assert_eq!(distance.relation, Relation::Sys);
    assert_eq!(distance.path.crossings[2].kind, LinkKind::HostBridge);
}

#[test]
fn given_no_numa_node_on_a_machine_with_two_sockets_then_the_distance_is_not_guessed() {
    let mut machine = machines::pcie_box();
    let gpu = machine.topology().gpus[2].address.expect("on the bus");
    let port = machine.port_above(gpu);
    for function in [gpu, port] {
        machine.text(format!("/sys/bus/pci/devices/{function}/numa_node"), "-1");
    }
    let topology = machine.topology();
    let distance = topology.distance(Device::Gpu(0), Device::Gpu(2));
    assert_eq!(distance.relation.to_string(), "?");
    let doubt =
        format!("the NUMA node of {gpu} is not known: whether the way leaves the socket is open");
    assert_eq!(distance.path.doubts, [doubt]);
    let to_host = topology.path_to_host(Device::Gpu(2), Some(NumaNode(1)));
    assert_eq!(to_host.doubts.len(), 1);

    // What the bridge above says is enough.
    machine.text(format!("/sys/bus/pci/devices/{port}/numa_node"), "1");
    assert_eq!(relation(&machine.topology(), "gpu0", "gpu2"), "SYS");
}

#[test]
fn given_no_numa_node_on_a_machine_with_one_then_there_is_nothing_to_doubt() {
    let mut machine = machines::laptop();
    for function in machine.topology().pci.keys() {
        machine.text(format!("/sys/bus/pci/devices/{function}/numa_node"), "-1");
    }
    let topology = machine.topology();
    assert_eq!(relation(&topology, "nvme0", "enp1s0"), "PHB");
    let path = topology.path_to_host(Device::Drive(0), Some(NumaNode(0)));
    assert_eq!(path.doubts, [""; 0]);
    assert_eq!(path.crossings.len(), 1);
}

#[test]
fn given_a_device_off_the_bus_then_the_distance_says_why_it_is_unknown() {
    let mut machine = machines::pcie_box();
    machine.link(
        "/sys/class/infiniband/rxe0",
        "../../devices/virtual/infiniband/rxe0",
    );
    let topology = machine.topology();
    let rxe = topology.find("rxe0").expect("there");
    let distance = topology.distance(Device::Gpu(0), rxe);
    assert_eq!(distance.relation, Relation::Unknown);
    assert_eq!(distance.path.doubts, ["rxe0 is no PCI device"]);
}

#[test]
fn given_memory_on_the_other_socket_then_the_way_to_it_crosses_the_sockets() {
    let topology = machines::pcie_box().topology();
    let kinds = |node| {
        let path = topology.path_to_host(Device::Drive(0), node);
        path.crossings.iter().map(|c| c.kind).collect::<Vec<_>>()
    };
    let pcie = LinkKind::Pcie;
    assert_eq!(kinds(None), [pcie, pcie]);
    assert_eq!(kinds(Some(NumaNode(0))), [pcie, pcie]);
    assert_eq!(kinds(Some(NumaNode(1))), [pcie, pcie, LinkKind::Socket]);
}

#[test]
fn given_a_link_below_its_maximum_then_it_is_marked_with_what_it_still_carries() {
    let mut machine = machines::pcie_box();
    let nic = machine.topology().nics[0].address.expect("on the bus");
    machine.degrade(nic, speed(3, 8));
    let topology = machine.topology();
    assert_eq!(topology.link_state(nic), Some(LinkState::Degraded));
    let crossing = topology.crossing_above(nic).expect("a link");
    assert!(crossing.degraded);
    assert!(crossing.link.ends_with("Gen3 x8"), "{}", crossing.link);
    assert_eq!(crossing.rate, Some(speed(3, 8).rate()));
}

#[test]
fn given_an_idle_gpu_then_its_slow_link_is_no_fault_and_its_rate_is_that_under_load() {
    let gpu_of = |machine: &Fixture| machine.topology().gpus[0].address.expect("on the bus");
    let judged = |machine: &Fixture| {
        let topology = machine.topology();
        let crossing = topology.crossing_above(gpu_of(machine)).expect("a link");
        (topology.link_state(gpu_of(machine)), crossing.rate)
    };
    let idle = (Some(LinkState::Idle), Some(gen4(16).rate()));

    let mut slowest = machines::pcie_box();
    slowest.degrade(gpu_of(&slowest), speed(1, 16));
    assert_eq!(judged(&slowest), idle);

    let mut resting = machines::pcie_box();
    resting.degrade(gpu_of(&resting), speed(3, 16));
    resting.text("nvml:0/performance_state", "8");
    assert_eq!(judged(&resting), idle);

    let mut asleep = machines::pcie_box();
    let gpu = gpu_of(&asleep);
    asleep.degrade(gpu, speed(3, 16));
    asleep.text(format!("/sys/bus/pci/devices/{gpu}/power_state"), "D3hot");
    assert_eq!(judged(&asleep), idle);

    let mut busy = machines::pcie_box();
    busy.degrade(gpu_of(&busy), speed(3, 16));
    let degraded = (Some(LinkState::Degraded), Some(speed(3, 16).rate()));
    assert_eq!(judged(&busy), degraded);
}

#[test]
fn given_an_idle_gpu_on_a_narrow_link_then_only_its_speed_is_excused() {
    let mut machine = machines::pcie_box();
    let gpu = machine.topology().gpus[0].address.expect("on the bus");
    machine.degrade(gpu, speed(1, 8));
    let topology = machine.topology();
    assert_eq!(topology.link_state(gpu), Some(LinkState::Degraded));
    let crossing = topology.crossing_above(gpu).expect("a link");
    assert_eq!(crossing.rate, Some(gen4(8).rate()));
    assert!(crossing.link.ends_with(" Gen4 x8"), "{}", crossing.link);

    // AMD's driver gives lanes back as well.
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let port = machine.root_port(socket, gen5(16));
    let gpu = machine.gpu(port, &GpuModel::MI300X);
    machine.degrade(gpu, speed(1, 8));
    assert_eq!(machine.topology().link_state(gpu), Some(LinkState::Idle));
}

#[test]
fn given_the_bridge_on_an_idle_gpu_s_board_then_its_slow_link_is_no_fault_either() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let port = machine.root_port(socket, gen4(16));
    let board = machine.switch(port, gen4(16));
    let slot = machine.slot(board, gen4(16));
    let gpu = machine.gpu(slot, &GpuModel::MI300X);
    let topology = machine.topology();
    let upstream = topology.above(gpu).nth(1).expect("a switch").address;
    machine.degrade(upstream, speed(1, 16));
    // A switch of another maker has no reason to slow down.
    assert_eq!(
        machine.topology().link_state(upstream),
        Some(LinkState::Degraded)
    );
    for bridge in machine.topology().above(gpu).take(2) {
        let at = format!("/sys/bus/pci/devices/{}", bridge.address);
        machine.text(format!("{at}/vendor"), "0x1002");
        machine.text(format!("{at}/device"), "0x1478");
    }
    assert_eq!(
        machine.topology().link_state(upstream),
        Some(LinkState::Idle)
    );
}

#[test]
fn given_a_virtual_function_then_its_link_is_that_of_the_physical_one() {
    let mut machine = machines::pcie_box();
    let nic = machine.topology().nics[0].address.expect("on the bus");
    let function = PciAddress { function: 1, ..nic };
    let at = format!("/sys/bus/pci/devices/{function}");
    let snapshot = machine.snapshot();
    let (above, _) = snapshot
        .link(&format!("/sys/bus/pci/devices/{nic}"))
        .and_then(|l| l.rsplit_once('/'))
        .expect("a link");
    machine.link(&at, format!("{above}/{function}"));
    machine.link(format!("{at}/physfn"), format!("../{nic}"));
    machine.text(format!("{at}/current_link_speed"), "Unknown");
    machine.text(format!("{at}/current_link_width"), "0");
    machine.text(format!("{at}/max_link_speed"), "16.0 GT/s PCIe");
    machine.text(format!("{at}/max_link_width"), "16");
    let topology = machine.topology();
    assert_eq!(topology.link_state(function), Some(LinkState::Full));
    let crossing = topology.crossing_above(function).expect("a link");
    assert_eq!(crossing.rate, Some(gen4(16).rate()));
}

#[test]
fn given_a_switch_s_management_function_then_its_slow_link_is_not_judged() {
    let mut machine = Fixture::new();
    let socket = machine.socket();
    let port = machine.root_port(socket, gen4(16));
    let nic = machine.nic(port, "eth0", &NicModel::X550);
    let at = format!("/sys/bus/pci/devices/{nic}");
    machine.text(format!("{at}/vendor"), "0x1000");
    machine.text(format!("{at}/device"), "0x00b2");
    machine.degrade(nic, speed(1, 1));
    assert_eq!(machine.topology().link_state(nic), Some(LinkState::Unknown));
}

#[test]
fn given_a_speed_that_is_not_shown_then_the_link_is_named_by_what_it_could_do() {
    let mut machine = machines::pcie_box();
    let nic = machine.topology().nics[0].address.expect("on the bus");
    machine.text(
        format!("/sys/bus/pci/devices/{nic}/current_link_speed"),
        "Unknown",
    );
    let topology = machine.topology();
    assert_eq!(topology.link_state(nic), Some(LinkState::Unknown));
    let crossing = topology.crossing_above(nic).expect("a link");
    assert!(
        crossing.link.ends_with(" up to Gen4 x16"),
        "{}",
        crossing.link
    );
    assert!(!crossing.degraded);
}

#[test]
fn every_device_is_found_by_the_name_it_is_printed_with() {
    let topology = machines::dgx_h100().topology();
    for device in topology.devices() {
        assert_eq!(topology.find(&topology.name_of(device)), Some(device));
    }
    assert_eq!(topology.find("ib3"), topology.find("mlx5_3"));
    assert_eq!(topology.find("nvme8n1"), topology.find("nvme8"));
    assert_eq!(topology.find("0000:13:00.0"), Some(Device::Gpu(0)));
    assert_eq!(topology.find("13:00.0"), Some(Device::Gpu(0)));
    assert_eq!(topology.find("gpu8"), None);
    assert_eq!(topology.find("0000:ff:00.0"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn distances_are_symmetric_and_never_panic_whatever_the_links_say(
        targets in prop::collection::vec("(\\.\\./){0,2}(pci0000:[0-9a-f]{2}/)?(0000:1[0-7]:0[0-2]\\.0/){0,5}", 0..8),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 8),
    ) {
        let mut machine = machines::pcie_box();
        let functions: Vec<_> = machine.topology().pci.keys().copied().collect();
        for (target, pick) in targets.iter().zip(picks) {
            let function = pick.get(&functions);
            let link = Observation::Value(crowfly_route::snapshot::Value::Link(format!("{target}{function}")));
            machine.observe(format!("/sys/bus/pci/devices/{function}"), link);
        }
        let topology = machine.topology();
        let devices: Vec<_> = topology.pci.keys().copied().map(Device::Function).collect();
        for a in &devices {
            topology.path_to_host(*a, Some(NumaNode(0)));
            for b in &devices {
                let there = topology.distance(*a, *b);
                let back = topology.distance(*b, *a);
                prop_assert_eq!(there.relation, back.relation);
                prop_assert_eq!(there.path.crossings.len(), back.path.crossings.len());
            }
        }
    }
}
