//! A stand-in for NVIDIA's runtime, built from C.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder with the stand-in as `libcuda.so.1`.
pub fn stand_in() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> Result<PathBuf, String> {
    if Path::new("/proc/driver/nvidia").exists() {
        return Err("NVIDIA's own runtime is here".into());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/tests/fake_cuda.c");
    let made = folder.join(format!("libcuda.{}", std::process::id()));
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .args([&made, Path::new(source)])
        .status();
    match compiled {
        Err(_) => return Err("no C compiler builds the stand-in".into()),
        Ok(status) => assert!(status.success(), "the stand-in is C"),
    }
    // Other runs of these tests may have it loaded.
    std::fs::rename(&made, folder.join("libcuda.so.1")).map_err(|error| error.to_string())?;
    Ok(folder)
}
