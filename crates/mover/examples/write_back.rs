//! Takes a file into peer memory and writes it from there to another file or block device, and prints
//! both receipts. Neither way may leave the straight route.
//!
//! `cargo run --release -p crowfly-mover --example write_back -- FROM PCI-ADDRESS TO`

use std::sync::Arc;

use crowfly_mover::{Destination, Engine, Piece, Request, SaveRequest, Source, Verify};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, peer, to] = arguments.as_slice() else {
        return Err("name a file, the PCI address of peer memory, and where to write".into());
    };
    let source = Arc::new(Source::open(from.as_ref())?);
    let engine = Engine::default();
    let mut load = Request::to_host(Place::File(from.clone()), vec![Piece::whole(source)]);
    load.destination = Destination::Peer(peer.parse()?);
    load.policy = Policy::Require;
    load.verify = Verify::Compare;
    let loaded = engine.load(load)?.wait()?;
    let region = loaded
        .regions
        .into_iter()
        .next()
        .ok_or("the file is empty")?;
    let saved = engine.save(SaveRequest {
        region,
        path: to.into(),
        policy: Policy::Require,
        path_asked: None,
    })?;
    let written = saved.wait()?.receipt;
    println!(
        "{:#}",
        json!({ "read": loaded.receipt, "receipt": written })
    );
    Ok(())
}
