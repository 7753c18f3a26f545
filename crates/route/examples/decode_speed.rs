//! Measures how long a snapshot takes from its text to a topology:
//!
//! ```sh
//! cargo run --release -p crowfly-route --features fixtures --example decode_speed [FILE]
//! ```
//!
//! Without a file it takes the node with sixteen GPUs as a capture by root would have it: with the
//! functions inside the processors, every attribute that is asked for, and 4096 bytes of
//! configuration space for every function.

use std::error::Error;
use std::time::{Duration, Instant};

use crowfly_route::fixture::machines;
use crowfly_route::snapshot::{Observation, Snapshot, Value};
use crowfly_route::topology::Topology;

const RUNS: usize = 101;
const CONFIG_BYTES: usize = 4096;
/// Functions inside two big processors: memory controllers, performance counters, DMA engines.
const INSIDE: u8 = 200;
const CPUS: u32 = 256;
/// Attributes that a capture asks every function for and most do not have.
const ABSENT: [&str; 14] = [
    "physfn",
    "iommu_group",
    "label",
    "ari_enabled",
    "sriov_numvfs",
    "sriov_totalvfs",
    "p2pmem/size",
    "p2pmem/available",
    "p2pmem/published",
    "aer_dev_correctable",
    "aer_dev_nonfatal",
    "aer_dev_fatal",
    "d3cold_allowed",
    "local_cpulist",
];

fn main() -> Result<(), Box<dyn Error>> {
    let text = match std::env::args().nth(1) {
        Some(file) => std::fs::read(file)?,
        None => sixteen_gpus(),
    };
    let snapshot = Snapshot::from_json(&text)?;
    let topology = Topology::from_snapshot(&snapshot);
    println!(
        "{} bytes, {} observations, {} functions, {} GPUs",
        text.len(),
        snapshot.len(),
        topology.pci.len(),
        topology.gpus.len()
    );
    let parse = median(|| drop(Snapshot::from_json(&text)));
    let decode = median(|| drop(Topology::from_snapshot(&snapshot)));
    println!("text to snapshot {parse:?}, snapshot to topology {decode:?} (medians of {RUNS})");
    Ok(())
}

fn sixteen_gpus() -> Vec<u8> {
    let mut machine = machines::sixteen_gpus();
    for number in 0..INSIDE {
        let name = format!("0000:fe:{:02x}.{}", number / 8, number % 8);
        let at = format!("/sys/bus/pci/devices/{name}");
        machine.link(&at, format!("../../../devices/pci0000:fe/{name}"));
        for (file, text) in [
            ("vendor", "0x8086"),
            ("device", "0x3250"),
            ("class", "0x088000"),
            ("numa_node", "0"),
            ("power_state", "unknown"),
            ("max_link_speed", "Unknown"),
            ("max_link_width", "0"),
        ] {
            machine.text(format!("{at}/{file}"), text);
        }
        let config = Observation::Value(Value::Bytes(vec![0x86, 0x80]));
        machine.observe(format!("{at}/config"), config);
    }
    for cpu in 0..CPUS {
        let key = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        machine.text(key, (cpu / (CPUS / 2)).to_string());
    }
    let snapshot = machine.snapshot();
    for (key, seen) in snapshot.iter() {
        let Some(device) = key.strip_suffix("/config") else {
            continue;
        };
        if let Observation::Value(Value::Bytes(bytes)) = seen {
            let mut bytes = bytes.clone();
            bytes.resize(CONFIG_BYTES, 0);
            machine.observe(key, Observation::Value(Value::Bytes(bytes)));
        }
        for file in ABSENT {
            machine.observe(format!("{device}/{file}"), Observation::Absent);
        }
    }
    machine.snapshot().to_json().into_bytes()
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[RUNS / 2]
}
