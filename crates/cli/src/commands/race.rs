//! `crowfly race [PATH]`.

pub mod standing;
