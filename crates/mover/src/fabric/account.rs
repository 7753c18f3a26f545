//! Settling a transfer's account: from what each rail moved to a receipt.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crowfly_route::hop::{Class, Route};
use crowfly_route::obstacle::{Code, Effect, Obstacle};
use crowfly_route::place::{Memory, Place};
use crowfly_route::receipt::{
    CpuSeconds, Path, RECEIPT_SCHEMA, Receipt, Share, Verification, Visibility,
};
use crowfly_route::units::Bytes;

use super::flight::Flight;
use super::hops;
use super::identity::Incarnation;
use super::port::CHECKED_FROM;
use super::provider::{Flush, RailId, Registration, Verb};
use super::rail::RailState;
use super::transfer::{Checked, Delivery, NicShare};

/// What a finished flight did.
pub(crate) fn delivery(
    flight: &Flight,
    peer: Incarnation,
    rails: &BTreeMap<RailId, RailState>,
    now: Duration,
) -> Delivery {
    let (from, to) = ends(flight);
    let because = flight
        .obstacles
        .iter()
        .find(|obstacle| obstacle.effect == Effect::Blocks)
        .map(|obstacle| obstacle.summary.clone());
    let mut shares: Vec<Share> = Vec::new();
    let mut nics = Vec::new();
    let mut carried: Option<(u64, Route)> = None;
    let used = flight.moved.iter();
    for (id, bytes, known) in used.filter_map(|(id, bytes)| Some((id, *bytes, rails.get(id)?))) {
        let rail = &known.rail;
        let route = route_of(flight, known, &from, &to);
        let class = route.class();
        match shares.iter_mut().find(|share| share.path == rail.path) {
            Some(share) => share.bytes += Bytes(bytes),
            None => shares.push(Share {
                path: rail.path,
                class,
                bytes: Bytes(bytes),
                because: because.clone().filter(|_| class != Class::Direct),
            }),
        }
        nics.push(NicShare {
            path: rail.path,
            nic: rail.nic.clone(),
            bytes: Bytes(bytes),
            checked: checked(flight, *id, known, bytes),
        });
        if carried.as_ref().is_none_or(|(most, _)| *most < bytes) {
            carried = Some((bytes, route));
        }
    }
    shares.sort_by_key(|share| Reverse(share.bytes));
    let detours = shares.iter().filter(|share| share.class != Class::Direct);
    let bounced = detours.map(|share| share.bytes).sum();
    let route = carried.map(|(_, route)| route).or_else(|| {
        // Nothing moved: the way it would have gone.
        let first = flight.tiers.first()?.first()?;
        Some(route_of(flight, rails.get(first)?, &from, &to))
    });
    let route = route.unwrap_or_else(|| Route {
        name: "none".into(),
        from: from.clone(),
        to: to.clone(),
        hops: Vec::new(),
    });
    let receipt = Receipt {
        schema: RECEIPT_SCHEMA.into(),
        policy: flight.order.policy,
        requested: Bytes(flight.total()),
        bounced,
        overread: Bytes(0),
        retries: flight.retries,
        wall_seconds: now.saturating_sub(flight.started).as_secs_f64(),
        cpu: cpu(flight, rails),
        ceiling: route.ceiling().map(|ceiling| ceiling.capacity),
        obstacles: flight.obstacles.clone(),
        visibility: visibility(flight, &to, &nics),
        verification: Verification::NotAsked,
        shares,
        route,
        from,
        to,
    };
    Delivery {
        peer,
        receipt,
        nics,
        left_out: flight.left_out.clone(),
    }
}

fn detour(flight: &Flight, known: &RailState) -> Option<Obstacle> {
    let order = &flight.order;
    let link = &known.rail.link;
    link.detour(order.verb, order.local.as_deref(), order.remote.as_deref())
}

/// The hops of what a rail carries of a flight, its detour included.
fn route_of(flight: &Flight, known: &RailState, from: &Place, to: &Place) -> Route {
    let verb = flight.order.verb;
    let route = known.rail.link.route(verb, from.clone(), to.clone());
    match detour(flight, known) {
        Some(_) => hops::through_host(route),
        None => route,
    }
}

/// Notes why bytes of a GPU passed host memory, where they did.
pub(crate) fn note_detours(flight: &mut Flight, rails: &BTreeMap<RailId, RailState>) {
    let used = flight.moved.keys().filter_map(|id| rails.get(id));
    let found: Vec<Obstacle> = used.filter_map(|known| detour(flight, known)).collect();
    for obstacle in found {
        match obstacle.code {
            // What the path is like; what stood in the way of straighter ones says more.
            Code::GpuThroughHost => flight.met(obstacle),
            _ => flight.obstacles.insert(0, obstacle),
        }
    }
}

/// What makes visible to the memory's device what NICs of this host wrote into it.
pub(crate) fn flushes(flight: &Flight, rails: &BTreeMap<RailId, RailState>) -> Vec<Flush> {
    let local = flight.order.local.as_ref();
    let Some(region) = local.filter(|_| flight.order.verb == Verb::Read) else {
        return Vec::new();
    };
    let used = flight.moved.keys().filter_map(|id| rails.get(id));
    let registrations =
        used.filter_map(|known| region.registration(known.rail.path, &known.rail.nic));
    registrations
        .filter_map(|known| known.flush.clone())
        .collect()
}

/// What the port's own counters say of the bytes that a rail moved.
fn checked(flight: &Flight, id: RailId, known: &RailState, bytes: u64) -> Checked {
    let unavailable = |why: String| Checked::Unavailable { why };
    let before = match flight
        .before
        .get(&id)
        .and_then(|before| before.port.clone())
    {
        Some(Ok(before)) => before,
        Some(Err(why)) => return unavailable(why),
        None => {
            return unavailable(format!(
                "nobody looked: the transfer was smaller than {}, or the rail came in later",
                Bytes(CHECKED_FROM)
            ));
        }
    };
    match known.rail.link.port_counters() {
        Err(why) => unavailable(why),
        Ok(now) => now.since(before, flight.order.verb).judge(bytes),
    }
}

/// The CPU time that each rail used since the flight started, by the flight's share of the bytes
/// that the rail moved in that time.
fn cpu(flight: &Flight, rails: &BTreeMap<RailId, RailState>) -> CpuSeconds {
    let mut sum = CpuSeconds::default();
    for (id, bytes) in &flight.moved {
        let (Some(known), Some(before)) = (rails.get(id), flight.before.get(id)) else {
            continue;
        };
        let moved = known.moved().saturating_sub(before.moved);
        if moved == 0 {
            continue;
        }
        let part = *bytes as f64 / moved as f64;
        let now = known.rail.link.cpu();
        sum.user += (now.user - before.cpu.user).max(0.0) * part;
        sum.system += (now.system - before.cpu.system).max(0.0) * part;
    }
    sum
}

/// The two ends, in the direction of the bytes.
fn ends(flight: &Flight) -> (Place, Place) {
    let order = &flight.order;
    let here = order
        .local
        .as_ref()
        .map_or(Place::Host(None), |region| region.backing().place().clone());
    let there = match order.remote.as_ref().map(|region| region.place()) {
        Some(Place::Host(node)) => Place::Remote(Memory::Host(*node)),
        Some(Place::Gpu(index)) => Place::Remote(Memory::Gpu(*index)),
        Some(other) => other.clone(),
        None => Place::Remote(Memory::Host(None)),
    };
    match order.verb {
        Verb::Write => (here, there),
        Verb::Read => (there, here),
    }
}

/// Whether the device of the destination sees the bytes: what each NIC that moved some said when the
/// memory was registered with it, the least certain first.
fn visibility(flight: &Flight, to: &Place, nics: &[NicShare]) -> Visibility {
    if let Place::Host(_) | Place::Remote(Memory::Host(_)) = to {
        return Registration::visible_to_the_host();
    }
    let unknown = |why: &str| Visibility::Unknown(why.into());
    if !nics.iter().any(|used| used.path == Path::Verbs) {
        // Threads of the two processes have the GPU copy, and wait for it.
        return Registration::copied_by_the_gpu();
    }
    let Some(region) = flight
        .order
        .local
        .as_ref()
        .filter(|_| flight.order.verb == Verb::Read)
    else {
        return unknown(
            "the peer flushes before it counts a value or hands over a message; whether it has was not asked",
        );
    };
    let said = nics.iter().map(|used| {
        let known = region.registration(used.path, &used.nic);
        known.map_or_else(
            || unknown("the memory is not registered with the NIC that wrote it"),
            |registration| match registration.flush {
                // What comes of it is told when it has been done.
                Some(_) => Visibility::NotNeeded("nothing was written".into()),
                None => registration.visibility.clone(),
            },
        )
    });
    let nothing = || Visibility::NotNeeded("nothing was written".into());
    said.reduce(less_certain).unwrap_or_else(nothing)
}

/// The less certain of two; of two that are as certain the first.
pub(crate) fn less_certain(one: Visibility, other: Visibility) -> Visibility {
    let doubt = |visibility: &Visibility| match visibility {
        Visibility::Unknown(_) => 2,
        Visibility::Flushed(_) => 1,
        Visibility::NotNeeded(_) => 0,
    };
    match doubt(&other) > doubt(&one) {
        true => other,
        false => one,
    }
}
