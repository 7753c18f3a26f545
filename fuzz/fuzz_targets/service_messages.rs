//! The messages of the control channel, in both directions.
#![no_main]

use crowfly_mover::service::{Answer, Location, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((number, request)) = Request::decode(data) {
        assert_eq!(request.encode(number), data);
    }
    if let Ok((number, answer)) = Answer::decode(data) {
        let again = answer.encode(number);
        assert_eq!(Answer::decode(&again), Ok((number, answer)));
    }
    if let Some(location) = std::str::from_utf8(data)
        .ok()
        .and_then(|t| t.parse::<Location>().ok())
    {
        let path = location.path.as_bytes();
        assert!(
            path.split(|byte| *byte == b'/')
                .all(|component| component != b".." && component != b".")
        );
    }
});
