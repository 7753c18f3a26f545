//! NCCL unloads plugins at its own time, while threads of the fabric may still be on their way out:
//! once loaded, the library stays.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
