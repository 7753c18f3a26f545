//! What a trial in a child process leads to in this one.

use crowfly_machine::gpu::fake::{FakeGpus, Model};
use crowfly_machine::gpu_storage::StorageError;
use crowfly_machine::gpu_storage::fake::{Behaviour, FakeStorage};

use super::*;

fn gpu(gpus: &FakeGpus) -> Gpu {
    let runtime = gpus.runtime().expect("it starts");
    Gpu::over(0, runtime.open(FakeGpus::address(0)).expect("it is there"))
}

fn probe(mode: Option<Mode>, obstacles: Vec<Obstacle>) -> Probe {
    Probe {
        mode,
        evidence: Vec::new(),
        version: None,
        obstacles,
    }
}

fn never() -> Result<Arc<Functions>, StorageError> {
    panic!("a library that does not go straight is not opened")
}

#[test]
fn given_a_library_that_went_straight_in_the_child_it_is_opened() {
    let gpus = FakeGpus::plug(Dialect::Cuda, &[Model::default()]);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let found = gpu(&gpus).with_probed(&probe(Some(Mode::Peer), Vec::new()), || {
        Ok(storage.functions())
    });
    assert!(found.storage().is_some());
    assert!(found.storage_obstacles().is_empty());
}

#[test]
fn given_a_library_that_bounced_in_the_child_it_is_left_closed_and_the_reason_kept() {
    let gpus = FakeGpus::plug(Dialect::Cuda, &[Model::default()]);
    let reason = Obstacle::blocks(Code::StorageDriverRefused, "it bounced");
    for mode in [Some(Mode::Compat), Some(Mode::Unproven), None] {
        let found = gpu(&gpus).with_probed(&probe(mode, vec![reason.clone()]), never);
        assert!(found.storage().is_none());
        assert_eq!(found.storage_obstacles(), std::slice::from_ref(&reason));
    }
}

#[test]
fn given_a_library_that_opens_in_the_child_only_the_reason_is_this_process() {
    let gpus = FakeGpus::plug(Dialect::Cuda, &[Model::default()]);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    storage.fail("cuFileDriverOpen", 0, 5001);
    let found = gpu(&gpus).with_probed(&probe(Some(Mode::Peer), Vec::new()), || {
        Ok(storage.functions())
    });
    assert!(found.storage().is_none());
    let [obstacle] = found.storage_obstacles() else {
        panic!("{:?}", found.storage_obstacles());
    };
    assert_eq!(obstacle.code, Code::StorageDriverRefused);
}
