//! From drafts to candidates: priced, and in the order in which one would take them.

use std::cmp::{Ordering, Reverse};

use super::World;
use super::draft::Draft;
use super::rates::lower;
use crate::hop::{Candidate, Capacity, Class, Hop, Provenance, Route, Standing, Stop};
use crate::obstacle::{Cost, Effect, Obstacle};
use crate::place::Place;
use crate::units::BytesPerSecond;

impl World<'_> {
    /// Gives a draft its ends, the obstacles that any route can meet, and the limit of memory.
    pub(super) fn candidate(&self, draft: Draft, from: Place, to: Place) -> Candidate {
        let route = Route {
            name: draft.name.into(),
            from,
            to,
            hops: self.within_memory(draft.hops),
        };
        let degraded = self.degraded_links(&route);
        Candidate {
            obstacles: Draft {
                obstacles: draft.obstacles,
                ..Draft::new(draft.name, Vec::new())
            }
            .with(degraded)
            .obstacles,
            route,
        }
    }

    /// Each hop through host RAM gets no more than its share: memory carries all reads and writes
    /// of a route at once.
    fn within_memory(&self, hops: Vec<Hop>) -> Vec<Hop> {
        let Some(memory) = self.measured.memory() else {
            return hops;
        };
        let far = |hop: &Hop| matches!(hop.to, Stop::Remote { .. });
        let passes = |remote: bool| -> u32 {
            let there = hops.iter().filter(|hop| far(hop) == remote);
            there.map(Hop::host_ram_passes).sum()
        };
        let (here, there) = (passes(false), passes(true));
        hops.iter()
            .map(|hop| {
                let passes = if far(hop) { there } else { here };
                if hop.host_ram_passes() == 0 {
                    return hop.clone();
                }
                let share = Capacity {
                    rate: BytesPerSecond(memory.rate.0 / f64::from(passes.max(1))),
                    provenance: shared(&memory.provenance, passes),
                };
                Hop {
                    capacity: lower(hop.capacity.clone(), Some(share)),
                    ..hop.clone()
                }
            })
            .collect()
    }
}

fn shared(provenance: &Provenance, passes: u32) -> Provenance {
    let detail = format!("host RAM, {passes} passes: {}", provenance.detail());
    match provenance {
        Provenance::Measured(_) => Provenance::Measured(detail),
        _ => Provenance::Catalogue(detail),
    }
}

/// Open ways first, the straightest and then the fastest of them; then those nobody could prove,
/// then the blocked ones. Ways that are equal keep their order.
pub(super) fn order(candidates: &mut [Candidate]) {
    candidates.sort_by_cached_key(|candidate| {
        let counters = candidate.route.counters();
        // Of a way without hops nothing is known.
        let known = !candidate.route.hops.is_empty();
        (
            candidate.standing(),
            !known,
            candidate.route.class(),
            Reverse(ceiling_of(candidate)),
            counters.host_ram_passes,
            counters.cpu_touches,
            counters.copies,
        )
    });
}

/// What stands in each way that is better than `taken`, and what slows `taken` itself. Better is what
/// is straighter, or as straight and faster where both ceilings are known, or cheaper for the host.
/// Of a way without hops nothing is known but that a direct one is no worse.
pub fn obstacles_of_better<'a>(
    candidates: &'a [Candidate],
    taken: &'a Route,
) -> impl Iterator<Item = &'a Obstacle> {
    let better = |candidate: &&Candidate| {
        let route = &candidate.route;
        route.name == taken.name
            || match route.hops.is_empty() {
                true => taken.class() != Class::Direct,
                false => is_better(route, taken),
            }
    };
    let better = candidates.iter().filter(better);
    better.flat_map(|candidate| &candidate.obstacles)
}

fn is_better(route: &Route, taken: &Route) -> bool {
    let known = |route: &Route| {
        let ceiling = route
            .ceiling()
            .filter(|ceiling| ceiling.unknown_hops == 0)?;
        Some(ceiling.capacity.rate.0)
    };
    let slower = match (known(route), known(taken)) {
        (Some(this), Some(that)) => that.total_cmp(&this),
        _ => Ordering::Equal,
    };
    let costs = |route: &Route| {
        let counters = route.counters();
        (
            counters.host_ram_passes,
            counters.cpu_touches,
            counters.copies,
        )
    };
    let by_class = route.class().cmp(&taken.class());
    let order = by_class.then(slower).then(costs(route).cmp(&costs(taken)));
    order == Ordering::Less
}

/// The ceiling as a number that can be compared, in bytes per second.
fn ceiling_of(candidate: &Candidate) -> u64 {
    let ceiling = candidate.route.ceiling();
    ceiling.map_or(0, |ceiling| ceiling.capacity.rate.0.max(0.0) as u64)
}

/// Tells each obstacle of a better way what it costs: the ceiling of the best open way, and that of
/// the way it stands in, with all its obstacles gone.
pub(super) fn price(candidates: &mut [Candidate]) {
    // With hops of unknown rate a ceiling is no price: the way may be much slower.
    let ceiling = |candidate: &Candidate| {
        let ceiling = candidate.route.ceiling()?;
        (ceiling.unknown_hops == 0).then_some(ceiling.capacity.rate)
    };
    let open = candidates
        .iter()
        .filter(|candidate| candidate.standing() == Standing::Open);
    let Some(now) = open.filter_map(ceiling).max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return;
    };
    for candidate in candidates {
        let Some(without) = ceiling(candidate).filter(|without| without.0 > now.0) else {
            continue;
        };
        for obstacle in &mut candidate.obstacles {
            if obstacle.effect != Effect::Slows && obstacle.cost.is_none() {
                obstacle.cost = Some(Cost { now, without });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::machines;
    use crate::obstacle::Code;

    #[test]
    fn given_a_way_was_taken_only_obstacles_of_better_ones_and_its_own_count() {
        let machine = machines::dgx_h100();
        let snapshot = machine.snapshot();
        let from = Place::Drive("nvme0".into());
        let found = super::super::candidates(
            &machine.topology(),
            Some(&snapshot),
            &from,
            &Place::Host(None),
        );
        let mut candidates = found.expect("routes");
        let marks = [
            ("o-direct", Code::NoDirectIo),
            ("page-cache-mapped", Code::SlowFreshMemory),
            ("page-cache", Code::AlreadyCached),
        ];
        for candidate in &mut candidates {
            let mark = marks.iter().find(|(name, _)| *name == candidate.route.name);
            let (_, code) = mark.expect("a way that is known");
            candidate.obstacles = vec![Obstacle::slows(*code, "marked")];
        }
        let of = |name: &str| {
            let mut routes = candidates.iter().map(|candidate| &candidate.route);
            let taken = routes.find(|route| route.name == name).expect("planned");
            let mut codes: Vec<Code> = obstacles_of_better(&candidates, taken)
                .map(|obstacle| obstacle.code)
                .collect();
            codes.sort_by_key(|code| format!("{code:?}"));
            codes
        };
        assert_eq!(of("o-direct"), [Code::NoDirectIo]);
        assert_eq!(
            of("page-cache"),
            [Code::AlreadyCached, Code::NoDirectIo, Code::SlowFreshMemory]
        );
    }
}
