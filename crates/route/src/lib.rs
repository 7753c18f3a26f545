//! The vocabulary and the pure core of crowfly.
#![forbid(unsafe_code)]
