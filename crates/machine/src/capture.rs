//! Everything that is looked at on a machine, one module per family.

use crowfly_route::snapshot::Snapshot;

use crate::root::{MAX_STEPS, Root};

mod block;
mod gpu;
mod kernel;
mod library;
mod memory;
mod mount;
mod net;
mod nvml;
mod pci;
mod process;
mod rdma;
mod recorder;
mod storage_direct;
mod surroundings;

use recorder::Recorder;
pub use recorder::{MAX_CAPTURE_BYTES, TRUNCATED};

/// What to look at, and under which name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The program and version written into the snapshot.
    pub tool: String,
    /// Whether vendors' libraries are loaded into this process to ask them, on the live machine.
    pub libraries: bool,
    /// Whether the configuration space of PCI functions is read. Each read goes to the device, which
    /// costs more than the rest of a capture; only routes between devices depend on it.
    pub config_space: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tool: concat!("crowfly ", env!("CARGO_PKG_VERSION")).into(),
            libraries: true,
            config_space: true,
        }
    }
}

/// Looks at a machine and returns what was seen.
///
/// Total: what is absent, denied or broken becomes an observation. Of a copy below a directory only
/// files are looked at; the environment, limits, libraries and system calls of the live machine
/// stay *not looked at*.
pub fn capture(root: &Root, options: &Options) -> Snapshot {
    root.begin();
    let mut recorder = Recorder::new(root, options);
    let r = &mut recorder;
    memory::look(r);
    pci::look(r);
    net::look(r);
    rdma::look(r);
    block::look(r);
    mount::look(r);
    gpu::look(r);
    storage_direct::look(r);
    kernel::look(r);
    surroundings::look(r);
    if root.is_live() {
        process::look(r);
        if options.libraries {
            library::look(r);
            nvml::look(r);
        }
    }
    if root.is_exhausted() {
        recorder.cut_short(format!(
            "the machine has more to look at than {MAX_STEPS} steps; the rest was left out"
        ));
    }
    recorder.into_snapshot()
}
