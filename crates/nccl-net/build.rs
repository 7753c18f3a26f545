//! NCCL unloads plugins at its own time, while threads of the fabric may still be on their way out:
//! once loaded, the library stays. It has the name that NCCL looks for in itself too, by which others in
//! the process find it, wherever it was loaded from.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-crowfly.so");
    println!("cargo:rerun-if-changed=build.rs");
}
