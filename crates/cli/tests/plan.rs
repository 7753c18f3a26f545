//! `crowfly plan` as its callers see it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crowfly_route::fixture::machines;
use serde_json::Value;

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.arg("plan").args(arguments).stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What is printed for people; no line is longer than a screen.
fn told(arguments: &[&str]) -> String {
    let output = plan(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    for line in told.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    told
}

fn json(arguments: &[&str]) -> Value {
    let all: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    let output = plan(&all);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// The code, the message and the hint of a refusal.
fn refused(arguments: &[&str]) -> (String, String) {
    let all: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    let output = plan(&all);
    let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let error = &document["error"];
    assert_eq!(output.status.code().map(i64::from), error["exit"].as_i64());
    let said = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    (
        said("code"),
        format!("{} {}", said("message"), said("hint")),
    )
}

fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path.to_string_lossy().into_owned()
}

#[test]
fn asked_nothing_in_particular_the_answer_is_the_article_s_cluster_by_both_models() {
    insta::assert_snapshot!(told(&[]));
}

#[test]
fn a_sweep_shows_the_climb_to_the_plateau() {
    insta::assert_snapshot!(told(&["--sweep", "servers=1..4096"]));
}

#[test]
fn checkpoints_are_answered_for_each_class_of_storage() {
    insta::assert_snapshot!(told(&["checkpoint"]));
}

#[test]
fn an_interval_names_its_formulas() {
    insta::assert_snapshot!(told(&[
        "interval",
        "--params",
        "405B",
        "--storage-gbs",
        "2000"
    ]));
}

#[test]
fn a_fabric_is_a_bill_of_materials() {
    insta::assert_snapshot!(told(&["fabric", "--servers", "512"]));
}

#[test]
fn the_validation_names_every_point_and_its_signed_error() {
    insta::assert_snapshot!(told(&["validate"]));
}

#[test]
fn a_simulation_says_what_held_it_up() {
    let arguments = ["simulate", "--servers", "64", "--checkpoint-gbs", "100"];
    insta::assert_snapshot!(told(&arguments));
}

#[test]
fn two_servers_are_compared_in_one_table() {
    insta::assert_snapshot!(told(&["--compare", "dgx-h100:64", "dgx-b200:64"]));
}

#[test]
fn every_question_has_a_document_with_a_schema_and_fits_the_screen() {
    for (arguments, schema) in [
        (&[][..], "crowfly.plan/1"),
        (&["--sweep", "servers=2..4"], "crowfly.plan.sweep/1"),
        (
            &["--compare", "dgx-h100", "aws-p5"],
            "crowfly.plan.compare/1",
        ),
        (&["checkpoint"], "crowfly.plan.checkpoint/1"),
        (&["interval"], "crowfly.plan.interval/1"),
        (&["loading", "--data", "video"], "crowfly.plan.loading/1"),
        (&["storage", "--stall", "30"], "crowfly.plan.storage/1"),
        (&["fabric"], "crowfly.plan.fabric/1"),
        (&["shapes"], "crowfly.plan.shapes/1"),
        (
            &["collective", "--op", "all-to-all"],
            "crowfly.plan.collective/1",
        ),
        (&["simulate"], "crowfly.plan.simulation/1"),
        (&["catalog", "--sources"], "crowfly.plan.catalog/1"),
        (&["validate"], "crowfly.plan.validate/1"),
        (&["claims"], "crowfly.plan.claims/1"),
    ] {
        assert_eq!(json(arguments)["schema"], schema, "{arguments:?}");
        told(arguments);
    }
}

#[test]
fn a_number_in_the_document_carries_unit_and_provenance() {
    let direct = &json(&[])["article"]["direct"];
    assert_eq!(direct["value"], 0.6125);
    assert_eq!(direct["unit"], "s");
    assert_eq!(direct["provenance"]["kind"], "computed");
}

#[test]
fn impossible_inputs_are_refused_with_what_is_wrong_and_what_would_do() {
    for (arguments, code, part) in [
        (&["--servers", "0"][..], "plan-out-of-range", "servers = 0"),
        (&["--servers", "-1"], "usage", "-1"),
        (
            &["--nic-gbps", "800"],
            "plan-nic-faster-than-slot",
            "63.015",
        ),
        (&["--nic-gbps", "-5"], "plan-not-positive", "-5"),
        (&["--params", "-1B"], "plan-not-between", "parameters"),
        (
            &["--server", "dgx-h10"],
            "plan-unknown-name",
            "nearest: dgx-h100",
        ),
        (&["--model", "70"], "plan-unknown-name", "no model `70`"),
        (&["--tensor", "3"], "plan-does-not-divide", "64 GPUs"),
        (&["--oversubscription", "0"], "plan-not-between", "from 1"),
        (&["--sweep", "servers=8..2"], "plan-impossible", "backwards"),
        (&["--csv"], "usage", "--csv"),
        (&["storage", "--stall", "-1"], "plan-not-positive", "stall"),
        (
            &["fabric", "--switch", "nope"],
            "plan-unknown-name",
            "switch `nope`",
        ),
        (
            &["simulate", "--failed-links", "2"],
            "plan-not-between",
            "failed links",
        ),
        (
            &["simulate", "--servers", "64", "--spines", "3"],
            "plan-impossible",
            "over 3 spines",
        ),
    ] {
        let (found, message) = refused(arguments);
        assert_eq!(found, code, "{arguments:?}: {message}");
        assert!(message.contains(part), "{arguments:?}: {message}");
    }
}

#[test]
fn given_nothing_to_exchange_there_is_no_sentence_with_a_hole_and_else_one_row_is_chosen() {
    let (code, message) = refused(&["collective", "--size", "0"]);
    assert_eq!(code, "plan-out-of-range");
    let said = "size in bytes (--size) = 0: must be from 1 to";
    assert!(message.starts_with(said), "{message}");
    for op in ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"] {
        for size in ["1", "1MiB", "8GiB"] {
            let told = told(&["collective", "--op", op, "--size", size]);
            assert_eq!(told.matches(", chosen").count(), 1, "{told}");
            assert!(!told.contains(":  GB/s"), "{told}");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let one = "[[server]]\nid = \"one\"\ngpu = \"h100-sxm\"\ngpus = 1\nnics = 1\nnic_gbps = 400\n\
               transport = \"roce\"\nsources = [\"me\"]\nconfidence = \"high\"\n";
    let file = written(folder.path(), "one.toml", one);
    let alone = ["--catalog", &file, "--server", "one", "--servers", "1"];
    let told = told(&[&["collective"][..], &alone].concat());
    let said = "One GPU of one alone has nothing to exchange.";
    assert_eq!(told.lines().next(), Some(said), "{told}");
    assert!(!told.contains("chosen"), "{told}");
}

#[test]
fn absurd_numbers_are_refused_with_their_option_their_value_and_the_range() {
    for (arguments, said) in [
        (
            &["checkpoint", "--storage-gbs", "1e-300"][..],
            "storage rate in GB/s (--storage-gbs) = 1e-300: must be from 0.000001 to 1000000000",
        ),
        (
            &["interval", "--storage-gbs", "1e-300"],
            "storage rate in GB/s (--storage-gbs) = 1e-300: must be from 0.000001 to 1000000000",
        ),
        (
            &["interval", "--stall=1e308"],
            "stall in seconds (--stall) = 1e308: must be from 1e-12 to 1000000000",
        ),
        (
            &["interval", "--restore=1e308"],
            "restore in seconds (--restore) = 1e308: must be from 1e-12 to 1000000000",
        ),
        (
            &["storage", "--stall=1e308"],
            "allowed stall in seconds (--stall) = 1e308: must be from 0.001 to 1000000000",
        ),
        (
            &["storage", "--stall=1e-300"],
            "allowed stall in seconds (--stall) = 1e-300: must be from 0.001 to 1000000000",
        ),
        (
            &["--nic-gbps=1e-308"],
            "NIC rate in Gb/s (--nic-gbps) = 1e-308: must be from 0.001 to 1000000",
        ),
        (
            &["--memory-gbs=1e-308"],
            "host memory bandwidth in GB/s (--memory-gbs) = 1e-308: must be from 0.001 to 1000000",
        ),
        (
            &[
                "checkpoint",
                "--storage",
                "gcp-managed-lustre-1000",
                "--storage-tib=1e300",
            ],
            "storage capacity in TiB (--storage-tib) = 1e300: must be from 0.001 to 1000000000",
        ),
        (
            &["loading", "--samples-per-gpu=1e-300"],
            "samples per GPU and second (--samples-per-gpu) = 1e-300: must be from 0.000001 to 1000000000000",
        ),
        (
            &["simulate", "--checkpoint-gbs=1e299"],
            "rate of the storage in GB/s (--checkpoint-gbs) = 1e299: must be from 0.000001 to 1000000000",
        ),
        (
            &["--params", "1e300"],
            "parameters (--params) = 1e300: must be from 1 to 1e15",
        ),
    ] {
        let (code, message) = refused(arguments);
        assert_eq!(code, "plan-not-between", "{arguments:?}");
        assert_eq!(message.trim(), said, "{arguments:?}");
        assert_eq!(plan(arguments).status.code(), Some(64), "{arguments:?}");
    }
}

#[test]
fn at_the_ends_of_their_ranges_answers_are_numbers_and_fit_the_screen() {
    for arguments in [
        &[
            "checkpoint",
            "--storage-gbs",
            "0.000001",
            "--params",
            "1e15",
        ][..],
        &["checkpoint", "--storage-gbs", "1e9", "--params", "1"],
        &[
            "interval",
            "--stall=1e9",
            "--restore=1e9",
            "--gpus",
            "4294967295",
        ],
        &[
            "interval",
            "--stall=1e-12",
            "--restore=1e-12",
            "--gpus",
            "1",
        ],
        &["storage", "--stall=0.001", "--params", "1e15"],
        &["storage", "--stall=1e9", "--params", "1"],
        &[
            "--nic-gbps=0.001",
            "--memory-gbs=0.001",
            "--params",
            "1e15",
            "--servers",
            "1048576",
        ],
        &[
            "--sweep",
            "servers=1..1048576",
            "--nic-gbps=0.001",
            "--params",
            "1e15",
        ],
        &[
            "loading",
            "--data",
            "video",
            "--samples-per-gpu=1e12",
            "--sample-bytes=1e15",
            "--storage-gbs=0.000001",
        ],
        &[
            "simulate",
            "--nic-gbps=0.001",
            "--size=1000000TB",
            "--checkpoint-gbs=0.000001",
        ],
        &["simulate", "--servers=1", "--size=1"],
        &[
            "collective",
            "--size=1",
            "--servers=1048576",
            "--nic-gbps=0.001",
        ],
    ] {
        let told = told(arguments);
        for hole in ["inf", "NaN", "000000000000"] {
            assert!(!told.contains(hole), "{arguments:?}: {told}");
        }
        json(arguments);
    }
}

#[test]
fn given_a_catalogue_that_is_not_toml_the_error_is_short_and_shows_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = format!("id = 5 {}\u{1b}[2J", "x".repeat(5_000));
    let file = written(
        folder.path(),
        "bad.toml",
        &format!("[[nic]]\n{line}\nmore\n"),
    );
    let output = plan(&["--catalog", &file]);
    assert_eq!(output.status.code(), Some(65));
    let told = text(&output.stderr);
    assert!(told.contains("line 2, column 5009"), "{told}");
    assert!(told.contains(r"xxx\u{1b}[2J`"), "{told}");
    assert!(!told.contains("\\n") && !told.contains('\u{1b}'), "{told}");
    assert!(!told.contains(&"x".repeat(80)), "{told}");
    assert!(told.lines().count() <= 5, "{told}");
}

#[test]
fn given_the_longest_names_of_a_catalogue_every_answer_fits_the_screen() {
    let folder = tempfile::tempdir().expect("a folder");
    let id = |letter: &str| letter.repeat(64);
    let basis = format!(
        "sources = [\"{}\"]\nconfidence = \"low\"\nnote = \"{}\"\n",
        "s".repeat(200),
        "n".repeat(200)
    );
    let (server, model, store, memory, switch, gpu, faults) = (
        id("s"),
        id("m"),
        id("o"),
        id("r"),
        id("w"),
        id("g"),
        id("f"),
    );
    let long = "l".repeat(200);
    let entries = format!(
        "[[gpu]]\nid = \"{gpu}\"\nnames = [\"{long}\"]\nnvlink_gbs = 900\n\
         nvlink_gen = 4\nbf16_tflops = 989\npcie_gen = 5\n{basis}\
         [[memory]]\nid = \"{memory}\"\npeak_gbs = 600\n{basis}\
         [[server]]\nid = \"{server}\"\ngpu = \"{gpu}\"\ngpus = 8\nnics = 8\nnic_gbps = 400\n\
         transport = \"roce\"\nmemory = \"{memory}\"\ncloud = \"gcp\"\n{basis}\
         [[model]]\nid = \"{model}\"\nparams = 70e9\n{basis}\
         [[storage]]\nid = \"{store}\"\nclass = \"parallel\"\ndirect = \"yes\"\ngbs = 100000\n{basis}\
         [[switch]]\nid = \"{switch}\"\nports = 64\nport_gbps = 400\n{basis}\
         [[reliability]]\nid = \"{faults}\"\naccelerator_mttf_h = 50000\n{basis}"
    );
    let file = written(folder.path(), "long.toml", &entries);
    let pair = [format!("{server}:1048576"), format!("{server}:8")];
    let most = format!("{server}:1048576");
    let (on, of) = (["--server", &server], ["--model", &model]);
    for arguments in [
        [&on[..], &of].concat(),
        [&on[..], &of, &["--sweep", "servers=1..1048576"]].concat(),
        vec!["--compare", &pair[0], &pair[1], "--model", &model],
        vec![
            "--compare",
            &most,
            "dgx-b200",
            "--nic-gbps",
            "0.001",
            "--params",
            "1e15",
        ],
        [&["checkpoint"][..], &on, &of, &["--storage", &store]].concat(),
        vec![
            "interval",
            "--model",
            &model,
            "--storage",
            &store,
            "--reliability",
            &faults,
        ],
        [
            &["loading"][..],
            &on,
            &of,
            &["--data", "video", "--storage", &store],
        ]
        .concat(),
        vec![
            "storage",
            "--stall",
            "10",
            "--model",
            &model,
            "--storage",
            &store,
        ],
        [&["fabric"][..], &on, &["--switch", &switch]].concat(),
        vec!["shapes"],
        [&["collective"][..], &on].concat(),
        [&["simulate"][..], &on, &of].concat(),
        vec!["catalog", "--sources"],
        vec!["catalog"],
        vec!["validate"],
    ] {
        told(&[&arguments[..], &["--catalog", &file]].concat());
    }
    let longer = entries.replace(&server, &"s".repeat(200));
    let refusal = plan(&["--catalog", &written(folder.path(), "longer.toml", &longer)]);
    assert_eq!(refusal.status.code(), Some(65));
    for line in text(&refusal.stderr).lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn given_a_snapshot_the_server_is_the_one_that_it_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let snapshot = machines::dgx_h100().snapshot().to_json();
    let file = written(folder.path(), "node.json", &snapshot);
    let answer = json(&["--from-snapshot", &file, "--memory-gbs", "563.2"]);
    assert_eq!(answer["cluster"]["server"]["gpu"], "h100-sxm");
    assert_eq!(answer["article"]["direct"]["value"], 0.6125);
    assert!(told(&["--from-snapshot", &file]).contains("--memory-gbs"));
    let (code, _) = refused(&["--from-snapshot", "/no/such/file"]);
    assert_eq!(code, "input-not-found");
}

#[test]
fn given_receipts_measured_rates_take_the_place_of_assumed_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = written(folder.path(), "data.bin", &"x".repeat(4 << 20));
    let mut load = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    let output = load
        .args(["load", "--json", &data])
        .output()
        .expect("the program starts");
    let mut document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    // A file just written lies in the page cache; of storage, that receipt says nothing.
    document["receipt"]["shares"][0]["path"] = "mapped".into();
    let warm = written(folder.path(), "warm.json", &document.to_string());
    let asked = ["checkpoint", "--storage-gbs", "1000", "--receipts", &warm];
    let told = told(&asked);
    assert!(
        told.contains("warm.json was not used: its bytes went by the"),
        "{told}"
    );
    assert_ne!(json(&asked)["on"][0]["limit"], "measured");
    document["receipt"]["shares"][0]["path"] = "direct".into();
    let receipt = written(folder.path(), "load.json", &document.to_string());
    let answer = json(&[
        "checkpoint",
        "--storage-gbs",
        "1000",
        "--receipts",
        &receipt,
    ]);
    let on = &answer["on"][0];
    // What the machine's disk gives one server is far below a thousand GB/s for eight.
    assert_eq!(on["limit"], "measured", "{on}");
    let not = written(folder.path(), "not.json", "{\"schema\": \"other\"}");
    let (code, message) = refused(&["checkpoint", "--receipts", &not]);
    assert_eq!(code, "not-a-receipt", "{message}");
}

#[test]
fn given_groups_over_servers_that_exchange_no_gradients_the_verdict_is_of_the_step() {
    for (spread, opening) in [
        (
            ["--tensor", "64"],
            "It matters: with 8 dgx-h100 servers a step of 70b takes",
        ),
        (
            ["--pipeline", "64"],
            "It matters somewhat: with 8 dgx-h100 servers a step of 70b",
        ),
    ] {
        let told = told(&spread);
        assert!(told.starts_with(opening), "{told}");
    }
}

#[test]
fn given_token_ids_that_are_no_trickle_the_verdict_does_not_say_so() {
    let small = [
        "loading",
        "--data",
        "text",
        "--params",
        "1M",
        "--servers",
        "1024",
    ];
    let slow = [&small[..], &["--storage-gbs", "10"]].concat();
    assert!(told(&slow).starts_with("The store is too slow:"));
    let usual = told(&["loading", "--data", "text"]);
    assert!(usual.starts_with("A trickle:"), "{usual}");
    let fast = [&small[..], &["--storage-gbs", "1000"]].concat();
    let told = told(&fast);
    assert!(
        !told.contains("trickle") && told.contains("of what"),
        "{told}"
    );
}

#[test]
fn options_that_would_change_nothing_are_refused_or_said() {
    for (asked, part) in [
        (
            &["--nvlink-domain", "9"][..],
            "give --nvlink-domain as a multiple of 8, such as 16",
        ),
        (&["--nics", "0"], "NICs per server = 0: must be from 1"),
        (
            &["simulate", "--failed-nics", "64"],
            "failed NICs = 64: must be from 0 to 63",
        ),
        (
            &["interval", "--storage-gbs", "9", "--storage-tib", "-5"],
            "--storage-tib",
        ),
        (
            &["loading", "--storage-gbs", "9", "--storage-tib", "NaN"],
            "--storage-tib",
        ),
    ] {
        let (_, message) = refused(asked);
        assert!(message.contains(part), "{asked:?}: {message}");
    }
    let told = told(&["--expert", "8"]);
    assert!(
        told.contains("70b has no experts: --expert 8 changes nothing."),
        "{told}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let price = "[[price]]\nid = \"mine\"\nsources = [\"me\"]\nconfidence = \"high\"\nusd = 1.0\ndate = \"2026-11\"\n";
    let file = written(folder.path(), "twice.toml", &price.repeat(2));
    let (code, message) = refused(&["catalog", "--catalog", &file]);
    assert_eq!(code, "catalog-twice", "{message}");
}

#[test]
fn given_additions_they_are_used_and_marked_as_the_user_s() {
    let folder = tempfile::tempdir().expect("a folder");
    let mine = "[[server]]\nid = \"mine\"\ngpu = \"h100-sxm\"\ngpus = 8\nnics = 4\nnic_gbps = 400\n\
                transport = \"roce\"\nmemory = \"dgx-h100\"\nsources = [\"me\"]\nconfidence = \"high\"\n";
    let file = written(folder.path(), "mine.toml", mine);
    let told = told(&["--catalog", &file, "--server", "mine"]);
    assert!(told.contains("server mine is your own entry"), "{told}");
    let bad = written(
        folder.path(),
        "bad.toml",
        &mine.replace("gpus = 8", "gpus = -8"),
    );
    let (code, message) = refused(&["--catalog", &bad]);
    assert_eq!(code, "catalog-not-positive");
    assert!(
        message.contains("bad.toml") && message.contains("gpus"),
        "{message}"
    );
}

#[test]
fn a_picture_is_well_formed_and_tables_leave_as_csv_and_markdown() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("curve.svg");
    let path = svg.to_string_lossy().into_owned();
    for arguments in [
        vec!["--svg", &path],
        vec!["--sweep", "servers=1..64", "--svg", &path],
        vec!["--compare", "dgx-h100", "dgx-b200", "--svg", &path],
    ] {
        told(&arguments);
        let picture = std::fs::read_to_string(&svg).expect("written");
        let document = roxmltree::Document::parse(&picture).expect("well formed");
        assert!(document.descendants().count() > 10);
    }
    let csv = told_raw(&["--sweep", "servers=2..2", "--csv"]);
    let row = csv.lines().nth(1).expect("one row");
    assert!(row.contains(",0.35,s,"), "{row}");
    assert!(told_raw(&["fabric", "--markdown"]).contains("| leaf switches | 1 |"));
}

fn told_raw(arguments: &[&str]) -> String {
    let output = plan(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// What the largest part of a training run of 2024 takes, on a busy machine and without optimisation.
#[test]
fn sixteen_thousand_gpus_are_simulated_within_ten_seconds_and_two_gigabytes() {
    const KILOBYTES: u32 = 2 << 20;
    let script = format!("ulimit -v {KILOBYTES}; exec \"$0\" plan simulate --servers 2048");
    let started = std::time::Instant::now();
    let output = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_crowfly")])
        .output()
        .expect("the program starts");
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(told.contains("16,384 GPUs takes"), "{told}");
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}

#[test]
fn clusters_that_are_equally_fast_are_not_said_to_differ() {
    let told = told(&["--compare", "dgx-h100:8", "dgx-h100:8"]);
    let first = "Direct, dgx-h100:8 and dgx-h100:8 train 70b equally fast.";
    assert!(told.starts_with(first), "{told}");
}
