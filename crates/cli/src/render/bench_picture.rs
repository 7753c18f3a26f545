//! A survey of the fabric as a picture: rates by size, and below them latencies by size.

use std::fmt::Write;

use crowfly_mover::bench::Task;
use crowfly_route::receipt::Path;
use crowfly_route::units::{Bytes, significant};

use super::bench_net::{how, size_text, title};
use super::svg::escape;
use crate::commands::bench::net::standing::{Point, Standing};
use crate::commands::race::standing::Spread;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 880.0;
const TOP: f64 = 96.0;
const PANEL: f64 = 240.0;
const GAP: f64 = 64.0;
/// Horizontal lines of a panel, the one at zero included.
const LINES: usize = 5;

/// One curve of a panel.
struct Curve {
    name: String,
    color: &'static str,
    dashes: &'static str,
    /// Bytes, and the value with its ends.
    points: Vec<(f64, Spread)>,
}

/// The picture as an SVG document.
pub fn render(standing: &Standing) -> String {
    let (rates, latencies) = (rates(standing), latencies(standing));
    let mut panels = vec![("GB/s", rates), ("µs, half a round trip", latencies)];
    panels.retain(|(_, curves)| curves.iter().any(|curve| !curve.points.is_empty()));
    let height = TOP + panels.len() as f64 * (PANEL + GAP);
    let title = title(standing);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"18\" font-weight=\"600\">{title}</text>\n\
         <text x=\"20\" y=\"52\" fill=\"#57606a\">{}</text>\n",
        escape(&how(standing)),
        title = escape(&title),
    );
    let sizes: Vec<Bytes> = standing.sizes();
    for (index, (unit, curves)) in panels.iter().enumerate() {
        let top = TOP + index as f64 * (PANEL + GAP);
        panel(&mut svg, unit, curves, &sizes, top);
    }
    svg.push_str("</svg>\n");
    svg
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

fn scaled(spread: Spread, by: f64) -> Spread {
    Spread {
        min: spread.min * by,
        median: spread.median * by,
        max: spread.max * by,
    }
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

fn panel(svg: &mut String, unit: &str, curves: &[Curve], sizes: &[Bytes], top: f64) {
    let highest = curves.iter().flat_map(|curve| &curve.points);
    let highest = highest.map(|(_, spread)| spread.max).fold(0.0, f64::max);
    let bottom = top + PANEL;
    let across = |bytes: f64| {
        let (first, last) = match sizes {
            [first, .., last] => (first.0 as f64, last.0 as f64),
            _ => return f64::midpoint(LEFT, RIGHT),
        };
        LEFT + (RIGHT - LEFT) * (bytes / first).ln() / (last / first).ln()
    };
    let up = |value: f64| bottom - PANEL * value / highest.max(f64::MIN_POSITIVE);
    let _ = writeln!(
        svg,
        "<text x=\"20\" y=\"{:.1}\" fill=\"#57606a\">{}</text>",
        top - 26.0,
        escape(unit)
    );
    for line in 0..LINES {
        let value = highest * line as f64 / (LINES - 1) as f64;
        let y = up(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#d0d7de\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#57606a\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            significant(value)
        );
    }
    for size in sizes {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#57606a\">{}</text>",
            across(size.0 as f64),
            bottom + 18.0,
            escape(&size_text(*size))
        );
    }
    let mut legend = LEFT;
    for curve in curves.iter().filter(|curve| !curve.points.is_empty()) {
        let stroke = format!(
            "stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\" fill=\"none\"",
            curve.color, curve.dashes
        );
        let mut way = String::new();
        let mut ranges = String::new();
        for (index, (bytes, spread)) in curve.points.iter().enumerate() {
            let (x, y) = (across(*bytes), up(spread.median));
            let _ = write!(way, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
            if spread.min < spread.max {
                let _ = write!(
                    ranges,
                    "M{x:.1} {:.1}V{:.1}",
                    up(spread.min),
                    up(spread.max)
                );
            }
        }
        let _ = writeln!(
            svg,
            "<path d=\"{way}\" {stroke}><title>{}</title></path>",
            escape(&curve.name)
        );
        if !ranges.is_empty() {
            let _ = writeln!(
                svg,
                "<path d=\"{ranges}\" stroke=\"{}\" stroke-width=\"1\" opacity=\"0.6\"/>",
                curve.color
            );
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{legend:.1} {y:.1}h22\" {stroke}/>\
             <text x=\"{x:.1}\" y=\"{text:.1}\">{name}</text>",
            y = top - 12.0,
            x = legend + 27.0,
            text = top - 8.0,
            name = escape(&curve.name)
        );
        // About the width of a letter, and the line before the name.
        legend += 7.0 * curve.name.len() as f64 + 45.0;
    }
}

#[cfg(test)]
mod tests {
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
