//! The transfer engine: executes a route and returns a receipt.

pub mod checkpoint;
