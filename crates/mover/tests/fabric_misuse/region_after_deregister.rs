//! A region that was taken back is gone.
use crowfly_mover::fabric::{LocalSlice, Region};

fn misuse(region: Region) -> LocalSlice {
    let _buffer = region.deregister();
    region.whole()
}

fn main() {}
