//! What the routes of all paths are made of.

use crowfly_route::hop::{Carrier, CpuWork, Hop, HostUse, Route, Stop};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::{Memory, Place};

use super::descriptor::RegionDescriptor;
use super::region::RegionCore;

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

/// The route of bytes that a GPU's copy engine moves from its memory to another GPU's.
pub(super) fn by_gpu(name: &str, copying: u32, from: Place, to: Place) -> Route {
    let own = HostUse::Application;
    let copy = Hop::bare(
        stop(&from, own),
        stop(&to, own),
        Carrier::Dma {
            device: format!("gpu{copying}"),
        },
    );
    Route {
        name: name.into(),
        from,
        to,
        hops: vec![copy],
    }
}

/// The same route with what a GPU has at either end taken through a buffer in host RAM, on the side of
/// the GPU.
pub(super) fn through_host(mut route: Route) -> Route {
    let bounce = |remote: bool| {
        let stop = Stop::Host {
            use_: HostUse::Bounce,
            numa: None,
        };
        match remote {
            true => Stop::Remote {
                stop: Box::new(stop),
            },
            false => stop,
        }
    };
    let engine = |index: u32| Carrier::Dma {
        device: format!("gpu{index}"),
    };
    if let (Some((index, remote)), Some(first)) = (gpu_of(&route.from), route.hops.first_mut()) {
        let own = std::mem::replace(&mut first.from, bounce(remote));
        let out = Hop::bare(own, bounce(remote), engine(index));
        route.hops.insert(0, out);
    }
    if let (Some((index, remote)), Some(last)) = (gpu_of(&route.to), route.hops.last_mut()) {
        let own = std::mem::replace(&mut last.to, bounce(remote));
        route
            .hops
            .push(Hop::bare(bounce(remote), own, engine(index)));
    }
    // A copy between two buffers, one of which the bytes are in already, is none.
    route.hops.retain(|hop| hop.from != hop.to);
    route
}

/// The GPU whose memory a place is, and whether it is the peer's.
pub(super) const fn gpu_of(place: &Place) -> Option<(u32, bool)> {
    match place {
        Place::Gpu(index) => Some((*index, false)),
        Place::Remote(Memory::Gpu(index)) => Some((*index, true)),
        _ => None,
    }
}

/// The host memory of the machine that a place is on.
pub(super) fn host_of(place: &Place) -> Place {
    match place {
        Place::Gpu(_) => Place::Host(None),
        Place::Remote(Memory::Gpu(_)) => Place::Remote(Memory::Host(None)),
        other => other.clone(),
    }
}

/// Why a GPU's bytes pass host memory on a path.
pub(super) fn behind_host(path: &str, gpu: &Place, why: &str) -> Obstacle {
    Obstacle::blocks(
        Code::GpuThroughHost,
        format!("by {path} the bytes of {gpu} pass a pinned buffer in host memory"),
    )
    .seen(path, why)
    .fixed_by(Fix::by_hand(
        "Use an RDMA card that reaches the GPU, or on one host another GPU that does.",
    ))
}

/// The first GPU of two ends.
pub(super) fn gpu_at(
    local: Option<&RegionCore>,
    remote: Option<&RegionDescriptor>,
) -> Option<Place> {
    let here = local.map(|region| region.backing().place().clone());
    let there = remote.map(|region| match region.place() {
        Place::Gpu(index) => Place::Remote(Memory::Gpu(*index)),
        other => other.clone(),
    });
    [here, there]
        .into_iter()
        .flatten()
        .find(|p| gpu_of(p).is_some())
}

/// Why a copy by a core does not serve for memory of a place.
pub(super) fn no_copy(place: &Place) -> Obstacle {
    Obstacle::blocks(Code::NotBuilt, format!("no CPU copy reaches {place}"))
        .seen("place", place.to_string())
}
