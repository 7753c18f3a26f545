//! What is said through NCCL's logger, where `NCCL_DEBUG` lets it through.

use std::ffi::{CString, c_int, c_uint, c_ulong};
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use crowfly_route::obstacle::Obstacle;

use crate::abi;
use crate::error::NetError;

static LOGGER: RwLock<abi::Logger> = RwLock::new(None);

/// Where lines go from now on.
pub(crate) fn is(logger: abi::Logger) {
    *LOGGER.write().unwrap_or_else(PoisonError::into_inner) = logger;
}

fn say(level: c_uint, subsystems: c_ulong, text: &str) {
    let logger = *LOGGER.read().unwrap_or_else(PoisonError::into_inner);
    let Some(logger) = logger else {
        return;
    };
    // Names come from outside; a line of the log stays one line, and a C string has no zeros.
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let (Ok(line), Ok(file)) = (
        CString::new(format!("NET/crowfly : {clean}")),
        CString::new("crowfly"),
    ) else {
        return;
    };
    const NO_LINE: c_int = 0;
    // SAFETY: NCCL's logger takes these arguments, and after a format of `%s` one C string; all live
    // until it returns.
    unsafe {
        logger(
            level,
            subsystems,
            file.as_ptr(),
            NO_LINE,
            c"%s".as_ptr(),
            line.as_ptr(),
        );
    }
}

/// For whoever wants to know (`NCCL_DEBUG=INFO`).
pub(crate) fn info(text: &str) {
    say(abi::LOG_INFO, abi::LOG_INIT_NET, text);
}

/// For everybody (`NCCL_DEBUG=WARN`).
pub(crate) fn warn(text: &str) {
    say(abi::LOG_WARN, abi::LOG_NET, text);
}

/// A call failed: what, why, and what stood in the way.
pub(crate) fn failed(call: &str, error: &NetError) {
    warn(&format!("{call}: {error} [{}]", error.code()));
    error
        .obstacles()
        .iter()
        .map(line)
        .for_each(|line| warn(&line));
}

/// Receipts are lost.
pub(crate) fn unwritten(path: &Path, error: &std::io::Error) {
    let path = path.display();
    warn(&format!("receipts cannot be written to {path}: {error}"));
}

/// An obstacle in one line.
pub(crate) fn line(obstacle: &Obstacle) -> String {
    let mut line = format!("obstacle [{}] {}", obstacle.code.as_str(), obstacle.summary);
    for seen in &obstacle.evidence {
        line += &format!("; {}: {}", seen.at, seen.shows);
    }
    for fix in &obstacle.fix {
        line += &format!("; fix: {}", fix.what);
    }
    line
}
