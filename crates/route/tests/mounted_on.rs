//! File systems over several devices, and over other file systems: which block devices hold a file.

use crowfly_route::fixture::{Fixture, machines};
use crowfly_route::place::Place;
use crowfly_route::search::candidates;
use crowfly_route::snapshot::{Observation, Value};

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// The DGX with more lines in its mount table; their root mount is the one of `/`.
fn with_mounts(lines: &[&str]) -> Fixture {
    let mut machine = machines::dgx_h100();
    let table = machine.snapshot().text(MOUNTINFO).map(str::to_owned);
    let table = table.expect("it has mounts");
    let root = table
        .lines()
        .rfind(|line| line.split(' ').nth(4) == Some("/"))
        .and_then(|line| line.split(' ').next())
        .expect("a root");
    let lines: Vec<String> = (900..)
        .zip(lines)
        .map(|(id, line)| format!("{id} {root} {line}"))
        .collect();
    machine.text(MOUNTINFO, format!("{table}\n{}", lines.join("\n")));
    machine
}

fn blocks(machine: &Fixture, path: &str) -> Vec<String> {
    let topology = machine.topology();
    let mount = topology.mount_of(path).expect("mounted");
    let blocks = topology.blocks_of(mount).into_iter();
    blocks.map(str::to_owned).collect()
}

fn names(machine: &Fixture, path: &str) -> Vec<String> {
    let (from, to) = (Place::File(path.into()), Place::Host(None));
    let snapshot = machine.snapshot();
    let found = candidates(&machine.topology(), Some(&snapshot), &from, &to).expect("both exist");
    found.into_iter().map(|c| c.route.name).collect()
}

#[test]
fn given_a_btrfs_over_two_drives_both_hold_its_files() {
    let mut machine = with_mounts(&["0:77 /@ /b rw - btrfs /dev/nvme5n1 rw,subvol=/@"]);
    assert_eq!(
        blocks(&machine, "/b/model"),
        ["nvme5n1"],
        "all that the mount table tells"
    );
    let devices = ["nvme4n1", "nvme5n1"].map(str::to_owned).to_vec();
    machine.observe(
        "/sys/fs/btrfs/0f6a2d3e-8b1c-4d5e-9f70-123456789abc/devices",
        Observation::Value(Value::List(devices)),
    );
    assert_eq!(blocks(&machine, "/b/model"), ["nvme4n1", "nvme5n1"]);
    assert!(names(&machine, "/b/model").contains(&"o-direct".to_owned()));
}

#[test]
fn given_a_bcachefs_all_devices_of_its_source_hold_its_files() {
    let machine =
        with_mounts(&["0:78 / /c rw - bcachefs /dev/nvme4n1:/dev/nvme5n1:/dev/missing rw"]);
    assert_eq!(blocks(&machine, "/c/model"), ["nvme4n1", "nvme5n1"]);
}

#[test]
fn given_an_overlay_whose_layers_share_a_file_system_its_device_holds_the_files() {
    let machine = with_mounts(&[
        "0:79 / /o rw - overlay overlay rw,lowerdir=/scratch5/a:/scratch5/b,upperdir=/scratch5/u",
        // A layer may itself be an overlay.
        "0:80 / /p rw - overlay overlay rw,lowerdir+=/o/l,upperdir=/scratch5/v",
        // The kernel writes a backslash as \\134; it marks a colon that is part of the path.
        "0:81 / /q rw - overlay overlay rw,lowerdir=/scratch5/one\\134:two",
    ]);
    for path in ["/o/model", "/p/model", "/q/model"] {
        assert_eq!(
            blocks(&machine, path),
            blocks(&machine, "/scratch5/m"),
            "{path}"
        );
        assert_eq!(blocks(&machine, path).len(), 1, "{path}");
    }
}

#[test]
fn given_an_overlay_over_two_file_systems_which_of_them_holds_a_file_is_not_guessed() {
    let machine =
        with_mounts(&["0:79 / /o rw - overlay overlay rw,lowerdir=/scratch5/l,upperdir=/data/u"]);
    assert_eq!(blocks(&machine, "/o/model").len(), 2);
    let (from, to) = (Place::File("/o/model".into()), Place::Gpu(0));
    let snapshot = machine.snapshot();
    let found = candidates(&machine.topology(), Some(&snapshot), &from, &to).expect("both exist");
    let said = format!("{found:?}");
    assert!(
        said.contains("lie on the file systems at /data and /scratch5"),
        "{said}"
    );
}

#[test]
fn given_an_overlay_whose_layers_lead_back_to_it_no_device_is_named() {
    // As seen from inside a container: the paths are the host's.
    let machine = with_mounts(&[
        "0:79 / /o rw - overlay overlay rw,lowerdir=/o/l1:/o/l2,upperdir=/o/u",
        "0:80 / /p rw - overlay overlay rw,lowerdir=/q/l",
        "0:81 / /q rw - overlay overlay rw,lowerdir=/p/l",
    ]);
    for path in ["/o/model", "/p/model", "/q/model"] {
        assert_eq!(blocks(&machine, path), Vec::<String>::new(), "{path}");
        assert!(!names(&machine, path).is_empty());
    }
}
