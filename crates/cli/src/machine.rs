//! The machine that a command looks at: this one, or one that someone captured.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use crowfly_route::snapshot::{MAX_SNAPSHOT_BYTES, Snapshot};

use crate::failure::Failure;

/// Options that choose the machine to look at. Flatten them into a command's arguments.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Machine")]
pub struct MachineArgs {
    /// Look at a snapshot that `crowfly capture` wrote instead of this machine
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
}

/// Reads a whole file given by the user, refusing to read more than `limit` bytes.
pub fn read_bounded(path: &Path, limit: usize) -> Result<Vec<u8>, Failure> {
    let reading = |error| Failure::reading(path, &error);
    let file = File::open(path).map_err(reading)?;
    let mut bytes = Vec::new();
    // One byte more than allowed lets the decoder see, and say, that there is too much.
    file.take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(reading)?;
    Ok(bytes)
}

/// Reads a snapshot file.
pub fn read_snapshot(path: &Path) -> Result<Snapshot, Failure> {
    Ok(Snapshot::from_json(&read_bounded(
        path,
        MAX_SNAPSHOT_BYTES,
    )?)?)
}
