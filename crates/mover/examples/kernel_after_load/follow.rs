//! The file's bytes go straight into the GPU's memory by `cuFileReadAsync` on one stream. That stream then
//! writes a word (`cuStreamWriteValue32`) for which another one waits (`cuStreamWaitValue32`), and what is
//! queued behind the wait, as a kernel would be, changes the first bytes. The host queues all of it at once
//! and waits at the end.

use std::path::Path;
use std::sync::Arc;

use crowfly_mover::gpu::queued::{StreamFile, after, signal};
use crowfly_mover::gpu::{DeviceMemory, Gpu, Stream};
use crowfly_mover::{Region, Source};

use super::gpus::Outcome;

/// How many bytes the work behind the load changes, and to what.
const CHANGED: usize = 64;
const TO: u8 = 9;
/// What the word says when the bytes are there.
const LOADED: u32 = 1;
const WORD: usize = size_of::<u32>();

/// Loads the file and has work follow; says what came of it.
pub fn follow(gpu: &Arc<Gpu>, path: &Path) -> Outcome<String> {
    let source = Source::open(path)?;
    let len = usize::try_from(source.size())?;
    if len < CHANGED {
        return Err(format!("a file of at least {CHANGED} bytes is needed").into());
    }
    if let Some(obstacle) = gpu.storage_obstacles().first() {
        return Err(format!("{}: {}", gpu.storage_path(), obstacle.summary).into());
    }
    let file = StreamFile::new(gpu, &source)?;
    let memory = DeviceMemory::allocate(gpu.device(), len)?;
    let word = DeviceMemory::allocate(gpu.device(), WORD)?;
    let (loads, computes) = (Stream::new(gpu.device())?, Stream::new(gpu.device())?);
    loads.fill(&word, 0..WORD, 0)?.wait()?;

    let read = file.read(&loads, &memory, 0..len, 0)?;
    let told = signal(&loads, &word, 0, LOADED)?;
    computes.wait_until(&word, 0, LOADED)?;
    let kernel = computes.fill(&memory, 0..CHANGED, TO)?;
    // Events do the same between two streams of one process.
    after(&computes, &loads)?;

    kernel.wait()?;
    told.wait()?;
    read.wait()?;
    let region = Region::of_gpu(gpu.index(), memory)?;
    let mut found = vec![0; len];
    region.read_at(0, &mut found)?;
    let mut expected = std::fs::read(path)?;
    expected.splice(0..CHANGED, [TO; CHANGED]);
    match found == expected {
        true => Ok(format!(
            "{len} bytes by {}, and what follows changed {CHANGED} of them behind the load",
            gpu.storage_path()
        )),
        false => Err("the work did not follow the load".into()),
    }
}
