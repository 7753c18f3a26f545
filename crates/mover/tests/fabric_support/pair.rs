//! Two fabrics on this host that are connected to each other.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::time::Duration;

use crowfly_mover::fabric::{
    Access, Buffer, Fabric, LocalSlice, Options, Peer, Region, RegionDescriptor, Settings,
    SharedKey,
};

/// Long enough for a busy machine, short enough to fail in.
pub const SOON: Duration = Duration::from_secs(20);

pub struct Pair {
    pub here: Fabric,
    pub there: Fabric,
    /// The far fabric as the near one sees it, and the other way round.
    pub to_there: Peer,
    pub to_here: Peer,
}

/// The settings of a test: `shm` or else `tcp`.
pub fn settings(shm: bool) -> Settings {
    Settings {
        shm,
        ..Settings::new(SharedKey::derive("a test"))
    }
}

impl Pair {
    pub fn new(shm: bool) -> Self {
        Self::with(settings(shm), settings(shm))
    }

    pub fn with(here: Settings, there: Settings) -> Self {
        let here = Fabric::new(here).expect("a fabric");
        let there = Fabric::new(there).expect("another");
        let to_there = here
            .connect(&there.address().to_string(), Options::within(SOON))
            .expect("connected");
        let to_here = there.accept(SOON).expect("accepted");
        Self {
            here,
            there,
            to_there,
            to_here,
        }
    }
}

/// Bytes that differ at every offset a test could confuse.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ seed as u8)
        .collect()
}

pub fn filled(fabric: &Fabric, bytes: &[u8], access: Access) -> Region {
    let buffer = Buffer::copy_of(bytes).expect("memory");
    fabric.register(buffer, access).expect("registered")
}

pub fn empty(fabric: &Fabric, len: usize, access: Access) -> Region {
    let buffer = Buffer::zeroed(len, None).expect("memory");
    fabric.register(buffer, access).expect("registered")
}

/// A descriptor as the other process would get it: by its bytes.
pub fn sent(region: &Region) -> RegionDescriptor {
    let bytes = region.descriptor().to_bytes().expect("fits");
    RegionDescriptor::from_bytes(&bytes).expect("reads back")
}

pub fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    assert_eq!(region.read_at(0, &mut bytes), bytes.len());
    bytes
}

pub fn part(region: &Region, start: usize, len: usize) -> LocalSlice {
    region.slice(start..start + len).expect("inside")
}
