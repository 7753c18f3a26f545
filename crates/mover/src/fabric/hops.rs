//! What the routes of all paths are made of.

use crowfly_route::hop::{Carrier, Hop, HostUse, Stop};
use crowfly_route::place::{Memory, Place};

/// Where bytes of a place stop; `use_` says what host memory serves for.
pub(super) fn stop(place: &Place, use_: HostUse) -> Stop {
    match place {
        Place::Gpu(index) => Stop::Gpu { index: *index },
        Place::Host(numa) => Stop::Host { use_, numa: *numa },
        Place::Remote(Memory::Host(numa)) => Stop::Remote {
            stop: Box::new(Stop::Host { use_, numa: *numa }),
        },
        Place::Remote(Memory::Gpu(index)) => Stop::Remote {
            stop: Box::new(Stop::Gpu { index: *index }),
        },
        _ => Stop::Host { use_, numa: None },
    }
}

/// A hop across nothing that is known by name or rate.
pub(super) fn bare(from: Stop, to: Stop, carrier: Carrier) -> Hop {
    Hop {
        from,
        to,
        carrier,
        crosses: Vec::new(),
        capacity: None,
    }
}
