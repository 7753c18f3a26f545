//! What the routes of all paths are made of.

use crowfly_route::hop::{Carrier, CpuWork, Hop, HostUse, Route, Stop};
use crowfly_route::obstacle::{Code, Obstacle};
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

/// The route of bytes that a core copies once, from one application's memory to another's.
pub(super) fn copied(name: &str, work: CpuWork, from: Place, to: Place) -> Route {
    let copy = Hop::bare(
        stop(&from, HostUse::Application),
        stop(&to, HostUse::Application),
        Carrier::Cpu { work },
    );
    Route {
        name: name.into(),
        from,
        to,
        hops: vec![copy],
    }
}

/// Why a copy by a core does not serve for memory of a place.
pub(super) fn no_copy(place: &Place) -> Obstacle {
    Obstacle::blocks(Code::NotBuilt, format!("no CPU copy reaches {place}"))
        .seen("place", place.to_string())
}
