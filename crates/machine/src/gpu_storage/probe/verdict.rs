//! What a child's report comes to. Pure.

use crowfly_route::obstacle::{Code, Confidence, Evidence, Fix, Obstacle};

use super::super::abi;
use super::child::step;
use super::surroundings::{Surroundings, Udev};
use super::{Mode, Probe, StorageQuestion};
use crate::gpu::Dialect;
use crate::trial::{Answer, End, Outcome};

pub(super) fn judge(outcome: &Outcome, question: &StorageQuestion, around: &Surroundings) -> Probe {
    let seen = Seen {
        outcome,
        question,
        around,
    };
    let (mode, evidence) = seen.mode().unzip();
    let version = outcome.done(step::VERSION).and_then(|text| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    let evidence = evidence.unwrap_or_default();
    Probe {
        mode,
        obstacles: seen.obstacles(mode, &evidence),
        evidence,
        version,
    }
}

struct Seen<'o> {
    outcome: &'o Outcome,
    question: &'o StorageQuestion,
    around: &'o Surroundings,
}

impl Seen<'_> {
    fn name(&self) -> &'static str {
        self.question.dialect().of("cuFile", "hipFile")
    }

    /// Which way the read went, by what proves it; `None` when nothing was read as it should be.
    fn mode(&self) -> Option<(Mode, Vec<Evidence>)> {
        let read: u64 = self.outcome.done(step::READ)?.parse().ok()?;
        if self.outcome.done(step::CONTENT)? != "equal" || self.outcome.end != End::Finished {
            return None;
        }
        let mut evidence = Vec::new();
        let mut see = |name: &str| {
            if let Some(shows) = self.outcome.done(name) {
                evidence.push(Evidence::new(self.called(name), shows));
            }
        };
        [
            step::COUNTERS,
            step::PEER_FLAGS,
            step::MODULE,
            step::SYSTEM_CALLS,
        ]
        .into_iter()
        .for_each(&mut see);
        let number = |name: &str| -> Option<u64> { self.outcome.done(name)?.parse().ok() };
        let counter = |name: &str| -> Option<u64> {
            let counters = self.outcome.done(step::COUNTERS)?;
            let mut words = counters.split(' ').filter_map(|word| word.split_once('='));
            words.find(|(key, _)| *key == name)?.1.parse().ok()
        };
        let counted = (counter("peer"), counter("module"), counter("posix"));
        let flags = number(step::PEER_FLAGS).unwrap_or(0);
        let by_calls = number(step::SYSTEM_CALLS).is_some_and(|bytes| bytes >= read);
        let mode = match counted {
            (_, _, Some(posix)) if posix > 0 => Mode::Compat,
            (Some(peer), _, _) if peer > 0 => Mode::Peer,
            (_, Some(module), _) if module > 0 => Mode::Module,
            // The module counts for all processes, but only requests that it carried out.
            _ if number(step::MODULE).is_some_and(|reads| reads > 0) && !by_calls => Mode::Module,
            // The kernel's peer-to-peer mode reads by system calls too, but says that it is on.
            _ if by_calls && flags & (1 << abi::P2P_PCI) == 0 => Mode::Compat,
            _ => Mode::Unproven,
        };
        Some((mode, evidence))
    }

    /// How a step is called by people.
    fn called(&self, name: &str) -> String {
        let dialect = self.question.dialect();
        match name {
            step::OPEN => dialect.of("cuFileDriverOpen", "hipFileDriverOpen"),
            step::REGISTER => dialect.of("cuFileHandleRegister", "hipFileHandleRegister"),
            step::PIN => dialect.of("cuFileBufRegister", "hipFileBufRegister"),
            step::READ => dialect.of("cuFileRead", "hipFileRead"),
            step::COUNTERS => dialect.of("cuFileGetStatsL3", "hipFileGetStatsL3"),
            step::PEER_FLAGS => "cuFileDriverGetP2PFlags",
            step::MODULE => "reads in /proc/driver/nvidia-fs/stats",
            step::SYSTEM_CALLS => "bytes read by system calls, /proc/self/io",
            other => other,
        }
        .to_owned()
    }

    fn obstacles(&self, mode: Option<Mode>, evidence: &[Evidence]) -> Vec<Obstacle> {
        let mut found = Vec::new();
        if self.outcome.done(step::INPUT) == Some("closed") {
            found.push(self.closed_input());
        }
        if let Some(Answer::Refused { why, .. }) = self.outcome.answer(step::PIN) {
            found.push(self.not_pinned(why));
        }
        found.extend(match mode {
            Some(Mode::Compat) => Some(self.compat(evidence)),
            Some(Mode::Unproven) => Some(self.unproven(evidence)),
            Some(Mode::Peer | Mode::Module) => None,
            None => self.failure(),
        });
        found
    }

    /// Why nothing was read, or not what is in the file.
    fn failure(&self) -> Option<Obstacle> {
        if let Some(obstacle) = self.ended_badly() {
            return Some(obstacle);
        }
        let refused = |name: &str| match self.outcome.answer(name) {
            Some(Answer::Refused { why, code }) => Some((why.as_str(), *code)),
            _ => None,
        };
        let name = self.name();
        if let Some((why, _)) = refused(step::LIBRARY) {
            return Some(self.no_library(why));
        }
        if let Some((why, code)) = refused(step::OPEN) {
            return Some(self.refused_opening(why, code));
        }
        if let Some((why, _)) = refused(step::FILE) {
            return Some(
                Obstacle::blocks(
                    Code::NoDirectIo,
                    format!("{} cannot be read with O_DIRECT", self.file()),
                )
                .seen(step::FILE, why)
                .fixed_by(Fix::by_hand("Keep the file on ext4 or xfs on NVMe drives.")),
            );
        }
        if let Some((why, code)) = refused(step::REGISTER) {
            return Some(self.not_registered(why, code));
        }
        if let Some((why, _)) = refused(step::RUNTIME) {
            return Some(
                Obstacle::blocks(Code::GpuRuntimeFailed, "the GPU's runtime refused")
                    .seen(step::RUNTIME, why),
            );
        }
        if let Some((why, _)) = refused(step::READ) {
            let obstacle = Obstacle::blocks(
                Code::FileNotRegistered,
                format!("{name} registered {} and did not read it", self.file()),
            );
            return Some(self.logged(obstacle.seen(self.called(step::READ), why)));
        }
        match self.outcome.done(step::CONTENT) {
            Some("equal") | None => None,
            Some(other) => Some(
                Obstacle::blocks(
                    Code::StorageDriverRefused,
                    format!("{name} did not bring the bytes of {}", self.file()),
                )
                .seen(step::CONTENT, other)
                .fixed_by(Fix::by_hand(
                    "Do not use it on this machine: an IOMMU or a bridge between drive and GPU may be at fault.",
                )),
            ),
        }
    }

    fn ended_badly(&self) -> Option<Obstacle> {
        let name = self.name();
        let step = self.outcome.unended();
        let called = step.map_or("it".into(), |step| self.called(step));
        match &self.outcome.end {
            End::Finished => None,
            End::TimedOut(limit) => {
                let summary = format!(
                    "{called} of {name} did not return within {} s",
                    limit.as_secs_f64()
                );
                let obstacle = Obstacle::blocks(Code::StorageDriverHangs, summary)
                    .seen(called, "no answer; the child process was ended");
                Some(match self.around.lists_modules {
                    true => self.logged(obstacle),
                    false => obstacle.seen("/proc/modules", "absent").fixed_by(Fix::by_hand(
                        "cuFile spins where /proc/modules is absent: use a kernel with modules, or give the container all of /proc.",
                    )),
                })
            }
            End::Died(how) => Some(
                self.logged(
                    Obstacle::blocks(
                        Code::StorageDriverRefused,
                        format!("{called} of {name} ended the process that called it"),
                    )
                    .seen(called, how.as_str()),
                ),
            ),
            End::NotStarted(why) => Some(
                Obstacle::unproven(
                    Code::StorageUnproven,
                    format!("{name} could not be tried: no child process could be started"),
                )
                .seen("spawn", why.as_str()),
            ),
        }
    }

    fn no_library(&self, why: &str) -> Obstacle {
        let fix = match self.question.dialect() {
            Dialect::Cuda => Fix::run(
                "Install it, or add the folder that has it to the loader's path.",
                "apt-get install libcufile",
            )
            .checked_by("ldconfig -p | grep libcufile"),
            Dialect::Hip => {
                Fix::by_hand("Install hipFile.").checked_by("ldconfig -p | grep libhipfile")
            }
        };
        Obstacle::blocks(
            Code::NoStorageLibrary,
            format!("{} is not there", self.name()),
        )
        .seen(step::LIBRARY, why)
        .fixed_by(fix)
    }

    fn refused_opening(&self, why: &str, code: Option<i32>) -> Obstacle {
        let name = self.name();
        let obstacle = Obstacle::blocks(
            Code::StorageDriverRefused,
            format!("{name} cannot be opened on this machine"),
        )
        .seen(self.called(step::OPEN), why);
        let fix = match code {
            Some(abi::DRIVER_NOT_INITIALIZED) => Fix::run(
                "Load nvidia-fs, or switch on the P2PDMA mode of cuFile 1.13 or newer.",
                "modprobe nvidia-fs",
            )
            .checked_by("cat /proc/driver/nvidia-fs/version"),
            Some(abi::PERMISSION_DENIED) => Fix::by_hand(
                "Give the container /dev/nvidia-fs* and /dev/nvidia*, and let the user read them.",
            ),
            Some(abi::SETUP_ERROR | abi::CUDA_DRIVER_ERROR) => Fix::by_hand(
                "cuFile needs libcuda.so.1 and a GPU: install the driver, or start the container with the GPU runtime.",
            )
            .checked_by("nvidia-smi"),
            _ => Fix::by_hand("Look at its log with logging.level TRACE in its configuration.")
                .checked_by("gdscheck -p"),
        };
        self.logged(obstacle.fixed_by(fix))
    }

    fn not_registered(&self, why: &str, code: Option<i32>) -> Obstacle {
        let (name, file) = (self.name(), self.file());
        let refused = self.called(step::REGISTER);
        if self.around.overlay {
            return Obstacle::blocks(
                Code::FileSystemUnsupported,
                format!("{file} lies on an overlay file system, which {name} does not see through"),
            )
            .seen("statfs", "overlay")
            .seen(refused, why)
            .fixed_by(Fix::by_hand(
                "Mount the drive's own file system into the container, and read from there.",
            ));
        }
        let (at, shows) = match &self.around.udev {
            Udev::Missing(at) => (at, "absent"),
            Udev::Incomplete(at) => (at, "without ID_FS_USAGE=filesystem"),
            Udev::Whole | Udev::NotLookedFor => {
                let obstacle =
                    Obstacle::blocks(Code::FileNotRegistered, format!("{name} refuses {file}"))
                        .seen(refused, why)
                        .fixed_by(fix_of_registering(code));
                return self.logged(obstacle);
            }
        };
        let obstacle = Obstacle::blocks(
            Code::NoUdevRecord,
            format!("{name} does not learn from udev what drive {file} lies on"),
        )
        .seen(at.display().to_string(), shows)
        .seen(refused, why)
        .fixed_by(Fix::by_hand(
            "Run udev on the machine; give the container /run/udev, readable.",
        ))
        .fixed_by(Fix::run(
            "Have udev look at the drives again.",
            "udevadm trigger --subsystem-match=block",
        ));
        self.logged(obstacle)
    }

    fn closed_input(&self) -> Obstacle {
        Obstacle::slows(
            Code::StorageDriverClosedInput,
            format!(
                "opening {} closes descriptor 0; crowfly puts it back",
                self.name()
            ),
        )
        .seen(
            self.called(step::OPEN),
            "descriptor 0 was closed afterwards",
        )
        .fixed_by(Fix::by_hand("Update the library."))
    }

    fn not_pinned(&self, why: &str) -> Obstacle {
        Obstacle::slows(
            Code::GpuMemoryNotPinned,
            format!(
                "the GPU's memory could not be pinned for {}, which then uses a buffer of its own",
                self.name()
            ),
        )
        .seen(self.called(step::PIN), why)
        .fixed_by(
            Fix::by_hand("Free BAR1 space: other programs pin the GPU's memory as well.")
                .checked_by("nvidia-smi -q -d MEMORY | grep -A3 BAR1"),
        )
    }

    fn compat(&self, evidence: &[Evidence]) -> Obstacle {
        let mut obstacle = Obstacle::blocks(
            Code::CompatMode,
            format!(
                "{} read {} through host memory, and called it success",
                self.name(),
                self.file()
            ),
        );
        obstacle.evidence.extend_from_slice(evidence);
        if self.outcome.done(step::COUNTERS).is_none() {
            obstacle.confidence = Confidence::Likely;
        }
        let fix = match self.question.dialect() {
            Dialect::Cuda => Fix::run(
                "Load nvidia-fs, or switch on the P2PDMA mode of cuFile 1.13 or newer.",
                "modprobe nvidia-fs",
            )
            .checked_by("gdscheck -p"),
            Dialect::Hip => {
                Fix::by_hand("Look at what hipFile's check misses.").checked_by("ais-check")
            }
        };
        obstacle.fixed_by(fix)
    }

    fn unproven(&self, evidence: &[Evidence]) -> Obstacle {
        let mut obstacle = Obstacle::unproven(
            Code::StorageUnproven,
            format!(
                "which way {} read {} cannot be told",
                self.name(),
                self.file()
            ),
        );
        obstacle.evidence.extend_from_slice(evidence);
        obstacle.fixed_by(Fix::by_hand(
            "Use cuFile 1.15 or newer, which counts requests by their way.",
        ))
    }

    /// Adds what the library logged last.
    fn logged(&self, obstacle: Obstacle) -> Obstacle {
        match self.outcome.log.last() {
            Some(line) => obstacle.seen("its log", line.as_str()),
            None => obstacle,
        }
    }

    fn file(&self) -> String {
        let file = self.question.file.as_ref();
        file.map_or("the file".into(), |file| file.display().to_string())
    }
}

/// What helps against a refused file, by the library's code.
fn fix_of_registering(code: Option<i32>) -> Fix {
    match code {
        Some(abi::IO_DISABLED) => Fix::by_hand(
            "Its configuration switches it off for this mount: look at denylist and fs.",
        )
        .checked_by("cat /etc/cufile.json"),
        Some(abi::PLATFORM_NOT_SUPPORTED | abi::DEVICE_NOT_SUPPORTED) => {
            Fix::by_hand("Use a data-center or professional GPU on a supported platform.")
                .checked_by("gdscheck -p")
        }
        Some(abi::DRIVER_NOT_INITIALIZED) => Fix::run(
            "Load nvidia-fs, or switch on the P2PDMA mode of cuFile 1.13 or newer.",
            "modprobe nvidia-fs",
        )
        .checked_by("cat /proc/driver/nvidia-fs/version"),
        _ => Fix::by_hand(
            "Keep it on a file system that it knows, such as ext4 with data=ordered or xfs.",
        )
        .checked_by("gdscheck -p"),
    }
}
