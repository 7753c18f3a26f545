//! What does not exist.

use crowfly_route::fixture::{Fixture, machines};
use crowfly_route::hop::Standing;
use crowfly_route::obstacle::{Code, Effect};
use crowfly_route::place::Place;
use crowfly_route::search::{self, SearchError};

use crate::machine::{Server, candidate, codes, obstacle, place, search, xeon};

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
