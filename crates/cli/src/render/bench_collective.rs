//! Collectives as a table, one line for each collective and size, in the manner of nccl-tests.

use crowfly_route::units::{Bytes, significant};

use super::bench_net::size_text;
use super::cell::Cell;
use super::receipt::percent;
use super::style::{FAINT, STRONG, paint};
use super::table::Table as Lines;
use super::text::{count, harmless, wrap};
use crate::commands::bench::collective::{Point, Table, Whose};

/// What was measured, in one line.
pub(super) fn title(table: &Table) -> String {
    format!(
        "Collectives of {} on {}, {} by {}{}{}",
        count(table.ranks, "rank"),
        count(table.hosts, "host"),
        table.element,
        table.reduction,
        if table.wide {
            " in single precision"
        } else {
            ""
        },
        match table.buffers {
            Whose::Own => "",
            Whose::Group => ", in the group's memory",
        },
    )
}

/// How it was measured.
pub(super) fn how(table: &Table) -> String {
    let load = table.load.map_or_else(String::new, |load| {
        format!(", load {} at the end", significant(load))
    });
    format!(
        "{}, taken in turns; times are medians; {}{load}.",
        count(usize::from(table.rounds), "round"),
        count(table.processors, "processor"),
    )
}

/// The measurements in at most `columns` columns.
pub fn render(table: &Table, columns: usize) -> String {
    let mut text = wrap(&title(table), columns, "", "  ") + "\n";
    text.push_str(&paint(FAINT, wrap(&how(table), columns, "", "")));
    text.push_str("\n\n");
    let mut lines = Lines::new()
        .text("what")
        .number("size")
        .number("count")
        .number("µs")
        .number("algbw")
        .number("busbw")
        .number("#wrong")
        .number("share")
        .number("CPU s/GB")
        .text("by")
        .text("way");
    for point in &table.points {
        lines.row(row(point));
    }
    text.push_str(&lines.render(columns));
    text.push('\n');
    text.push_str(&paint(FAINT, wrap(&footer(table), columns, "", "")));
    text.push('\n');
    text
}

fn row(point: &Point) -> Vec<Cell> {
    let number = |value: Option<f64>| value.map_or_else(Cell::nothing, |v| significant(v).into());
    let last = point.samples.last().map(|sample| &sample.receipt);
    let ways = last.map(|receipt| {
        let ways: Vec<&str> = receipt
            .moved
            .iter()
            .map(|moved| moved.path.as_str())
            .collect();
        ways.join("+")
    });
    vec![
        Cell::styled(STRONG, point.collective.as_str()),
        size_text(Bytes(point.size.0)).into(),
        point.count.to_string().into(),
        significant(point.seconds * 1e6).into(),
        number(point.algorithm_bandwidth.map(|rate| rate.0 / 1e9)),
        number(point.bus_bandwidth.map(|rate| rate.0 / 1e9)),
        point.wrong.to_string().into(),
        point
            .share
            .map_or_else(Cell::nothing, |share| percent(share).into()),
        number(point.cpu_per_gb),
        last.map_or_else(Cell::nothing, |receipt| receipt.algorithm.as_str().into()),
        match ways.filter(|ways| !ways.is_empty()) {
            Some(ways) => ways.into(),
            None => Cell::nothing(),
        },
    ]
}

fn footer(table: &Table) -> String {
    let mut text =
        "Rates in GB/s: algbw is the buffer of one rank over time, busbw that times what each \
                    rank must send at least. CPU: all ranks, by the bytes of all their buffers."
            .to_owned();
    if let Some(ceiling) = table.points.iter().find_map(|point| point.ceiling.as_ref()) {
        let how = harmless(ceiling.provenance.detail());
        let word = ceiling.provenance.word();
        text.push_str(&format!(
            " Share: of what the machine allows, {how} ({word})."
        ));
    }
    let mut reasons: Vec<String> = Vec::new();
    for sample in table.points.iter().filter_map(|point| point.samples.last()) {
        let receipt = &sample.receipt;
        if !["asked for", "the only way"].contains(&&*receipt.because) {
            let size = size_text(receipt.size);
            reasons.push(format!("{size}: {}", receipt.because));
        }
    }
    if let Some(reason) = reasons.last() {
        text.push_str(&format!(" Chosen by a model; at {reason}."));
    }
    text
}
