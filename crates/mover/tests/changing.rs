//! Files that change while the default way of loading reads them: what was read is never passed off
//! as the file, and what another name does to it does not matter.
//!
//! The change happens when the first bytes have passed, while most have not been asked for yet.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crowfly_mover::checkpoint::Checkpoint;
use crowfly_mover::checkpoint::seeded::SeededCheckpoint;
use crowfly_mover::{
    Destination, Engine, Loaded, Piece, Request, Sink, Source, TransferError, Verify,
};
use crowfly_route::place::Place;
use crowfly_route::receipt::Verification;
use crowfly_route::units::Bytes;

/// Much more than can be in flight at once, so that the last bytes are read after the first.
const LENGTH: u64 = 96 << 20;
const SHARDS: u32 = 3;

/// Runs a change once, when the first bytes arrive.
struct AtFirstBytes(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl AtFirstBytes {
    fn new(change: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Box::new(change)))))
    }
}

impl Sink for AtFirstBytes {
    fn take(&self, _piece: usize, _offset: u64, _bytes: &[u8]) {
        // The lock is held meanwhile, so no other bytes pass before the change is done.
        if let Some(change) = self.0.lock().expect("no panic").take() {
            change();
        }
    }
}

/// A sharded checkpoint that was written long ago.
fn checkpoint() -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let plan = SeededCheckpoint::new(7, Bytes(LENGTH), SHARDS).expect("a plan");
    let go_on = |_| std::ops::ControlFlow::Continue(());
    plan.write(folder.path(), go_on).expect("written");
    let shards: Vec<PathBuf> = Checkpoint::open(folder.path())
        .expect("a checkpoint")
        .files()
        .iter()
        .map(|file| file.path().to_owned())
        .collect();
    assert_eq!(shards.len(), SHARDS as usize);
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for shard in &shards {
        let file = OpenOptions::new().write(true).open(shard).expect("ours");
        file.set_modified(long_ago).expect("ours");
    }
    (folder, shards)
}

/// Loads all shards by the default way while `change` happens to the last one.
fn load_while(
    shards: &[PathBuf],
    change: impl FnOnce(&Path) + Send + 'static,
) -> Result<Loaded, TransferError> {
    let pieces = shards.iter().map(|shard| {
        let source = Source::open(shard).expect("readable");
        source.drop_cache().expect("advice");
        Piece::whole(Arc::new(source))
    });
    let mut request = Request::to_host(Place::File("model".into()), pieces.collect());
    let last = shards.last().expect("three").clone();
    request.destination = Destination::Transit(Some(AtFirstBytes::new(move || change(&last))));
    request.verify = Verify::Compare;
    Engine::default().load(request)?.wait()
}

fn writable(path: &Path) -> fs::File {
    OpenOptions::new().write(true).open(path).expect("ours")
}

#[test]
fn given_a_shard_that_is_cut_meanwhile_the_load_fails_and_names_it() {
    let (_folder, shards) = checkpoint();
    let error = load_while(&shards, |last| writable(last).set_len(5).expect("cut"));
    let error = error.expect_err("it was cut");
    assert_eq!(error.code(), "file-shrank", "{error}");
    let name = shards[2].display().to_string();
    assert!(error.to_string().starts_with(&name), "{error}");
}

#[test]
fn given_a_shard_that_grows_meanwhile_the_load_fails_with_both_sizes() {
    let (_folder, shards) = checkpoint();
    let size = fs::metadata(&shards[2]).expect("there").len();
    let grow = |last: &Path| {
        let mut file = OpenOptions::new().append(true).open(last).expect("ours");
        file.write_all(b"more").expect("grows");
    };
    let error = load_while(&shards, grow).expect_err("it grew");
    let expected = format!(
        "{} was changed while it was read (size {size} -> {})",
        shards[2].display(),
        size + 4
    );
    assert_eq!(
        (error.code(), error.to_string()),
        ("file-changed", expected)
    );
}

#[test]
fn given_a_shard_that_is_overwritten_in_place_meanwhile_the_load_fails() {
    let (_folder, shards) = checkpoint();
    let overwrite = |last: &Path| {
        writable(last)
            .write_all_at(&[9; 4096], 8192)
            .expect("overwritten");
    };
    let error = load_while(&shards, overwrite).expect_err("it changed");
    let expected = format!(
        "{} was changed while it was read (modification time)",
        shards[2].display()
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn given_a_shard_whose_name_is_deleted_or_given_to_another_file_the_opened_one_is_loaded() {
    let delete = |last: &Path| fs::remove_file(last).expect("deleted");
    let replace = |last: &Path| {
        let other = last.with_extension("new");
        fs::write(&other, b"another checkpoint").expect("written");
        fs::rename(other, last).expect("replaced");
    };
    let changes: [fn(&Path); 2] = [delete, replace];
    for change in changes {
        let (_folder, shards) = checkpoint();
        let loaded = load_while(&shards, change).expect("its bytes are still there");
        assert!(loaded.receipt.is_whole());
        // The second reading, after the change, saw the same bytes.
        let verification = loaded.receipt.verification;
        assert!(matches!(verification, Verification::Matched { .. }));
    }
}

#[test]
fn given_a_shard_replaced_between_reading_its_header_and_loading_it_is_refused() {
    let (folder, shards) = checkpoint();
    let checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
    let last = &checkpoint.files()[2];
    assert_eq!(last.source().expect("unchanged").path(), shards[2]);
    let other = shards[2].with_extension("new");
    fs::copy(&shards[2], &other).expect("copied");
    fs::rename(other, &shards[2]).expect("replaced");
    let error = last.source().expect_err("its header was another file's");
    assert_eq!(error.code(), "file-changed");
    let expected = format!(
        "{} was changed while it was read (replaced by another file)",
        shards[2].display()
    );
    assert_eq!(error.to_string(), expected);
}
