//! Loads a file into host memory and prints how it went.
//!
//! `cargo run --release -p crowfly-mover --example load -- FILE [direct|threads|mapped|cached] [transit]`

use std::sync::Arc;

use crowfly_mover::{Destination, Engine, Piece, Request, Source};
use crowfly_route::place::Place;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("name a file")?;
    let source = Arc::new(Source::open(path.as_ref())?);
    let mut request = Request::to_host(Place::File(path), vec![Piece::whole(source)]);
    for word in arguments {
        match word.as_str() {
            "transit" => request.destination = Destination::Transit(None),
            path => request.path = Some(path.parse()?),
        }
    }
    let loaded = Engine::default().load(request)?.wait()?;
    let receipt = &loaded.receipt;
    let rate = receipt.rate().unwrap_or_default();
    println!(
        "{} in {:.3} s: {rate}",
        receipt.requested, receipt.wall_seconds
    );
    println!(
        "CPU {:.3} s user, {:.3} s kernel",
        receipt.cpu.user, receipt.cpu.system
    );
    for share in &receipt.shares {
        let because = share.because.as_deref().unwrap_or("straight");
        println!("{:>8} {} ({because})", share.path, share.bytes);
    }
    Ok(())
}
