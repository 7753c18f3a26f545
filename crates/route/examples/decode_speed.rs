//! Measures how long a snapshot takes from its text to a topology:
//!
//! ```sh
//! cargo run --release -p crowfly-route --features fixtures --example decode_speed [FILE]
//! ```
//!
//! Without a file it takes the node with sixteen GPUs, with a configuration space of 4096 bytes
//! for every function, as a capture by root has it.

use std::error::Error;
use std::time::{Duration, Instant};

use crowfly_route::fixture::machines;
use crowfly_route::snapshot::{Observation, Snapshot, Value};
use crowfly_route::topology::Topology;

const RUNS: usize = 101;
const CONFIG_BYTES: usize = 4096;

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
    let snapshot = machine.snapshot();
    for (key, seen) in snapshot.iter() {
        if let Observation::Value(Value::Bytes(bytes)) = seen
            && key.ends_with("/config")
        {
            let mut bytes = bytes.clone();
            bytes.resize(CONFIG_BYTES, 0);
            machine.observe(key, Observation::Value(Value::Bytes(bytes)));
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
