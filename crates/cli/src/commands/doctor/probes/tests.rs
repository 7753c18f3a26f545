//! What was tried out, by children that say what is written here.

use std::path::Path;
use std::time::Duration;

use crowfly_doctor::Case;
use crowfly_machine::trial::Step;
use crowfly_route::snapshot::Snapshot;

use super::*;

fn step(step: &str, answer: Answer) -> Step {
    Step {
        step: step.into(),
        answer,
    }
}

#[test]
fn given_a_child_that_hung_the_step_it_hung_in_is_named_and_what_came_before_is_kept() {
    let refused = Answer::Refused {
        why: "no".into(),
        code: Some(801),
    };
    let outcome = Outcome {
        steps: vec![
            step("gpus", Answer::Done("2".into())),
            step("export 0000:10:00.0", refused),
            step("gpu 0000:11:00.0", Answer::Began),
        ],
        end: End::TimedOut(Duration::from_secs(20)),
        log: vec![],
    };
    let told = OfRuntime::of(Dialect::Cuda, outcome);
    let ended = told.ended.as_deref();
    assert_eq!(ended, Some("gpu 0000:11:00.0 did not end within 20 s"));
    let works: Vec<bool> = told.steps.iter().map(|tried| tried.works).collect();
    assert_eq!(works, [true, false]);
}

/// A machine of which this was seen.
fn machine(seen: &[(&str, Observation)]) -> Machine {
    let mut snapshot = Snapshot::new("crowfly", "2026-11-30T00:00:00Z");
    for (key, observation) in seen {
        snapshot.record(*key, observation.clone());
    }
    let mut case = Case::new();
    case.add_snapshot("a test", snapshot);
    case.machines.remove(0)
}

#[test]
fn the_window_of_each_gpu_is_held_against_its_memory_and_what_was_not_told_is_no_window_of_none() {
    let text = Observation::text;
    let seen = machine(&[
        ("nvml:0/bus_id", text("00000000:1B:00.0")),
        ("nvml:0/memory", text("85899345920")),
        ("nvml:0/bar1", text("137438953472")),
        ("nvml:1/bus_id", text("00000000:3D:00.0")),
        ("nvml:1/memory", text("25769803776")),
        ("nvml:1/bar1", text("268435456")),
        ("nvml:2/bus_id", text("00000000:4E:00.0")),
        ("nvml:2/memory", text("85899345920")),
        ("nvml:2/bar1", Observation::Error("Not Supported".into())),
        ("nvml:3/bar1", text("137438953472")),
        ("nvml:3/memory", Observation::Denied),
    ]);
    let told = windows(&seen);
    let told: Vec<_> = told
        .iter()
        .map(|tried| (tried.what.as_str(), tried.works, tried.says.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (
                "BAR1 of 00000000:1B:00.0",
                true,
                "137 GB, all of its 85.9 GB at once"
            ),
            (
                "BAR1 of 00000000:3D:00.0",
                false,
                "268 MB of its 25.8 GB: no more can be registered at a time"
            ),
            (
                "BAR1 of 00000000:4E:00.0",
                false,
                "not told: error: Not Supported"
            ),
            (
                "BAR1 of nvml:3",
                false,
                "137 GB of a memory whose size is not told"
            ),
        ]
    );
}

/// A child that says these steps, whatever it is asked.
fn saying(steps: &[(&str, &str)]) -> Trial {
    let said = steps.iter().map(|(name, seen)| {
        let done = step(name, Answer::Done((*seen).to_owned()));
        serde_json::to_string(&done).expect("a step")
    });
    let script = format!("cat <<'END'\n{}\nEND", said.collect::<Vec<_>>().join("\n"));
    Trial::by("/bin/sh", &["-c", &script])
}

/// What a child says of a read of one megabyte that worked.
fn read(counters: &'static str, more: &[(&'static str, &'static str)]) -> Trial {
    let mut steps = vec![
        ("library", "libcufile.so.0"),
        ("version", "1.15"),
        ("driver-open", "success"),
        ("read", "1048576"),
        ("content", "equal"),
        ("counters", counters),
    ];
    steps.extend(more);
    saying(&steps)
}

/// A machine on which these folders are mounted, each with its type.
fn mounted(mounts: &[(&Path, &str)]) -> Topology {
    let line =
        |(point, kind): &(&Path, &str)| format!("/dev/nvme0n1 {} {kind} rw 0 0", point.display());
    let text: Vec<String> = mounts.iter().map(line).collect();
    let seen = machine(&[("/proc/mounts", Observation::text(text.join("\n")))]);
    Topology::clone(&seen.topology)
}

#[test]
fn each_mount_is_tried_with_a_file_of_its_own_and_the_library_s_counters_say_which_way_it_went() {
    let folders = [0; 3].map(|_| tempfile::tempdir().expect("a folder"));
    let [ext4, xfs, tmpfs] = folders.each_ref().map(tempfile::TempDir::path);
    let topology = mounted(&[(ext4, "ext4"), (xfs, "xfs"), (tmpfs, "tmpfs")]);
    let cases = [
        (read("peer=1 module=0 posix=0", &[]), "peer-to-peer", None),
        (read("peer=0 module=1 posix=0", &[]), "kernel module", None),
        (
            read("peer=0 module=0 posix=1", &[]),
            "through host memory",
            Some("compat-mode"),
        ),
        (
            read("peer=0 module=0 posix=0", &[("system-calls", "0")]),
            "not told",
            Some("storage-unproven"),
        ),
    ];
    for (trial, mode, why) in cases {
        let found = storage(&trial, &topology, None);
        let told: Vec<_> = found
            .iter()
            .map(|mounted| {
                (
                    mounted.mount.as_str(),
                    mounted.file_system.as_str(),
                    mounted.mode,
                )
            })
            .collect();
        let at = |path: &'static str| path;
        let expected = [(ext4, at("ext4")), (xfs, at("xfs"))]
            .map(|(path, kind)| (path.to_str().expect("text"), kind, mode));
        assert_eq!(told, expected, "a tmpfs is never read straight");
        for mounted in &found {
            let met = mounted
                .obstacles
                .first()
                .map(|obstacle| obstacle.code.as_str());
            assert_eq!(met, why, "{mode}");
        }
    }
    for folder in &folders {
        let left = std::fs::read_dir(folder.path()).expect("there").count();
        assert_eq!(left, 0, "the files are gone again");
    }
}

#[test]
fn given_no_library_one_mount_tells_it_for_all_and_a_child_that_hangs_is_told_of_each() {
    let folders = [0; 2].map(|_| tempfile::tempdir().expect("a folder"));
    let [first, second] = folders.each_ref().map(tempfile::TempDir::path);
    let topology = mounted(&[(first, "ext4"), (second, "xfs")]);
    let missing = Answer::Refused {
        why: "libcufile.so.0: cannot open shared object file".into(),
        code: None,
    };
    let line = serde_json::to_string(&step("library", missing)).expect("a step");
    let absent = Trial::by("/bin/sh", &["-c", &format!("echo '{line}'")]);
    let found = storage(&absent, &topology, None);
    let told: Vec<_> = found.iter().map(|mounted| mounted.mode).collect();
    assert_eq!(told, ["does not work"]);
    assert_eq!(found[0].obstacles[0].code.as_str(), "no-storage-library");
    let began = serde_json::to_string(&step("driver-open", Answer::Began)).expect("a step");
    let hangs = Trial::by(
        "/bin/sh",
        &["-c", &format!("echo '{began}'; exec sleep 60")],
    );
    let hangs = hangs.within(Duration::from_millis(300));
    let found = storage(&hangs, &topology, None);
    assert_eq!(found.len(), 2);
    for mounted in &found {
        assert_eq!(mounted.mode, "does not work");
        let hung = &mounted.obstacles[0];
        assert_eq!(hung.code.as_str(), "storage-driver-hangs");
        assert!(
            hung.summary.starts_with("cuFileDriverOpen"),
            "{}",
            hung.summary
        );
    }
}

#[test]
fn what_nobody_may_write_to_is_not_tried() {
    let folder = tempfile::tempdir().expect("a folder");
    let gone = folder.path().join("gone");
    let topology = mounted(&[(&gone, "ext4")]);
    let trial = read("peer=1 module=0 posix=0", &[]);
    assert!(storage(&trial, &topology, None).is_empty());
}
