//! The classic ways of data into a GPU, on two machines whose every number can be worked out by
//! hand: counters, class, ceiling and the hop that binds it.
//!
//! The DGX-H100-like server has each GPU, its adapter and its drive behind one Gen5 switch: two
//! links from each up to the CPU. The PCIe-only box has two GPUs, adapter and drive behind one Gen4
//! switch on socket 0, and two GPUs on root ports of socket 1: one link up.

use crowfly_route::fixture::{Fixture, machines};
use crowfly_route::hop::{Candidate, Capacity, Class, Hop, Route};
use crowfly_route::place::Place;
use crowfly_route::search::{self, Calibration, DriveRates, Measured, Search};
use crowfly_route::units::BytesPerSecond;

/// `name: class copies/touches/PCIe/RAM ceiling provenance @binding hop`, one line a candidate.
fn lines(machine: &Fixture, from: &str, to: &str) -> Vec<String> {
    let snapshot = machine.snapshot();
    let topology = machine.topology();
    let place = |text: &str| text.parse::<Place>().expect(text);
    let (from, to) = (place(from), place(to));
    let found = search::candidates(&topology, Some(&snapshot), &from, &to).expect("both exist");
    found.iter().map(line).collect()
}

fn line(candidate: &Candidate) -> String {
    let route = &candidate.route;
    let counters = route.counters();
    let ceiling = route.ceiling().map_or("no ceiling".into(), |ceiling| {
        format!(
            "{:.2} {} @{}",
            ceiling.capacity.rate.as_gb(),
            ceiling.capacity.provenance.word(),
            ceiling.hop
        )
    });
    format!(
        "{}: {} {}/{}/{}/{} {ceiling}",
        route.name,
        route.class(),
        counters.copies,
        counters.cpu_touches,
        counters.pcie_hops,
        counters.host_ram_passes
    )
}

#[track_caller]
fn expect(machine: &Fixture, from: &str, to: &str, expected: &[&str]) {
    let found = lines(machine, from, to);
    for wanted in expected {
        assert!(
            found.iter().any(|line| line == wanted),
            "{from} to {to}: wanted\n  {wanted}\nfound\n  {}",
            found.join("\n  ")
        );
    }
}

/// Gen4 x4 is 7.88 GB/s and Gen5 x16 63.0; the adapters' ports are 400 Gb/s, 50 GB/s.
#[test]
fn given_a_dgx_h100_the_ways_out_of_a_drive_behind_the_gpus_own_switch() {
    expect(
        &machines::dgx_h100(),
        "drive:nvme0",
        "gpu:0",
        &[
            "gpudirect-storage: direct 1/0/2/0 7.88 link rate @0",
            "gpudirect-storage-p2pdma: direct 1/0/2/0 7.88 link rate @0",
            "o-direct: staged 2/0/4/2 7.88 link rate @0",
            "page-cache: staged 3/1/4/4 7.88 link rate @0",
        ],
    );
}

/// The boot drive hangs off a root port of its own: one link up instead of two.
#[test]
fn given_a_dgx_h100_the_way_from_the_wrong_side_passes_the_host_bridge() {
    expect(
        &machines::dgx_h100(),
        "drive:nvme8",
        "gpu:0",
        &[
            "gpudirect-storage: direct 1/0/3/0 7.88 link rate @0",
            "o-direct: staged 2/0/3/2 7.88 link rate @0",
            "page-cache: staged 3/1/3/4 7.88 link rate @0",
        ],
    );
}

#[test]
fn given_a_dgx_h100_the_way_across_sockets_is_direct_still_and_longer() {
    expect(
        &machines::dgx_h100(),
        "drive:nvme0",
        "gpu:4",
        &[
            "gpudirect-storage: direct 1/0/4/0 7.88 link rate @0",
            "o-direct: staged 2/0/4/2 7.88 link rate @0",
        ],
    );
}

/// A stripe over four drives, each behind another switch: four times one drive.
#[test]
fn given_a_stripe_its_drives_add_up() {
    expect(
        &machines::dgx_h100(),
        "/data/model.safetensors",
        "gpu:0",
        &[
            "gpudirect-storage: direct 1/0/2/0 31.51 link rate @0",
            "o-direct: staged 2/0/4/2 31.51 link rate @0",
            "page-cache: staged 3/1/4/4 10.00 assumed @1",
        ],
    );
}

/// The same byte out of the GPU is the same hops turned round; the drive binds at the end now.
#[test]
fn given_a_checkpoint_is_written_the_numbers_are_those_of_reading_it() {
    expect(
        &machines::dgx_h100(),
        "gpu:0",
        "drive:nvme0",
        &[
            "gpudirect-storage: direct 1/0/2/0 7.88 link rate @0",
            "o-direct: staged 2/0/4/2 7.88 link rate @1",
            "page-cache: staged 3/1/4/4 7.88 link rate @2",
        ],
    );
}

/// The outside world is behind the 10 Gb/s adapter on a root port: one link, then two to the GPU.
#[test]
fn given_an_object_store_every_byte_is_copied_decrypted_and_bounced() {
    let machine = machines::dgx_h100();
    expect(
        &machine,
        "s3://bucket/model",
        "gpu:0",
        &["sockets-tls: socket 4/2/3/6 1.25 link rate @0"],
    );
    expect(
        &machine,
        "http://store/model",
        "gpu:0",
        &["sockets: socket 3/1/3/4 1.25 link rate @0"],
    );
    expect(
        &machine,
        "s3://bucket/model",
        "host",
        &["sockets-tls: socket 3/2/1/5 1.25 link rate @0"],
    );
}

#[test]
fn given_a_dgx_h100_the_ways_off_the_wire_into_a_gpu() {
    expect(
        &machines::dgx_h100(),
        "nic:mlx5_0",
        "gpu:0",
        &[
            "gpudirect-rdma: direct 1/0/2/0 50.00 link rate @0",
            "rdma: staged 2/0/4/2 50.00 link rate @0",
            "sockets: socket 3/1/4/4 10.00 assumed @2",
        ],
    );
    expect(
        &machines::dgx_h100(),
        "nic:mlx5_4",
        "gpu:0",
        &["gpudirect-rdma: direct 1/0/4/0 50.00 link rate @0"],
    );
}

/// Both ends pay: the wire itself is no copy and no PCIe hop.
#[test]
fn given_two_dgx_h100_the_ways_between_their_gpus() {
    expect(
        &machines::dgx_h100(),
        "gpu:0",
        "remote:gpu:0",
        &[
            "gpudirect-rdma: direct 1/0/4/0 50.00 link rate @1",
            "rdma: staged 3/0/8/4 50.00 link rate @2",
            "sockets: socket 5/2/8/8 10.00 assumed @1",
        ],
    );
    expect(
        &machines::dgx_h100(),
        "host:0",
        "remote:host:0",
        &[
            "rdma: direct 1/0/4/2 50.00 link rate @1",
            "sockets: socket 3/2/4/6 10.00 assumed @0",
        ],
    );
}

/// Eighteen NVLinks of 25 GB/s in each direction; by PCIe two Gen5 x16 links up and two down.
#[test]
fn given_a_dgx_h100_the_ways_from_gpu_to_gpu() {
    expect(
        &machines::dgx_h100(),
        "gpu:0",
        "gpu:7",
        &[
            "nvlink: direct 1/0/0/0 450.00 link rate @0",
            "gpu-peer-to-peer: direct 1/0/4/0 63.02 link rate @0",
            "host-staged: staged 2/0/4/2 63.02 link rate @0",
        ],
    );
}

#[test]
fn given_host_memory_pinned_pages_save_the_copy() {
    expect(
        &machines::dgx_h100(),
        "host",
        "gpu:0",
        &[
            "pinned: direct 1/0/2/1 63.02 link rate @0",
            "pageable: staged 2/1/2/3 10.00 assumed @0",
        ],
    );
    expect(
        &machines::dgx_h100(),
        "drive:nvme0",
        "host",
        &[
            "o-direct: direct 1/0/2/1 7.88 link rate @0",
            "page-cache-mapped: direct 1/0/2/1 7.88 link rate @0",
            "page-cache: staged 2/1/2/3 7.88 link rate @0",
        ],
    );
}

/// Gen4 x16 is 31.5 GB/s; the adapter's port is 100 Gb/s, 12.5 GB/s.
#[test]
fn given_a_pcie_box_the_ways_on_the_near_socket() {
    let machine = machines::pcie_box();
    expect(
        &machine,
        "drive:nvme0",
        "gpu:0",
        &[
            "gpudirect-storage: direct 1/0/2/0 7.88 link rate @0",
            "o-direct: staged 2/0/4/2 7.88 link rate @0",
            "page-cache: staged 3/1/4/4 7.88 link rate @0",
        ],
    );
    expect(
        &machine,
        "nic:mlx5_0",
        "gpu:0",
        &[
            "gpudirect-rdma: direct 1/0/2/0 12.50 link rate @0",
            "rdma: staged 2/0/4/2 12.50 link rate @0",
            "sockets: socket 3/1/4/4 10.00 assumed @2",
        ],
    );
    expect(
        &machine,
        "gpu:0",
        "gpu:1",
        &[
            "gpu-peer-to-peer: direct 1/0/2/0 31.51 link rate @0",
            "host-staged: staged 2/0/4/2 31.51 link rate @0",
        ],
    );
}

/// From socket 0 to the GPUs of socket 1: two links up, the link between sockets, one link down.
#[test]
fn given_a_pcie_box_the_ways_to_the_far_socket() {
    let machine = machines::pcie_box();
    expect(
        &machine,
        "drive:nvme0",
        "gpu:2",
        &[
            "gpudirect-storage: direct 1/0/3/0 7.88 link rate @0",
            "o-direct: staged 2/0/3/2 7.88 link rate @0",
            "page-cache: staged 3/1/3/4 7.88 link rate @0",
        ],
    );
    expect(
        &machine,
        "nic:mlx5_0",
        "gpu:2",
        &["gpudirect-rdma: direct 1/0/3/0 12.50 link rate @0"],
    );
    expect(
        &machine,
        "gpu:2",
        "gpu:3",
        &[
            "gpu-peer-to-peer: direct 1/0/2/0 31.51 link rate @0",
            "host-staged: staged 2/0/2/2 31.51 link rate @0",
        ],
    );
    expect(
        &machine,
        "s3://bucket/model",
        "gpu:0",
        &["sockets-tls: socket 4/2/4/6 4.00 assumed @3"],
    );
    expect(
        &machine,
        "gpu:0",
        "remote:gpu:0",
        &[
            "gpudirect-rdma: direct 1/0/4/0 12.50 link rate @1",
            "rdma: staged 3/0/8/4 12.50 link rate @2",
            "sockets: socket 5/2/8/8 10.00 assumed @1",
        ],
    );
}

/// Drive and GPU share the uplink of their switch. The staged route goes up and down it, which
/// PCIe carries at once: only transfers both ways at once would halve it.
#[test]
fn given_a_staged_route_the_link_it_goes_up_and_down_is_named() {
    let machine = machines::dgx_h100();
    let topology = machine.topology();
    let place = |text: &str| text.parse::<Place>().expect(text);
    let shared = |to: &str, name: &str| -> Vec<String> {
        let found = search::candidates(&topology, None, &place("drive:nvme0"), &place(to));
        let named = |c: &Candidate| c.route.name == name;
        let route: Route = found
            .expect("both exist")
            .into_iter()
            .find(named)
            .expect(name)
            .route;
        route
            .shared_links()
            .iter()
            .map(|c| c.link.clone())
            .collect()
    };
    let uplink = "0000:10:01.0–0000:11:00.0 Gen5 x16";
    assert_eq!(shared("gpu:0", "o-direct"), [uplink]);
    assert_eq!(shared("gpu:0", "gpudirect-storage"), [""; 0]);
    assert_eq!(shared("gpu:1", "o-direct"), [""; 0]);
}

/// 100 GB/s of memory, shared by the four passes of the page cache: 25 GB/s each. The drive's own
/// rate was measured below what its link does, and one core's copying below what is assumed.
#[test]
fn given_measured_rates_they_replace_what_was_assumed_and_say_so() {
    let measured = |gb| {
        Some(Calibration {
            rate: BytesPerSecond::gb(gb),
            how: "a probe".into(),
        })
    };
    let drive = DriveRates {
        read: measured(6.5),
        write: measured(4.0),
    };
    let rates = Measured {
        copy: measured(9.2),
        memory: measured(100.0),
        drives: [("nvme0".to_owned(), drive)].into(),
        ..Measured::default()
    };
    let topology = machines::dgx_h100().topology();
    let search = Search {
        topology: &topology,
        snapshot: None,
        measured: &rates,
    };
    let place = |text: &str| text.parse::<Place>().expect(text);
    let capacities = |from: &str, to: &str| -> Vec<String> {
        let found = search
            .candidates(&place(from), &place(to))
            .expect("both exist");
        let cached = found
            .iter()
            .find(|c| c.route.name == "page-cache")
            .expect("planned");
        let capacity = |hop: &Hop| {
            hop.capacity
                .as_ref()
                .map_or("–".into(), Capacity::to_string)
        };
        cached.route.hops.iter().map(capacity).collect()
    };
    assert_eq!(
        capacities("drive:nvme0", "gpu:0"),
        [
            "6.50 GB/s (measured)",
            "9.20 GB/s (measured)",
            "25.0 GB/s (measured)"
        ]
    );
    assert_eq!(
        capacities("gpu:0", "drive:nvme0"),
        [
            "25.0 GB/s (measured)",
            "9.20 GB/s (measured)",
            "4.00 GB/s (measured)"
        ]
    );
}

#[test]
fn given_no_driver_was_looked_at_no_direct_way_is_called_open() {
    let machine = machines::dgx_h100();
    let (topology, snapshot) = (machine.topology(), machine.snapshot());
    let place = |text: &str| text.parse::<Place>().expect(text);
    let found = search::candidates(
        &topology,
        Some(&snapshot),
        &place("drive:nvme0"),
        &place("gpu:0"),
    )
    .expect("both exist");
    let order: Vec<(String, String, Class)> = found
        .iter()
        .map(|c| {
            (
                c.route.name.clone(),
                format!("{:?}", c.standing()),
                c.route.class(),
            )
        })
        .collect();
    let expected = [
        ("o-direct", "Open", Class::Staged),
        ("page-cache", "Open", Class::Staged),
        ("gpudirect-storage", "Unproven", Class::Direct),
        ("gpudirect-storage-p2pdma", "Unproven", Class::Direct),
    ]
    .map(|(name, standing, class)| (name.to_owned(), standing.to_owned(), class));
    assert_eq!(order, expected);
}
