//! What every command that moves bytes does around the engine: open the files, show progress,
//! stop on Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crowfly_mover::checkpoint::Checkpoint;
use crowfly_mover::checkpoint::select::Selection;
use crowfly_mover::{Loaded, Piece, Source, Transfer};

use crate::failure::Failure;
use crate::interrupt;
use crate::render::progress::Progress;

/// A running transfer is looked at each time this part of its time so far has passed again, so that
/// noticing its end late costs no more than that.
const LOOKS: u32 = 50;
/// A look costs a system call or two.
const SHORTEST: Duration = Duration::from_micros(20);
/// Ctrl-C must be felt at once.
const LONGEST: Duration = Duration::from_millis(2);

/// The selected ranges as pieces of open files.
pub fn pieces(checkpoint: &Checkpoint, selection: &Selection) -> Result<Vec<Piece>, Failure> {
    let mut pieces = Vec::new();
    for selected in &selection.files {
        let Some(file) = checkpoint.file(selected.file) else {
            continue;
        };
        let source = Arc::new(Source::open(file.path())?);
        pieces.extend(selected.ranges.iter().map(|range| Piece {
            source: Arc::clone(&source),
            range: range.clone(),
        }));
    }
    Ok(pieces)
}

/// Waits for a transfer, with its progress on the screen and an ear for Ctrl-C.
pub fn follow(
    transfer: Transfer,
    what: &str,
    progress: &Progress,
    interrupted: &interrupt::Flag,
) -> Result<Loaded, Failure> {
    progress.start(what, transfer.total().0);
    let started = Instant::now();
    while !transfer.is_finished() {
        if interrupted.load(Ordering::Relaxed) {
            transfer.cancel();
        }
        progress.at(transfer.moved().0);
        sleep((started.elapsed() / LOOKS).clamp(SHORTEST, LONGEST));
    }
    progress.at(transfer.moved().0);
    Ok(transfer.wait()?)
}
