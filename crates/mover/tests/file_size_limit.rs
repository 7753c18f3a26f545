//! A limit on the size of files (`ulimit -f`), whose signal would end the process: what would meet
//! it is refused before the first byte, and what writes no file does not notice it.
//!
//! A process of its own with one test, because the limit belongs to the process.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use crowfly_mover::checkpoint::seeded::SeededCheckpoint;
use crowfly_mover::{Engine, Loaded, Piece, Region, Request, SaveRequest, Source, Verify};
use crowfly_route::obstacle::Code;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};
use crowfly_route::units::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Between two blocks, as limits counted in other units are.
const LIMIT: u64 = (4 << 20) + 512;

/// Runs `body` under the limit. The limit is lifted again for the test runner's own output.
fn limited<R>(body: impl FnOnce() -> R) -> R {
    let before = getrlimit(Resource::Fsize);
    let limit = Rlimit {
        current: Some(LIMIT),
        ..before
    };
    setrlimit(Resource::Fsize, limit).expect("a lower limit is always allowed");
    let result = body();
    setrlimit(Resource::Fsize, before).expect("not above the hard limit");
    result
}

fn save(folder: &std::path::Path, bytes: u64) -> Result<Loaded, crowfly_mover::TransferError> {
    let request = SaveRequest {
        region: Region::zeroed(bytes as usize, None).expect("a few MiB"),
        path: folder.join("out.bin"),
        policy: Policy::Prefer,
        path_asked: None,
    };
    Engine::default().save(request)?.wait()
}

#[test]
fn given_a_limit_on_the_size_of_files_what_exceeds_it_is_refused_and_nothing_else_is() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");

    let error = limited(|| save(folder.path(), LIMIT + 1)).expect_err("too large");
    let expected = format!(
        "{} would have {} bytes; this process may write files of {LIMIT} at most (`ulimit -f`)",
        folder.path().join("out.bin").display(),
        LIMIT + 1
    );
    assert_eq!(
        (error.code(), error.to_string()),
        ("file-too-large", expected)
    );
    assert_eq!(std::fs::read_dir(&folder).expect("ours").count(), 0);

    // Its last block would not fit, the file does.
    let receipt = limited(|| save(folder.path(), LIMIT))
        .expect("fits")
        .receipt;
    assert_eq!(
        (receipt.shares.len(), receipt.shares[0].path),
        (1, Path::Cached)
    );
    assert!(receipt.obstacles.iter().any(|o| o.code == Code::Unaligned));
    let saved = std::fs::metadata(folder.path().join("out.bin")).expect("there");
    assert_eq!(saved.len(), LIMIT);

    let plan = SeededCheckpoint::new(1, Bytes(2 * LIMIT), 1).expect("a plan");
    let seeded = folder.path().join("seeded");
    let written = limited(|| plan.write(&seeded, |_| ControlFlow::Continue(())));
    assert_eq!(
        written.expect_err("one file of 8 MiB").code(),
        "file-too-large"
    );
    assert!(!seeded.exists());

    // A verified load of cached, mapped bytes looks at them through a copy, which is no file.
    let mut file = tempfile::NamedTempFile::new_in(&folder).expect("a file");
    file.write_all(&vec![5; 3 * LIMIT as usize])
        .expect("written");
    let source = Source::open(file.path()).expect("readable");
    let pieces = vec![Piece::whole(Arc::new(source))];
    let mut request = Request::to_host(Place::File("big".into()), pieces);
    request.verify = Verify::Compare;
    let receipt = limited(|| Engine::default().load(request)?.wait())
        .expect("it writes no file")
        .receipt;
    assert!(matches!(receipt.verification, Verification::Matched { .. }));
}
