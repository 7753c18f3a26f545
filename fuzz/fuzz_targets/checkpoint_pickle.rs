//! A pickle from any bytes: refused, or values that nothing was called to make.
#![no_main]

use crowfly_mover::ckpt::dcp::pickle::Pickle;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Pickle::parse(bytes, &[("torch", "*"), ("collections", "OrderedDict")]) {
        Ok(pickle) => drop(pickle.to_json()),
        Err(error) => assert!(!error.code().is_empty() && !error.to_string().contains('\u{1b}')),
    }
});
