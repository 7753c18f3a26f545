//! Drives and block devices, down to what they are made of.

use super::recorder::Recorder;

const BLOCK: &str = "/sys/block";
const NVME: &str = "/sys/class/nvme";
const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";

const CONTROLLER: &[&str] = &[
    "model",
    "serial",
    "firmware_rev",
    "transport",
    "address",
    "state",
    "numa_node",
    "queue_count",
    "sqsize",
    "subsysnqn",
    "cmb",
];
const SUBSYSTEM: &[&str] = &["model", "serial", "firmware_rev", "subsysnqn", "iopolicy"];

const ATTRIBUTES: &[&str] = &["dev", "size", "ro", "hidden", "removable"];
const QUEUE: &[&str] = &[
    "logical_block_size",
    "physical_block_size",
    "minimum_io_size",
    "optimal_io_size",
    "max_hw_sectors_kb",
    "max_sectors_kb",
    "max_segments",
    "max_segment_size",
    "virt_boundary_mask",
    "dma_alignment",
    "nr_requests",
    "scheduler",
    "rotational",
    "read_ahead_kb",
    "chunk_sectors",
    "nomerges",
    "io_poll",
    "dax",
    "write_cache",
    "stable_writes",
    "wbt_lat_usec",
    "zoned",
];
const PARTITION: &[&str] = &["partition", "dev", "size", "start", "ro"];

pub(super) fn look(r: &mut Recorder<'_>) {
    for name in r.list(BLOCK) {
        let device = format!("{BLOCK}/{name}");
        r.link(device.as_str());
        if r.enter(&device, "dev") {
            block(r, &device);
        }
    }
    for name in r.list(NVME) {
        let controller = format!("{NVME}/{name}");
        r.link(controller.as_str());
        if r.enter(&controller, "model") {
            r.link(format!("{controller}/device"));
            r.texts(&controller, CONTROLLER);
        }
    }
    for name in r.list(SUBSYSTEMS) {
        let subsystem = format!("{SUBSYSTEMS}/{name}");
        if r.enter(&subsystem, "model") {
            // Its controllers and namespaces are links among its entries.
            r.list(subsystem.as_str());
            r.texts(&subsystem, SUBSYSTEM);
        }
    }
}

fn block(r: &mut Recorder<'_>, device: &str) {
    r.texts(device, ATTRIBUTES);
    // A loop, network or RAM device with nothing behind it is a number kept for later.
    if r.seen(&format!("{device}/size")) == Some("0") {
        return;
    }
    r.texts(&format!("{device}/queue"), QUEUE);
    r.link(format!("{device}/device"));
    r.list(format!("{device}/holders"));
    r.list(format!("{device}/slaves"));
    let entries = r.peek(device);
    let has = |name: &str| entries.iter().any(|entry| entry == name);
    if has("dm") {
        r.texts(&format!("{device}/dm"), &["name", "uuid", "suspended"]);
    }
    if has("md") {
        let md = format!("{device}/md");
        r.texts(
            &md,
            &[
                "level",
                "raid_disks",
                "chunk_size",
                "array_state",
                "degraded",
            ],
        );
    }
    if has("loop") {
        r.texts(
            &format!("{device}/loop"),
            &["backing_file", "offset", "dio"],
        );
    }
    if has("device") {
        r.texts(&format!("{device}/device"), &["vendor", "model", "rev"]);
    }
    for entry in ["serial", "wwid"] {
        if has(entry) {
            r.text(format!("{device}/{entry}"));
        }
    }
    for entry in &entries {
        let partition = format!("{device}/{entry}");
        let number = r.root().text(&format!("{partition}/partition"), 16);
        if matches!(number, crowfly_route::snapshot::Observation::Value(_)) {
            r.texts(&partition, PARTITION);
            r.list(format!("{partition}/holders"));
        }
    }
}
