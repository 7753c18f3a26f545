//! Collectives as a picture: rates by size with what the machine allows, and below them times by size.

use crowfly_route::units::Bytes;

use super::bench_collective::{how, title};
use super::plot::{self, Curve, scaled};
use crate::commands::bench::collective::{Point, Table};
use crate::commands::race::standing::Spread;

/// Colours of the collectives, in the order in which they were asked for.
const COLORS: [&str; 6] = [
    "#2da44e", "#0969da", "#8250df", "#cf222e", "#bf8700", "#1b7c83",
];
const CEILING: &str = "#8c959f";

/// The picture as an SVG document.
pub fn render(table: &Table) -> String {
    let mut sizes: Vec<Bytes> = sized(table).map(|point| point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let panels = vec![
        ("GB/s of one rank's buffer", rates(table)),
        ("µs", times(table)),
    ];
    plot::render(&title(table), &how(table), panels, &sizes)
}

/// Those that move something: a barrier has no place on an axis of sizes.
fn sized(table: &Table) -> impl Iterator<Item = &Point> {
    table.points.iter().filter(|point| point.size.0 > 0)
}

fn curves(table: &Table, value: impl Fn(&Point) -> Option<Spread>) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for point in sized(table) {
        let name = point.collective.as_str();
        let at = curves.iter().position(|curve| curve.name == name);
        let at = at.unwrap_or_else(|| {
            curves.push(Curve {
                name: name.to_owned(),
                color: COLORS.get(curves.len()).copied().unwrap_or(CEILING),
                dashes: "none",
                points: Vec::new(),
            });
            curves.len() - 1
        });
        if let (Some(curve), Some(value)) = (curves.get_mut(at), value(point)) {
            curve.points.push((point.size.0 as f64, value));
        }
    }
    curves
}

fn rates(table: &Table) -> Vec<Curve> {
    let mut curves = curves(table, |point| {
        let rate = |seconds: f64| Some(point.size.per(seconds)?.as_gb());
        let [fastest, slowest] = point.range;
        Spread::of([rate(slowest)?, rate(point.seconds)?, rate(fastest)?])
    });
    let ceiling = sized(table).filter_map(|point| {
        let rate = point.ceiling.as_ref()?.rate.as_gb();
        Some((point.size.0 as f64, Spread::of([rate])?))
    });
    curves.push(Curve {
        name: "what the machine allows".to_owned(),
        color: CEILING,
        dashes: "1 4",
        points: ceiling.collect(),
    });
    curves
}

fn times(table: &Table) -> Vec<Curve> {
    curves(table, |point| {
        let [fastest, slowest] = point.range;
        Some(scaled(Spread::of([fastest, point.seconds, slowest])?, 1e6))
    })
}

#[cfg(test)]
mod tests {
    use crowfly_mover::collective::{Element, Reduction};
    use crowfly_route::collective::Collective;
    use crowfly_route::hop::{Capacity, Provenance};
    use crowfly_route::units::BytesPerSecond;

    use super::*;
    use crate::commands::bench::collective::{BENCH_COLLECTIVE_SCHEMA, Whose};

    fn point(collective: Collective, size: u64, seconds: f64, ceiling: Option<f64>) -> Point {
        Point {
            collective,
            size: Bytes(size),
            count: size / 4,
            seconds,
            range: [seconds * 0.9, seconds * 1.2],
            cpu_per_gb: None,
            algorithm_bandwidth: Bytes(size).per(seconds),
            bus_bandwidth: None,
            wrong: 0,
            ceiling: ceiling.map(|rate| Capacity {
                rate: BytesPerSecond(rate),
                provenance: Provenance::Measured("copies".to_owned()),
            }),
            share: None,
            samples: Vec::new(),
        }
    }

    fn table(points: Vec<Point>) -> Table {
        Table {
            schema: BENCH_COLLECTIVE_SCHEMA,
            ranks: 2,
            hosts: 1,
            element: Element::F32,
            reduction: Reduction::Sum,
            wide: false,
            buffers: Whose::Own,
            processors: 2,
            load: None,
            rounds: 3,
            points,
        }
    }

    #[test]
    fn rates_stand_under_what_the_machine_allows_and_times_below_them() {
        let picture = render(&table(vec![
            point(Collective::AllReduce, 1 << 20, 2e-4, Some(8e9)),
            point(Collective::AllReduce, 64 << 20, 1e-2, Some(8e9)),
            point(Collective::Broadcast, 1 << 20, 1e-4, None),
            point(Collective::Barrier, 0, 1e-6, None),
        ]));
        insta::assert_snapshot!(picture);
    }

    #[test]
    fn given_nothing_but_a_barrier_the_picture_stays_well_formed() {
        let picture = render(&table(vec![point(Collective::Barrier, 0, 1e-6, None)]));
        assert!(roxmltree::Document::parse(&picture).is_ok());
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
    }
}
