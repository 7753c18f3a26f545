//! cuFile's log and configuration, nvidia-fs statistics, block devices.

use crowfly_doctor::evidence::blocks::BlockDevices;
use crowfly_doctor::evidence::cufile::{CufileConfig, CufileLog, NvidiaFsStats};
use crowfly_doctor::evidence::{Artefact, Document, LineNumber, read};

fn only(text: &str) -> Artefact {
    let Document { sections, .. } = read("x", text.as_bytes());
    assert_eq!(sections.len(), 1, "{sections:?}");
    sections.into_iter().next().unwrap().artefact
}

#[test]
fn given_a_cufile_log_then_messages_gather_by_wording() {
    let Artefact::CufileLog(CufileLog { messages, beyond_limit }) = only(
        " 16-06-2024 05:40:20:816 [pid=30 tid=31] ERROR  cufio-fs:79 mount option not found in mount table data device: /dev/nvme0n1p2
 16-06-2024 05:41:20:816 [pid=32 tid=33] ERROR  cufio-fs:79 mount option not found in mount table data device: /dev/nvme7n1
 16-06-2024 05:41:20:822 [pid=32 tid=33] NOTICE  cufio:293 cuFileHandleRegister GDS not supported or disabled by config
",
    ) else {
        panic!("not a cuFile log")
    };
    assert_eq!((messages.len(), beyond_limit), (2, 0));
    let first = &messages[0];
    assert_eq!(
        (
            first.count,
            first.what.level.as_str(),
            first.what.site.as_str()
        ),
        (2, "ERROR", "cufio-fs:79")
    );
    assert!(first.what.text.ends_with("/dev/nvme0n1p2"));
    assert_eq!(messages[1].first.line, LineNumber(3));
}

const CONFIG: &str = r#"{
    // NOTE : see "the manual" // twice
    "logging": {
            // "dir": "/home/<xxxx>",
            "level": "ERROR"
    },
    "properties": {
            "max_direct_io_size_kb" : 16384, // bytes // more
            "allow_compat_mode": true,
            "posix_pool_slab_size_kb" : [ 4, 1024, 16384 ],
            "rdma_dev_addr_list": [ "10.0.0.1",
                                    "10.0.0.2" ]
    },
    "fs": {
        "generic": { "posix_unaligned_writes" : false },
        "lustre": {
            "posix_gds_min_kb" : 0
        }
    },
    "url": "http://a//b"
}
"#;

#[test]
fn given_a_cufile_configuration_then_comments_go_and_paths_stay() {
    let Artefact::CufileConfig(CufileConfig { values, clipped }) = only(CONFIG) else {
        panic!("not a configuration")
    };
    let value = |path: &str| values.get(path).map(|v| v.value.as_str());
    assert_eq!(value("logging.level"), Some("ERROR"));
    assert_eq!(value("logging.dir"), None);
    assert_eq!(value("properties.allow_compat_mode"), Some("true"));
    assert_eq!(
        values["properties.allow_compat_mode"].cite.line,
        LineNumber(9)
    );
    assert_eq!(value("properties.max_direct_io_size_kb"), Some("16384"));
    assert_eq!(
        value("properties.posix_pool_slab_size_kb"),
        Some("4, 1024, 16384")
    );
    assert_eq!(
        value("properties.rdma_dev_addr_list"),
        Some("10.0.0.1, 10.0.0.2")
    );
    assert_eq!(value("fs.generic.posix_unaligned_writes"), Some("false"));
    assert_eq!(value("fs.lustre.posix_gds_min_kb"), Some("0"));
    assert_eq!(value("url"), Some("http://a//b"));
    assert!(!clipped);
}

#[test]
fn given_a_piece_of_a_configuration_then_it_reads_and_is_marked() {
    let Artefact::CufileConfig(config) = only("\"properties\": {\n  \"use_pci_p2pdma\": true,\n")
    else {
        panic!("not a configuration")
    };
    assert_eq!(config.values["properties.use_pci_p2pdma"].value, "true");
    assert!(config.clipped);
}

#[test]
fn given_nvidia_fs_statistics_then_counters_read_by_line_and_name() {
    let Artefact::NvidiaFsStats(stats) = only(
        "\
GDS Version: 1.10.0.4
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2.20:5)
Mellanox PeerDirect Supported: False
IO stats: Enabled, peer IO stats: Disabled
Logging level: info

Active Shadow-Buffer (MiB): 128
Active Process: 1
Reads                           : n=63 ok=62 err=1 readmb=63 io_state_err=0
Reads                           : Bandwidth(MiB/s)=12 Avg-Latency(usec)=7
Bar1-map                        : n=1 ok=1 err=0 free=0 callbacks=0 active=1
GPU 0000:34:00.0  uuid:abcd : Registered_MiB=128 Cache_MiB=0 max_pinned_MiB=129
",
    ) else {
        panic!("not statistics")
    };
    let NvidiaFsStats {
        gds,
        driver,
        peer_direct,
        io_stats,
        ..
    } = &stats;
    assert_eq!(gds.as_ref().map(|g| g.value.as_str()), Some("1.10.0.4"));
    assert_eq!(driver.as_ref().map(|d| d.value.as_str()), Some("2.20.5"));
    assert_eq!(
        (
            peer_direct.as_ref().map(|p| p.value),
            io_stats.as_ref().map(|i| i.value)
        ),
        (Some(false), Some(true))
    );
    let counter = |line, name| stats.counter(line, name).map(|c| (c.value, c.cite.line.0));
    assert_eq!(counter("Reads", "err"), Some((1, 10)));
    assert_eq!(counter("Reads", "Bandwidth(MiB/s)"), Some((12, 10)));
    assert_eq!(counter("Bar1-map", "active"), Some((1, 12)));
    assert_eq!(counter("Writes", "err"), None);
    assert_eq!(stats.gpus[0].value.0.to_string(), "0000:34:00.0");
    assert_eq!(stats.gpus[0].value.1["Registered_MiB"], 128);
}

#[test]
fn given_lsblk_then_arrays_and_mounts_hang_on_their_drives() {
    let Artefact::BlockDevices(BlockDevices { devices }) = only(
        "\
NAME                      MAJ:MIN RM   SIZE RO TYPE  MOUNTPOINTS
nvme0n1                   259:0    0 931.5G  0 disk
└─md127                     9:127  0   7.3T  0 raid0 /mnt/raid
nvme6n1                   259:2    0   1.9T  0 disk
├─nvme6n1p1               259:9    0     1G  0 part  /boot/efi
└─nvme6n1p3               259:11   0   1.9T  0 part
  └─vg-lv                 252:0    0   1.9T  0 lvm   /
                                                     /home
",
    ) else {
        panic!("not a list")
    };
    let on = |name: &str| {
        devices
            .iter()
            .find(|d| d.name == name)
            .and_then(|d| d.on.clone())
    };
    assert_eq!(on("md127").as_deref(), Some("nvme0n1"));
    assert_eq!(on("vg-lv").as_deref(), Some("nvme6n1p3"));
    assert_eq!(on("nvme6n1"), None);
    assert_eq!(
        (devices[1].kind.as_str(), devices[1].size.as_deref()),
        ("raid0", Some("7.3T"))
    );
    assert_eq!(devices[5].mounts, ["/", "/home"]);
}
