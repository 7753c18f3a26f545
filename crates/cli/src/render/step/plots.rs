//! The plots of a training run: each an SVG that takes its colours from the page around it, which
//! knows the light and the dark.

use std::fmt::Write;

use crowfly_mover::step::Times;
use crowfly_route::hop::Class;
use crowfly_route::units::Bytes;

use crate::commands::step::outlook::{At, Outlook, Range};
use crate::commands::step::standing::{Lane, Row, Standing};
use crate::render::plan::amounts::{time, times};
use crate::render::svg::escape;

/// The parts of a step, from the lowest up, and their colours.
pub const PHASES: [(&str, &str); 5] = [
    ("storage to memory", "is-read"),
    ("computation", "is-compute"),
    ("gradients", "is-gradients"),
    ("checkpoint stall", "is-stall"),
    ("other", "is-other"),
];

const WIDTH: f64 = 720.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 12.0;
/// Horizontal lines of a plot, the one at zero included.
const LINES: u32 = 4;
/// Steps are drawn one by one up to so many; of more, each so manieth.
const MOST_STEPS: usize = 120;

fn open(height: f64, what: &str) -> String {
    format!(
        "<div class=\"plot\" tabindex=\"0\"><svg xmlns=\"http://www.w3.org/2000/svg\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(what)
    )
}

fn close(mut svg: String) -> String {
    svg.push_str("</svg></div>\n");
    svg
}

/// Lines across a plot of times, from zero at the bottom up.
fn grid(svg: &mut String, most: f64, top: f64, bottom: f64) {
    for line in 0..=LINES {
        let part = f64::from(line) / f64::from(LINES);
        let y = bottom - part * (bottom - top);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{:.1}\"/>\
             <text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            time(part * most)
        );
    }
}

fn parts(times: &Times) -> [f64; 5] {
    let known = [
        times.read + times.fetch,
        times.compute + times.update,
        times.exchange,
        times.stall,
    ];
    let other = (times.total - known.iter().sum::<f64>()).max(0.0);
    let [read, compute, exchange, stall] = known;
    [read, compute, exchange, stall, other]
}

/// Every step as a column of its parts, in the order in which they were done; where a rank was lost
/// stands a line.
pub fn over_steps(standing: &Standing) -> String {
    const HEIGHT: f64 = 300.0;
    const TOP: f64 = 34.0;
    const BOTTOM: f64 = 258.0;
    let every = standing.steps.len().div_ceil(MOST_STEPS).max(1);
    let rows: Vec<&Row> = standing.steps.iter().step_by(every).collect();
    let most = rows.iter().map(|row| row.times.total).fold(0.0, f64::max);
    let most = most.max(f64::MIN_POSITIVE);
    let mut svg = open(HEIGHT, "Time of each step by what it went on");
    grid(&mut svg, most, TOP, BOTTOM);
    let each = (WIDTH - LEFT - RIGHT) / rows.len().max(1) as f64;
    let label_every = rows.len().div_ceil(24).max(1);
    let mut again_before = 0;
    for (index, row) in rows.iter().enumerate() {
        let x = LEFT + each * index as f64;
        let mut y = BOTTOM;
        for ((name, class), part) in PHASES.iter().zip(parts(&row.times)) {
            let height = part / most * (BOTTOM - TOP);
            if height < 0.05 {
                continue;
            }
            y -= height;
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\">\
                 <title>step {}: {} {}</title></rect>",
                x + each * 0.1,
                each * 0.8,
                row.step,
                escape(name),
                time(part)
            );
        }
        if index % label_every == 0 {
            let _ = writeln!(
                svg,
                "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x + each / 2.0,
                BOTTOM + 18.0,
                row.step
            );
        }
        let went_back = index > 0
            && rows
                .get(index - 1)
                .is_some_and(|before| before.step >= row.step);
        if went_back || row.again > again_before {
            lost(&mut svg, x, TOP, BOTTOM);
        }
        again_before = row.again;
    }
    // A rank that was lost and cost no step again is marked before the step in which it was.
    for loss in standing.losses.iter().filter(|loss| loss.redone == 0) {
        if let Some(at) = rows.iter().position(|row| row.step >= loss.step) {
            lost(&mut svg, LEFT + each * at as f64, TOP, BOTTOM);
        }
    }
    let _ = writeln!(
        svg,
        "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">step</text>",
        f64::midpoint(LEFT, WIDTH - RIGHT),
        BOTTOM + 36.0
    );
    close(svg)
}

fn lost(svg: &mut String, x: f64, top: f64, bottom: f64) {
    // Near the right edge there is no room for the words behind the line.
    let (anchor, shift) = match x > WIDTH - 160.0 {
        true => ("end", -6.0),
        false => ("start", 6.0),
    };
    let _ = writeln!(
        svg,
        "<path class=\"mark\" d=\"M{x:.1} {:.1}V{bottom:.1}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">a rank was lost</text>",
        top - 16.0,
        x + shift,
        top - 8.0
    );
}

/// The bytes of each path by class, each as a bar that is all of them.
pub fn kinds<'a>(lanes: impl Iterator<Item = &'a Lane>) -> String {
    const ROW: f64 = 34.0;
    const NAMES: f64 = 170.0;
    const CLASSES: [(Class, &str); 3] = [
        (Class::Direct, "is-direct"),
        (Class::Staged, "is-staged"),
        (Class::Socket, "is-socket"),
    ];
    let lanes: Vec<&Lane> = lanes.collect();
    let height = ROW * lanes.len() as f64 + 8.0;
    let mut svg = open(height, "Bytes of each path by the way they went");
    for (index, lane) in lanes.iter().enumerate() {
        let y = 8.0 + ROW * index as f64;
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.1}\">{}</text>",
            y + 16.0,
            escape(lane.name)
        );
        let mut x = NAMES;
        let room = WIDTH - NAMES - 90.0;
        for (class, colour) in CLASSES {
            let bytes = lane.of_class(class);
            if bytes == Bytes(0) {
                continue;
            }
            let width = bytes.0 as f64 / lane.moved.0.max(1) as f64 * room;
            let _ = writeln!(
                svg,
                "<rect class=\"{colour}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"22\">\
                 <title>{class}: {bytes}</title></rect>"
            );
            x += width;
        }
        let _ = writeln!(
            svg,
            "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            NAMES + room + 8.0,
            y + 16.0,
            lane.moved
        );
    }
    close(svg)
}

/// A step of so many servers, direct and staged from best to worst.
pub fn bars(outlook: &Outlook) -> String {
    const ROW: f64 = 66.0;
    const NAMES: f64 = 100.0;
    const NUMBERS: f64 = 170.0;
    let height = ROW * outlook.at.len() as f64;
    let most = |at: &At| {
        let ends = [&at.step.direct, &at.step.staged];
        let ends = ends.into_iter().flatten().map(|range| range.most.value);
        ends.fold(0.0, f64::max)
    };
    let most = outlook
        .at
        .iter()
        .map(most)
        .fold(f64::MIN_POSITIVE, f64::max);
    let room = WIDTH - NAMES - NUMBERS;
    let mut svg = open(height, "A step of so many servers, direct and staged");
    for (index, at) in outlook.at.iter().enumerate() {
        let top = ROW * index as f64;
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.1}\">{} servers</text>",
            top + 32.0,
            at.servers
        );
        let ways: [(&Option<Range>, &str, &str); 2] = [
            (&at.step.direct, "is-direct", "direct"),
            (&at.step.staged, "is-staged", "staged"),
        ];
        for (line, (range, class, name)) in ways.into_iter().enumerate() {
            let Some(range) = range else { continue };
            let y = top + 6.0 + 26.0 * line as f64;
            let (least, end) = (
                range.least.value / most * room,
                range.most.value / most * room,
            );
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{NAMES}\" y=\"{y:.1}\" width=\"{least:.1}\" height=\"20\"/>"
            );
            if end > least {
                let _ = writeln!(
                    svg,
                    "<rect class=\"is-slow\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"8\"/>",
                    NAMES + least,
                    y + 6.0,
                    end - least
                );
            }
            let _ = writeln!(
                svg,
                "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\">{name} {}</text>",
                NAMES + end + 8.0,
                y + 15.0,
                times(range.least.value, range.most.value)
            );
        }
    }
    close(svg)
}
