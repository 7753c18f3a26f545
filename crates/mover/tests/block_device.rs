//! Block devices are read and written with nothing in between: what their folder's file system is does not matter.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crowfly_mover::{BLOCK, Engine, Piece, Request, SaveRequest, Source};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;
use crowfly_waive::waived;

const LENGTH: usize = 256 * BLOCK;

/// A file as a block device, for as long as this lives.
struct Loop {
    device: PathBuf,
    folder: tempfile::TempDir,
}

impl Loop {
    fn over(bytes: &[u8]) -> Option<Self> {
        // Below the target folder: a loop device passes direct requests on to its file system.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).ok()?;
        let image = folder.path().join("image");
        std::fs::write(&image, bytes).ok()?;
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&image)
            .output()
            .ok()
            .filter(|made| made.status.success())?;
        let device = PathBuf::from(String::from_utf8(made.stdout).ok()?.trim());
        Some(Self { device, folder })
    }

    fn image(&self) -> Vec<u8> {
        std::fs::read(self.folder.path().join("image")).expect("the image")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup")
            .arg("--detach")
            .arg(&self.device)
            .status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} is still attached", self.device.display());
        }
    }
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LENGTH).map(|i| ((i + seed) * 7 / 3) as u8).collect()
}

#[test]
fn given_a_block_device_then_it_is_read_and_written_directly_under_require() {
    let (before, after) = (pattern(0), pattern(5));
    let Some(given) = Loop::over(&before) else {
        waived!("no loop device can be made here");
    };
    let engine = Engine::default();
    let load = |path: &PathBuf| {
        let source = Arc::new(Source::open(path).expect("opens"));
        let mut request = Request::to_host(
            Place::File(path.display().to_string()),
            vec![Piece::whole(source)],
        );
        request.policy = Policy::Require;
        engine.load(request).and_then(|load| load.wait())
    };

    let read = load(&given.device).expect("reads");
    let share = &read.receipt.shares[0];
    assert_eq!((share.path, share.bytes.0), (Path::Direct, LENGTH as u64));
    assert!(read.regions[0].as_slice() == Some(&before[..]));

    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let other = folder.path().join("other");
    std::fs::write(&other, &after).expect("written");
    let region = load(&other).expect("reads").regions[0].clone();
    let saved = engine
        .save(SaveRequest {
            region,
            path: given.device.clone(),
            policy: Policy::Require,
            path_asked: None,
        })
        .and_then(|save| save.wait())
        .expect("writes");
    let share = &saved.receipt.shares[0];
    assert_eq!((share.path, share.bytes.0), (Path::Direct, LENGTH as u64));
    assert!(given.image() == after, "other bytes were written");
}
