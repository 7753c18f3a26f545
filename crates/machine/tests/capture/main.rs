//! What a capture records of machines, live and in directories.

mod hostile;
mod live;
mod recorded;
mod tree;
