//! What a probe makes of libraries: fakes with each known fault, in this process and in real
//! children.

use std::io::Write;
use std::time::Duration;

use crowfly_route::obstacle::{Code, Effect};

use super::super::fake::{self, Behaviour, FakeStorage, Mode as FakeMode};
use super::surroundings::Udev;
use super::*;
use crate::gpu::fake::FakeGpus;
use crate::trial::{Answer, End, Reporter, Step};

fn sample() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new_in(".").expect("a file");
    let bytes: Vec<u8> = (0..child::SAMPLE + 1).map(|at| (at * 31) as u8).collect();
    file.write_all(&bytes).expect("written");
    file
}

fn healthy() -> Surroundings {
    Surroundings {
        lists_modules: true,
        overlay: false,
        udev: Udev::Whole,
    }
}

/// What a child says with a library of this behaviour and, if asked, a GPU.
fn outcome(behaviour: Behaviour, with_gpu: bool) -> (Outcome, StorageQuestion) {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let file = sample();
    let question = StorageQuestion {
        file: Some(file.path().to_owned()),
        gpu: with_gpu.then(|| FakeGpus::address(0)),
        ..StorageQuestion::default()
    };
    let mut said = Vec::new();
    child::try_out(
        &question,
        &storage.functions(),
        &|| gpus.runtime(),
        &mut Reporter::new(&mut said),
    );
    assert_eq!((storage.alive(), gpus.alive()), (0, 0), "all is given back");
    let text = String::from_utf8(said).expect("text");
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        let step: Step = serde_json::from_str(line).expect("a step");
        steps.retain(|known| known.step != step.step);
        steps.push(step);
    }
    let outcome = Outcome {
        steps,
        end: End::Finished,
        log: vec!["the last line of a log".into()],
    };
    (outcome, question)
}

fn probe(behaviour: Behaviour) -> Probe {
    let (outcome, question) = outcome(behaviour, true);
    Probe::of(&outcome, &question, &healthy())
}

fn codes(probe: &Probe) -> Vec<Code> {
    probe.obstacles.iter().map(|o| o.code).collect()
}

#[test]
fn each_way_is_told_by_the_counters_though_all_return_success() {
    let by = |mode| {
        probe(Behaviour {
            mode,
            ..Behaviour::default()
        })
    };
    let (peer, module, posix) = (
        by(FakeMode::Peer),
        by(FakeMode::Module),
        by(FakeMode::Posix),
    );
    assert_eq!((peer.mode, codes(&peer)), (Some(Mode::Peer), vec![]));
    assert_eq!((module.mode, codes(&module)), (Some(Mode::Module), vec![]));
    assert_eq!(
        (posix.mode, codes(&posix)),
        (Some(Mode::Compat), vec![Code::CompatMode])
    );
    assert!(posix.works() && posix.obstacles[0].effect == Effect::Blocks);
    let evidence = &posix.obstacles[0].evidence;
    assert!(
        evidence
            .iter()
            .any(|e| e.at == "cuFileGetStatsL3" && e.shows.ends_with("posix=1"))
    );
}

#[test]
fn without_counters_the_system_calls_tell_and_what_they_cannot_tell_is_unproven() {
    let old = Behaviour {
        counts: false,
        version: 1140,
        mode: FakeMode::Posix,
        ..Behaviour::default()
    };
    let (outcome, question) = outcome(old, true);
    let with = |step: &str, seen: &str| {
        let mut outcome = outcome.clone();
        outcome.steps.retain(|known| known.step != step);
        outcome.steps.push(Step {
            step: step.into(),
            answer: Answer::Done(seen.into()),
        });
        Probe::of(&outcome, &question, &healthy())
    };
    let compat = with("system-calls", "1048600");
    assert_eq!(
        (compat.mode, compat.version),
        (Some(Mode::Compat), Some((1, 14)))
    );
    let nothing = with("system-calls", "120");
    assert_eq!(
        (nothing.mode, codes(&nothing)),
        (Some(Mode::Unproven), vec![Code::StorageUnproven])
    );
    assert_eq!(nothing.obstacles[0].effect, Effect::Unproven);
    let mut module = outcome.clone();
    for (step, seen) in [("system-calls", "120"), ("nvidia-fs", "1")] {
        module.steps.retain(|known| known.step != step);
        module.steps.push(Step {
            step: step.into(),
            answer: Answer::Done(seen.into()),
        });
    }
    assert_eq!(
        Probe::of(&module, &question, &healthy()).mode,
        Some(Mode::Module)
    );
}

#[test]
fn a_refused_driver_says_what_would_help() {
    for (open, help) in [
        (5001, "nvidia-fs"),
        (5033, "libcuda.so.1"),
        (5025, "/dev/nvidia"),
        (5030, "TRACE"),
    ] {
        let probe = probe(Behaviour {
            open,
            ..Behaviour::default()
        });
        assert_eq!(
            (probe.mode, codes(&probe)),
            (None, vec![Code::StorageDriverRefused])
        );
        let fix = &probe.obstacles[0].fix[0].what;
        assert!(fix.contains(help), "{open}: {fix}");
        assert!(
            probe.obstacles[0]
                .evidence
                .iter()
                .any(|e| e.at == "its log")
        );
    }
}

#[test]
fn a_refused_file_is_put_down_to_what_is_around_it() {
    let (outcome, question) = outcome(
        Behaviour {
            register: 5027,
            ..Behaviour::default()
        },
        true,
    );
    let code = |around: &Surroundings| codes(&Probe::of(&outcome, &question, around))[0];
    assert_eq!(code(&healthy()), Code::FileNotRegistered);
    let overlay = Surroundings {
        overlay: true,
        ..healthy()
    };
    assert_eq!(code(&overlay), Code::FileSystemUnsupported);
    let missing = Surroundings {
        udev: Udev::Missing("/run/udev/data/b8:0".into()),
        ..healthy()
    };
    assert_eq!(code(&missing), Code::NoUdevRecord);
    let incomplete = Surroundings {
        udev: Udev::Incomplete("/run/udev/data/b8:0".into()),
        ..healthy()
    };
    let probe = Probe::of(&outcome, &question, &incomplete);
    assert_eq!(codes(&probe), [Code::NoUdevRecord]);
    assert_eq!(probe.obstacles[0].evidence[0].at, "/run/udev/data/b8:0");
}

#[test]
fn memory_that_cannot_be_pinned_slows_and_does_not_block() {
    let probe = probe(Behaviour {
        pin: 5036,
        ..Behaviour::default()
    });
    assert_eq!(
        (probe.mode, codes(&probe)),
        (Some(Mode::Peer), vec![Code::GpuMemoryNotPinned])
    );
    assert_eq!(probe.obstacles[0].effect, Effect::Slows);
}

#[test]
fn bytes_that_are_not_those_of_the_file_are_never_success() {
    let probe = probe(Behaviour {
        longest: 4096,
        ..Behaviour::default()
    });
    assert_eq!(
        (probe.mode, codes(&probe)),
        (None, vec![Code::StorageDriverRefused])
    );
    let shows = &probe.obstacles[0].evidence[0].shows;
    assert_eq!(shows, "4096 bytes of 1048576");
}

#[test]
fn a_probe_without_a_file_only_says_whether_the_driver_opens() {
    let question = StorageQuestion::default();
    let step = |step: &str| Step {
        step: step.into(),
        answer: Answer::Done("success".into()),
    };
    let outcome = Outcome {
        steps: vec![step("library"), step("driver-open")],
        end: End::Finished,
        log: vec![],
    };
    let probe = Probe::of(&outcome, &question, &healthy());
    assert_eq!((probe.mode, codes(&probe)), (None, vec![]));
}

/// Run as a child: `CROWFLY_FAKE_LIBRARY` says what the library does.
#[test]
fn child_of_the_tests_below() {
    let Ok(kind) = std::env::var("CROWFLY_FAKE_LIBRARY") else {
        return;
    };
    let mut behaviour = Behaviour::default();
    match kind.as_str() {
        "hangs" => behaviour.hangs = true,
        "closes-input" => {
            behaviour.closes_input = true;
            behaviour.open = 5033;
        }
        "kills" => std::process::abort(),
        other => panic!("{other}"),
    }
    let functions = fake::alone(Dialect::Cuda, behaviour);
    let none = || unreachable!("no GPU is asked for");
    child::try_out(
        &StorageQuestion::default(),
        &functions,
        &none,
        &mut Reporter::new(std::io::stderr()),
    );
}

/// A child is this test program, running that one test; what it says of steps goes to what the
/// parent reads.
fn child(kind: &str) -> Probe {
    let program = std::env::current_exe().expect("this program");
    let script = format!(
        "exec \"{}\" --exact gpu_storage::probe::tests::child_of_the_tests_below --nocapture 2>&1",
        program.display()
    );
    let trial = Trial::by("/bin/sh", &["-c", &script])
        .with("CROWFLY_FAKE_LIBRARY", kind)
        .within(Duration::from_secs(3));
    Probe::run(&trial, &StorageQuestion::default())
}

#[test]
fn given_a_driver_that_hangs_a_real_child_is_ended_and_the_cause_named() {
    let probe = child("hangs");
    assert_eq!(codes(&probe), [Code::StorageDriverHangs]);
    let hangs = &probe.obstacles[0];
    assert!(
        hangs
            .summary
            .starts_with("cuFileDriverOpen of cuFile did not return"),
        "{}",
        hangs.summary
    );
    let absent = std::fs::metadata("/proc/modules").is_err();
    assert_eq!(
        hangs.evidence.iter().any(|e| e.at == "/proc/modules"),
        absent
    );
}

#[test]
fn given_a_driver_that_closes_descriptor_0_a_real_child_tells_and_has_it_back() {
    let probe = child("closes-input");
    assert_eq!(
        codes(&probe),
        [Code::StorageDriverClosedInput, Code::StorageDriverRefused]
    );
}

#[test]
fn given_a_library_that_ends_the_process_only_the_child_ends() {
    let probe = child("kills");
    assert_eq!(codes(&probe), [Code::StorageDriverRefused]);
    assert_eq!(probe.obstacles[0].evidence[0].shows, "signal 6");
}
