//! Files and drives.

use crowfly_route::fixture::{Fixture, GpuModel, gen4, gen5};
use crowfly_route::hop::Standing;
use crowfly_route::obstacle::{Code, Effect};
use crowfly_route::units::Bytes;

use crate::machine::{Server, candidate, codes, desktop, obstacle, search, xeon};

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
