//! Trees that someone made to mislead, block or exhaust the look.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;

use crowfly_machine::{Root, TRUNCATED};
use crowfly_route::snapshot::{MAX_SNAPSHOT_BYTES, MAX_VALUE_BYTES, Observation, Snapshot, Value};
use crowfly_route::topology::Topology;
use crowfly_waive::waived;

use crate::tree::Tree;

/// Almost the longest name that file systems take.
const NAME_BYTES: usize = 250;
const MTU: &str = "/sys/class/net/eth0/mtu";

fn error(what: &str) -> Option<Observation> {
    Some(Observation::Error(what.into()))
}

#[test]
fn given_a_link_out_of_the_root_nothing_outside_is_read() {
    let outside = tempfile::tempdir().expect("a directory");
    fs::write(outside.path().join("secret"), "outside").expect("written");
    let secret = outside.path().join("secret");
    let up = format!("../../../../../../../../../..{}", secret.display());
    for target in [secret.display().to_string(), up] {
        let tree = Tree::new();
        tree.link(MTU, &target);
        let seen = tree.look();
        assert_eq!(seen.get(MTU), Some(&Observation::Absent), "{target}");
        assert!(!seen.to_json().contains("outside"));
    }
}

#[test]
fn given_an_absolute_link_it_is_resolved_within_the_root() {
    let tree = Tree::new();
    tree.file("/elsewhere/mtu", "1500\n")
        .link(MTU, "/elsewhere/mtu");
    assert_eq!(tree.look().text(MTU), Some("1500"));
}

#[test]
fn given_a_link_where_a_link_is_expected_it_is_recorded_as_written_and_not_followed() {
    let tree = Tree::new();
    tree.function("0000:00:01.0").link(
        "/sys/bus/pci/devices/0000:00:01.0/driver",
        "/etc/../../../passwd",
    );
    let seen = tree.look();
    let driver = seen.link("/sys/bus/pci/devices/0000:00:01.0/driver");
    assert_eq!(driver, Some("/etc/../../../passwd"));
}

#[test]
fn given_links_in_circles_the_look_ends_with_an_error() {
    let tree = Tree::new();
    tree.link(MTU, "mtu").link("/sys/block", "block");
    let seen = tree.look();
    let circles = error("Too many levels of symbolic links (os error 40)");
    assert_eq!(seen.get(MTU).cloned(), circles);
    assert_eq!(seen.get("/sys/block").cloned(), circles);
}

#[test]
fn given_a_fifo_a_socket_or_a_directory_in_place_of_a_file_it_is_not_opened() {
    let tree = Tree::new();
    tree.fifo(MTU)
        .dir("/sys/class/net/eth0/speed")
        .fifo("/proc/self/mountinfo")
        .fifo("/proc/config.gz")
        .fifo("/proc/modules")
        .fifo("/proc/cpuinfo");
    let _socket = UnixListener::bind(tree.place("/sys/class/net/eth0/flags")).expect("bound");
    let seen = tree.look();
    assert_eq!(seen.get(MTU).cloned(), error("FIFO, not a file"));
    assert_eq!(
        seen.get("/sys/class/net/eth0/flags").cloned(),
        error("socket, not a file")
    );
    assert_eq!(
        seen.get("/sys/class/net/eth0/speed").cloned(),
        error("directory, not a file")
    );
    for path in ["/proc/self/mountinfo", "/proc/modules", "/proc/cpuinfo"] {
        assert_eq!(seen.get(path).cloned(), error("FIFO, not a file"), "{path}");
    }
    assert_eq!(
        seen.get("kconfig:source").cloned(),
        error("FIFO, not a file")
    );
}

#[test]
fn given_a_fifo_in_place_of_a_directory_it_is_absent() {
    let tree = Tree::new();
    tree.fifo("/sys/bus/pci/devices").file("/sys/block", "");
    let seen = tree.look();
    assert_eq!(seen.get("/sys/bus/pci/devices"), Some(&Observation::Absent));
    assert_eq!(seen.get("/sys/block"), Some(&Observation::Absent));
}

#[test]
fn given_files_of_a_terabyte_nothing_of_that_size_is_read() {
    let tree = Tree::new();
    tree.function("0000:00:01.0");
    for path in [
        MTU,
        "/proc/meminfo",
        "/proc/cpuinfo",
        "/proc/self/mountinfo",
        "/proc/config.gz",
        "/proc/kallsyms",
        "/sys/bus/pci/devices/0000:00:01.0/config",
    ] {
        let file = File::create(tree.place(path)).expect("created");
        file.set_len(1 << 40).expect("sparse");
    }
    let seen = tree.look();
    assert_eq!(seen.get(MTU).cloned(), error("more than 65536 bytes"));
    assert_eq!(
        seen.get("/proc/self/mountinfo").cloned(),
        error("more than 1048576 bytes")
    );
    assert_eq!(
        seen.get("kconfig:source").cloned(),
        error("more than 4194304 bytes")
    );
    assert_eq!(
        seen.bytes("/sys/bus/pci/devices/0000:00:01.0/config")
            .map(<[u8]>::len),
        Some(0x104),
        "an empty chain of capabilities"
    );
    assert!(seen.to_json().len() < 1 << 20);
}

#[test]
fn given_names_that_steer_a_terminal_or_are_no_text_the_snapshot_still_reads_back() {
    let tree = Tree::new();
    tree.file("/sys/class/net/eth0\n\u{1b}[2J/mtu", "9000");
    let odd = tree
        .at("/sys/class/net")
        .join(OsStr::from_bytes(b"eth\xff"));
    fs::create_dir(odd).expect("created");
    let seen = tree.look();
    assert_eq!(
        seen.text("/sys/class/net/eth0\n\u{1b}[2J/mtu"),
        Some("9000")
    );
    assert!(
        seen.list("/sys/class/net")
            .contains(&"eth\u{fffd}".to_owned())
    );
    assert!(matches!(
        seen.get("/sys/class/net/eth\u{fffd}/operstate"),
        Some(Observation::Error(_))
    ));
    let read = Snapshot::from_json(seen.to_json().as_bytes()).expect("our own text");
    assert_eq!(read, seen);
}

#[test]
fn given_bytes_that_are_no_text_they_are_replaced_and_not_lost() {
    let tree = Tree::new();
    tree.file(MTU, b"90\xff00\n\0\0");
    assert_eq!(tree.look().text(MTU), Some("90\u{fffd}00"));
}

#[test]
fn given_a_directory_with_more_names_than_a_value_holds_it_is_an_error() {
    let tree = Tree::new();
    tree.dir("/sys/bus/pci/slots");
    let entries = MAX_VALUE_BYTES / NAME_BYTES + 1;
    for entry in 0..entries {
        let name = format!("/sys/bus/pci/slots/{entry:0NAME_BYTES$}");
        File::create(tree.at(&name)).expect("created");
    }
    assert_eq!(
        tree.look().get("/sys/bus/pci/slots").cloned(),
        error("more than 65536 entries or 1048576 bytes of names")
    );
}

#[test]
fn given_more_than_a_snapshot_may_hold_the_capture_is_cut_and_says_so() {
    let tree = Tree::new();
    // The worst text there is: each byte becomes six of JSON.
    let page = tree.place("/page");
    fs::write(&page, vec![1; 64 << 10]).expect("written");
    for number in 0..160 {
        let address = format!("0000:{number:02x}:00.0");
        tree.function(&address);
        let label = tree.at(&format!("/sys/devices/pci0000:00/{address}/label"));
        fs::hard_link(&page, label).expect("linked");
    }
    let seen = tree.look();
    let json = seen.to_json();
    assert!(json.len() < MAX_SNAPSHOT_BYTES, "{}", json.len());
    assert_eq!(
        Snapshot::from_json(json.as_bytes()).expect("it reads back"),
        seen
    );
    let Some(Observation::Error(what)) = seen.get(TRUNCATED) else {
        panic!("it does not say that it was cut")
    };
    assert!(
        what.contains("/label` and what followed was left out"),
        "{what}"
    );
    assert!(
        !seen
            .iter()
            .any(|(key, _)| key.starts_with("/sys/class/net")),
        "what comes later is left out as a whole"
    );
}

#[test]
fn given_what_is_no_directory_there_is_no_root() {
    let tree = Tree::new();
    tree.file("/file", "").fifo("/fifo");
    for path in ["/file", "/fifo", "/missing"] {
        let error = Root::tree(tree.at(path)).expect_err("no directory");
        assert_eq!(error.code(), "root-unreadable");
        assert_eq!(error.path, tree.at(path));
    }
}

#[test]
fn given_a_list_of_links_their_names_are_listed_and_nothing_is_followed() {
    let tree = Tree::new();
    tree.link("/sys/block/sda", "/nowhere");
    let seen = tree.look();
    assert_eq!(
        seen.get("/sys/block"),
        Some(&Observation::Value(Value::List(vec!["sda".into()])))
    );
    assert_eq!(seen.link("/sys/block/sda"), Some("/nowhere"));
    assert_eq!(
        seen.get("/sys/block/sda/dev").cloned(),
        error("`/sys/block/sda` is listed but is not a directory that can be entered: absent")
    );
}

#[test]
fn given_devices_in_place_of_files_they_are_not_opened() {
    let tree = Tree::new();
    tree.function("0000:00:01.0");
    let config = "/sys/bus/pci/devices/0000:00:01.0/config";
    for path in [MTU, "/proc/cpuinfo", "/proc/self/mountinfo", config] {
        // `/dev/zero` never ends; a number without a driver does not open at all.
        if !tree.character_device(path, 1, 5) {
            waived!("device nodes cannot be made here");
        }
    }
    let seen = tree.look();
    for path in [MTU, "/proc/cpuinfo", "/proc/self/mountinfo", config] {
        assert_eq!(seen.get(path).cloned(), error("char, not a file"), "{path}");
    }
}

#[test]
fn given_directories_of_a_hundred_thousand_entries_the_look_ends_and_says_what_it_left_out() {
    const ENTRIES: usize = 100_000;
    let tree = Tree::new();
    let crowd = tree.place("/crowd/0");
    for entry in 0..ENTRIES {
        let name = crowd.with_file_name(entry.to_string());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            name,
            rustix::fs::FileType::RegularFile,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .expect("an empty file");
    }
    for place in ["/sys/class/net", "/sys/fs/btrfs", "/dev", "/sys/block/sda"] {
        tree.link(place, "/crowd");
    }
    let seen = tree.look();
    assert_eq!(
        seen.get("/sys/class/net").cloned(),
        error("more than 65536 entries or 1048576 bytes of names")
    );
    assert_eq!(seen.get(TRUNCATED), None, "little of it was looked at");
}

#[test]
fn given_links_that_multiply_one_directory_the_look_ends_and_says_that_it_was_cut() {
    const ENTRIES: usize = 3_000;
    let tree = Tree::new();
    tree.file("/disk/size", "8");
    for entry in 0..ENTRIES {
        tree.file(&format!("/disk/entry{entry}"), "");
        tree.link(&format!("/sys/block/disk{entry}"), "/disk");
    }
    tree.file(MTU, "1500");
    let seen = tree.look();
    // Each of 3,000 disks seems to have 3,000 entries that may be partitions: nine million looks.
    let Some(Observation::Error(what)) = seen.get(TRUNCATED) else {
        panic!("it does not say that it was cut")
    };
    assert_eq!(
        what,
        "the machine has more to look at than 1048576 steps; the rest was left out"
    );
    assert_eq!(seen.text(MTU), Some("1500"), "what came before is kept");
    assert_eq!(
        seen.get("/proc/version").cloned(),
        error("not looked at: the capture already took 1048576 steps")
    );
}

#[test]
fn given_configuration_space_of_an_odd_length_what_is_there_is_recorded_and_decoded() {
    // Beyond the first 256 bytes, what is worth reading is told by a whole header of four.
    let recorded = [
        (0, 0),
        (1, 1),
        (3, 3),
        (63, 63),
        (255, 255),
        (257, 256),
        (259, 256),
        (4095, 260),
    ];
    for (length, expected) in recorded {
        let tree = Tree::new();
        let home = "/sys/bus/pci/devices/0000:00:01.0";
        tree.function("0000:00:01.0")
            .file(&format!("{home}/vendor"), "0x10de")
            .file(&format!("{home}/class"), "0x030200")
            // All ones, as a device that fell off the bus answers: every pointer leads far away.
            .file(&format!("{home}/config"), vec![0xff; length]);
        let seen = tree.look();
        let recorded = seen.bytes(&format!("{home}/config")).map(<[u8]>::len);
        assert_eq!(recorded, Some(expected));
        let topology = Topology::from_snapshot(&seen);
        assert_eq!(topology.pci.len(), 1, "{length}");
    }
}
