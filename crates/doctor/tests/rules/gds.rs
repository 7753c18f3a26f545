//! G1 to G11.

use crowfly_doctor::Case;
use crowfly_doctor::Severity::{Broken, Fault, Note, Warning};
use crowfly_route::fixture::{Fixture, machines};
use crowfly_route::snapshot::{Observation, Value};

use super::given::{Example, example, machine, paste};

/// A report with these lines for version, drivers, settings and the end.
fn report(version: &str, drivers: &str, settings: &str, end: &str) -> Case {
    paste(&format!(
        " GDS release version: 1.13.0.11\n {version}\n Platform: x86_64\n =====================\n DRIVER CONFIGURATION:\n =====================\n{drivers} =====================\n CUFILE CONFIGURATION:\n =====================\n{settings} ==============\n PLATFORM INFO:\n ==============\n IOMMU: disabled\n{end}"
    ))
}

const LOADED: &str = "nvidia_fs version:  2.24 libcufile version: 2.12";
const MINIMUM: &str = "nvidia_fs minimum version: 2.12";
const PASSED: &str = " Platform verification succeeded\n";
const NVME_YES: &str = " NVMe               : Supported\n NFS                : Unsupported\n";
const NVME_NO: &str = " NVMe               : Unsupported\n NFS                : Unsupported\n";
const NVME_NO_NFS_YES: &str =
    " NVMe               : Unsupported\n NFS                : Supported\n";
const COMPAT: &str = " NVMe               : compat\n NFS                : compat\n";
const P2PDMA_NO: &str = " NVMe P2PDMA        : Unsupported\n NVMe               : Supported\n";
const ASKED: &str = " properties.use_pci_p2pdma : true\n";
const NOT_ASKED: &str = " properties.use_pci_p2pdma : false\n";
const ALLOWED: &str = " properties.use_compat_mode : true\n";
const FORBIDDEN: &str = " properties.use_compat_mode : false\n";

fn server(change: impl Fn(&mut Fixture)) -> Case {
    let mut node = machines::dgx_h100();
    change(&mut node);
    machine(&node)
}

fn loaded(node: &mut Fixture) {
    node.text("/proc/driver/nvidia-fs", "there");
}

fn log(lines: &[&str]) -> Case {
    let text: String = lines
        .iter()
        .map(|line| format!(" 16-06-2024 05:40:20:816 [pid=30 tid=31] {line}\n"))
        .collect();
    paste(&text)
}

fn stats(mapped: &str, errors: u32, io: &str) -> Case {
    paste(&format!(
        "GDS Version: 1.13.0.11\nNVFS statistics(ver: 4.0)\nNVFS Driver(version: 2.24.2)\nIO stats: {io}, peer IO stats: Disabled\nReads                : err={errors} io_state_err=0\nMmap                 : n=1 ok=1 err=0 munmap=1\nBar1-map             : {mapped} err=0 free=0\nError                : cpu-gpu-pages=0 sg-ext=0 dma-map=0 dma-ref=0\n"
    ))
}

fn cufile(words: &str) -> Case {
    paste(&format!(" 03-02-2025 10:00:00:001 [pid=7 tid=7] {words}\n"))
}

pub fn examples() -> Vec<Example> {
    let mut all = modules();
    all.extend(paths());
    all
}

fn modules() -> Vec<Example> {
    vec![
        example(
            "G1",
            Fault,
            || report(MINIMUM, COMPAT, "", PASSED),
            || report(LOADED, NVME_YES, "", PASSED),
        ),
        example(
            "G1",
            Warning,
            || {
                server(|node| {
                    node.observe("/proc/driver/nvidia-fs", Observation::Absent);
                })
            },
            // Denied is not absent.
            || {
                server(|node| {
                    node.observe("/proc/driver/nvidia-fs", Observation::Denied);
                })
            },
        ),
        example(
            "G2",
            Fault,
            || report(LOADED, NVME_NO, "", PASSED),
            // The files are on NFS.
            || report(LOADED, NVME_NO_NFS_YES, "", PASSED),
        ),
        example(
            "G2",
            Fault,
            || {
                server(|node| {
                    loaded(node);
                    node.observe(
                        "kallsyms:nvme_v1_register_nvfs_dma_ops",
                        Observation::Absent,
                    );
                    node.observe(
                        "kallsyms:nvme_v2_register_nvfs_dma_ops",
                        Observation::Absent,
                    );
                })
            },
            || {
                server(|node| {
                    loaded(node);
                    node.text("kallsyms:nvme_v1_register_nvfs_dma_ops", "t [nvme]");
                    node.observe(
                        "kallsyms:nvme_v2_register_nvfs_dma_ops",
                        Observation::Absent,
                    );
                })
            },
        ),
        example("G3", Fault, || interface("xfs"), || interface("nvme xfs")),
        example(
            "G4",
            Fault,
            || report(LOADED, P2PDMA_NO, ASKED, PASSED),
            // The normal state beside nvidia-fs.
            || report(LOADED, P2PDMA_NO, NOT_ASKED, PASSED),
        ),
        example(
            "G4",
            Fault,
            || {
                server(|node| {
                    node.text(
                        "/etc/cufile.json",
                        "{ \"properties\": {\n  \"use_pci_p2pdma\": true\n} }",
                    );
                    node.text("uname:release", "5.15.0-91-generic");
                })
            },
            || {
                server(|node| {
                    node.text(
                        "/etc/cufile.json",
                        "{ \"properties\": {\n  \"use_pci_p2pdma\": false\n} }",
                    );
                    node.text("uname:release", "5.15.0-91-generic");
                })
            },
        ),
        example(
            "G7",
            Warning,
            || {
                report(
                    "nvidia_fs version:  2.25 libcufile version: 2.12",
                    NVME_YES,
                    "",
                    PASSED,
                )
            },
            || report(LOADED, NVME_YES, "", PASSED),
        ),
        example(
            "G7",
            Fault,
            || {
                server(|node| {
                    node.text("/proc/driver/nvidia-fs/version", "version: 2.25.6");
                })
            },
            || {
                server(|node| {
                    node.text("/proc/driver/nvidia-fs/version", "version: 2.25.7");
                })
            },
        ),
        example("G8", Fault, || contained(false), || contained(true)),
        example(
            "G10",
            Broken,
            || report(LOADED, NVME_YES, "", " Platform verification failed\n"),
            || report(LOADED, NVME_YES, "", PASSED),
        ),
        example(
            "G10",
            Broken,
            || {
                report(
                    LOADED,
                    "",
                    "",
                    " cuFile initialization failed\n Platform verification error :\n",
                )
            },
            || report(LOADED, NVME_YES, "", ""),
        ),
        example(
            "G2",
            Broken,
            || cufile("ERROR  cufio-fs:199 NVMe driver not registered with nvidia-fs!!!"),
            || cufile("ERROR  cufio-fs:88 error overlayfs not supported by GDS"),
        ),
        // Compat mode decides whether cuFile goes on without the module.
        example(
            "G1",
            Fault,
            || cufile("ERROR  cufio-drv:716 nvidia-fs.ko driver not loaded"),
            || cufile("INFO  cufio-drv:716 nvidia-fs driver version 2.24"),
        ),
        example(
            "G1",
            Broken,
            || {
                cufile(
                    "ERROR  cufio:583 cuFileDriverOpen error: nvidia-fs driver is not loaded. Set allow_compat_mode to true in cufile.json file to enable compatible mode",
                )
            },
            || cufile("ERROR  cufio-drv:716 nvidia-fs.ko driver not loaded"),
        ),
    ]
}

/// A machine whose NVMe driver has version 2 of the hook alone.
fn interface(modules: &str) -> Case {
    let modules = modules.to_owned();
    server(move |node| {
        loaded(node);
        node.observe(
            "kallsyms:nvme_v1_register_nvfs_dma_ops",
            Observation::Absent,
        );
        node.text("kallsyms:nvme_v2_register_nvfs_dma_ops", "t [nvme]");
        node.text("/proc/driver/nvidia-fs/modules", modules.as_str());
    })
}

/// A container on a host with nvidia-fs.
fn contained(node_passed: bool) -> Case {
    server(move |node| {
        loaded(node);
        node.text("/.dockerenv", "file");
        node.text("/dev/nvidiactl", "character device");
        if node_passed {
            node.text("/dev/nvidia-fs0", "character device");
        }
        node.observe(
            "/run/udev",
            Observation::Value(Value::List(vec!["data".into()])),
        );
    })
}

fn paths() -> Vec<Example> {
    vec![
        example(
            "G5",
            Fault,
            || {
                log(&[
                    "ERROR  cufio-fs:152 EXT4 journal options not found in mount table for device,can't verify data=ordered mode journalling",
                ])
            },
            || {
                log(&[
                    "ERROR  cufio-topo:78 pci device not present in topology device attribute table: 0000:06:00.0",
                ])
            },
        ),
        example(
            "G6",
            Note,
            || report(LOADED, NVME_YES, ALLOWED, PASSED),
            || report(LOADED, NVME_YES, FORBIDDEN, PASSED),
        ),
        example(
            "G6",
            Note,
            || {
                paste(
                    "{\n  \"properties\": {\n    \"allow_compat_mode\": true,\n    \"max_direct_io_size_kb\" : 16384\n  }\n}\n",
                )
            },
            || {
                paste(
                    "{\n  \"properties\": {\n    \"allow_compat_mode\": false,\n    \"max_direct_io_size_kb\" : 16384\n  }\n}\n",
                )
            },
        ),
        example(
            "G9",
            Warning,
            || stats("n=4 ok=4", 3, "Enabled"),
            || stats("n=4 ok=4", 0, "Enabled"),
        ),
        example(
            "G9",
            Note,
            || stats("n=0 ok=0", 0, "Enabled"),
            || stats("n=4 ok=4", 0, "Enabled"),
        ),
        example(
            "G11",
            Warning,
            || log(&["ERROR  cufio:339 cuFileHandleRegister error: invalid arguments"]),
            || log(&["INFO  cufio:293 cuFileDriverOpen success"]),
        ),
    ]
}
