//! Pure diagnosis: evidence in, findings out.
#![forbid(unsafe_code)]

pub mod evidence;
