//! The hops that bytes take by way of two RDMA ports.

use crowfly_route::hop::{
    Capacity, Carrier, CpuWork, Crossing, Hop, HostUse, LinkKind, Provenance,
};
use crowfly_route::hop::{Route, Stop};
use crowfly_route::place::Place;
use crowfly_route::units::BytesPerSecond;

use crate::fabric::hops::stop;

/// Two ports and what joins them.
pub(super) struct Cable<'a> {
    /// The port on this host.
    pub ours: &'a str,
    /// The port on the peer's.
    pub theirs: &'a str,
    /// `InfiniBand`, `RoCE v2`, …
    pub fabric: &'static str,
    /// Bytes per second, where the port says.
    pub rate: Option<f64>,
    /// Whether the kernel plays our port in software.
    pub software: bool,
}

/// The hops from one place to another, one of which is remote. A card fetches the bytes from memory
/// and its peer puts them into memory. A port played in software copies them into and out of
/// packets, which go through the kernel's network stack.
pub(super) fn route(cable: &Cable<'_>, from: Place, to: Place) -> Route {
    let outward = matches!(to, Place::Remote(_));
    let (near, far) = if outward {
        (cable.ours, cable.theirs)
    } else {
        (cable.theirs, cable.ours)
    };
    let at = |place: &Place, nic: &str| match cable.software {
        true => stop(place, HostUse::SocketBuffer),
        false => beside(
            place,
            Stop::Nic {
                name: nic.to_owned(),
            },
        ),
    };
    let carrier = |nic: &str| match cable.software {
        true => Carrier::Cpu {
            work: CpuWork::KernelCopy,
        },
        false => Carrier::Dma {
            device: nic.to_owned(),
        },
    };
    let rate = cable.rate.map(BytesPerSecond);
    let link = Crossing {
        link: cable.ours.to_owned(),
        kind: LinkKind::Network,
        rate,
        degraded: false,
    };
    let wire = Hop {
        crosses: vec![link],
        capacity: rate.map(|rate| Capacity {
            rate,
            provenance: Provenance::LinkRate(format!("{}, as its port reports it", cable.ours)),
        }),
        ..Hop::bare(
            at(&from, near),
            at(&to, far),
            Carrier::Wire {
                fabric: cable.fabric.into(),
            },
        )
    };
    let hops = vec![
        Hop::bare(
            stop(&from, HostUse::Application),
            at(&from, near),
            carrier(near),
        ),
        wire,
        Hop::bare(at(&to, far), stop(&to, HostUse::Application), carrier(far)),
    ];
    Route {
        name: if cable.software {
            "rdma in software"
        } else {
            "rdma"
        }
        .into(),
        from,
        to,
        hops,
    }
}

/// Another stop on the same host as a place.
fn beside(place: &Place, stop: Stop) -> Stop {
    match place {
        Place::Remote(_) => Stop::Remote {
            stop: Box::new(stop),
        },
        _ => stop,
    }
}

#[cfg(test)]
mod tests {
    use crowfly_route::hop::Class;
    use crowfly_route::place::Memory;

    use super::*;

    fn cable(software: bool) -> Cable<'static> {
        Cable {
            ours: "mlx5_0:1",
            theirs: "mlx5_3:1",
            fabric: "RoCE v2",
            rate: Some(12.5e9),
            software,
        }
    }

    #[test]
    fn by_cards_the_way_is_direct_and_no_cpu_touches_the_bytes() {
        let places = (Place::Host(None), Place::Remote(Memory::Gpu(1)));
        let there = route(&cable(false), places.0.clone(), places.1.clone());
        assert_eq!(there.class(), Class::Direct);
        assert_eq!(there.counters().cpu_touches, 0);
        assert_eq!(there.ceiling().map(|c| c.capacity.rate.0), Some(12.5e9));
        let back = route(&cable(false), places.1, places.0);
        assert_eq!(back.class(), Class::Direct);
        assert_eq!(
            back.hops[0].carrier,
            Carrier::Dma {
                device: "mlx5_3:1".into()
            }
        );
    }

    #[test]
    fn by_ports_in_software_it_goes_through_the_network_stack_and_says_so() {
        let way = route(
            &cable(true),
            Place::Host(None),
            Place::Remote(Memory::Host(None)),
        );
        assert_eq!(way.class(), Class::Socket);
        assert_eq!(way.counters().cpu_touches, 2);
    }
}
