//! The real libcufile, of several versions, on this machine: what it does without a GPU, and what
//! the probe makes of it. `just cufile` (and `.ci/run`) put the libraries below the target folder;
//! where they are not, the tests are waived.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crowfly_machine::gpu_storage::probe::{Mode, Probe, StorageQuestion};
use crowfly_machine::trial::{self, Trial};
use crowfly_route::obstacle::{Code, Effect};

const LIMIT: Duration = Duration::from_secs(8);
/// More than a probe reads.
const BYTES: usize = (1 << 20) + 4096;

/// Run as a child of the tests below.
#[test]
fn child() {
    if let Ok(question) = std::env::var("CROWFLY_QUESTION") {
        trial::answer(&question, std::io::stdout()).expect("a question");
        std::process::exit(0);
    }
}

/// The folder that `just cufile` fills: one folder for each version.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let target = program.ancestors().nth(3).expect("target/debug/deps");
    target.join("cufile")
}

fn library(version: &str) -> Option<PathBuf> {
    let file = libraries().join(version).join("libcufile.so.0");
    file.exists().then_some(file)
}

/// A machine with what cuFile wants to see around a file: a list of modules, and udev's record of
/// the drive. Made in a mount namespace of its own.
struct Around {
    shim: tempfile::TempDir,
    record: Option<&'static str>,
}

impl Around {
    /// `None`, and why, where it cannot be made.
    fn new(record: Option<&'static str>) -> Result<Self, String> {
        let shim = tempfile::tempdir().map_err(|error| error.to_string())?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cufile/proc_modules.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&shim.path().join("shim.so"), &source])
            .arg("-ldl")
            .status();
        if !built.is_ok_and(|status| status.success()) {
            return Err("there is no C compiler".into());
        }
        let namespace = Command::new("unshare").args(["-m", "true"]).status();
        if !namespace.is_ok_and(|status| status.success()) {
            return Err("a mount namespace cannot be made".into());
        }
        Ok(Self { shim, record })
    }

    fn trial(&self, file: &Path) -> Trial {
        use std::os::unix::fs::MetadataExt;
        let device = file.metadata().expect("the file").dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let program = std::env::current_exe().expect("this program");
        let record = self.record.map_or(String::new(), |record| {
            format!("printf '{record}' > /run/udev/data/b{major}:{minor}\n")
        });
        let script = format!(
            "mount -t tmpfs none /run && mkdir -p /run/udev/data || exit 9\n{record}\
             CROWFLY_QUESTION=\"$0\" LD_PRELOAD={} exec {} --exact child --nocapture",
            self.shim.path().join("shim.so").display(),
            program.display(),
        );
        Trial::by("unshare", &["-m", "sh", "-c", &script]).within(LIMIT)
    }
}

const WHOLE: &str = "E:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE=ext4\\n";

fn sample() -> tempfile::NamedTempFile {
    let folder = std::env::current_exe().expect("this program");
    let folder = folder.parent().expect("a folder");
    let mut file = tempfile::NamedTempFile::new_in(folder).expect("a file");
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 29 + (at >> 10)) as u8).collect();
    file.write_all(&bytes).expect("written");
    file
}

fn probe(library: PathBuf, around: &Around, allow_compat: bool) -> Probe {
    let file = sample();
    let question = StorageQuestion {
        library: Some(library),
        file: Some(file.path().to_owned()),
        allow_compat,
        ..StorageQuestion::default()
    };
    Probe::run(&around.trial(file.path()), &question)
}

/// The library and its surroundings, or the end of a test that needs them.
macro_rules! needs {
    ($version:literal, $record:expr) => {{
        let Some(library) = library($version) else {
            crowfly_waive::waived!("libcufile {} is not in {}", $version, libraries().display());
        };
        match Around::new($record) {
            Ok(around) => (library, around),
            Err(why) => crowfly_waive::waived!("{why}"),
        }
    }};
}

fn reads_through_host_memory(library: PathBuf, around: &Around, version: (u32, u32)) {
    let probe = probe(library, around, true);
    assert_eq!(probe.version, Some(version), "{probe:?}");
    assert_eq!(probe.mode, Some(Mode::Compat), "{probe:?}");
    let seen = |at: &str| {
        let found = probe
            .evidence
            .iter()
            .find(|evidence| evidence.at.contains(at));
        found.map(|evidence| evidence.shows.as_str())
    };
    assert_eq!(seen("cuFileGetStatsL3"), Some("peer=0 module=0 posix=0"));
    let by_calls: u64 = seen("/proc/self/io")
        .expect("looked at")
        .parse()
        .expect("a number");
    assert!(by_calls >= 1 << 20, "read by system calls: {by_calls}");
    let [compat] = probe.obstacles.as_slice() else {
        panic!("one obstacle: {:?}", probe.obstacles)
    };
    assert_eq!(
        (compat.code, compat.effect),
        (Code::CompatMode, Effect::Blocks)
    );
}

#[test]
fn given_cufile_1_17_it_reads_through_host_memory_calls_it_success_and_is_found_out() {
    let (library, around) = needs!("1.17.1.22", Some(WHOLE));
    reads_through_host_memory(library, &around, (1, 17));
}

#[test]
fn given_cufile_1_20_with_its_later_layout_of_statistics_it_is_found_out_as_well() {
    let (library, around) = needs!("1.20.0.107", Some(WHOLE));
    reads_through_host_memory(library, &around, (1, 20));
}

#[test]
fn given_compat_mode_is_refused_no_version_reads_through_host_memory_under_another_name() {
    for version in ["1.17.1.22", "1.20.0.107"] {
        let Some(library) = library(version) else {
            crowfly_waive::waived!("libcufile {version} is not in {}", libraries().display());
        };
        let around = match Around::new(Some(WHOLE)) {
            Ok(around) => around,
            Err(why) => crowfly_waive::waived!("{why}"),
        };
        let probe = probe(library, &around, false);
        assert_eq!(probe.mode, None, "{version}: {probe:?}");
        let [obstacle] = probe.obstacles.as_slice() else {
            panic!("one obstacle: {:?}", probe.obstacles)
        };
        assert_eq!(obstacle.code, Code::StorageDriverRefused, "{version}");
        assert!(obstacle.evidence[0].shows.contains("5001"), "{obstacle:?}");
        assert_eq!(
            obstacle.fix[0].command.as_deref(),
            Some("modprobe nvidia-fs")
        );
    }
}

#[test]
fn given_no_udev_record_the_file_is_refused_and_the_record_named() {
    let (library, around) = needs!("1.17.1.22", None);
    let probe = probe(library, &around, true);
    assert_eq!(probe.mode, None);
    let [obstacle] = probe.obstacles.as_slice() else {
        panic!("one obstacle: {:?}", probe.obstacles)
    };
    // Where this machine has a record, it is another obstacle that the parent sees.
    assert!(
        matches!(obstacle.code, Code::NoUdevRecord | Code::FileNotRegistered),
        "{obstacle:?}"
    );
    assert!(
        obstacle.evidence.iter().any(|e| e.shows.contains("5027")),
        "{obstacle:?}"
    );
}

#[test]
fn given_cufile_1_11_or_1_14_without_a_gpus_driver_the_missing_library_is_named() {
    if crowfly_machine::gpu::Runtime::load(crowfly_machine::gpu::Dialect::Cuda).is_ok() {
        crowfly_waive::waived!("this machine has CUDA's driver");
    }
    for version in ["1.11.1.6", "1.14.1.1"] {
        let Some(library) = library(version) else {
            crowfly_waive::waived!("libcufile {version} is not in {}", libraries().display());
        };
        let around = match Around::new(Some(WHOLE)) {
            Ok(around) => around,
            Err(why) => crowfly_waive::waived!("{why}"),
        };
        let probe = probe(library, &around, true);
        let [obstacle] = probe.obstacles.as_slice() else {
            panic!("{version}: one obstacle: {:?}", probe.obstacles)
        };
        assert_eq!(obstacle.code, Code::StorageDriverRefused, "{version}");
        assert!(obstacle.evidence[0].shows.contains("5033"), "{obstacle:?}");
        assert!(obstacle.fix[0].what.contains("libcuda.so.1"), "{version}");
    }
}

#[test]
fn given_a_kernel_without_a_list_of_modules_the_hang_is_cut_short_and_explained() {
    if Path::new("/proc/modules").exists() {
        crowfly_waive::waived!("this machine has /proc/modules");
    }
    let Some(library) = library("1.17.1.22") else {
        crowfly_waive::waived!("libcufile 1.17.1.22 is not in {}", libraries().display());
    };
    let program = std::env::current_exe().expect("this program");
    let script = format!(
        "CROWFLY_QUESTION=\"$0\" exec {} --exact child --nocapture",
        program.display()
    );
    let question = StorageQuestion {
        library: Some(library),
        allow_compat: true,
        ..StorageQuestion::default()
    };
    let trial = Trial::by("/bin/sh", &["-c", &script]).within(Duration::from_secs(3));
    let probe = Probe::run(&trial, &question);
    let [obstacle] = probe.obstacles.as_slice() else {
        panic!("one obstacle: {:?}", probe.obstacles)
    };
    assert_eq!(obstacle.code, Code::StorageDriverHangs);
    assert!(obstacle.evidence.iter().any(|e| e.at == "/proc/modules"));
}
