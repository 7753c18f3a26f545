//! What is recorded of ordinary and of odd machines.

use std::io::Write;

use crowfly_machine::Options;
use crowfly_route::fixture::machines;
use crowfly_route::snapshot::{Observation, Value};
use crowfly_route::topology::Topology;
use flate2::{Compression, write::GzEncoder};

use crate::tree::{Tree, materialised};

fn list(names: &[&str]) -> Option<Observation> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Some(Observation::Value(Value::List(names)))
}

#[test]
fn given_no_sys_and_no_proc_everything_is_absent_and_nothing_live_is_consulted() {
    let seen = Tree::new().look();
    for key in [
        "/sys/bus/pci/devices",
        "/sys/devices/system/node",
        "/sys/class/net",
        "/sys/class/infiniband",
        "/sys/block",
        "/proc/self/mountinfo",
        "/proc/cpuinfo",
        "/proc/cmdline",
        "/sys/module/nvidia_peermem",
        "/dev/infiniband",
        "kconfig:source",
    ] {
        assert_eq!(seen.get(key), Some(&Observation::Absent), "{key}");
    }
    let values: Vec<&str> = seen
        .iter()
        .filter(|(_, seen)| !matches!(seen, Observation::Absent))
        .map(|(key, _)| key)
        .collect();
    assert!(values.is_empty(), "{values:?}");
    for live in [
        "env:",
        "uname:",
        "limit:",
        "call:",
        "statfs:",
        "library:",
        "nvml:",
        "kconfig:CONFIG",
    ] {
        assert_eq!(seen.under(live).count(), 0, "{live} was looked at");
    }
}

#[test]
fn given_an_empty_sys_directories_without_entries_are_told_from_missing_ones() {
    let tree = Tree::new();
    tree.dir("/sys/bus/pci/devices").dir("/sys/class/iommu");
    let seen = tree.look();
    assert_eq!(seen.get("/sys/bus/pci/devices").cloned(), list(&[]));
    assert_eq!(seen.get("/sys/class/iommu").cloned(), list(&[]));
    assert_eq!(
        seen.get("/sys/class/infiniband"),
        Some(&Observation::Absent)
    );
}

#[test]
fn given_odd_addresses_they_are_recorded_as_they_are() {
    let tree = Tree::new();
    for address in ["ffff:ff:1f.7", "10000:e1:00.0", "0000:00:00.0"] {
        let attribute = format!("/sys/bus/pci/devices/{address}/numa_node");
        tree.function(address).file(&attribute, "-1\n");
    }
    let seen = tree.look();
    let devices = ["0000:00:00.0", "10000:e1:00.0", "ffff:ff:1f.7"];
    assert_eq!(seen.get("/sys/bus/pci/devices").cloned(), list(&devices));
    for address in devices {
        let attribute = format!("/sys/bus/pci/devices/{address}/numa_node");
        assert_eq!(seen.text(&attribute), Some("-1"));
    }
    let home = seen.link("/sys/bus/pci/devices/ffff:ff:1f.7");
    assert_eq!(home, Some("../../../devices/pci0000:00/ffff:ff:1f.7"));
}

#[test]
fn given_a_removed_device_its_link_and_an_error_are_recorded_and_the_others_are_seen() {
    let tree = Tree::new();
    let removed = "/sys/bus/pci/devices/0000:3b:00.0";
    tree.link(removed, "../../../devices/pci0000:3a/0000:3b:00.0")
        .function("0000:5e:00.0")
        .file("/sys/bus/pci/devices/0000:5e:00.0/vendor", "0x15b3\n")
        .file("/sys/bus/pci/devices/odd", "");
    let seen = tree.look();
    assert_eq!(
        seen.link(removed),
        Some("../../../devices/pci0000:3a/0000:3b:00.0")
    );
    let why = |device: &str, what: &str| {
        let why =
            format!("`{device}` is listed but is not a directory that can be entered: {what}");
        Some(Observation::Error(why))
    };
    let vendor = seen.get("/sys/bus/pci/devices/0000:3b:00.0/vendor");
    assert_eq!(vendor.cloned(), why(removed, "absent"));
    let vendor = seen.get("/sys/bus/pci/devices/odd/vendor");
    assert_eq!(vendor.cloned(), why("/sys/bus/pci/devices/odd", "file"));
    assert_eq!(
        seen.text("/sys/bus/pci/devices/0000:5e:00.0/vendor"),
        Some("0x15b3")
    );
}

#[test]
fn given_what_this_user_may_not_read_it_is_denied_and_not_absent() {
    let tree = Tree::new();
    tree.function("0000:00:01.0")
        .file("/sys/bus/pci/devices/0000:00:01.0/config", [0; 256])
        .forbid("/sys/devices/pci0000:00/0000:00:01.0/config")
        .dir("/sys/class/infiniband/mlx5_0")
        .forbid("/sys/class/infiniband")
        .file("/boot/config-6.1.0", "CONFIG_PCI_P2PDMA=y\n")
        .forbid("/boot/config-6.1.0")
        .file("/proc/sys/kernel/osrelease", "6.1.0\n")
        .file("/proc/kallsyms", "")
        .forbid("/proc/kallsyms")
        .dir("/sys/module/nvidia/parameters")
        .dir("/run/udev")
        .forbid("/run/udev");
    let seen = tree.look_unprivileged();
    for key in [
        "/sys/bus/pci/devices/0000:00:01.0/config",
        "/sys/class/infiniband",
        "kconfig:source",
        "kallsyms:ib_register_peer_memory_client",
        "/run/udev",
    ] {
        assert_eq!(seen.get(key), Some(&Observation::Denied), "{key}");
    }
    assert_eq!(seen.get("/sys/class/nvme"), Some(&Observation::Absent));
    assert_eq!(seen.get("kconfig:CONFIG_PCI_P2PDMA"), None, "not looked at");
}

#[test]
fn given_a_sleeping_device_it_is_not_woken() {
    let tree = Tree::new();
    let device = "/sys/bus/pci/devices/0000:01:00.0";
    tree.function("0000:01:00.0")
        .file(&format!("{device}/power_state"), "D3cold\n")
        .file(&format!("{device}/vendor"), "0x10de\n")
        .file(&format!("{device}/config"), [0; 256])
        .file(&format!("{device}/current_link_speed"), "2.5 GT/s PCIe\n");
    let seen = tree.look();
    assert_eq!(seen.text(&format!("{device}/vendor")), Some("0x10de"));
    for attribute in ["config", "current_link_speed", "current_link_width"] {
        assert_eq!(
            seen.get(&format!("{device}/{attribute}"))
                .map(Observation::shows)
                .as_deref(),
            Some("error: not read: the device sleeps in D3cold, and reading would wake it")
        );
    }
}

#[test]
fn given_configuration_space_what_the_kernel_shows_is_recorded() {
    let tree = Tree::new();
    let mut chain = vec![0; 4096];
    chain[0x100..0x104].copy_from_slice(&0x2001_0001_u32.to_le_bytes());
    chain[0x200..0x204].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    for (address, bytes) in [
        ("0000:00:01.0", vec![1; 64]),
        ("0000:00:02.0", vec![2; 256]),
        ("0000:00:03.0", chain.clone()),
    ] {
        let config = format!("/sys/bus/pci/devices/{address}/config");
        tree.function(address).file(&config, bytes);
    }
    let seen = tree.look();
    let config = |address: &str| seen.bytes(&format!("/sys/bus/pci/devices/{address}/config"));
    assert_eq!(config("0000:00:01.0"), Some([1; 64].as_slice()));
    assert_eq!(config("0000:00:02.0"), Some([2; 256].as_slice()));
    assert_eq!(
        config("0000:00:03.0"),
        Some(&chain[..0x208]),
        "to the end of ACS"
    );
}

#[test]
fn given_no_mountinfo_the_older_table_is_recorded_and_else_not() {
    let tree = Tree::new();
    tree.file("/proc/mounts", "/dev/sda1 / ext4 rw 0 0\n");
    assert_eq!(
        tree.look().text("/proc/mounts"),
        Some("/dev/sda1 / ext4 rw 0 0")
    );
    tree.file(
        "/proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
    );
    assert_eq!(tree.look().get("/proc/mounts"), None);
}

#[test]
fn given_the_kernels_configuration_packed_or_plain_its_options_are_recorded() {
    let text = "CONFIG_PCI_P2PDMA=y\n# CONFIG_INFINIBAND is not set\nCONFIG_BLK_DEV_NVME=m\n";
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).expect("into memory");
    let gzip = gzip.finish().expect("into memory");
    let packed = Tree::new();
    packed.file("/proc/config.gz", gzip);
    let plain = Tree::new();
    plain
        .file(
            "/proc/version",
            "Linux version 6.8.0-45-generic (gcc) #45\n",
        )
        .file("/boot/config-6.8.0-45-generic", text);
    for (tree, source) in [
        (packed, "/proc/config.gz"),
        (plain, "/boot/config-6.8.0-45-generic"),
    ] {
        let seen = tree.look();
        assert_eq!(seen.text("kconfig:source"), Some(source));
        assert_eq!(seen.text("kconfig:CONFIG_PCI_P2PDMA"), Some("y"));
        assert_eq!(seen.text("kconfig:CONFIG_INFINIBAND"), Some("n"));
        assert_eq!(seen.text("kconfig:CONFIG_BLK_DEV_NVME"), Some("m"));
        assert_eq!(
            seen.get("kconfig:CONFIG_HSA_AMD"),
            Some(&Observation::Absent)
        );
    }
}

#[test]
fn given_a_release_that_is_a_path_no_configuration_is_looked_for_there() {
    let tree = Tree::new();
    tree.file("/proc/sys/kernel/osrelease", "../etc/passwd\n")
        .file("/etc/passwd", "CONFIG_PCI_P2PDMA=y\n")
        .dir("/boot/config-..");
    let seen = tree.look();
    assert_eq!(seen.get("kconfig:source"), Some(&Observation::Absent));
}

#[test]
fn given_drivers_that_use_them_symbols_are_looked_for_and_else_not() {
    let tree = Tree::new();
    tree.file(
        "/proc/kallsyms",
        "0000000000000000 T _text\n0000000000000000 T ib_register_peer_memory_client\t[ib_core]\n",
    )
    .file("/boot/config-6.1.0", "")
    .file("/proc/sys/kernel/osrelease", "6.1.0\n");
    assert_eq!(tree.look().under("kallsyms:").count(), 0);
    tree.file("/sys/module/ib_core/refcnt", "3\n");
    let seen = tree.look();
    assert_eq!(
        seen.text("kallsyms:ib_register_peer_memory_client"),
        Some("T [ib_core]")
    );
    assert_eq!(
        seen.get("kallsyms:nvme_v1_register_nvfs_dma_ops"),
        Some(&Observation::Absent)
    );
}

#[test]
fn given_modules_their_addresses_are_not_recorded() {
    let tree = Tree::new();
    tree.file(
        "/proc/modules",
        "nvme 53248 2 - Live 0xffffffffc0a00000\nnvidia 9000000 5 nvidia_uvm, Live 0xffffffffc1a00000 (OE)\n",
    )
    .file("/sys/module/nvidia/version", "570.86.15\n");
    let seen = tree.look();
    assert_eq!(
        seen.text("/proc/modules"),
        Some("nvme 53248 2 - Live\nnvidia 9000000 5 nvidia_uvm, Live (OE)")
    );
    assert_eq!(seen.text("/sys/module/nvidia/version"), Some("570.86.15"));
    assert_eq!(seen.get("/sys/module/nvidia").cloned(), list(&["version"]));
}

#[test]
fn given_many_processors_only_the_first_is_described_and_all_packages_are_named() {
    let tree = Tree::new();
    let block = |n: u32| format!("processor\t: {n}\nvendor_id\t: AuthenticAMD\n\n");
    tree.file("/proc/cpuinfo", (0..512).map(block).collect::<String>());
    for cpu in [0, 1, 10] {
        let package = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        tree.file(&package, format!("{}\n", cpu / 10));
    }
    tree.dir("/sys/devices/system/cpu/cpufreq");
    let seen = tree.look();
    assert_eq!(
        seen.text("/proc/cpuinfo"),
        Some("processor\t: 0\nvendor_id\t: AuthenticAMD")
    );
    let packages: Vec<String> = seen
        .under("/sys/devices/system/cpu/cpu")
        .map(|(_, package)| package.shows())
        .collect();
    assert_eq!(packages, ["0", "0", "1"]);
}

#[test]
fn given_a_long_table_of_gids_zero_ones_beyond_the_first_are_left_out() {
    let tree = Tree::new();
    let port = "/sys/class/infiniband/mlx5_0/ports/1";
    let zero = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    for index in 0..256 {
        tree.file(&format!("{port}/gids/{index}"), zero);
    }
    for index in [0, 200] {
        let gid = "0000:0000:0000:0000:0000:ffff:0a00:0001\n";
        tree.file(&format!("{port}/gids/{index}"), gid)
            .file(&format!("{port}/gid_attrs/types/{index}"), "RoCE v2\n");
    }
    tree.file(&format!("{port}/counters/symbol_error"), "0\n")
        .file(&format!("{port}/hw_counters/lifespan"), "10\n");
    let seen = tree.look();
    assert_eq!(seen.under(&format!("{port}/gids/")).count(), 17);
    assert_eq!(
        seen.text(&format!("{port}/gid_attrs/types/200")),
        Some("RoCE v2")
    );
    assert_eq!(seen.get(&format!("{port}/gid_attrs/types/1")), None);
    assert_eq!(
        seen.text(&format!("{port}/counters/symbol_error")),
        Some("0")
    );
    assert_eq!(seen.get(&format!("{port}/hw_counters/lifespan")), None);
}

#[test]
fn given_block_devices_their_stacks_are_recorded_and_empty_ones_passed_over() {
    let tree = Tree::new();
    tree.file("/sys/block/sda/size", "1000\n")
        .file("/sys/block/sda/queue/logical_block_size", "512\n")
        .file("/sys/block/sda/sda1/partition", "1\n")
        .file("/sys/block/sda/sda1/size", "900\n")
        .link("/sys/block/sda/sda1/holders/dm-0", "../../../dm-0")
        .file("/sys/block/dm-0/size", "900\n")
        .file("/sys/block/dm-0/dm/uuid", "LVM-abc\n")
        .link("/sys/block/dm-0/slaves/sda1", "../../sda/sda1")
        .file("/sys/block/loop0/size", "0\n")
        .file("/sys/block/loop0/queue/logical_block_size", "512\n");
    let seen = tree.look();
    let text = |path: &str| seen.text(&format!("/sys/block/{path}"));
    assert_eq!(text("sda/queue/logical_block_size"), Some("512"));
    assert_eq!(text("sda/sda1/size"), Some("900"));
    assert_eq!(
        seen.get("/sys/block/sda/sda1/holders").cloned(),
        list(&["dm-0"])
    );
    assert_eq!(seen.get("/sys/block/dm-0/slaves").cloned(), list(&["sda1"]));
    assert_eq!(text("dm-0/dm/uuid"), Some("LVM-abc"));
    assert_eq!(text("loop0/size"), Some("0"));
    assert_eq!(seen.get("/sys/block/loop0/queue/logical_block_size"), None);
}

#[test]
fn given_a_copied_tree_with_a_btrfs_over_two_disks_both_are_found_and_the_kernel_is_named() {
    const FILE_SYSTEM: &str = "0f6a2d3e-8b1c-4d5e-9f70-123456789abc";
    let tree = Tree::new();
    tree.file("/proc/sys/kernel/osrelease", "6.12.1-copied\n")
        .file(
            "/proc/self/mountinfo",
            "1 0 0:30 /@ / rw - btrfs /dev/vdb1 rw,subvol=/@\n",
        )
        .dir("/sys/fs/btrfs/features")
        .link(
            &format!("/sys/fs/btrfs/{FILE_SYSTEM}/devices/vda"),
            "../../vda",
        )
        .link(
            &format!("/sys/fs/btrfs/{FILE_SYSTEM}/devices/vdb1"),
            "../../vdb1",
        )
        .file("/sys/block/vda/size", "1000")
        .file("/sys/block/vdb/size", "1000")
        .file("/sys/block/vdb/vdb1/partition", "1");
    let seen = tree.look();
    let key = format!("/sys/fs/btrfs/{FILE_SYSTEM}/devices");
    assert_eq!(seen.get(&key).cloned(), list(&["vda", "vdb1"]));
    assert_eq!(seen.get("/sys/fs/btrfs/features/devices"), None);
    let topology = Topology::from_snapshot(&seen);
    assert_eq!(topology.host.kernel.as_deref(), Some("6.12.1-copied"));
    let mount = topology.mount_of("/model").expect("the root");
    assert_eq!(topology.blocks_of(mount), ["vda", "vdb1"]);
    let redacted = seen.redacted(1).to_json();
    assert!(!redacted.contains(FILE_SYSTEM), "it names the machine");
}

#[test]
fn given_a_copy_of_a_machine_the_same_machine_is_decoded_from_it() {
    for (name, fixture) in [
        ("dgx", machines::dgx_h100()),
        ("box", machines::pcie_box()),
        ("laptop", machines::laptop()),
    ] {
        let whole = Topology::from_snapshot(&fixture.snapshot());
        let seen = Topology::from_snapshot(&materialised(&fixture.snapshot()).look());
        assert_eq!(seen.numa, whole.numa, "{name}");
        assert_eq!(seen.pci, whole.pci, "{name}");
        assert_eq!(seen.nics, whole.nics, "{name}");
        assert_eq!(seen.drives, whole.drives, "{name}");
        assert_eq!(seen.blocks, whole.blocks, "{name}");
        assert_eq!(seen.mounts, whole.mounts, "{name}");
        assert_eq!(seen.gpus.len(), whole.gpus.len(), "{name}");
        assert_eq!(seen.oddities, whole.oddities, "{name}");
    }
}

#[test]
fn given_an_unchanged_machine_two_looks_see_the_same() {
    let tree = materialised(&machines::pcie_box().snapshot());
    let (mut first, second) = (tree.look(), tree.look());
    first.taken.clone_from(&second.taken);
    assert_eq!(first, second);
}

#[test]
fn given_no_wish_for_configuration_space_it_stays_not_looked_at_and_links_are_still_seen() {
    let home = "/sys/bus/pci/devices/0000:00:01.0";
    let tree = Tree::new();
    tree.function("0000:00:01.0")
        .file(&format!("{home}/current_link_speed"), "32.0 GT/s PCIe\n")
        .file(&format!("{home}/config"), [0; 256]);
    let mut options = Options::default();
    options.config_space = false;
    let seen = tree.look_with(&options);
    assert_eq!(seen.get(&format!("{home}/config")), None);
    assert_eq!(
        seen.text(&format!("{home}/current_link_speed")),
        Some("32.0 GT/s PCIe")
    );
    let all = tree.look();
    assert_eq!(
        all.bytes(&format!("{home}/config")).map(<[u8]>::len),
        Some(256)
    );
}
