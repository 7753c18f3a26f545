//! The examples about a GPU, above all the one behind `just gpu-tests` that measures rates, tried with a GPU
//! that exists only in this process.

#[path = "../examples/kernel_after_load/follow.rs"]
mod follow;
#[path = "../examples/gpu_support/gpus.rs"]
mod gpus;
#[path = "../examples/gpu_rate/rates.rs"]
mod rates;

use std::path::{Path, PathBuf};

use follow::follow;
use gpus::played;
use rates::{Subject, table};

/// A file on the disk of the build, where O_DIRECT works.
fn file(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-examples-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("m");
    std::fs::write(&path, vec![7; (3 << 20) + 77]).expect("written");
    path
}

#[test]
fn given_a_stand_in_every_way_has_its_line_and_every_line_says_that_it_is_no_gpu_s_rate() {
    let path = file("rates");
    let told = played(|gpu| {
        let stand_in = true;
        table(&Subject { gpu, stand_in }, &path)
    });
    let told = told.expect("measured");
    let (limit, marked): (Vec<&str>, Vec<&str>) =
        told.lines().partition(|line| line.starts_with("limit"));
    assert_eq!(limit, ["limit of the link from host memory: unknown"]);
    let mark = "[stand-in, no GPU's rate]";
    assert!(marked.iter().all(|line| line.ends_with(mark)), "{told}");
    let names: Vec<&str> = marked[1..].iter().map(|line| line[..16].trim()).collect();
    let expected = [
        "plain, pinned",
        "plain, pageable",
        "pinned",
        "drive alone",
        "cufile",
        "staged",
        "cached",
    ];
    assert_eq!(names, expected, "{told}");
    let routes = marked[1..].iter().map(|line| line.contains("B/s median"));
    assert!(routes.into_iter().all(|has| has), "{told}");
}

#[test]
fn given_a_stand_in_a_kernel_follows_a_load_and_the_host_waits_only_at_the_end() {
    let path = file("kernel");
    let told = played(|gpu| follow(&gpu, &path)).expect("the work followed");
    let expected = "3145805 bytes by cufile, and what follows changed 64 of them behind the load";
    assert_eq!(told, expected);
}
