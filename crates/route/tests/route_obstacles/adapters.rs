//! Adapters.

use crowfly_route::fixture::machines;
use crowfly_route::hop::{Candidate, Standing};
use crowfly_route::obstacle::{Code, Effect};
use crowfly_route::search::{self};
use crowfly_route::snapshot::Observation;

use crate::machine::{Server, candidate, codes, obstacle, place, search, xeon};

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
