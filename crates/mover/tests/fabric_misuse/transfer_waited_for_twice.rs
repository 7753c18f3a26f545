//! A transfer has one end.
use crowfly_mover::fabric::Transfer;

fn misuse(transfer: Transfer) {
    let _first = transfer.wait();
    let _second = transfer.wait();
}

fn main() {}
