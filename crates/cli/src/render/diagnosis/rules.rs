//! The rules for people: a list, and a page for one.

use crowfly_doctor::Rule;

use super::indented;
use crate::render::block::Block;
use crate::render::cell::Cell;
use crate::render::style::{STRONG, paint};
use crate::render::table::Table;

/// Every rule on a line, by family.
pub fn list(columns: usize) -> String {
    let mut text = String::new();
    let mut family = None;
    let mut table = None;
    for rule in Rule::all() {
        if family != Some(rule.family) {
            close(&mut text, table.take(), columns);
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("{}\n", paint(STRONG, rule.family.title())));
            family = Some(rule.family);
        }
        let table = table.get_or_insert_with(|| Table::new().text("").text("").flexible(""));
        table.row([
            Cell::styled(STRONG, rule.id),
            Cell::from(rule.name),
            Cell::from(rule.summary),
        ]);
    }
    close(&mut text, table, columns);
    text
}

fn close(text: &mut String, table: Option<Table>, columns: usize) {
    if let Some(table) = table {
        text.push_str(&indented(&table.render(columns - super::INDENT)));
    }
}

/// What is looked for by one rule.
pub fn page(rule: &Rule, columns: usize) -> String {
    let page = &rule.page;
    let title = format!("{} {}", rule.id, rule.name);
    let mut block = Block::indented(0);
    for (label, text) in [
        ("what", page.condition),
        ("seen by", page.detection),
        ("does", page.consequence),
        ("fix", page.fix),
        ("not when", page.false_alarms),
        ("source", page.source),
    ] {
        block.line(label, [Cell::from(text)]);
    }
    format!(
        "{}: {}\n{}\n\n{}",
        paint(STRONG, title),
        rule.family.title(),
        rule.summary,
        block.render(columns)
    )
}
