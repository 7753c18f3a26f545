//! A survey of the fabric as a table: one line for each path and size.

use crowfly_mover::bench::Task;
use crowfly_route::receipt::Path;
use crowfly_route::units::{Bytes, significant};

use super::cell::Cell;
use super::obstacle;
use super::receipt::percent;
use super::style::{FAINT, STRONG, paint};
use super::table::Table;
use super::text::{count, harmless, wrap};
use crate::commands::bench::net::standing::{Point, Standing};
use crate::commands::race::standing::Spread;

/// The survey in at most `columns` columns.
pub fn render(standing: &Standing, columns: usize) -> String {
    let mut text = wrap(&title(standing), columns, "", "  ") + "\n";
    text.push_str(&paint(FAINT, wrap(&how(standing), columns, "", "")));
    text.push_str("\n\n");
    text.push_str(&table(standing).render(columns));
    text.push('\n');
    text.push_str(&paint(FAINT, wrap(&footer(standing), columns, "", "")));
    text.push('\n');
    for missing in &standing.missing {
        let title = format!("Not measured: {}", missing.path);
        text.push_str(&format!("\n{}\n", paint(STRONG, title)));
        if missing.obstacles.is_empty() {
            text.push_str("the two ends do not both have it\n");
        }
        text.push_str(&obstacle::render_all(&missing.obstacles, columns));
    }
    text
}

/// What was measured.
pub fn title(standing: &Standing) -> String {
    format!("Memory to memory, to {}", harmless(&standing.about.peer))
}

/// How it was measured.
pub fn how(standing: &Standing) -> String {
    let about = &standing.about;
    let load = about.load.map_or_else(String::new, |load| {
        format!(", load {} at the end", significant(load))
    });
    format!(
        "{} of {} ms each, taken in turns; numbers are medians; {}{load}.",
        count(about.rounds, "round"),
        significant(about.seconds * 1e3),
        count(about.processors, "processor"),
    )
}

fn has_both(standing: &Standing) -> bool {
    standing.points.iter().any(|point| point.task == Task::Both)
}

fn table(standing: &Standing) -> Table {
    let both = has_both(standing);
    let mut table = Table::new()
        .text("path")
        .number("size")
        .number("write")
        .text("range")
        .number("read")
        .text("range");
    if both {
        table = table.number("both");
    }
    let mut table = table
        .number("ceiling")
        .number("share")
        .number("CPU s/GB")
        .number("µs")
        .number("p99");
    for path in standing.paths() {
        for size in standing.sizes() {
            table.row(row(standing, path, size, both));
        }
    }
    table
}

fn row(standing: &Standing, path: Path, size: Bytes, both: bool) -> Vec<Cell> {
    let point = |task| standing.point(path, size, task);
    let write = point(Task::Write);
    let number = |value: Option<f64>| value.map_or_else(Cell::nothing, |v| significant(v).into());
    let rate = |point: Option<&Point>| number(point.and_then(|p| p.rate).map(|r| r.median / 1e9));
    let mut cells = vec![
        Cell::styled(STRONG, path.as_str()),
        size_text(size).into(),
        rate(write),
        range(write.and_then(|point| point.rate)),
        rate(point(Task::Read)),
        range(point(Task::Read).and_then(|point| point.rate)),
    ];
    if both {
        cells.push(rate(point(Task::Both)));
    }
    let ping = point(Task::PingPong);
    let micro = |seconds: Option<f64>| number(seconds.map(|seconds| seconds * 1e6));
    cells.extend([
        number(write.and_then(|p| Some(p.ceiling.as_ref()?.rate.as_gb()))),
        write
            .and_then(|point| point.share)
            .map_or_else(Cell::nothing, |share| percent(share).into()),
        number(
            write
                .and_then(|point| point.cpu_per_gb)
                .map(|cpu| cpu.median),
        ),
        micro(ping.and_then(|point| point.latency).map(|l| l.median)),
        micro(ping.and_then(|point| point.latency_p99)),
    ]);
    cells
}

fn range(rate: Option<Spread>) -> Cell {
    rate.map_or_else(Cell::nothing, |rate| {
        let (least, most) = (rate.min / 1e9, rate.max / 1e9);
        Cell::styled(
            FAINT,
            format!("{}–{}", significant(least), significant(most)),
        )
    })
}

/// A size as it was probably meant: `64 KiB`, `1.00 MB`, `100 B`.
pub fn size_text(size: Bytes) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole =
        |(shift, _): &&(u32, &str)| size.0 >= 1 << shift && size.0.trailing_zeros() >= *shift;
    UNITS.iter().find(whole).map_or_else(
        || size.to_string(),
        |(shift, unit)| format!("{} {unit}", size.0 >> shift),
    )
}

fn footer(standing: &Standing) -> String {
    let mut text =
        "Rates in GB/s. CPU: both processes, for writes. µs: half a round trip of a write \
                    with a value that is answered by another."
            .to_owned();
    for path in standing.paths() {
        let ceilings = standing.points.iter().filter(|point| point.path == path);
        let mut details: Vec<String> = Vec::new();
        for ceiling in ceilings.filter_map(|point| point.ceiling.as_ref()) {
            let provenance = &ceiling.provenance;
            let detail = format!("{} ({})", harmless(provenance.detail()), provenance.word());
            if !details.contains(&detail) {
                details.push(detail);
            }
        }
        let unknown = standing.without_ceiling.iter();
        let mut unknown = unknown.filter(|unknown| unknown.path == path);
        let known = match (details.is_empty(), unknown.next()) {
            (false, _) => details.join(", or "),
            (true, Some(unknown)) => format!("unknown, for {}", harmless(&unknown.because)),
            (true, None) => "unknown".to_owned(),
        };
        text.push_str(&format!(" Ceiling of {path}: {known}."));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::net::standing::tests::standing;
    use crate::render::plain;

    #[test]
    fn a_survey_shows_each_path_and_size_on_one_line_and_what_is_missing() {
        insta::assert_snapshot!(plain(&render(&standing(), 100)));
    }

    #[test]
    fn sizes_are_written_as_they_were_meant() {
        let text = |bytes| size_text(Bytes(bytes));
        assert_eq!(text(64 << 10), "64 KiB");
        assert_eq!(text(1 << 30), "1 GiB");
        assert_eq!(text(1_000_000), "1.00 MB");
        assert_eq!(text(100), "100 B");
    }
}
