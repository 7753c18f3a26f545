//! Commands that name a GPU, on a machine that has none: typed errors with reasons, before anything is
//! touched. What they do with GPUs is tried with stand-ins, below the command line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crowfly_waive::waived;
use serde_json::Value;

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

fn crowfly(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.args(arguments).stdin(Stdio::null());
    command.output().expect("the program runs")
}

fn document(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
}

/// Whether a GPU that a runtime drives is there, so that nothing is refused.
fn has_gpu() -> bool {
    ["/dev/nvidiactl", "/dev/kfd"]
        .iter()
        .any(|device| Path::new(device).exists())
}

macro_rules! without_gpu {
    () => {
        if has_gpu() {
            waived!("this machine has a GPU");
        }
    };
}

#[test]
fn given_no_gpu_every_command_that_names_one_says_so_with_a_way_out() {
    without_gpu!();
    let folder = folder("none");
    let file = folder.join("m.bin");
    std::fs::write(&file, [7; 100]).expect("written");
    let (file, saved) = (
        file.to_str().expect("text").to_owned(),
        folder.join("saved"),
    );
    let out = saved.to_str().expect("text").to_owned();
    let served = format!("m=gpu:0:{file}");
    let commands: [&[&str]; 12] = [
        &["load", "--to", "gpu:0", &file],
        &["cp", &file, "gpu:0"],
        &["cp", "gpu:0", &out],
        &["cp", "gpu:0", "gpu:1"],
        &["cp", "gpu:0", "host:"],
        &["cp", "host:", "gpu:0"],
        // Before anybody is connected to.
        &["cp", "crowfly://127.0.0.1:1/m", "gpu:0"],
        &["cp", "gpu:0", "crowfly://127.0.0.1:1/m"],
        &["cp", "s3://bucket/m", "gpu:0"],
        &["cp", "gpu:0", "s3://bucket/m"],
        &["serve", "--listen", "127.0.0.1:0", "--on-gpu", &served],
        &["bench", "net", "--memory", "gpu:0"],
    ];
    for command in commands {
        let arguments = [command, &["--json"]].concat();
        let output = crowfly(&arguments);
        assert_eq!(output.status.code(), Some(69), "{command:?}");
        let error = document(&output)["error"].clone();
        assert_eq!(error["code"], "no-gpu", "{command:?}");
        let obstacle = &error["obstacles"][0];
        assert_eq!(obstacle["code"], "no-gpu", "{command:?}");
        assert!(obstacle["evidence"][0]["shows"].is_string(), "{command:?}");
        assert!(obstacle["fix"][0]["what"].is_string(), "{command:?}");
    }
    assert!(!saved.exists());
}

#[test]
fn what_makes_no_sense_with_a_gpu_is_refused_before_one_is_looked_for() {
    let refused = |arguments: &[&str]| {
        let output = crowfly(&[arguments, &["--json"]].concat());
        let code = document(&output)["error"]["code"].clone();
        (code, output.status.code())
    };
    let usage = ("usage".into(), Some(64));
    assert_eq!(refused(&["cp", "-r", ".", "gpu:0"]), usage);
    assert_eq!(refused(&["cp", "--resume", "m", "gpu:0"]), usage);
    assert_eq!(refused(&["cp", "-p", "crowfly://h:1/m", "gpu:0"]), usage);
    assert_eq!(refused(&["cp", "--nic", "eth0", "m", "gpu:0"]), usage);
    assert_eq!(refused(&["serve", "--on-gpu", "m=0:file"]), usage);
    assert_eq!(refused(&["cp", "-r", "s3://bucket/m", "gpu:0"]), usage);
    assert_eq!(refused(&["cp", "--resume", "gpu:0", "s3://b/m"]), usage);
    let unknown = ("not-built".into(), Some(69));
    assert_eq!(refused(&["cp", "gs://bucket/m", "gpu:0"]), unknown);
    assert_eq!(refused(&["cp", "gpu:0", "host:1"]), unknown);
    assert_eq!(
        refused(&["bench", "net", "--memory", "nic:eth0"]),
        ("not-a-memory".into(), Some(64))
    );
}

#[test]
fn given_no_gpu_the_probe_tells_of_each_runtime_why_it_is_not_there() {
    without_gpu!();
    let output = crowfly(&["doctor", "--probe", "--json"]);
    let probes = document(&output)["probes"].clone();
    let runtimes = probes["gpus"].as_array().expect("both");
    assert_eq!(runtimes.len(), 2);
    for (runtime, library) in runtimes.iter().zip(["libcuda", "libamdhip64"]) {
        let steps = runtime["steps"].as_array().expect("steps");
        assert_eq!(steps.len(), 1, "{runtime}");
        assert_eq!(
            (&steps[0]["what"], &steps[0]["works"]),
            (&"runtime".into(), &false.into())
        );
        let says = steps[0]["says"].as_str().expect("why");
        assert!(says.contains(library), "{says}");
        assert!(
            runtime.get("ended").is_none(),
            "it ended by itself: {runtime}"
        );
    }
    assert_eq!(probes["windows"].as_array().map(Vec::len), Some(0));
    let modes = probes["storage"].as_array().expect("mounts");
    for mounted in modes {
        assert_ne!(mounted["mode"], "peer-to-peer");
        assert_ne!(mounted["mode"], "kernel module");
        assert!(mounted["obstacles"][0]["code"].is_string(), "{mounted}");
    }
}
