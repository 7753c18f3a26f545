//! The programs about a GPU, above all the one behind `just gpu-tests` that measures rates: tried with a GPU
//! that exists only in their own process, and waived where they need one and there is none.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crowfly_machine::gpu::{Dialect, Runtime};

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu_rate-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("m"), vec![7; (3 << 20) + 77]).expect("written");
    folder
}

fn example(name: &str, arguments: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "-q", "-p", "crowfly-mover", "--example", name, "--"]);
    command.args(arguments).output().expect("cargo")
}

fn gpu_rate(arguments: &[&Path]) -> Output {
    example("gpu_rate", arguments)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn given_a_stand_in_every_way_has_its_line_and_every_line_says_that_it_is_no_gpu_s_rate() {
    let folder = folder("stand-in");
    let stand_in = Path::new("--stand-in");
    let run = gpu_rate(&[stand_in, &folder.join("m")]);
    let (out, error) = (text(&run.stdout), text(&run.stderr));
    assert!(run.status.success(), "{out}{error}");
    let lines: Vec<&str> = out.lines().collect();
    let (limit, marked): (Vec<&str>, Vec<&str>) =
        lines.iter().partition(|line| line.starts_with("limit"));
    assert_eq!(limit, ["limit of the link from host memory: unknown"]);
    let mark = "[stand-in, no GPU's rate]";
    assert!(marked.iter().all(|line| line.ends_with(mark)), "{out}");
    let names: Vec<&str> = marked[1..].iter().map(|line| line[..16].trim()).collect();
    let expected = [
        "plain, pinned",
        "plain, pageable",
        "pinned",
        "cufile",
        "staged",
        "cached",
    ];
    assert_eq!(names, expected, "{out}");
    for line in &marked[1..] {
        assert!(
            line.contains("GB/s median") || line.contains("MB/s median"),
            "{line}"
        );
    }
    let kept = folder.join("results");
    let run = gpu_rate(&[stand_in, &folder.join("m"), &kept]);
    assert!(!run.status.success(), "no times of a stand-in are kept");
    assert!(!kept.exists());
}

#[test]
fn given_no_gpu_the_measurement_is_waived_with_the_reason_and_no_results_are_written() {
    if Dialect::ALL
        .into_iter()
        .any(|dialect| Runtime::load(dialect).is_ok())
    {
        crowfly_waive::waived!("this machine has a GPU's runtime");
    }
    let folder = folder("waived");
    let kept = folder.join("results");
    let run = gpu_rate(&[&folder.join("m"), &kept]);
    let error = text(&run.stderr);
    assert!(run.status.success(), "{error}");
    let told = error.lines().find(|line| line.starts_with("waived: "));
    let told = told.expect("it is told");
    assert!(told.contains("gpu_rate") && told.contains("CUDA"), "{told}");
    assert!(!kept.exists());
}

#[test]
fn given_a_stand_in_a_kernel_follows_a_load_and_the_host_waits_only_at_the_end() {
    let folder = folder("kernel");
    let run = example(
        "kernel_after_load",
        &[Path::new("--stand-in"), &folder.join("m")],
    );
    let (out, error) = (text(&run.stdout), text(&run.stderr));
    assert!(run.status.success(), "{out}{error}");
    let expected = "3145805 bytes by cufile, and what follows changed 64 of them behind the load\n";
    assert_eq!(out, expected);
}
