//! Prints a machine of the fixtures as a snapshot, to try commands on machines one does not have:
//!
//! ```sh
//! cargo run -p crowfly-route --features fixtures --example machine dgx-h100 > dgx.json
//! crowfly map --from dgx.json
//! ```

use std::process::ExitCode;

use crowfly_route::fixture::{Fixture, machines};

const NAMES: [&str; 4] = ["dgx-h100", "pcie-box", "laptop", "sixteen-gpus"];

fn machine(name: &str) -> Option<Fixture> {
    Some(match name {
        "dgx-h100" => machines::dgx_h100(),
        "pcie-box" => machines::pcie_box(),
        "laptop" => machines::laptop(),
        "sixteen-gpus" => machines::sixteen_gpus(),
        _ => return None,
    })
}

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    match machine(&wanted) {
        Some(machine) => {
            print!("{}", machine.snapshot().to_json());
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("no machine `{wanted}`; there are {}", NAMES.join(", "));
            ExitCode::FAILURE
        }
    }
}
