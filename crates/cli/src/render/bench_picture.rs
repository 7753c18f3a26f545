//! A survey of the fabric as a picture: rates by size, and below them latencies by size.

use crowfly_mover::bench::Task;
use crowfly_route::receipt::Path;

use super::bench_net::{how, title};
use super::plot::{self, Curve, scaled};
use crate::commands::bench::net::standing::{Point, Standing};
use crate::commands::race::standing::Spread;

/// The picture as an SVG document.
pub fn render(standing: &Standing) -> String {
    let panels = vec![
        ("GB/s", rates(standing)),
        ("µs, half a round trip", latencies(standing)),
    ];
    plot::render(&title(standing), &how(standing), panels, &standing.sizes())
}

const fn color(path: Path) -> &'static str {
    match path {
        Path::Verbs => "#8250df",
        Path::Shm => "#2da44e",
        Path::Cma => "#0969da",
        _ => "#cf222e",
    }
}

fn curve(
    standing: &Standing,
    path: Path,
    task: Task,
    value: impl Fn(&Point) -> Option<Spread>,
) -> Vec<(f64, Spread)> {
    let points = standing.points.iter();
    points
        .filter(|point| point.path == path && point.task == task)
        .filter_map(|point| Some((point.size.0 as f64, value(point)?)))
        .collect()
}

fn rates(standing: &Standing) -> Vec<Curve> {
    let mut curves = Vec::new();
    for path in standing.paths() {
        for (task, dashes) in [
            (Task::Write, "none"),
            (Task::Read, "7 3"),
            (Task::Both, "2 2"),
        ] {
            let points = curve(standing, path, task, |point| {
                Some(scaled(point.rate?, 1e-9))
            });
            curves.push(Curve {
                name: format!("{path} {}", task.as_str()),
                color: color(path),
                dashes,
                points,
            });
        }
        let ceiling = |point: &Point| {
            let rate = point.ceiling.as_ref()?.rate.as_gb();
            Spread::of([rate])
        };
        curves.push(Curve {
            name: format!("{path} ceiling"),
            color: "#8c959f",
            dashes: "1 4",
            points: curve(standing, path, Task::Write, ceiling),
        });
    }
    curves
}

fn latencies(standing: &Standing) -> Vec<Curve> {
    let paths = standing.paths();
    let of = |path: &Path| Curve {
        name: path.to_string(),
        color: color(*path),
        dashes: "none",
        points: curve(standing, *path, Task::PingPong, |point| {
            Some(scaled(point.latency?, 1e6))
        }),
    };
    paths.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use crowfly_route::units::Bytes;

    use super::*;
    use crate::commands::bench::net::standing::tests::standing;

    #[test]
    fn a_survey_has_a_panel_of_rates_and_one_of_latencies() {
        insta::assert_snapshot!(render(&standing()));
    }

    #[test]
    fn given_one_size_or_a_hostile_peer_the_picture_stays_well_formed() {
        let mut one = standing();
        one.points.retain(|point| point.size == Bytes(4096));
        one.about.peer = "a<b>&\u{1b}:1".into();
        let svg = render(&one);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(roxmltree::Document::parse(&svg).is_ok());
        one.points.clear();
        assert!(roxmltree::Document::parse(&render(&one)).is_ok());
    }
}
