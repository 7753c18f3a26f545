//! Registered memory has another owner: its bytes cannot be borrowed while peers may write them.
use crowfly_mover::fabric::{Access, Buffer, Fabric};

fn misuse(fabric: &Fabric, buffer: Buffer) -> u8 {
    let _region = fabric.register(buffer, Access::WRITE);
    buffer.as_slice()[0]
}

fn main() {}
