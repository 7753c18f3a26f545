//! Frames of a peer that was let in and means harm, to a fabric of this process: real connections, real memory.
//! What `cargo fuzz` sets, `cfg(fuzzing)`, is what makes the other end of them a part of the library.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    #[cfg(fuzzing)]
    crowfly_mover::fabric::intruder::frames(bytes);
    #[cfg(not(fuzzing))]
    let _ = bytes;
});
