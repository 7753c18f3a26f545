//! Network file systems and objects.

use crowfly_route::fixture::Fixture;
use crowfly_route::hop::Standing;
use crowfly_route::obstacle::{Code, Effect};
use crowfly_route::snapshot::Observation;

use crate::machine::{Server, candidate, codes, obstacle, search, xeon};

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
