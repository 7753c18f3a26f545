//! A kernel that follows a load without the host waiting in between: `kernel_after_load [--stand-in] FILE`.
//!
//! The file's bytes go straight into the GPU's memory by `cuFileReadAsync` on one stream. That stream then
//! writes a word (`cuStreamWriteValue32`) for which another one waits (`cuStreamWaitValue32`), and what is
//! queued behind the wait, as a kernel would be, changes the first bytes. The host queues all of it at once
//! and waits at the end. Without a GPU it is waived; `--stand-in` plays one in this process.

#[path = "gpu_support/gpus.rs"]
mod gpus;

use std::path::Path;
use std::sync::Arc;

use crowfly_machine::trial;
use crowfly_mover::gpu::queued::{StreamFile, after, signal};
use crowfly_mover::gpu::{DeviceMemory, Gpu, Stream};
use crowfly_mover::{Region, Source};
use gpus::{CHILD, Outcome, first, played};

/// How many bytes the work behind the load changes, and to what.
const CHANGED: usize = 64;
const TO: u8 = 9;
/// What the word says when the bytes are there.
const LOADED: u32 = 1;
const WORD: usize = size_of::<u32>();

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [CHILD, question] => Ok(trial::answer(question, std::io::stdout())?),
        ["--stand-in", file] => played(|gpu| follow(&gpu, Path::new(file))),
        [file] => match first("kernel_after_load", Path::new(file))? {
            Some(gpu) => follow(&gpu, Path::new(file)),
            None => Ok(()),
        },
        _ => Err("kernel_after_load [--stand-in] FILE".into()),
    }
}

fn follow(gpu: &Arc<Gpu>, path: &Path) -> Outcome<()> {
    let source = Source::open(path)?;
    let len = usize::try_from(source.size())?;
    if len < CHANGED {
        return Err(format!("a file of at least {CHANGED} bytes is needed").into());
    }
    for obstacle in gpu.storage_obstacles() {
        println!("{}: {}", gpu.storage_path(), obstacle.summary);
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
        true => println!(
            "{len} bytes by {}, and what follows changed {CHANGED} of them behind the load",
            gpu.storage_path()
        ),
        false => return Err("the work did not follow the load".into()),
    }
    Ok(())
}
