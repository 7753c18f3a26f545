//! The machines of the rig, without the rig: snapshots taken in its guests and what `crowfly` said
//! of each, in `rig/golden`. `CROWFLY_BLESS=1` rewrites what it said; `rig/run all capture --bless`
//! takes the snapshots anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A line of a transcript that a command stands on.
const PROMPT: &str = "$ crowfly ";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rig/golden")
}

/// What the command of a transcript's line says of a snapshot.
fn says(arguments: &str, snapshot: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_crowfly"))
        .args(arguments.split(' '))
        .arg("--snapshot")
        .arg(snapshot)
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "crowfly {arguments}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// The transcript with its commands run again.
fn replayed(transcript: &str, snapshot: &Path) -> String {
    let commands = transcript.lines().filter_map(|l| l.strip_prefix(PROMPT));
    let parts: Vec<String> = commands
        .map(|arguments| format!("{PROMPT}{arguments}\n{}", says(arguments, snapshot)))
        .collect();
    parts.join("\n")
}

#[test]
fn given_the_snapshot_of_each_shape_map_and_routes_are_as_recorded() {
    let bless = std::env::var_os("CROWFLY_BLESS").is_some();
    for entry in fs::read_dir(golden()).expect("rig/golden") {
        let recorded = entry.expect("an entry").path();
        if recorded.extension().is_none_or(|e| e != "txt") {
            continue;
        }
        let expected = fs::read_to_string(&recorded).expect("a transcript");
        let now = replayed(&expected, &recorded.with_extension("json"));
        if bless {
            fs::write(&recorded, &now).expect("written");
        } else {
            assert_eq!(now, expected, "{}", recorded.display());
        }
    }
}

#[test]
fn given_the_shapes_of_the_rig_each_machine_has_its_golden_snapshot_and_transcript() {
    let mut shapes = 0;
    for entry in fs::read_dir(golden().join("../shapes")).expect("rig/shapes") {
        let shape = entry.expect("an entry").path();
        let text = fs::read_to_string(&shape).expect("a shape");
        // The same machine as another, only slower: nothing that a map or a route shows.
        if text.contains("drive_mib_per_s") {
            continue;
        }
        shapes += 1;
        let name = shape.file_stem().expect("a name");
        for kind in ["json", "txt"] {
            let file = golden().join(name).with_extension(kind);
            assert!(file.is_file(), "{} is missing", file.display());
        }
    }
    assert!(shapes > 0, "no shapes");
}
