//! What a redacted snapshot hides, and what it must still show.

use crowfly_route::fixture::machines;
use crowfly_route::snapshot::{Observation, Snapshot, Value};
use crowfly_route::topology::Topology;
use proptest::prelude::*;

/// Everything in [`machine`] that names a machine, a person or a network.
const PLANTED: &[&str] = &[
    // Names.
    "trainer-07",
    "trainer--07",
    "cluster.example.org",
    "filer01",
    "meta-a",
    "etcd-main",
    "builder",
    "alice",
    "bob",
    // Numbers of things.
    "S6CKNX0T512345",
    "S6CKNX0T5",
    "0025385b41411234",
    "6a3f5bd1-8b5e-4ce5-9d4a-5f6c3e1b2a90",
    "0f6e2d4c-1111-4222-8333-944455556666",
    "3b1de8f1-73c0-4b0c-8e52-0d6c5a4e3f21",
    "3b1de8f1_73c0_4b0c_8e52_0d6c5a4e3f21",
    "9f2c4e8a7b1d3f5c6e8a0b2d4f6a8c0e1b3d5f7a9c2e4b6d8f0a1c3e5b7d9f10",
    "Zq1xY0aBcDeFgHiJkLmNoPqRsTuVwXyZ",
    "10884721053",
    // Addresses.
    "0c:42:a1:1d:50:6a",
    "0c42a11d506a",
    "0e42:a1ff:fe1d:506a",
    "0c42:a103:001d:506a",
    "10.20.30.41",
    "0a14:1e29",
    "10.20.30.5",
    "192.168.7.9",
    "203.0.113.77",
    "2620:",
    // Secrets.
    "hunter2",
    "s3cr3t",
    "opensesame",
];

fn machine() -> Snapshot {
    let mut snapshot = Snapshot::new("test", "2026-01-01T00:00:00Z");
    let mut text = |key: &str, text: &str| snapshot.record(key, Observation::text(text));
    text("uname:nodename", "trainer-07.cluster.example.org");
    text("uname:release", "6.8.0-45-generic");
    text(
        "/proc/version",
        "Linux version 6.8.0-45-generic (bob@builder) (gcc 13.2.0) #45 SMP",
    );
    text(
        "/proc/cmdline",
        "BOOT_IMAGE=/vmlinuz root=UUID=0f6e2d4c-1111-4222-8333-944455556666 ro iommu=pt \
         ip=10.20.30.41::10.20.30.5:255.255.255.0:trainer-07:eth0:off luks.key=s3cr3t",
    );
    text("env:NCCL_SOCKET_IFNAME", "=enx0c42a11d506a,eth0");
    text("env:NCCL_COMM_ID", "trainer-07:29500");
    text("env:NCCL_IB_HCA", "mlx5_0:1");
    text("env:MASTER_ADDR", "10.20.30.41");
    text("env:MC_REDIS_PASSWORD", "hunter2");
    text(
        "env:MC_METADATA_SERVER",
        "etcd://bob:opensesame@etcd-main:2379",
    );
    text(
        "env:CUDA_VISIBLE_DEVICES",
        "GPU-6a3f5bd1-8b5e-4ce5-9d4a-5f6c3e1b2a90",
    );
    text("nvml:0/uuid", "GPU-6a3f5bd1-8b5e-4ce5-9d4a-5f6c3e1b2a90");
    text("env:NCCL_TOPO_FILE", "/home/alice/topo.xml");
    text(
        "/home/alice/cufile.json",
        "{\"logging\": {\"dir\": \"/home/alice/logs\"}, \"rdma_dev_addr_list\": [\"192.168.7.9\"]}",
    );
    text(
        "/sys/class/net/enx0c42a11d506a/address",
        "0c:42:a1:1d:50:6a",
    );
    text("/sys/class/net/enx0c42a11d506a/mtu", "9000");
    text("/sys/class/net/lo/address", "00:00:00:00:00:00");
    text(
        "/sys/class/infiniband/mlx5_0/node_guid",
        "0c42:a103:001d:506a",
    );
    text("/sys/class/infiniband/mlx5_0/fw_ver", "28.39.10.2");
    let port = "/sys/class/infiniband/mlx5_0/ports/1";
    text(
        &format!("{port}/gids/0"),
        "fe80:0000:0000:0000:0e42:a1ff:fe1d:506a",
    );
    text(
        &format!("{port}/gids/1"),
        "0000:0000:0000:0000:0000:ffff:0a14:1e29",
    );
    text(
        &format!("{port}/gids/2"),
        "2620:00a1:0b2c:0001:0c42:a103:001d:506a",
    );
    text(
        &format!("{port}/gids/3"),
        "0000:0000:0000:0000:0000:0000:0000:0000",
    );
    text(&format!("{port}/gid_attrs/types/1"), "RoCE v2");
    text(&format!("{port}/gid_attrs/ndevs/1"), "enx0c42a11d506a");
    text(&format!("{port}/rate"), "400 Gb/sec (4X NDR)");
    text("/sys/class/nvme/nvme0/serial", "S6CKNX0T512345");
    text("/sys/class/nvme/nvme0/model", "SAMSUNG MZQL23T8HCLS");
    text("/sys/class/nvme/nvme0/address", "0000:3b:00.0");
    text(
        "/sys/class/nvme/nvme1/address",
        "traddr=203.0.113.77,trsvcid=4420",
    );
    text(
        "/sys/class/nvme/nvme1/subsysnqn",
        "nqn.2014-08.org.nvmexpress:uuid:3b1de8f1-73c0-4b0c-8e52-0d6c5a4e3f21",
    );
    text("/sys/block/nvme0n1/wwid", "eui.0025385b41411234");
    text("/sys/block/dm-0/dm/name", "trainer--07-scratch");
    text("/sys/block/dm-1/dm/name", "trainer-07-data");
    text(
        "/sys/block/dm-0/dm/uuid",
        "LVM-Zq1xY0aBcDeFgHiJkLmNoPqRsTuVwXyZ",
    );
    text(
        "/sys/block/loop0/loop/backing_file",
        "/home/alice/images/disk.img",
    );
    text("/sys/bus/pci/devices/0000:3b:00.0/unique_id", "10884721053");
    text(
        "/sys/class/kfd/kfd/topology/nodes/1/properties",
        "cpu_cores_count 0\ndomain 0\nhive_id 0\nunique_id 10884721053\nlocation_id 15104",
    );
    text(
        "/proc/self/cgroup",
        "0::/kubepods.slice/kubepods-pod3b1de8f1_73c0_4b0c_8e52_0d6c5a4e3f21.slice/\
         cri-containerd-9f2c4e8a7b1d3f5c6e8a0b2d4f6a8c0e1b3d5f7a9c2e4b6d8f0a1c3e5b7d9f10.scope",
    );
    text(
        "/proc/self/mountinfo",
        "22 1 259:2 / / rw,relatime - ext4 /dev/disk/by-id/nvme-SAMSUNG_S6CKNX0T512345-part2 rw,data=ordered\n\
         23 22 0:40 / /data/alice rw - nfs4 filer01.cluster.example.org:/export/alice rw,proto=rdma,addr=10.20.30.5,clientaddr=10.20.30.41\n\
         24 22 0:41 / /scratch rw - lustre meta-a@o2ib:10.20.30.5@o2ib1:/scratch rw,flock\n\
         25 22 0:42 / /share rw - cifs //filer01/share rw,username=bob,password=hunter2",
    );
    snapshot.record(
        "/sys/class/net",
        Observation::Value(Value::List(vec!["enx0c42a11d506a".into(), "lo".into()])),
    );
    snapshot.record(
        "/sys/class/net/enx0c42a11d506a",
        Observation::Value(Value::Link(
            "../../devices/pci0000:3a/0000:3b:00.1/net/enx0c42a11d506a".into(),
        )),
    );
    let mut space = vec![0; 0x110];
    space[0x100..0x104].copy_from_slice(&0x0001_0003_u32.to_le_bytes());
    space[0x104..0x10c].copy_from_slice(&0x0c42_a103_001d_506a_u64.to_le_bytes());
    snapshot.record(
        "/sys/bus/pci/devices/0000:3b:00.1/config",
        Observation::Value(Value::Bytes(space)),
    );
    snapshot.record("/sys/kernel/iommu_groups", Observation::Denied);
    snapshot.record("/sys/module/nvidia_peermem", Observation::Absent);
    snapshot
}

fn text<'s>(snapshot: &'s Snapshot, key: &str) -> &'s str {
    snapshot
        .text(key)
        .unwrap_or_else(|| panic!("`{key}` is gone"))
}

#[test]
fn no_original_survives_anywhere() {
    let json = machine().redacted(11).to_json();
    for original in PLANTED {
        assert!(
            machine().to_json().contains(original),
            "`{original}` was never there"
        );
        assert!(!json.contains(original), "`{original}` is still in\n{json}");
    }
    // The serial number's bytes, in the order they lie in configuration space.
    assert!(!json.contains("6a501d0003a1420c"), "{json}");
}

#[test]
fn redacting_twice_is_redacting_once() {
    let once = machine().redacted(11);
    assert!(once.redacted);
    assert_eq!(once.redacted(11), once);
    assert_eq!(once.redacted(12), once);
}

#[test]
fn the_salt_decides_the_stand_ins() {
    assert_eq!(machine().redacted(1), machine().redacted(1));
    let host = |salt| text(&machine().redacted(salt), "uname:nodename").to_owned();
    assert_ne!(host(1), host(2));
}

#[test]
fn what_joined_two_observations_still_joins_them() {
    let seen = machine().redacted(11);
    let key = |original: &str, prefix: &str| {
        let found = seen.under(prefix).find(|(key, _)| key.ends_with(original));
        found
            .unwrap_or_else(|| panic!("no {original}"))
            .0
            .to_owned()
    };
    // The interface by its name: listing, key, link, variable and GID table.
    let interface = seen
        .list("/sys/class/net")
        .first()
        .expect("an interface")
        .clone();
    assert!(interface.starts_with("enx02"), "{interface}");
    assert_eq!(
        key("/mtu", "/sys/class/net/"),
        format!("/sys/class/net/{interface}/mtu")
    );
    assert_eq!(
        seen.link_name(&format!("/sys/class/net/{interface}")),
        Some(interface.as_str())
    );
    let ports = "/sys/class/infiniband/mlx5_0/ports/1";
    assert_eq!(
        text(&seen, &format!("{ports}/gid_attrs/ndevs/1")),
        interface
    );
    assert_eq!(
        text(&seen, "env:NCCL_SOCKET_IFNAME"),
        format!("={interface},eth0")
    );
    // Its MAC: name, address and link-local GID.
    let address = text(&seen, &format!("/sys/class/net/{interface}/address"));
    assert_eq!(format!("enx{}", address.replace(':', "")), interface);
    // The card by its GUID: device and routable GID.
    let guid = text(&seen, "/sys/class/infiniband/mlx5_0/node_guid");
    assert!(text(&seen, &format!("{ports}/gids/2")).ends_with(guid));
    // The GPU by its UUID.
    assert_eq!(
        text(&seen, "nvml:0/uuid"),
        text(&seen, "env:CUDA_VISIBLE_DEVICES")
    );
    // The address: GID, command line, variable and mount option.
    let master = text(&seen, "env:MASTER_ADDR");
    let [a, b, c, d] = master
        .parse::<std::net::Ipv4Addr>()
        .expect("an address")
        .octets();
    assert_eq!(
        text(&seen, &format!("{ports}/gids/1")),
        format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}")
    );
    let mounts = text(&seen, "/proc/self/mountinfo");
    assert!(mounts.contains(&format!("clientaddr={master}")), "{mounts}");
    assert!(text(&seen, "/proc/cmdline").contains(&format!("ip={master}::")));
    // The host, with and without its domain; the server, in two mounts.
    let node = text(&seen, "uname:nodename");
    let host = node.split('.').next().expect("a host");
    assert_eq!(text(&seen, "env:NCCL_COMM_ID"), format!("{host}:29500"));
    assert_eq!(
        text(&seen, "/sys/block/dm-1/dm/name"),
        format!("{host}-data")
    );
    assert_eq!(
        text(&seen, "/sys/block/dm-0/dm/name"),
        format!("{}-scratch", host.replace('-', "--"))
    );
    let servers: Vec<&str> = mounts
        .split(|c: char| !c.is_alphanumeric() && c != '-')
        .filter(|word| word.starts_with("host-"))
        .collect();
    assert_eq!(servers.len(), 3, "{mounts}");
    assert_eq!(servers[0], servers[2], "{mounts}");
    // The person, in paths, keys and mounts.
    let home = key("/cufile.json", "/home/");
    let person = home.split('/').nth(2).expect("a person");
    assert_eq!(
        text(&seen, "env:NCCL_TOPO_FILE"),
        format!("/home/{person}/topo.xml")
    );
    assert!(mounts.contains(&format!("/data/{person} ")), "{mounts}");
    // The GPU by its number.
    let number = text(&seen, "/sys/bus/pci/devices/0000:3b:00.0/unique_id");
    assert_eq!(
        text(&seen, "/sys/class/kfd/kfd/topology/nodes/1/properties"),
        format!("cpu_cores_count 0\ndomain 0\nhive_id 0\nunique_id {number}\nlocation_id 15104")
    );
    // The drive by its serial number.
    let serial = text(&seen, "/sys/class/nvme/nvme0/serial");
    assert!(
        mounts.starts_with("22 1 259:2 / / rw,relatime - ext4 /dev/disk/by-id/"),
        "{mounts}"
    );
    assert!(serial.starts_with("serial-"), "{serial}");
}

#[test]
fn facts_that_rules_need_survive() {
    let seen = machine().redacted(11);
    for key in [
        "uname:release",
        "env:NCCL_IB_HCA",
        "/sys/class/infiniband/mlx5_0/fw_ver",
        "/sys/class/infiniband/mlx5_0/ports/1/rate",
        "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1",
        "/sys/class/infiniband/mlx5_0/ports/1/gids/3",
        "/sys/class/net/lo/address",
        "/sys/class/nvme/nvme0/model",
        "/sys/class/nvme/nvme0/address",
    ] {
        assert_eq!(text(&seen, key), text(&machine(), key), "{key}");
    }
    let gid = |index: u32| {
        let port = "/sys/class/infiniband/mlx5_0/ports/1/gids";
        text(&seen, &format!("{port}/{index}")).to_owned()
    };
    assert!(gid(0).starts_with("fe80:0000:0000:0000:00"));
    assert!(gid(0).contains("ff:fe"), "{}", gid(0));
    assert!(gid(1).starts_with("0000:0000:0000:0000:0000:ffff:0a"));
    assert!(gid(2).starts_with("2001:0db8:"));
    let command_line = text(&seen, "/proc/cmdline");
    assert!(
        command_line.starts_with("BOOT_IMAGE=/vmlinuz root=UUID="),
        "{command_line}"
    );
    assert!(
        command_line.contains(" ro iommu=pt ip=10."),
        "{command_line}"
    );
    assert!(
        command_line.contains(":255.255.255.0:host-"),
        "{command_line}"
    );
    assert!(
        command_line.ends_with(":eth0:off luks.key=redacted"),
        "{command_line}"
    );
    let mounts: Vec<&str> = text(&seen, "/proc/self/mountinfo").lines().collect();
    assert!(mounts[0].ends_with(" rw,data=ordered"), "{}", mounts[0]);
    assert!(mounts[1].contains(" - nfs4 host-"), "{}", mounts[1]);
    assert!(
        mounts[1].contains("rw,proto=rdma,addr=10."),
        "{}",
        mounts[1]
    );
    assert!(mounts[2].contains("@o2ib:10."), "{}", mounts[2]);
    assert!(
        mounts[2].contains("@o2ib1:/scratch rw,flock"),
        "{}",
        mounts[2]
    );
    assert!(mounts[3].contains("rw,username=user-"), "{}", mounts[3]);
    let uri = text(&seen, "env:MC_METADATA_SERVER");
    assert!(
        uri.starts_with("etcd://redacted@host-") && uri.ends_with(":2379"),
        "{uri}"
    );
    assert_eq!(
        seen.get("/sys/kernel/iommu_groups"),
        Some(&Observation::Denied)
    );
    assert_eq!(
        seen.get("/sys/module/nvidia_peermem"),
        Some(&Observation::Absent)
    );
    assert_eq!(seen.len(), machine().len());
}

#[test]
fn a_redacted_machine_is_the_same_machine() {
    for fixture in [
        machines::dgx_h100(),
        machines::pcie_box(),
        machines::laptop(),
    ] {
        let snapshot = fixture.snapshot();
        let whole = Topology::from_snapshot(&snapshot);
        let mut seen = Topology::from_snapshot(&snapshot.redacted(4));
        // The tables of identifiers are what was replaced; how many there are stays.
        for (nic, original) in seen.nics.iter_mut().zip(&whole.nics) {
            for (port, original) in nic.ports.iter_mut().zip(&original.ports) {
                assert_eq!(port.gids.len(), original.gids.len());
                port.gids.clone_from(&original.gids);
            }
        }
        assert_eq!(seen, whole);
    }
}

#[test]
fn a_host_named_like_a_kernel_word_breaks_nothing() {
    let mut snapshot = Snapshot::new("test", "2026-01-01T00:00:00Z");
    for (key, text) in [
        ("uname:nodename", "block"),
        ("/sys/block/sda/queue/scheduler", "[none] block"),
        ("kconfig:CONFIG_NUMA", "y"),
        (
            "/proc/self/mountinfo",
            "1 0 8:1 / /block rw - ext4 /dev/sda1 rw,data=block",
        ),
    ] {
        snapshot.record(key, Observation::text(text));
    }
    let seen = snapshot.redacted(5);
    assert_eq!(
        text(&seen, "/sys/block/sda/queue/scheduler"),
        "[none] block"
    );
    assert_eq!(text(&seen, "kconfig:CONFIG_NUMA"), "y");
    let mounts = text(&seen, "/proc/self/mountinfo");
    assert!(mounts.starts_with("1 0 8:1 / /host-"), "{mounts}");
    assert!(
        mounts.ends_with(" rw - ext4 /dev/sda1 rw,data=block"),
        "{mounts}"
    );
}

#[test]
fn a_control_groups_name_is_no_persons_and_paths_that_rules_look_for_stay() {
    let mut snapshot = Snapshot::new("test", "2026-01-01T00:00:00Z");
    let table = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                 41 1 0:50 / /data rw - ceph 10.1.2.3:6789:/ rw,name=carol,secret=<hidden>";
    for (key, text) in [
        ("/proc/self/mountinfo", table),
        ("/proc/1/cgroup", "9:name=systemd:/"),
        ("/run/systemd/container", "docker"),
        ("/run/carol", "directory"),
        ("/shared/carol/cufile.json", "{}"),
    ] {
        snapshot.record(key, Observation::text(text));
    }
    let seen = snapshot.redacted(5);
    assert_eq!(text(&seen, "/proc/1/cgroup"), "9:name=systemd:/");
    assert_eq!(text(&seen, "/run/systemd/container"), "docker");
    let mounts = text(&seen, "/proc/self/mountinfo");
    assert!(
        mounts.contains("/systemd rw - cgroup cgroup rw,name=systemd\n"),
        "{mounts}"
    );
    assert!(mounts.contains(":6789:/ rw,name=user-"), "{mounts}");
    assert!(mounts.ends_with(",secret=redacted"), "{mounts}");
    let chosen = seen.under("/shared/user-").count();
    assert_eq!(chosen, 1, "a path that a user chose is replaced");
    assert_eq!(text(&seen, "/run/carol"), "directory");
}

#[test]
fn bytes_of_an_unknown_kind_are_left_out() {
    let mut snapshot = Snapshot::new("test", "2026-01-01T00:00:00Z");
    snapshot.record(
        "/sys/firmware/blob",
        Observation::Value(Value::Bytes(vec![1, 2, 3])),
    );
    assert_eq!(
        snapshot.redacted(5).get("/sys/firmware/blob"),
        Some(&Observation::Error("3 bytes were left out".into()))
    );
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<[u8; 6]>().prop_map(|m| m.map(|b| format!("{b:02x}")).join(":")),
        (11_u8..126, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| format!("{a}.{b}.{c}.{d}")),
        any::<u64>().prop_map(|g| {
            let g = g | 0x0101_0101_0101_0101;
            format!(
                "{:04x}:{:04x}:{:04x}:{:04x}",
                g >> 48,
                g >> 32 & 0xffff,
                g >> 16 & 0xffff,
                g & 0xffff
            )
        }),
        any::<u128>().prop_map(|u| {
            let u = format!("{u:032x}");
            format!(
                "{}-{}-{}-{}-{}",
                &u[..8],
                &u[8..12],
                &u[12..16],
                &u[16..20],
                &u[20..]
            )
        }),
        any::<u128>().prop_map(|u| format!("{u:032x}")),
    ]
}

proptest! {
    #[test]
    fn an_identifier_is_found_between_any_delimiters(
        address in address(),
        before in "[a-z ]{0,8}[ =,(\\[/\"]",
        after in "([ ,)\\]/\"][a-z ]{0,8})?",
    ) {
        prop_assume!(!["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"].contains(&address.as_str()));
        let mut snapshot = Snapshot::new("test", "2026-01-01T00:00:00Z");
        snapshot.record("/etc/some.conf", Observation::text(format!("{before}{address}{after}")));
        let seen = snapshot.redacted(99);
        prop_assert!(!text(&seen, "/etc/some.conf").contains(&address), "{}", text(&seen, "/etc/some.conf"));
    }

    #[test]
    fn any_snapshot_can_be_redacted(
        texts in prop::collection::btree_map("(/sys/|/proc/|env:|/etc/|nvml:)?[ -~é]{0,20}", "[ -~é\n]{0,80}", 0..12),
        host in "[a-z0-9.-]{0,12}",
    ) {
        let mut snapshot = Snapshot::new("test", "2026-01-01T00:00:00Z");
        for (key, text) in &texts {
            snapshot.record(key.as_str(), Observation::text(text.as_str()));
        }
        snapshot.record("uname:nodename", Observation::text(host));
        let mounts = texts.values().cloned().collect::<Vec<_>>().join(" ");
        snapshot.record("/proc/self/mountinfo", Observation::text(mounts));
        let seen = snapshot.redacted(3);
        prop_assert_eq!(&seen, &snapshot.redacted(3));
        prop_assert_eq!(&seen.redacted(3), &seen);
    }
}
