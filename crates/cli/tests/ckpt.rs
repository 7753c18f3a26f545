//! `crowfly ckpt`, from folders on disk to documents and exit statuses.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::select::RankSlice;
use crowfly_mover::ckpt::{Archive, Saver, SaverSettings, State, TensorPart};
use serde_json::{Value, json};

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// Saves a step of two tensors: `w`, whose first element is the step, and `b`, always the same.
fn save(root: &Path, step: u64) {
    let mut floats = [1.0f32; 6];
    floats[0] = step as f32;
    let w: Vec<u8> = floats.iter().flat_map(|f| f.to_le_bytes()).collect();
    let state = State {
        tensors: vec![
            TensorPart::whole("w", Dtype::F32, &[2, 3], &w),
            TensorPart::whole("b", Dtype::U8, &[4], &[1, 2, 3, 4]),
        ],
        ..State::default()
    };
    let rank = RankSlice::new(0, 1).expect("a rank");
    let mut saver = Saver::new(root, rank, SaverSettings::default()).expect("a saver");
    saver.save(step, &state).expect("saved");
}

fn steps(test: &str, all: &[u64]) -> PathBuf {
    let root = folder(test);
    for step in all {
        save(&root, *step);
    }
    root
}

fn ckpt(arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.arg("ckpt").args(arguments).args(paths);
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    command.output().expect("the program starts")
}

/// The document that a question is answered with, and the exit status.
fn answer(arguments: &[&str], paths: &[&Path]) -> (Value, i32) {
    let mut all = arguments.to_vec();
    all.push("--json");
    let output = ckpt(&all, paths);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let document = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    (document, output.status.code().expect("not killed"))
}

fn text(arguments: &[&str], paths: &[&Path]) -> String {
    let output = ckpt(arguments, paths);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Flips one bit of the first byte of a tensor.
fn damage(root: &Path, step: u64, tensor: &str) {
    let archive = Archive::open_step(root, step).expect("opens");
    let part = &archive.get(tensor).expect("there").parts[0];
    let path = &archive.files()[part.file].path;
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, part.range.start)
        .expect("read");
    file.write_all_at(&[byte[0] ^ 1], part.range.start)
        .expect("written");
}

#[test]
fn given_a_folder_of_steps_each_is_listed_with_what_is_wrong_with_it() {
    let root = steps("ckpt-ls", &[5, 10, 20]);
    fs::remove_file(root.join("step-10/rank-00000-of-00001.safetensors")).expect("removed");
    fs::create_dir(root.join(".step-30.tmp-00")).expect("made");
    let (listed, status) = answer(&["ls"], &[&root]);
    assert_eq!(
        (status, &listed["schema"]),
        (0, &json!("crowfly.ckpt-ls/1"))
    );
    let rows = listed["checkpoints"].as_array().expect("rows");
    let seen: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["step"].clone(),
                row["complete"].clone(),
                row["fault"]["code"].clone(),
            )
        })
        .collect();
    let expected = [
        (json!(5), json!(true), Value::Null),
        (json!(10), json!(false), json!("missing-file")),
        (json!(20), json!(true), Value::Null),
    ];
    assert_eq!(seen, expected);
    assert_eq!(
        (&rows[0]["world"], &rows[0]["tensors"]),
        (&json!(1), &json!(2))
    );
    let unfinished = &listed["unfinished"][0];
    assert_eq!(
        (&unfinished["step"], &unfinished["live"]),
        (&json!(30), &json!(false))
    );
    let shown = text(&["ls"], &[&root]);
    assert!(shown.contains("2 complete checkpoints"), "{shown}");
    assert!(
        shown.contains("missing-file") && shown.contains("cut off"),
        "{shown}"
    );
    assert!(
        shown.lines().all(|line| line.chars().count() <= 100),
        "{shown}"
    );
}

#[test]
fn given_a_whole_checkpoint_verify_ends_with_0_and_given_a_damaged_one_with_2_naming_the_tensor() {
    let root = steps("ckpt-verify", &[1, 2, 3]);
    let (whole, status) = answer(&["verify"], &[&root]);
    assert_eq!(
        (status, &whole["schema"]),
        (0, &json!("crowfly.ckpt-verify/1"))
    );
    let verdict = &whole["checkpoints"][0];
    assert_eq!(
        (&verdict["step"], &verdict["checked"]),
        (&json!(3), &json!(28))
    );
    assert_eq!(verdict["faults"], json!([]));

    damage(&root, 2, "b");
    assert_eq!(answer(&["verify"], &[&root]).1, 0, "the latest is whole");
    let (damaged, status) = answer(&["verify", "--step", "2"], &[&root]);
    assert_eq!(status, 2);
    let fault = &damaged["checkpoints"][0]["faults"][0];
    assert_eq!(fault["code"], "data-differs");
    assert!(
        fault["message"]
            .as_str()
            .is_some_and(|m| m.contains("\"b\""))
    );
    let (all, status) = answer(&["verify", "--all"], &[&root]);
    assert_eq!(
        (status, all["checkpoints"].as_array().map(Vec::len)),
        (2, Some(3))
    );
    let shown = text(&["verify", "--step", "2"], &[&root]);
    assert!(shown.starts_with("damaged: "), "{shown}");
}

#[test]
fn given_a_latest_step_that_is_damaged_verify_and_diff_name_it_and_do_not_pass_it_over() {
    let root = steps("ckpt-passed-over", &[2, 4, 6, 8]);
    fs::remove_file(root.join("step-6/manifest.json")).expect("removed");
    fs::write(root.join("step-8/manifest.json"), "{}").expect("written");
    let (found, status) = answer(&["verify"], &[&root]);
    let seen: Vec<_> = found["checkpoints"]
        .as_array()
        .expect("checkpoints")
        .iter()
        .map(|c| (c["step"].clone(), c["state"].clone()))
        .collect();
    let damaged = json!("damaged");
    let expected = [
        (json!(4), json!("whole")),
        (json!(6), damaged.clone()),
        (json!(8), damaged),
    ];
    assert_eq!((status, seen.as_slice()), (2, &expected[..]), "{found}");
    assert_eq!(found["checkpoints"][1]["faults"][0]["code"], "no-manifest");
    let shown = text(&["verify"], &[&root]);
    assert!(shown.starts_with("whole: "), "{shown}");
    assert!(
        shown.contains("step-6") && shown.contains("no-manifest: "),
        "{shown}"
    );
    assert_eq!(answer(&["verify", "--step", "4"], &[&root]).1, 0);
    assert_eq!(answer(&["verify"], &[&root.join("step-4")]).1, 0);

    let (found, status) = answer(&["diff"], &[&root.join("step-2"), &root]);
    let notes: Vec<&str> = found["notes"]
        .as_array()
        .expect("notes")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!((status, notes.len()), (0, 3), "{notes:?}");
    assert!(notes[0].starts_with("step 6 is passed over: "), "{notes:?}");
    assert!(notes[1].starts_with("step 8 is passed over: "), "{notes:?}");
    assert!(
        notes[2].contains("not with the checksums that were saved"),
        "{notes:?}"
    );
}

#[test]
fn given_the_manifest_of_another_step_the_step_is_damaged() {
    let root = steps("ckpt-other-step", &[4, 6]);
    fs::copy(
        root.join("step-4/manifest.json"),
        root.join("step-6/manifest.json"),
    )
    .expect("copied");
    let (found, status) = answer(&["verify"], &[&root]);
    assert_eq!((status, &found["checkpoints"][0]["step"]), (2, &json!(4)));
    assert_eq!(found["checkpoints"][1]["faults"][0]["code"], "other-step");
    assert_eq!(answer(&["verify", "--step", "6"], &[&root]).1, 65);
}

#[test]
fn given_tensors_of_no_bytes_nothing_is_said_to_match() {
    let folder = folder("ckpt-no-bytes");
    let file = folder.join("empty.safetensors");
    let header = r#"{"a":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    fs::write(&file, bytes).expect("written");
    let expected = format!(
        "whole: {}, 1 tensor of no bytes, so there is nothing to compare\n",
        file.display()
    );
    let shown = text(&["verify"], &[&file]);
    let unwrapped = shown.replace("\n  ", " ");
    assert_eq!(unwrapped, expected);
}

#[test]
fn given_no_complete_step_prune_says_that_it_keeps_none() {
    let root = steps("ckpt-prune-none", &[1]);
    fs::remove_file(root.join("step-1/manifest.json")).expect("removed");
    let shown = text(&["prune", "--keep", "1"], &[&root]);
    assert!(
        shown.contains("\nKept none: it has no complete step\n"),
        "{shown}"
    );
}

#[test]
fn given_a_format_without_checksums_verify_says_that_it_cannot_tell() {
    let root = steps("ckpt-unsure", &[1]);
    let file = root.join("step-1/rank-00000-of-00001.safetensors");
    let (verdict, status) = answer(&["verify"], &[&file]);
    assert_eq!(
        (status, &verdict["checkpoints"][0]["format"]),
        (3, &json!("safetensors"))
    );
    assert_eq!(verdict["checkpoints"][0]["unchecked"], 28);
    let dcp = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mover/tests/fixtures/dcp/sharded");
    let (verdict, status) = answer(&["verify"], &[&dcp]);
    assert_eq!(
        (status, &verdict["checkpoints"][0]["format"]),
        (3, &json!("dcp"))
    );
    assert_eq!(verdict["checkpoints"][0]["state"], "unsure");
    // Where lines end depends on how long the name of this folder is.
    let shown = text(&["verify"], &[&dcp]);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.starts_with("unsure: no checksums for "), "{shown}");
    assert!(shown.ends_with("(3 tensors, dcp)"), "{shown}");
    let (listed, _) = answer(&["ls"], &[&dcp]);
    assert_eq!(listed["checkpoints"][0]["tensors"], 3);
}

#[test]
fn given_two_steps_the_changed_tensor_is_told_with_its_distance() {
    let root = steps("ckpt-diff", &[4, 7]);
    let (before, after) = (root.join("step-4"), root.join("step-7"));
    let (found, status) = answer(&["diff"], &[&before, &after]);
    assert_eq!(
        (status, &found["schema"]),
        (0, &json!("crowfly.ckpt-diff/1"))
    );
    assert_eq!(
        (&found["same"], &found["compared"]),
        (&json!(1), &json!(28))
    );
    let tensor = json!({"dtype": "F32", "shape": [2, 3]});
    let expected = json!([{
        "name": "w", "change": "changed", "before": tensor, "after": tensor,
        "differing": 1, "elements": 6, "max_abs": 3.0, "l2": 3.0, "not_finite": 0,
    }]);
    assert_eq!(found["tensors"], expected);
    let expected = "tensor  change   type and shape  differing  max |Δ|    L2\n\
                    w       changed  F32 2×3                 1     3.00  3.00\n\
                    \n\
                    1 tensor differs, 1 the same; 28 B of each compared\n\
                    note: the bytes were compared with each other, not with the checksums that were saved; `crowfly ckpt\n\
                    \x20     verify` does that\n";
    assert_eq!(text(&["diff"], &[&before, &after]), expected);
    let (same, _) = answer(&["diff"], &[&before, &before]);
    assert_eq!((&same["same"], &same["tensors"]), (&json!(2), &json!([])));
}

#[test]
fn given_old_steps_prune_removes_them_only_without_dry_run_and_keeps_what_it_is_told() {
    let root = steps("ckpt-prune", &[5, 10, 15, 20]);
    let keep = ["prune", "--keep", "1", "--keep-every", "10"];
    let (dry, status) = answer(&[&keep[..], &["--dry-run"]].concat(), &[&root]);
    assert_eq!(
        (status, &dry["schema"]),
        (0, &json!("crowfly.ckpt-prune/1"))
    );
    assert_eq!(
        (&dry["removed"], &dry["kept"]),
        (&json!([5, 15]), &json!([10, 20]))
    );
    assert!(root.join("step-5").exists());
    let shown = text(&keep, &[&root]);
    assert_eq!(
        shown,
        format!(
            "Removed 2 steps of {}: 5, 15\nKept: 10, 20\n",
            root.display()
        )
    );
    assert!(!root.join("step-5").exists() && root.join("step-10").exists());
}

#[test]
fn bad_input_is_refused_with_its_code_and_status() {
    let root = steps("ckpt-bad", &[1]);
    fs::write(root.join("notes.txt"), "none").expect("written");
    let empty = folder("ckpt-empty");
    let cases: [(&[&str], PathBuf, &str, i32); 7] = [
        (&["ls"], root.join("nowhere"), "not-found", 66),
        (&["ls"], root.join("notes.txt"), "not-a-checkpoint", 65),
        (&["ls"], empty.clone(), "no-safetensors", 65),
        (&["verify", "--step", "9"], root.clone(), "no-such-step", 66),
        (&["verify", "--all"], empty, "no-steps", 66),
        (
            &["prune", "--keep", "1"],
            root.join("nowhere"),
            "input-not-found",
            66,
        ),
        (&["prune", "--keep", "0"], root.clone(), "usage", 64),
    ];
    for (arguments, path, code, status) in cases {
        let (document, found) = answer(arguments, &[&path]);
        let seen = (document["error"]["code"].as_str(), found);
        assert_eq!(seen, (Some(code), status), "{arguments:?} {document}");
    }
    fs::write(root.join("step-1/manifest.json"), "{}").expect("written");
    assert_eq!(answer(&["verify"], &[&root]).1, 2, "no step is complete");
    assert_eq!(answer(&["verify", "--all"], &[&root]).1, 2);
}
