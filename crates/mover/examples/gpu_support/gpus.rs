//! The GPU that an example is about: the first of this machine, or one that exists only in this process.
#![allow(dead_code, reason = "the tests of the examples use a part of it")]

use std::path::Path;
use std::sync::Arc;

use crowfly_machine::gpu::Dialect;
use crowfly_machine::gpu::fake::FakeGpus;
use crowfly_machine::gpu_storage::fake::{Behaviour, FakeStorage};
use crowfly_machine::gpu_storage::{Compat, Driver};
use crowfly_machine::trial::Trial;
use crowfly_mover::gpu::Gpu;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The first argument of the child in which the storage library is tried.
pub const CHILD: &str = "--answer-trial";

/// The first GPU of this machine, with its maker's storage library where that goes straight for the file;
/// where there is none the example is waived, with the reason.
pub fn first(example: &str, file: &Path) -> Outcome<Option<Arc<Gpu>>> {
    let gpu = match Gpu::nth(0) {
        Ok(gpu) => gpu,
        Err(obstacles) => {
            let reasons: Vec<String> = obstacles.into_iter().map(|o| o.summary).collect();
            crowfly_waive::record(&format!("{example}: {}", reasons.join("; ")));
            return Ok(None);
        }
    };
    let trial = Trial::by(std::env::current_exe()?, &[CHILD]);
    Ok(Some(Arc::new(gpu.find_storage(&trial, file))))
}

/// Goes through it with a GPU and a storage library that are played in this process.
pub fn played<T>(run: impl FnOnce(Arc<Gpu>) -> Outcome<T>) -> Outcome<T> {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let driver = Driver::open(&storage.functions(), Compat::Refused)?;
    let device = gpus.runtime()?.open(FakeGpus::address(0))?;
    run(Arc::new(Gpu::over(0, device).with_storage(driver)))
}
