//! Values into text for people. Pure: a renderer takes a value and a width and returns a string.

pub mod failure;
pub mod progress;
pub mod style;
pub mod table;
pub mod text;
