//! A race as a picture: one bar a way, as long as it is fast.

use std::fmt::Write;

use crowfly_route::hop::Class;
use crowfly_route::units::{BytesPerSecond, significant};

use super::svg::escape;
use crate::commands::race::standing::{Lane, Race};

const WIDTH: f64 = 900.0;
const LABELS: f64 = 130.0;
const NUMBERS: f64 = 250.0;
const TOP: f64 = 76.0;
const ROW: f64 = 44.0;
const BAR: f64 = 24.0;
const BOTTOM: f64 = 40.0;

/// The picture as an SVG document.
pub fn render(race: &Race) -> String {
    let height = TOP + ROW * race.lanes.len() as f64 + BOTTOM;
    let title = format!("{} from {}", race.bytes, race.from);
    let ways: Vec<String> = race.lanes.iter().map(words).collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"14\">\n\
         <title>{}</title>\n<desc>{}</desc>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"18\" font-weight=\"600\">{}</text>\n\
         <text x=\"20\" y=\"52\" fill=\"#57606a\">{}, {} of each way; \
         bar: median, line: slowest to fastest run</text>\n",
        escape(&title),
        escape(&ways.join("; ")),
        escape(&title),
        super::race::cache(race),
        super::text::count(race.runs, "run"),
    );
    let fastest = race
        .lanes
        .iter()
        .filter_map(|lane| rate(lane, lane.seconds.min));
    let fastest = fastest.fold(0.0, f64::max);
    for (index, lane) in race.lanes.iter().enumerate() {
        bar(&mut svg, lane, TOP + ROW * index as f64, fastest);
    }
    if let Some(ceiling) = &race.ceiling {
        let _ = writeln!(
            svg,
            "<text x=\"20\" y=\"{}\" fill=\"#57606a\" font-size=\"12\">Ceiling {}, {}: {}</text>",
            height - 14.0,
            ceiling.rate,
            ceiling.provenance.word(),
            escape(ceiling.provenance.detail()),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn bar(svg: &mut String, lane: &Lane, y: f64, fastest: f64) {
    let room = WIDTH - LABELS - NUMBERS - 20.0;
    let length = |rate: Option<f64>| match rate {
        Some(rate) if fastest > 0.0 => room * rate / fastest,
        _ => 0.0,
    };
    let middle = y + BAR / 2.0;
    let (slow, fast) = (
        LABELS + length(rate(lane, lane.seconds.max)),
        LABELS + length(rate(lane, lane.seconds.min)),
    );
    let _ = writeln!(
        svg,
        "<text x=\"20\" y=\"{text_y:.1}\">{name}</text>\n\
         <rect x=\"{LABELS}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{fill}\"/>\n\
         <path d=\"M{slow:.1} {middle:.1}H{fast:.1}\" stroke=\"#24292f\" stroke-width=\"2\"/>\n\
         <text x=\"{numbers_x:.1}\" y=\"{text_y:.1}\">{numbers}</text>",
        text_y = middle + 5.0,
        name = escape(&lane.name),
        width = length(rate(lane, lane.seconds.median)),
        fill = match lane.class {
            Class::Direct => "#2da44e",
            Class::Staged => "#d4a72c",
            Class::Socket => "#cf222e",
        },
        numbers_x = WIDTH - NUMBERS,
        numbers = escape(&numbers(lane)),
    );
}

fn rate(lane: &Lane, seconds: f64) -> Option<f64> {
    let bytes = lane.receipts.first()?.requested;
    bytes.per(seconds).map(BytesPerSecond::as_gb)
}

fn numbers(lane: &Lane) -> String {
    let rate = lane.rate.map_or("–".into(), |rate| rate.to_string());
    let cpu = lane.cpu_per_gb;
    let cpu = cpu.map_or("–".into(), |cpu| significant(cpu.median));
    format!("{rate}, {}, {cpu} CPU s/GB", lane.class)
}

fn words(lane: &Lane) -> String {
    format!("{}: {}", lane.name, numbers(lane))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::race::standing::tests::race;

    #[test]
    fn given_a_race_bars_are_as_long_as_the_ways_are_fast() {
        insta::assert_snapshot!(render(&race().settle(None)));
    }

    #[test]
    fn given_a_hostile_name_the_picture_stays_well_formed() {
        let mut race = race().settle(None);
        race.from = crowfly_route::place::Place::File("/a<b>&\"\u{1b}c".into());
        let svg = render(&race);
        assert!(svg.contains("<title>1.00 GB from file:/a&lt;b&gt;&amp;&quot;\u{fffd}c</title>"));
    }
}
