//! Measurements by size as a picture: one panel below the other, each with its curves.

use std::fmt::Write;

use crowfly_route::units::{Bytes, significant};

use super::bench_net::size_text;
use super::svg::escape;
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
pub struct Curve {
    pub name: String,
    pub color: &'static str,
    pub dashes: &'static str,
    /// Bytes, and the value with its ends.
    pub points: Vec<(f64, Spread)>,
}

/// A value in other units.
pub fn scaled(spread: Spread, by: f64) -> Spread {
    Spread {
        min: spread.min * by,
        median: spread.median * by,
        max: spread.max * by,
    }
}

/// The picture as an SVG document; panels without points are left out.
pub fn render(
    title: &str,
    how: &str,
    mut panels: Vec<(&str, Vec<Curve>)>,
    sizes: &[Bytes],
) -> String {
    panels.retain(|(_, curves)| curves.iter().any(|curve| !curve.points.is_empty()));
    let height = TOP + panels.len() as f64 * (PANEL + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"18\" font-weight=\"600\">{title}</text>\n\
         <text x=\"20\" y=\"52\" fill=\"#57606a\">{}</text>\n",
        escape(how),
        title = escape(title),
    );
    for (index, (unit, curves)) in panels.iter().enumerate() {
        let top = TOP + index as f64 * (PANEL + GAP);
        panel(&mut svg, unit, curves, sizes, top);
    }
    svg.push_str("</svg>\n");
    svg
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
