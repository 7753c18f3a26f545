//! Pictures: the curve over the number of servers, and bars of a comparison.

use std::fmt::Write;

use crowfly_plan::assess::{Assessment, SweepPoint};

use super::super::svg::escape;
use super::amounts::{count, time};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 76.0;
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1a1a1a}.t{font-size:16px;font-weight:600}\
.a{stroke:#c9c9c9}.d{stroke:#0b6e4f;fill:none;stroke-width:2.5}.s{stroke:#b3261e;fill:none;stroke-width:2.5;stroke-dasharray:7 5}\
.ad,.as{stroke-width:1.2;opacity:.75}.bd{fill:#0b6e4f}.bs{fill:#b3261e}@media(prefers-color-scheme:dark){svg{background:#16181a}text{fill:#e8e8e8}.a{stroke:#4a4a4a}.d{stroke:#3fb950}.s{stroke:#f85149}.bd{fill:#3fb950}.bs{fill:#f85149}}";

/// One of the times of a point.
type Seconds = fn(&SweepPoint) -> Option<f64>;

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>{STYLE}</style>\n<text class=\"t\" x=\"16\" y=\"28\">{title}</text>\n"
    )
}

/// Time of the exchange over the number of GPUs, direct solid and staged dashed: by the calibrated
/// model thick, staged at worst and at best; by the article thin.
pub fn curve(title: &str, points: &[SweepPoint]) -> String {
    let mut svg = open(&format!("Exchange of gradients per step: {title}"), HEIGHT);
    let most = points
        .iter()
        .flat_map(|p| {
            [
                Some(p.direct),
                p.staged_slow,
                Some(p.article_direct),
                p.article_staged,
            ]
        })
        .flatten()
        .fold(f64::MIN_POSITIVE, f64::max);
    let log = |gpus: u64| (gpus.max(1) as f64).log2();
    let first = points.first().map_or(0.0, |p| log(p.gpus));
    let last = points.last().map_or(1.0, |p| log(p.gpus));
    let x = |p: &SweepPoint| {
        LEFT + (log(p.gpus) - first) / (last - first).max(f64::MIN_POSITIVE)
            * (WIDTH - LEFT - RIGHT)
    };
    let y = |seconds: f64| HEIGHT - BOTTOM - seconds / most * (HEIGHT - TOP - BOTTOM);
    for quarter in 0..=4u32 {
        let seconds = most * f64::from(quarter) / 4.0;
        let at = y(seconds);
        let _ = writeln!(
            svg,
            "<line class=\"a\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            time(seconds)
        );
    }
    let every = points.len().div_ceil(7).max(1);
    for point in points.iter().step_by(every) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(point),
            HEIGHT - BOTTOM + 20.0,
            count(point.gpus as f64)
        );
    }
    let path = |value: Seconds| {
        let known = points.iter().filter_map(|p| Some((x(p), y(value(p)?))));
        let corners: Vec<String> = known.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        corners.join(" ")
    };
    let lines: [(&str, Seconds); 5] = [
        ("d ad", |p| Some(p.article_direct)),
        ("s as", |p| p.article_staged),
        ("d", |p| Some(p.direct)),
        ("s", |p| p.staged_fast),
        ("s", |p| p.staged_slow),
    ];
    for (class, value) in lines {
        let _ = writeln!(
            svg,
            "<polyline class=\"{class}\" points=\"{}\"/>",
            path(value)
        );
    }
    let words = [
        "GPUs. Solid: direct; dashed: staged through host RAM, at best and at worst.",
        "Thick: calibrated; thin: article.",
    ];
    for (line, words) in words.iter().enumerate() {
        let y = HEIGHT - 26.0 + 18.0 * line as f64;
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y:.1}\">{words}</text>");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Bars of the exchange, direct and staged at worst, a pair for each cluster.
pub fn bars(answers: &[Assessment]) -> String {
    const ROW: f64 = 64.0;
    let height = TOP + ROW * answers.len() as f64 + 32.0;
    let mut svg = open("Exchange of gradients per step", height);
    let slow = |answer: &Assessment| answer.calibrated.staged.as_ref().map(|s| s.slow.value);
    let most = answers
        .iter()
        .flat_map(|answer| [Some(answer.calibrated.direct.value), slow(answer)])
        .flatten()
        .fold(f64::MIN_POSITIVE, f64::max);
    let room = WIDTH - 2.0 * LEFT - 120.0;
    for (index, answer) in answers.iter().enumerate() {
        let top = TOP + ROW * index as f64;
        let name = format!("{}:{}", answer.cluster.server.name, answer.cluster.servers);
        let _ = writeln!(
            svg,
            "<text x=\"16\" y=\"{:.1}\">{}</text>",
            top + 12.0,
            escape(&name)
        );
        let direct = Some(answer.calibrated.direct.value);
        for (row, class, what, seconds) in [
            (0, "bd", "direct", direct),
            (1, "bs", "staged", slow(answer)),
        ] {
            let Some(seconds) = seconds else { continue };
            let y = top + 18.0 + 18.0 * f64::from(row);
            let width = (seconds / most * room).max(1.0);
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"14\"/><text x=\"{:.1}\" y=\"{:.1}\">{what} {}</text>",
                LEFT + width + 8.0,
                y + 12.0,
                time(seconds)
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
