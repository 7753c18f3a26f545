//! RDMA devices, their ports, identifiers and counters.

use super::recorder::Recorder;

const INFINIBAND: &str = "/sys/class/infiniband";

/// The most counters of one port that are read.
const MAX_COUNTERS: usize = 256;
/// Identifiers up to this index are recorded even when they are zero; a zero one beyond is left
/// out, because a port's table has up to 256 entries of which a handful are set.
const FIRST_GIDS: u32 = 16;

const ATTRIBUTES: &[&str] = &[
    "node_type",
    "node_guid",
    "fw_ver",
    "hca_type",
    "hw_rev",
    "board_id",
];
const PORT_ATTRIBUTES: &[&str] = &[
    "state",
    "phys_state",
    "rate",
    "link_layer",
    "lid",
    "sm_lid",
    "cap_mask",
];

pub(super) fn look(r: &mut Recorder<'_>) {
    for name in r.list(INFINIBAND) {
        let device = format!("{INFINIBAND}/{name}");
        r.link(device.as_str());
        if !r.enter(&device, "node_type") {
            continue;
        }
        r.link(format!("{device}/device"));
        r.texts(&device, ATTRIBUTES);
        for number in r.list(format!("{device}/ports")) {
            port(r, &format!("{device}/ports/{number}"));
        }
        counters(r, &format!("{device}/hw_counters"));
    }
}

fn port(r: &mut Recorder<'_>, port: &str) {
    r.texts(port, PORT_ATTRIBUTES);
    let mut indexes: Vec<u32> = r
        .peek(&format!("{port}/gids"))
        .iter()
        .filter_map(|index| index.parse().ok())
        .collect();
    indexes.sort_unstable();
    for index in indexes {
        identifier(r, port, index);
    }
    counters(r, &format!("{port}/counters"));
    counters(r, &format!("{port}/hw_counters"));
}

fn identifier(r: &mut Recorder<'_>, port: &str, index: u32) {
    let key = format!("{port}/gids/{index}");
    let seen = r.root().text(&key, super::recorder::MAX_TEXT_BYTES);
    let shown = seen.shows();
    let zero = shown.bytes().all(|byte| matches!(byte, b'0' | b':'));
    if zero && index >= FIRST_GIDS {
        return;
    }
    r.record(key, seen);
    if !zero {
        r.text(format!("{port}/gid_attrs/types/{index}"));
        r.text(format!("{port}/gid_attrs/ndevs/{index}"));
    }
}

fn counters(r: &mut Recorder<'_>, directory: &str) {
    for counter in r.peek(directory).into_iter().take(MAX_COUNTERS) {
        // `lifespan` sets how long the device may answer from memory; it counts nothing.
        if counter != "lifespan" {
            r.text(format!("{directory}/{counter}"));
        }
    }
}
