//! Ctrl-C and SIGTERM for commands that have something to tidy up.
//!
//! A command that holds nothing keeps the system's default and dies of the signal. One that moves
//! data or has made files calls [`watch`]: the first signal raises a flag that the work polls, the
//! second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure};

/// Raised by the first Ctrl-C or SIGTERM.
pub type Flag = Arc<AtomicBool>;

/// Takes over Ctrl-C and SIGTERM for the rest of the process.
pub fn watch() -> Result<Flag, Failure> {
    let flag = Flag::default();
    let raised = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::SeqCst) {
            std::process::exit(Exit::Interrupted.status().into());
        }
    })
    .map_err(|error| {
        Failure::new(
            "signals-unavailable",
            Exit::Unavailable,
            format!("could not take over Ctrl-C: {error}"),
        )
    })?;
    Ok(flag)
}
