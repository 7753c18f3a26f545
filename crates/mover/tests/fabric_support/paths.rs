//! Pairs of fabrics between which one path alone carries the bytes.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::sync::Arc;

use crowfly_machine::verbs::fake::{Behaviour, FakeNic};
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsNic, VerbsSettings};
use crowfly_mover::fabric::{NicFilter, Settings};
use crowfly_route::receipt::Path;

use super::pair::{Pair, settings};

/// Settings by which one path alone carries the bytes; a card, if it needs one.
pub fn by(path: Path, name: &str) -> (Settings, Option<FakeNic>) {
    match path {
        Path::Shm | Path::Cma => (settings(true), None),
        Path::Tcp => (settings(false), None),
        _ => {
            let (nic, fake) = card(name);
            let settings = Settings {
                nics: NicFilter::only(nic.nic()),
                providers: vec![nic],
                ..settings(false)
            };
            (settings, Some(fake))
        }
    }
}

pub fn card(name: &str) -> (Arc<dyn Provider>, FakeNic) {
    let fake = FakeNic::plug(name, Behaviour::default());
    let context = fake.verbs().open(name).expect("it is plugged in");
    let nic = VerbsNic::open(&context, 1, VerbsSettings::default()).expect("a port");
    (Arc::new(nic), fake)
}

/// Two fabrics and what their cards are.
pub struct Joined {
    pub pair: Pair,
    /// This end's and the other one's.
    pub cards: [Option<FakeNic>; 2],
}

pub fn joined(path: Path, test: &str) -> Joined {
    let (here, near) = by(path, &format!("{test}_here"));
    let (there, far) = by(path, &format!("{test}_there"));
    Joined {
        pair: Pair::with(here, there),
        cards: [near, far],
    }
}
