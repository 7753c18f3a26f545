//! Commands that name GPUs, on this machine with two that are played: PCI functions in a mount namespace of
//! the command's own, and a stand-in for NVIDIA's runtime that its processes load. Nothing here is a GPU's
//! speed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

#[path = "../../mover/tests/gpu_support/stand_in.rs"]
mod stand_in;
#[path = "../../mover/tests/service_support/store.rs"]
mod store;

/// The addresses of the stand-in's GPUs, in order.
const GPUS: [&str; 2] = ["0000:41:00.0", "0000:81:00.0"];
/// Odd, and over several parts.
const LEN: usize = (5 << 20) + 4096 + 11;

/// A machine with the GPUs, and a folder.
struct Stage {
    runtime: PathBuf,
    folder: PathBuf,
}

impl Stage {
    fn new(test: &str) -> Result<Self, String> {
        let runtime = stand_in::stand_in()?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-played-{test}"));
        let _ = std::fs::remove_dir_all(&folder);
        for gpu in GPUS {
            let function = folder.join("pci").join(gpu);
            std::fs::create_dir_all(&function).expect("a folder");
            let facts = [
                ("vendor", "0x10de"),
                ("device", "0x2330"),
                ("class", "0x030200"),
                ("numa_node", "-1"),
            ];
            for (fact, says) in facts {
                std::fs::write(function.join(fact), format!("{says}\n")).expect("written");
            }
        }
        let bytes: Vec<u8> = (0..LEN as u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        std::fs::write(folder.join("m"), bytes).expect("written");
        std::fs::create_dir_all(folder.join("inbox")).expect("a folder");
        let stage = Self { runtime, folder };
        let tried = stage.command(Path::new("/bin/true"), &[]).output();
        match tried {
            Ok(output) if output.status.success() => Ok(stage),
            Ok(output) => Err(format!(
                "no mount namespace: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
            Err(error) => Err(format!("no mount namespace: {error}")),
        }
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        const IN_A_NAMESPACE: &str = "mount --bind \"$0\" /sys/bus/pci/devices && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", IN_A_NAMESPACE])
            .arg(self.folder.join("pci"))
            .arg(program)
            .args(arguments)
            .current_dir(&self.folder)
            .env("LD_LIBRARY_PATH", &self.runtime)
            .stdin(Stdio::null());
        command
    }

    fn crowfly(&self, arguments: &[&str]) -> Output {
        let program = Path::new(env!("CARGO_BIN_EXE_crowfly"));
        self.command(program, arguments).output().expect("it runs")
    }

    /// The document of a command that works.
    fn document(&self, arguments: &[&str]) -> Value {
        let output = self.crowfly(&[arguments, &["--json"]].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {told}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"))
    }

    /// The code and the exit status of one that does not, and the codes of its obstacles.
    fn refused(&self, arguments: &[&str]) -> (String, Option<i32>, Vec<String>) {
        let output = self.crowfly(&[arguments, &["--json"]].concat());
        let told: Value = serde_json::from_slice(&output.stdout).expect("a document");
        let error = &told["error"];
        let obstacles = error["obstacles"].as_array().cloned().unwrap_or_default();
        let code = |value: &Value| value["code"].as_str().unwrap_or_default().to_owned();
        (
            code(error),
            output.status.code(),
            obstacles.iter().map(code).collect(),
        )
    }

    /// A server, and what it says of its addresses.
    fn serve(&self, arguments: &[&str]) -> Served {
        let all = [&["serve", "--listen", "127.0.0.1:0"], arguments].concat();
        let program = Path::new(env!("CARGO_BIN_EXE_crowfly"));
        let mut process = self
            .command(program, &all)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut told = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut address = None;
        while address.is_none() {
            let mut line = String::new();
            assert!(told.read_line(&mut line).expect("a pipe") > 0, "it ended");
            let rest = line.split_once("crowfly://").map(|(_, rest)| rest);
            address = rest.and_then(|rest| Some(rest.split_once('/')?.0.to_owned()));
        }
        Served {
            process,
            address: address.expect("just found"),
            _told: told,
        }
    }
}

struct Served {
    process: Child,
    address: String,
    _told: BufReader<std::process::ChildStderr>,
}

impl Served {
    fn at(&self, name: &str) -> String {
        format!("crowfly://{}/{name}", self.address)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

macro_rules! played {
    ($test:literal) => {
        match Stage::new($test) {
            Ok(stage) => stage,
            Err(why) => crowfly_waive::waived!("{why}"),
        }
    };
}

/// Path, class and verification of a receipt.
type Way = (String, String, String);

/// The path and class that carried most, and whether what arrived was compared.
fn way(receipt: &Value) -> Way {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let share = &receipt["shares"][0];
    let verification = &receipt["verification"];
    let state = verification["state"].as_str().or(verification.as_str());
    (
        text(&share["path"]),
        text(&share["class"]),
        state.unwrap_or_default().to_owned(),
    )
}

fn owned(path: &str, class: &str, state: &str) -> Way {
    (path.into(), class.into(), state.into())
}

#[test]
fn files_are_loaded_into_gpus_copied_in_out_and_across_and_what_arrived_is_compared() {
    let stage = played!("within");
    let loaded = stage.document(&["load", "--to", "gpu:1", "--path", "staged", "--verify", "m"]);
    assert_eq!(
        way(&loaded["receipt"]),
        owned("staged", "staged", "matched")
    );
    assert_eq!(loaded["receipt"]["to"], "gpu:1");
    let size = ["--size", "5MiB"];
    let copies: [(&[&str], Way); 5] = [
        (&["cp", "m", "gpu:0"], owned("staged", "staged", "matched")),
        (
            &["cp", "gpu:0", "out"],
            owned("staged", "staged", "matched"),
        ),
        (
            &["cp", "gpu:0", "gpu:1", "--policy", "require"],
            owned("gpu-copy", "direct", "matched"),
        ),
        (
            &["cp", "gpu:1", "host:"],
            owned("gpu-copy", "direct", "matched"),
        ),
        (
            &["cp", "host:", "gpu:1"],
            owned("gpu-copy", "direct", "matched"),
        ),
    ];
    for (command, expected) in copies {
        // What a file has is as much as it is; of memory it has to be said.
        let said: &[&str] = if command[1] == "m" { &[] } else { &size };
        let copied = stage.document(&[command, said].concat());
        let found = way(&copied["receipt"]);
        // A file that was just written may come from, or go through, the page cache.
        let cached = found.0 == "cached" && expected.0 == "staged";
        assert!(
            found == expected || cached && found.2 == "matched",
            "{command:?}: {found:?}"
        );
    }
    assert_eq!(
        std::fs::metadata(stage.folder.join("out"))
            .expect("kept")
            .len(),
        5 << 20
    );
    let none = stage.refused(&["cp", "m", "gpu:2"]);
    assert_eq!((none.0.as_str(), none.1), ("no-gpu", Some(69)));
}

#[test]
fn what_is_served_from_one_gpu_goes_straight_into_another_s_memory_between_processes() {
    let stage = played!("served");
    let server = stage.serve(&["--on-gpu", "w=gpu:1:m"]);
    let copied = stage.document(&["cp", &server.at("w"), "gpu:0", "--policy", "require"]);
    assert_eq!(way(&copied["receipt"]), owned("shm", "direct", "agreed"));
    assert_eq!(copied["receipt"]["route"]["name"], "shm");
    assert_eq!(
        (&copied["receipt"]["bounced"], &copied["kept"]),
        (&0.into(), &false.into())
    );
    assert_eq!(copied["receipt"]["to"], "gpu:0");
}

#[test]
fn between_a_server_s_files_and_a_gpu_the_bytes_pass_host_memory_here_and_require_refuses_that() {
    let stage = played!("files");
    let server = stage.serve(&["--writable", "m", "inbox"]);
    let copied = stage.document(&["cp", &server.at("m"), "gpu:0"]);
    let receipt = &copied["receipt"];
    assert_eq!(way(receipt).2, "agreed");
    assert_eq!(receipt["bounced"], LEN);
    let obstacles = receipt["obstacles"].as_array().expect("a list");
    let told = obstacles
        .iter()
        .any(|obstacle| obstacle["code"] == "gpu-through-host");
    assert!(told, "{obstacles:?}");
    let refused = stage.refused(&["cp", &server.at("m"), "gpu:0", "--policy", "require"]);
    assert_eq!((refused.0.as_str(), refused.1), ("route-refused", Some(69)));
    let sent = ["cp", "gpu:1", &server.at("inbox/sent"), "--size", "5MiB"];
    let copied = stage.document(&sent);
    // Both ends agree, and it is what was put there.
    assert_eq!(way(&copied["receipt"]).2, "matched");
    assert_eq!(copied["receipt"]["from"], "gpu:1");
    let kept = std::fs::metadata(stage.folder.join("inbox/sent")).expect("kept");
    assert_eq!(kept.len(), 5 << 20);
}

#[test]
fn between_a_store_and_a_gpu_the_bytes_pass_pinned_buffers_here_and_require_refuses_that() {
    let stage = played!("store");
    let store = store::Store::start();
    store.bucket("b");
    let bytes = std::fs::read(stage.folder.join("m")).expect("there");
    store.put("b/m", &bytes, "v1");
    let settings = store.settings();
    let key = settings.credentials.expect("a key");
    let as_whom = [
        ("AWS_ENDPOINT_URL", store.endpoint()),
        ("AWS_REGION", settings.region.expect("a region")),
        ("AWS_ACCESS_KEY_ID", key.access_key),
        ("AWS_SECRET_ACCESS_KEY", key.secret_key),
        ("AWS_SESSION_TOKEN", key.session_token.expect("a token")),
    ];
    let asks = |arguments: &[&str]| {
        let program = Path::new(env!("CARGO_BIN_EXE_crowfly"));
        let all = [arguments, &["--json"]].concat();
        let mut command = stage.command(program, &all);
        let output = command.envs(as_whom.clone()).output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr);
        let told: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {told}"));
        (told, output.status.code())
    };
    let (copied, status) = asks(&["cp", "s3://b/m", "gpu:1"]);
    assert_eq!(status, Some(0), "{copied}");
    let receipt = &copied["receipt"];
    assert_eq!(way(receipt), owned("tcp", "socket", "computed"));
    assert_eq!(
        (&receipt["bounced"], &receipt["to"]),
        (&LEN.into(), &"gpu:1".into())
    );
    let legs = copied["legs"].as_array().expect("legs");
    assert_eq!(legs[1]["doing"], "writing");
    assert_eq!(legs[1]["shares"][0]["path"], "gpu-copy");
    let (copied, status) = asks(&["cp", "gpu:0", "s3://b/up", "--size", "5MiB"]);
    assert_eq!(status, Some(0), "{copied}");
    // The store confirms what was put into the GPU's memory.
    assert_eq!(way(&copied["receipt"]).2, "matched");
    assert_eq!(store.get("b/up").map(|bytes| bytes.len()), Some(5 << 20));
    let straight = ["--policy", "require"];
    for sides in [["s3://b/m", "gpu:0"], ["gpu:0", "s3://b/not"]] {
        let (told, status) = asks(&[&["cp"], &sides[..], &straight].concat());
        assert_eq!(status, Some(69), "{told}");
        let error = &told["error"];
        assert_eq!(error["code"], "route-refused");
        let obstacles = error["obstacles"].as_array().expect("why");
        let codes: Vec<&Value> = obstacles.iter().map(|found| &found["code"]).collect();
        assert_eq!(codes, ["object-store", "gpu-through-host"]);
    }
    assert_eq!(store.get("b/not"), None);
}

#[test]
fn the_race_the_benchmark_and_the_probe_take_the_gpus_for_what_they_are() {
    let stage = played!("others");
    let race = stage.document(&["race", "m", "--runs", "1"]);
    let lanes = race["lanes"].as_array().expect("lanes");
    let to_gpu = |lane: &&Value| lane["receipts"][0]["to"] == "gpu:0";
    assert!(lanes.iter().any(|lane| to_gpu(&lane)), "{lanes:?}");
    let both = [
        "bench",
        "net",
        "--memory",
        "gpu:0",
        "--peer-memory",
        "gpu:1",
    ];
    let bench = stage.document(
        &[
            &both[..],
            &["--size", "1MiB", "--rounds", "1", "--time", "20"],
        ]
        .concat(),
    );
    assert!(bench.to_string().contains("gpu:1"), "{bench}");
    let output = stage.crowfly(&["doctor", "--probe", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let steps = told["probes"]["gpus"][0]["steps"]
        .as_array()
        .expect("steps")
        .clone();
    let step = |name: &str| {
        let found = steps.iter().find(|step| step["what"] == name);
        found
            .unwrap_or_else(|| panic!("no {name}: {steps:?}"))
            .clone()
    };
    assert_eq!(step("gpus")["says"], "2");
    for (from, to) in [(0, 1), (1, 0)] {
        let reach = step(&format!("reach {} {}", GPUS[from], GPUS[to]));
        assert_eq!(reach["works"], true);
    }
    // The stand-in exports nothing.
    let export = step(&format!("export {}", GPUS[0]));
    assert_eq!(export["works"], false);
    let why = export["says"].as_str().expect("why");
    assert!(why.contains("cuMemGetHandleForAddressRange"), "{why}");
}
