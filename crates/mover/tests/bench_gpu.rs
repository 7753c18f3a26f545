//! Measuring between memories of GPUs that exist only in this process: what a line says of its path.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crowfly_machine::gpu::fake::FakeGpus;
use crowfly_mover::bench::{BenchError, Held, Host, Line, Task};
use crowfly_mover::fabric::{FabricError, Settings, SharedKey};
use crowfly_mover::gpu::Gpu;
use crowfly_route::hop::Class;
use crowfly_route::obstacle::Code;
use crowfly_route::place::{Memory, Place};
use crowfly_route::receipt::Path;

const MOMENT: Duration = Duration::from_millis(10);
const MOST: u64 = 1 << 20;

fn open(gpus: &FakeGpus, index: usize) -> Arc<Gpu> {
    let runtime = gpus.runtime().expect("it starts");
    let device = runtime.open(FakeGpus::address(index)).expect("it is there");
    Arc::new(Gpu::over(index as u32, device))
}

fn settings() -> Settings {
    Settings::new(SharedKey::derive("bench of gpus"))
}

/// Measures against an end that lends such memory.
fn measured(there: Held, measure: impl FnOnce(&str)) {
    let host = Host::lending(settings(), there).expect("a host");
    let address = host.address().to_string();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| host.serve(&ended));
        // Also when a measurement panics, or the test would wait for ever.
        let _end = End(&ended);
        measure(&address);
    });
}

/// Ends a host.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn given_two_gpus_of_one_host_their_copies_are_measured_and_sockets_are_called_staged() {
    let gpus = FakeGpus::cuda(2);
    let (first, second) = (open(&gpus, 0), open(&gpus, 1));
    measured(Held::Gpu(second), |address| {
        let ours = Held::Gpu(Arc::clone(&first));
        for (path, class) in [(Path::Shm, Class::Direct), (Path::Tcp, Class::Socket)] {
            let line = Line::between(path, address, &settings(), MOST, &ours).expect("a line");
            assert!(!line.is_of_host_memory());
            for task in [Task::Write, Task::Read, Task::PingPong] {
                let sample = line.sample(task, MOST, MOMENT).expect("measured");
                let receipt = &sample.receipt;
                let mut ends = [Place::Gpu(0), Place::Remote(Memory::Gpu(1))];
                if task == Task::Read {
                    ends.reverse();
                }
                assert_eq!(
                    [&receipt.from, &receipt.to],
                    [&ends[0], &ends[1]],
                    "{task:?}"
                );
                assert_eq!(receipt.shares[0].class, class);
            }
        }
    });
    drop(first);
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn given_a_path_that_no_gpu_s_memory_goes_by_it_is_told_as_missing_with_why() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    measured(Held::Host, |address| {
        let ours = Held::Gpu(Arc::clone(&gpu));
        let error = Line::between(Path::Cma, address, &settings(), MOST, &ours);
        let Err(BenchError::Fabric(FabricError::Refused { obstacles, .. })) = error else {
            panic!("{error:?}")
        };
        let codes: Vec<Code> = obstacles.iter().map(|o| o.code).collect();
        assert!(
            codes.contains(&Code::NotBuilt) || codes.contains(&Code::NoSharedMemory),
            "{codes:?}"
        );
        let line = Line::between(Path::Shm, address, &settings(), MOST, &ours).expect("a line");
        let sample = line.sample(Task::Write, MOST, MOMENT).expect("measured");
        assert_eq!(sample.receipt.shares[0].class, Class::Staged);
    });
}
