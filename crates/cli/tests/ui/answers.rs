//! What the page answers is what the commands answer.

use std::path::Path;

use crowfly_route::fixture::machines;
use serde_json::Value;

use super::http::{ask, explain, get, json};
use super::served::{Served, command, document};

/// The arguments of a command line that an answer shows.
fn shown(answer: &Value) -> Vec<String> {
    let command = answer["command"].as_str().expect("a command");
    let words = command.split_whitespace().map(str::to_owned);
    words.skip(1).collect()
}

/// What the command line that an answer shows prints.
fn by_command(answer: &Value) -> Value {
    let words = shown(answer);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    document(&words)
}

#[test]
fn it_says_where_the_page_is() {
    let served = Served::dgx();
    let document = &served.document;
    assert_eq!(document["schema"], "crowfly.ui/1");
    assert_eq!(document["machine"], "dgx-h100");
    let url = format!("http://127.0.0.1:{}/", served.port);
    assert_eq!(document["url"], Value::String(url));
}

#[test]
fn every_scene_of_every_kind_of_server_is_what_crowfly_route_answers() {
    let served = Served::dgx();
    for server in ["dgx-h100", "gcp-a3-mega", "gcp-a4x", "aws-p5"] {
        let machine = json(
            served.port,
            &format!("/api/machine?machine=server:{server}"),
        );
        let mut asked = std::collections::BTreeSet::new();
        for journey in machine["journeys"].as_array().expect("journeys") {
            for scene in journey["scenes"].as_array().expect("scenes") {
                let (from, to) = (scene["from"].as_str(), scene["to"].as_str());
                let (from, to) = (from.expect("a place"), to.expect("a place"));
                if !asked.insert((from.to_owned(), to.to_owned())) {
                    continue;
                }
                let path = format!("/api/route?machine=server:{server}&from={from}&to={to}");
                let answer = json(served.port, &path);
                assert_eq!(
                    answer["document"],
                    by_command(&answer),
                    "{server} {from} {to}"
                );
                played_as_planned(&answer);
            }
        }
        assert!(asked.len() > 3, "{server}: {asked:?}");
    }
}

/// The counters at the end are those of the way, and they never fall.
fn played_as_planned(answer: &Value) {
    let ways = answer["document"]["ways"].as_array().expect("ways");
    let played = answer["played"].as_array().expect("played");
    assert_eq!(ways.len(), played.len());
    for (way, beats) in ways.iter().zip(played) {
        let beats = beats.as_array().expect("beats");
        assert_eq!(beats.len(), way["hops"].as_array().expect("hops").len());
        let counters: Vec<&Value> = beats.iter().map(|beat| &beat["counters"]).collect();
        if let Some(last) = counters.last() {
            assert_eq!(**last, way["counters"]);
        }
        for name in ["copies", "cpu_touches", "pcie_hops", "host_ram_passes"] {
            let values = counters.iter().map(|c| c[name].as_u64().expect("a count"));
            assert!(values.is_sorted(), "{name}: {way}");
        }
    }
}

#[test]
fn given_a_snapshot_its_map_and_routes_are_those_of_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("machine.json");
    let snapshot = machines::pcie_box().snapshot().to_json();
    std::fs::write(&path, &snapshot).expect("written");
    let path = path.to_str().expect("text");
    let served = Served::with(&["--snapshot", path]);
    let here = json(served.port, "/api/machine");
    assert_eq!(here["title"], "4 GPUs, 1 RDMA adapter, 1 drive");
    let answer = json(served.port, "/api/route?from=/etc/hostname&to=gpu:2");
    assert_eq!(answer["document"], by_command(&answer));
    let obstacles = answer["document"]["ways"][0]["obstacles"].as_array();
    assert!(obstacles.is_some());
    // The same file dropped in is the same machine under another name.
    let given = ask(
        served.port,
        "POST",
        "/api/machine",
        &[("X-Crowfly-Name", "box.json")],
        snapshot.as_bytes(),
    );
    assert_eq!(given.status, 200);
    let given = given.json();
    assert_eq!(given["name"], "box.json");
    assert_eq!(given["picture"], here["picture"]);
    let id = given["id"].as_str().expect("an id");
    let again = json(
        served.port,
        &format!("/api/route?machine={id}&from=/etc/hostname&to=gpu:2"),
    );
    assert_eq!(again["document"], answer["document"]);
    let choices = json(served.port, "/api/about");
    let ids = choices["machines"].as_array().expect("machines").iter();
    assert!(ids.map(|m| m["id"].as_str()).any(|other| other == Some(id)));
}

#[test]
fn given_descriptions_of_other_programs_they_are_read_as_crowfly_map_reads_them() {
    let served = Served::dgx();
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for file in [
        "nccl_xml/nccl.xml",
        "nccl_xml/rccl.xml",
        "hwloc_xml/hwloc2.xml",
    ] {
        let path = seeds.join(file);
        let content = std::fs::read(&path).expect("a seed");
        let answer = ask(served.port, "POST", "/api/machine", &[], &content);
        assert_eq!(answer.status, 200, "{file}");
        let picture = answer.json()["picture"]
            .as_str()
            .expect("a picture")
            .to_owned();
        let folder = tempfile::tempdir().expect("a folder");
        let svg = folder.path().join("map.svg");
        let (path, to) = (path.to_str().expect("text"), svg.to_str().expect("text"));
        assert!(
            command(&["map", "--from", path, "--svg", to])
                .status
                .success()
        );
        assert_eq!(
            picture,
            std::fs::read_to_string(&svg).expect("drawn"),
            "{file}"
        );
    }
}

#[test]
fn given_more_files_than_are_kept_the_oldest_is_forgotten_and_says_so() {
    let served = Served::dgx();
    let nccl = |numa: u32| format!("<system version=\"1\"><cpu numaid=\"{numa}\"/></system>");
    let take = |numa| {
        let answer = ask(
            served.port,
            "POST",
            "/api/machine",
            &[],
            nccl(numa).as_bytes(),
        );
        answer.json()["id"].as_str().expect("an id").to_owned()
    };
    let first = take(0);
    let others: Vec<String> = (1..=8).map(take).collect();
    let gone = get(served.port, &format!("/api/machine?machine={first}"));
    assert_eq!(
        (gone.status, gone.code().as_str()),
        (404, "ui-no-such-machine")
    );
    for id in others {
        assert_eq!(
            get(served.port, &format!("/api/machine?machine={id}")).status,
            200
        );
    }
}

#[test]
fn plans_are_the_documents_that_the_shown_command_line_prints() {
    let served = Served::dgx();
    for question in [
        "",
        "server=dgx-h100&servers=64&model=70b",
        "server=gcp-a4x&servers=36&model=llama3-405b&sharding=zero3&tensor=8&recompute=",
        "server=aws-p5en&servers=16&params=13B&nic-gbps=100&memory-gbs=400&oversubscription=2",
        "server=dgx-b200&sweep=servers=1..4096",
        "question=checkpoint&server=dgx-h100&model=70b&storage=gcp-managed-lustre-1000&storage-tib=100",
        "question=interval&model=llama3-405b&gpus=16384&storage-gbs=2000",
        "question=loading&data=image&storage-gbs=100&servers=512",
        "question=fabric&servers=512",
        "question=storage&stall=10&storage=gcp-managed-lustre-1000",
        "question=collective&server=aws-p5en&servers=16&size=16GiB",
    ] {
        let answer = json(served.port, &format!("/api/plan?{question}"));
        assert_eq!(answer["document"], by_command(&answer), "{question}");
        let verdict = answer["sheet"]["verdict"].as_str().expect("a verdict");
        let words: Vec<String> = shown(&answer);
        let words: Vec<&str> = words
            .iter()
            .map(String::as_str)
            .chain(["--markdown"])
            .collect();
        let told = String::from_utf8(command(&words).stdout).expect("text");
        let first = told.lines().next().expect("a verdict").replace('\\', "");
        assert_eq!(first, verdict, "{question}");
    }
}

#[test]
fn the_article_s_numbers_stand_on_the_bars() {
    let served = Served::dgx();
    let answer = json(served.port, "/api/plan?server=dgx-h100&servers=8&model=70b");
    let charts = answer["sheet"]["charts"].as_array().expect("charts");
    let article = &charts[0]["bars"];
    assert_eq!(
        (&article[0]["text"], &article[0]["value"]),
        (&"613 ms".into(), &0.6125.into())
    );
    assert_eq!(article[1]["text"], "1.74 s");
    assert_eq!(article[1]["way"], "staged");
    let calibrated = &charts[1]["bars"][1];
    assert!(calibrated["from"].as_f64() < calibrated["value"].as_f64());
    assert_eq!(charts[2]["bars"][0]["text"], "563 GB/s");
    assert_eq!(charts[2]["bars"][1]["text"], "1.60 TB/s");
    let path = "/api/plan?question=checkpoint&model=70b&storage-gbs=100";
    let restore = json(served.port, path);
    let bars = restore["sheet"]["charts"][0]["bars"]
        .as_array()
        .expect("bars");
    assert!(bars.iter().any(|bar| bar["text"] == "9.80 s"), "{bars:?}");
}

#[test]
fn exports_are_what_the_command_line_writes() {
    let served = Served::dgx();
    let question = "server=dgx-h100&servers=64&model=70b";
    let words = ["plan", "--server=dgx-h100", "--servers=64", "--model=70b"];
    for (form, option, kind) in [
        ("json", "--json", "application/json"),
        ("csv", "--csv", "text/csv; charset=utf-8"),
        ("markdown", "--markdown", "text/markdown; charset=utf-8"),
    ] {
        let answer = get(
            served.port,
            &format!("/api/plan/export?form={form}&{question}"),
        );
        assert_eq!(answer.header("content-type"), Some(kind));
        assert!(
            answer
                .header("content-disposition")
                .is_some_and(|d| d.starts_with("attachment"))
        );
        let printed = command(&[&words[..], &[option]].concat()).stdout;
        assert_eq!(answer.body, printed, "{form}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("plan.svg");
    let to = svg.to_str().expect("text");
    assert!(
        command(&[&words[..], &["--svg", to]].concat())
            .status
            .success()
    );
    let answer = get(
        served.port,
        &format!("/api/plan/export?form=svg&{question}"),
    );
    assert_eq!(answer.body, std::fs::read(&svg).expect("drawn"));
    assert_eq!(get(served.port, "/api/plan/export?form=exe").status, 400);
    let without = get(served.port, "/api/plan/export?form=svg&question=fabric");
    assert_eq!(without.status, 400, "a bill of materials has no picture");
}

#[test]
fn what_the_planner_refuses_is_refused_with_its_code_and_hint() {
    let served = Served::dgx();
    for (question, code, hint) in [
        ("servers=0", "plan-out-of-range", None),
        ("servers=-1", "usage", None),
        ("server=dgx-h10", "plan-unknown-name", Some("dgx-h100")),
        ("model=lama3-405b", "plan-unknown-name", Some("llama3-405b")),
        (
            "nic-gbps=800",
            "plan-nic-faster-than-slot",
            Some("--pcie-gen"),
        ),
        ("tensor=3&servers=1", "plan-does-not-divide", None),
        ("model=70b&params=13B", "usage", None),
    ] {
        let answer = get(served.port, &format!("/api/plan?{question}"));
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, code),
            "{question}"
        );
        if let Some(hint) = hint {
            let said = answer.json()["error"]["hint"]
                .as_str()
                .expect("a hint")
                .to_owned();
            assert!(said.contains(hint), "{question}: {said}");
        }
    }
}

#[test]
fn options_that_name_files_or_ask_for_something_else_are_not_the_page_s_to_give() {
    let served = Served::dgx();
    for question in [
        "catalog=/etc/passwd",
        "from-snapshot=/etc/passwd",
        "receipts=/etc/passwd",
        "svg=/tmp/x",
        "csv=",
        "json=",
        "help=",
        "color=always",
        "question=simulate",
        "question=--help",
        "question=catalog",
        "model=70b%00",
    ] {
        let answer = get(served.port, &format!("/api/plan?{question}"));
        assert_eq!(answer.status, 400, "{question}");
    }
    assert!(!Path::new("/tmp/x").exists());
    let many = "tensor=1&".repeat(65);
    assert_eq!(get(served.port, &format!("/api/plan?{many}")).status, 400);
    let long = "1".repeat(257);
    assert_eq!(
        get(served.port, &format!("/api/plan?servers={long}")).status,
        400
    );
}

#[test]
fn given_a_captured_server_its_plan_is_that_of_from_snapshot() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("machine.json");
    let snapshot = machines::dgx_h100().snapshot().to_json();
    std::fs::write(&path, snapshot).expect("written");
    let path = path.to_str().expect("text");
    let served = Served::with(&["--snapshot", path]);
    let answer = json(
        served.port,
        "/api/plan?machine=here&servers=8&memory-gbs=563",
    );
    assert_eq!(answer["document"], by_command(&answer));
    assert_eq!(answer["document"]["cluster"]["server"]["gpu"], "h100-sxm");
    let catalogued = json(served.port, "/api/plan?machine=server:dgx-b200");
    assert_eq!(catalogued["command"], "crowfly plan --server=dgx-b200");
    // A file of another program does as well, dropped in or named.
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let content = std::fs::read(seeds.join("nccl_xml/nccl.xml")).expect("a seed");
    let file = folder.path().join("nccl.xml");
    std::fs::write(&file, &content).expect("written");
    let name = file.to_str().expect("text");
    let given = ask(
        served.port,
        "POST",
        "/api/machine",
        &[("X-Crowfly-Name", name)],
        &content,
    );
    let id = given.json()["id"].as_str().expect("an id").to_owned();
    let answer = json(served.port, &format!("/api/plan?machine={id}&servers=4"));
    assert_eq!(answer["document"], by_command(&answer));
}

#[test]
fn findings_of_files_are_those_of_crowfly_explain() {
    let served = Served::dgx();
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/explain");
    let folder = tempfile::tempdir().expect("a folder");
    for names in [
        &["nccl-log"][..],
        &["topo-matrix", "lspci"],
        &["snapshot"],
        &["gds-check", "nccl-topology"],
    ] {
        let contents: Vec<Vec<u8>> = names
            .iter()
            .map(|name| std::fs::read(seeds.join(name)).expect("a seed"))
            .collect();
        let files: Vec<(&str, &[u8])> = names
            .iter()
            .zip(&contents)
            .map(|(name, content)| (*name, content.as_slice()))
            .collect();
        for (name, content) in &files {
            std::fs::write(folder.path().join(name), content).expect("written");
        }
        let answer = explain(served.port, &files).json();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_crowfly"))
            .arg("explain")
            .args(names)
            .arg("--json")
            .current_dir(folder.path())
            .output()
            .expect("the program starts");
        let printed: Value = serde_json::from_slice(&output.stdout).expect("a document");
        assert_eq!(answer["document"], printed, "{names:?}");
        let expected = format!("crowfly explain {}", names.join(" "));
        assert_eq!(answer["command"], Value::String(expected));
        assert!(
            answer["report"]
                .as_str()
                .is_some_and(|report| report.contains("<h1>"))
        );
    }
}

#[test]
fn given_hostile_names_and_lines_they_are_text_in_the_report() {
    let served = Served::dgx();
    let nasty = "<img src=x onerror=alert(1)>.log";
    let answer = explain(
        served.port,
        &[(nasty, b"NCCL WARN <script>alert(1)</script>\n")],
    );
    let report = answer.json()["report"]
        .as_str()
        .expect("a report")
        .to_owned();
    for mark in ["<img", "<script", "onerror=alert(1)>"] {
        assert!(!report.contains(mark), "{mark}");
    }
    assert!(report.contains("&lt;img src=x"));
}

#[test]
fn the_machine_at_hand_is_looked_at_and_judged() {
    let served = Served::with(&[]);
    let here = json(served.port, "/api/machine");
    assert_eq!(here["name"], "this machine");
    let answer = get(served.port, "/api/doctor");
    assert_eq!(answer.status, 200);
    let answer = answer.json();
    assert_eq!(answer["command"], "crowfly doctor");
    assert_eq!(
        answer["document"]["schema"],
        document(&["doctor"])["schema"]
    );
    let catalogued = Served::dgx();
    assert_eq!(get(catalogued.port, "/api/doctor").code(), "ui-no-snapshot");
}
