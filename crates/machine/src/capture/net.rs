//! Network interfaces.

use super::recorder::Recorder;

const NET: &str = "/sys/class/net";

const ATTRIBUTES: &[&str] = &[
    "operstate",
    "speed",
    "duplex",
    "mtu",
    "carrier",
    "address",
    "type",
    "flags",
    "ifindex",
    "dev_id",
    "dev_port",
    "phys_port_name",
    "tx_queue_len",
    "bonding/mode",
    "bonding/slaves",
    "statistics/rx_bytes",
    "statistics/tx_bytes",
    "statistics/rx_errors",
    "statistics/tx_errors",
    "statistics/rx_dropped",
    "statistics/tx_dropped",
    "statistics/rx_missed_errors",
];

pub(super) fn look(r: &mut Recorder<'_>) {
    for name in r.list(NET) {
        let interface = format!("{NET}/{name}");
        r.link(interface.as_str());
        // A plain file such as `bonding_masters` sits among the interfaces.
        if r.root().kind(&interface).shows() == "file" || !r.enter(&interface, "operstate") {
            continue;
        }
        r.link(format!("{interface}/device"));
        r.link(format!("{interface}/device/driver"));
        r.link(format!("{interface}/master"));
        r.texts(&interface, ATTRIBUTES);
    }
}
