//! Saving and restoring on real files, by one rank and by several.

use std::fs;
use std::path::Path;

use crowfly_mover::ckpt::{Saver, SaverSettings};

mod kept;
mod ranks;
mod saving;
#[path = "../ckpt_support/state.rs"]
mod support;

use support::alone;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn saver(root: &Path, settings: SaverSettings) -> Saver {
    Saver::new(root, alone(), settings).expect("a saver")
}

/// What is in a folder, in order.
fn names(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root).expect("listed");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}
