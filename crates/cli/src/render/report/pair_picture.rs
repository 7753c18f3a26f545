//! Pairs as evidence without a machine shows them: GPUs on the left, what they exchange data with on
//! the right, a line for each pair.

use std::fmt::Write;

use crowfly_doctor::{PairKind, PairVerdict, Verdict};

use crate::render::svg::escape;
use crate::render::text::harmless;

const WIDTH: f64 = 640.0;
const MARGIN: f64 = 16.0;
const BOX: (f64, f64) = (150.0, 28.0);
const PITCH: f64 = 40.0;
/// Where the boxes on the left begin; the arcs between GPUs need the room before it.
const LEFT: f64 = 150.0;
const RIGHT: f64 = WIDTH - MARGIN - BOX.0;
/// Characters of a name that fit its box.
const CHARACTERS: usize = 20;
/// Ends drawn on each side, and pairs; more would be a grey patch.
const MAX_ENDS: usize = 32;
const MAX_LINES: usize = 512;

const STYLE: &str = "\
text{fill:#1f2328;font-size:13px}.paper{fill:#fff}.box{fill:#f6f8fa;stroke:#8c959f}\
.way{fill:none;stroke:#8c959f;stroke-width:1}.way.good{stroke:#1a7f37}\
.way.warn{stroke:#d1570b;stroke-width:2.5;stroke-dasharray:6 4}\
.way.bad{stroke:#cf222e;stroke-width:2.5;stroke-dasharray:6 4}\
.badge{fill:#fff;stroke:#8c959f}.label{font-size:11px;font-weight:600}\
@media(prefers-color-scheme:dark){\
text{fill:#f0f6fc}.paper{fill:#0d1117}.box{fill:#151b23;stroke:#656c76}\
.way{stroke:#656c76}.way.good{stroke:#3fb950}.way.warn{stroke:#f0883e}.way.bad{stroke:#f85149}\
.badge{fill:#0d1117;stroke:#656c76}}";

/// A pair, and its number in the table below where it is marked.
pub type Numbered<'a> = (&'a PairVerdict, Option<usize>);

/// The picture as an SVG document.
pub fn render(pairs: &[Numbered<'_>]) -> String {
    let (mut left, mut right): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for (judged, _) in pairs {
        add(&mut left, &judged.pair.gpu);
        match judged.pair.kind {
            PairKind::GpuGpu => add(&mut left, &judged.pair.other),
            _ => add(&mut right, &judged.pair.other),
        }
    }
    let rows = left.len().max(right.len()) as f64;
    let height = 2.0 * MARGIN + rows * PITCH - (PITCH - BOX.1);
    let mut lines = String::new();
    let mut badges = String::new();
    // What is marked lies on top.
    let (marked, plain): (Vec<_>, Vec<_>) = pairs.iter().partition(|(_, mark)| mark.is_some());
    for (judged, mark) in plain.into_iter().chain(marked).take(MAX_LINES) {
        let Some(from) = row(&left, &judged.pair.gpu) else {
            continue;
        };
        let inside = judged.pair.kind == PairKind::GpuGpu;
        let Some(to) = row(if inside { &left } else { &right }, &judged.pair.other) else {
            continue;
        };
        let (path, middle) = if inside {
            arc(from, to)
        } else {
            line(from, to, mark.unwrap_or_default())
        };
        let _ = writeln!(
            lines,
            "<path class=\"way {}\" d=\"{path}\"/>",
            class(judged.verdict)
        );
        if let Some(number) = mark {
            badge(&mut badges, number, middle);
        }
    }
    let mut boxes = String::new();
    for (names, x) in [(&left, LEFT), (&right, RIGHT)] {
        for (at, name) in names.iter().enumerate() {
            named(&mut boxes, name, x, top(at as f64));
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', \
         'DejaVu Sans', sans-serif\">\n<title>The pairs and how they fare</title>\n\
         <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         {lines}{boxes}{badges}</svg>\n"
    )
}

fn add<'a>(names: &mut Vec<&'a str>, name: &'a str) {
    if names.len() < MAX_ENDS && !names.contains(&name) {
        names.push(name);
    }
}

fn row(names: &[&str], name: &str) -> Option<f64> {
    Some(names.iter().position(|known| *known == name)? as f64)
}

fn top(row: f64) -> f64 {
    MARGIN + row * PITCH
}

fn middle(row: f64) -> f64 {
    top(row) + BOX.1 / 2.0
}

/// Between two GPUs, to the left of them, the further out the further apart they are.
fn arc(from: f64, to: f64) -> (String, (f64, f64)) {
    let (y1, y2) = (middle(from), middle(to));
    let reach = (20.0 + 14.0 * (from - to).abs()).min(LEFT - 2.0 * MARGIN);
    let x = LEFT - reach * 4.0 / 3.0;
    let path = format!("M{LEFT} {y1:.1}C{x:.1} {y1:.1} {x:.1} {y2:.1} {LEFT} {y2:.1}");
    (path, (LEFT - reach, (y1 + y2) / 2.0))
}

/// From left to right. Where the number goes depends on it, so that few lie on each other.
fn line(from: f64, to: f64, number: usize) -> (String, (f64, f64)) {
    const PLACES: [f64; 5] = [0.5, 0.3, 0.7, 0.4, 0.6];
    let share = PLACES.get(number % PLACES.len()).copied().unwrap_or(0.5);
    let (x1, x2) = (LEFT + BOX.0, RIGHT);
    let (y1, y2) = (middle(from), middle(to));
    let at = (x1 + (x2 - x1) * share, y1 + (y2 - y1) * share);
    (format!("M{x1} {y1:.1}L{x2} {y2:.1}"), at)
}

const fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Direct => "good",
        Verdict::DirectButSlow | Verdict::Staged => "warn",
        Verdict::Socket | Verdict::Broken => "bad",
        Verdict::InsufficientEvidence => "",
    }
}

fn badge(svg: &mut String, number: usize, (x, y): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<rect class=\"badge mark\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"22\" height=\"16\" rx=\"8\"/>\n\
         <text class=\"label\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{base:.1}\">{number}</text>",
        left = x - 11.0,
        top = y - 8.0,
        base = y + 4.0,
    );
}

fn named(svg: &mut String, name: &str, x: f64, y: f64) {
    let name = harmless(name);
    let mut shown: String = name.chars().take(CHARACTERS).collect();
    if shown.len() < name.len() {
        shown.pop();
        shown.push('…');
    }
    let _ = writeln!(
        svg,
        "<g><title>{whole}</title><rect class=\"box\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
         height=\"{height}\" rx=\"4\"/>\n<text x=\"{tx}\" y=\"{ty}\">{shown}</text></g>",
        whole = escape(&name),
        width = BOX.0,
        height = BOX.1,
        tx = x + 8.0,
        ty = y + 19.0,
        shown = escape(&shown),
    );
}

#[cfg(test)]
mod tests {
    use crowfly_doctor::Pair;
    use crowfly_doctor::verdict::Basis;
    use roxmltree::Document;

    use super::*;

    fn judged(kind: PairKind, gpu: &str, other: &str, verdict: Verdict) -> PairVerdict {
        PairVerdict {
            pair: Pair {
                kind,
                on: None,
                gpu: gpu.into(),
                other: other.into(),
            },
            verdict,
            basis: Basis::Predicted,
            why: String::new(),
            evidence: Vec::new(),
            findings: Vec::new(),
        }
    }

    #[test]
    fn given_pairs_each_end_is_drawn_once_and_the_marked_ones_carry_their_number() {
        let pairs = [
            judged(PairKind::GpuGpu, "GPU0", "GPU1", Verdict::Direct),
            judged(PairKind::GpuNic, "GPU0", "<mlx5_0>", Verdict::Staged),
            judged(PairKind::GpuNic, "GPU1", "<mlx5_0>", Verdict::Socket),
        ];
        let numbered = [
            (&pairs[0], None),
            (&pairs[1], Some(1)),
            (&pairs[2], Some(2)),
        ];
        let svg = render(&numbered);
        let picture = Document::parse(&svg).expect("well-formed");
        let of = |tag: &str, class: &str| {
            picture
                .descendants()
                .filter(|n| n.has_tag_name(tag) && n.attribute("class") == Some(class))
                .count()
        };
        assert_eq!(of("rect", "box"), 3);
        assert_eq!(of("path", "way good"), 1);
        assert_eq!(of("path", "way warn"), 1);
        assert_eq!(of("path", "way bad"), 1);
        assert_eq!(of("text", "label"), 2);
        assert!(svg.contains("&lt;mlx5_0&gt;"));
    }
}
