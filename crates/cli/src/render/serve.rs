//! What `serve` did until it was ended.

use super::block::Block;
use super::legs::{self, Ends};
use super::text::seconds;
use crate::commands::serve::Serve;

/// The running totals in at most `columns` columns.
pub fn render(serve: &Serve, columns: usize) -> String {
    let totals = &serve.totals;
    let mut text = format!(
        "Served at {} for {}, until {}\n\n",
        serve.address,
        seconds(totals.seconds),
        serve.ended_by
    );
    let counts = |counts: &std::collections::BTreeMap<String, u64>| {
        let each = counts.iter().map(|(what, count)| format!("{count} {what}"));
        let each: Vec<String> = each.collect();
        match each.is_empty() {
            true => "none".to_owned(),
            false => each.join(", "),
        }
    };
    let mut block = Block::indented(2);
    let peers = format!(
        "{} connected, {} sent away",
        totals.connections, totals.refused
    );
    block.line("peers", [peers.into()]);
    block.line("files", [counts(&totals.files).into()]);
    block.line("errors", [counts(&totals.errors).into()]);
    text.push_str(&block.render(columns));
    let ends = Ends {
        here: "server",
        there: "peer",
        beyond: "peer",
    };
    let table = legs::render(&totals.legs, ends, columns);
    if !table.is_empty() {
        text.push('\n');
        text.push_str(&table);
    }
    text
}
