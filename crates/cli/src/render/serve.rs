//! What `serve` did until it was ended.

use std::collections::BTreeMap;

use super::block::Block;
use super::legs::{self, Ends};
use super::text::seconds;
use crate::commands::serve::Serve;

fn counts(counts: &BTreeMap<String, u64>, name: fn(&str) -> String) -> String {
    let each = counts.iter();
    let each: Vec<String> = each
        .map(|(what, count)| format!("{count} {}", name(what)))
        .collect();
    match each.is_empty() {
        true => "none".to_owned(),
        false => each.join(", "),
    }
}

/// `sent-looked-at` in words: a direction, and what became of the file.
fn outcome(word: &str) -> String {
    match word.split_once('-') {
        Some((direction, became)) => format!("{direction} ({})", became.replace('-', " ")),
        None => word.to_owned(),
    }
}

/// The running totals in at most `columns` columns.
pub fn render(serve: &Serve, columns: usize) -> String {
    let totals = &serve.totals;
    let mut text = format!(
        "Served at {} for {}, until {}\n\n",
        serve.address,
        seconds(totals.seconds),
        serve.ended_by
    );
    let mut block = Block::indented(2);
    let peers = format!(
        "{} connected, {} sent away",
        totals.connections, totals.refused
    );
    block.line("peers", [peers.into()]);
    block.line("files", [counts(&totals.files, outcome).into()]);
    block.line("errors", [counts(&totals.errors, str::to_owned).into()]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_in_words_and_errors_by_their_codes() {
        let of = |words: &[&str]| words.iter().map(|word| ((*word).to_owned(), 2)).collect();
        let files = of(&["received-whole", "sent-looked-at"]);
        assert_eq!(
            counts(&files, outcome),
            "2 received (whole), 2 sent (looked at)"
        );
        assert_eq!(counts(&of(&["peer-lost"]), str::to_owned), "2 peer-lost");
        assert_eq!(counts(&BTreeMap::new(), outcome), "none");
    }
}
