//! What the library told crowfly's own plugin of its calls, where this process has the plugin loaded: as the
//! library's profiler, or as its network.

use std::ffi::c_int;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_NOW};

/// The plugin, by the name it has in itself.
const PLUGIN: &str = "libnccl-net-crowfly.so";
/// `RTLD_NOLOAD`: only where it is loaded already.
const LOADED: c_int = libc::RTLD_NOLOAD;
/// The most bytes of what was told.
const MAX_TOLD: usize = 4 << 20;

/// The plugin's function: writes what was told of the communicators of a rank among so many, a JSON array, and
/// answers its length; nothing is written where that is more than there is room for.
type Told = unsafe extern "C" fn(rank: c_int, ranks: c_int, to: *mut u8, room: usize) -> usize;
const TOLD: &[u8] = b"crowfly_nccl_calls\0";

/// Why nothing is known of calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTold {
    /// The library has not loaded the plugin.
    #[error("NCCL has not loaded {PLUGIN} as its profiler, so it does not tell what it does")]
    NotLoaded,
    /// The plugin is another version.
    #[error("the {PLUGIN} that NCCL has loaded has no function {function}")]
    NoFunction {
        /// What it lacks.
        function: &'static str,
    },
    /// There are more calls than are read.
    #[error("{PLUGIN} was told {bytes} bytes; {MAX_TOLD} at most are read")]
    TooMuch {
        /// Bytes.
        bytes: usize,
    },
}

/// What was told of the communicators of this process that have so many ranks and this one, as JSON.
///
/// # Errors
/// [`NotTold`].
pub fn told(rank: usize, ranks: usize) -> Result<Vec<u8>, NotTold> {
    let function = function()?;
    let number = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
    let mut bytes = Vec::new();
    loop {
        // SAFETY: there is room for as many bytes as the function is told.
        let len = unsafe { function(number(rank), number(ranks), bytes.as_mut_ptr(), bytes.len()) };
        if len <= bytes.len() {
            bytes.truncate(len);
            return Ok(bytes);
        }
        if len > MAX_TOLD {
            return Err(NotTold::TooMuch { bytes: len });
        }
        // More may be told before it is asked again.
        bytes.resize(len + len / 4, 0);
    }
}

/// The plugin's function, once the plugin is loaded: it is never unloaded then.
fn function() -> Result<Told, NotTold> {
    static FOUND: OnceLock<Told> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    // SAFETY: nothing is loaded, so no initialiser runs.
    let library = unsafe { Library::open(Some(PLUGIN), RTLD_NOW | LOADED) };
    let library = library.map_err(|_| NotTold::NotLoaded)?;
    // SAFETY: the plugin's function of this name has this type.
    let found = unsafe { library.get::<Told>(TOLD) };
    let found = *found.map_err(|_| NotTold::NoFunction {
        function: "crowfly_nccl_calls",
    })?;
    std::mem::forget(library);
    Ok(*FOUND.get_or_init(|| found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_plugin_is_told_nothing_and_says_why() {
        let why = told(0, 2).expect_err("nobody loads it here");
        assert_eq!(
            why.to_string(),
            "NCCL has not loaded libnccl-net-crowfly.so as its profiler, so it does not tell what it does"
        );
    }
}
