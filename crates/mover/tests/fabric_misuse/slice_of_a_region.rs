//! A region's bytes may change at any time, so there is no slice of them.
use crowfly_mover::fabric::Region;

fn misuse(region: &Region) -> &[u8] {
    region.as_slice()
}

fn main() {}
