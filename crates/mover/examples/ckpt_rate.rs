//! Saves a state of some size into a folder several times and prints a line of JSON for each, for
//! comparison with what else writes to that drive. `sync` waits for each save; `prepared` has memory
//! made ready before the first one, and time for it.
//!
//! `cargo run --release -p crowfly-mover --example ckpt_rate -- FOLDER [MIB] [TIMES] [sync|prepared] [WAIT]`

use std::collections::BTreeMap;
use std::time::Duration;

use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::select::RankSlice;
use crowfly_mover::ckpt::{Retention, Saver, SaverSettings, State, TensorPart};
use crowfly_route::units::Bytes;
use serde_json::json;

/// Bytes of one tensor.
const TENSOR: usize = 32 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("name a folder to save into")?;
    let mib: usize = arguments.next().as_deref().unwrap_or("1024").parse()?;
    let times: u64 = arguments.next().as_deref().unwrap_or("3").parse()?;
    let how = arguments.next().unwrap_or_default();
    let wait: f64 = arguments.next().as_deref().unwrap_or("5").parse()?;
    let tensors: Vec<(String, Vec<u8>)> = (0..(mib << 20).div_ceil(TENSOR))
        .map(|number| {
            let bytes = (0..TENSOR).map(|i| ((i * 31) ^ (i >> 8) ^ number) as u8);
            (format!("layers.{number}.weight"), bytes.collect())
        })
        .collect();
    let shape = [(TENSOR / 4) as u64];
    let state = State {
        tensors: tensors
            .iter()
            .map(|(name, bytes)| TensorPart::whole(name, Dtype::F32, &shape, bytes))
            .collect(),
        objects: BTreeMap::new(),
    };
    let settings = SaverSettings {
        staging: Bytes((mib as u64 + 64) << 20),
        retention: Some(Retention {
            keep: 1,
            keep_every: None,
        }),
        replace: true,
        ..SaverSettings::default()
    };
    let mut saver = Saver::new(&folder, RankSlice::new(0, 1)?, settings)?;
    if how == "prepared" {
        saver.prepare(&state)?;
        std::thread::sleep(Duration::from_secs_f64(wait));
    }
    for step in 0..times {
        let receipt = match how == "sync" {
            true => saver.save(step, &state)?,
            false => saver.save_async(step, &state)?.wait()?,
        };
        println!(
            "{}",
            json!({
                "bytes": receipt.file_bytes,
                "stall_seconds": receipt.stall_seconds,
                "fresh_bytes": receipt.fresh_bytes,
                "seconds": receipt.background_seconds,
                "write_seconds": receipt.write_seconds,
                "sync_seconds": receipt.sync_seconds,
                "publish_seconds": receipt.publish_seconds,
                "gbs": receipt.file_bytes.0 as f64 / receipt.background_seconds / 1e9,
                "cpu_seconds": receipt.receipt.cpu.total(),
            })
        );
    }
    Ok(())
}
