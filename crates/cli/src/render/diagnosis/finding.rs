//! One finding: what is wrong, how that is known, what it costs, and what helps.

use crowfly_doctor::finding::{Quote, Spot};
use crowfly_doctor::{Finding, Severity};

use super::severity_style;
use crate::render::block::Block;
use crate::render::cell::Cell;
use crate::render::style::{FAINT, STRONG};
use crate::render::text::{harmless, wrap};

const INDENT: usize = 10;
/// Pairs named by a finding that is told in full.
const FEW_PAIRS: usize = 8;

/// What is wrong, the first lines that show it, and the first steps. A title that was `told` before is
/// not told again.
pub fn brief(
    finding: &Finding,
    quotes: usize,
    most_steps: usize,
    told: bool,
    columns: usize,
) -> String {
    let mut block = Block::indented(INDENT);
    evidence(finding, quotes, &mut block);
    cost(finding, &mut block);
    steps(finding, most_steps, &mut block);
    format!("{}{}", line(finding, told, columns), block.render(columns))
}

/// All of it.
pub fn whole(finding: &Finding, columns: usize) -> String {
    let mut block = Block::indented(INDENT);
    evidence(finding, usize::MAX, &mut block);
    cost(finding, &mut block);
    steps(finding, usize::MAX, &mut block);
    for (index, doubt) in finding.doubts.iter().enumerate() {
        let label = if index == 0 { "doubt" } else { "" };
        block.line(label, [Cell::from(doubt)]);
    }
    let pairs: Vec<String> = finding
        .pairs
        .iter()
        .take(FEW_PAIRS)
        .map(ToString::to_string)
        .collect();
    if !pairs.is_empty() {
        let left = finding.pairs.len().saturating_sub(FEW_PAIRS);
        let more = match left {
            0 => String::new(),
            left => format!(" and {left} more"),
        };
        block.line("pairs", [Cell::from(format!("{}{more}", pairs.join(", ")))]);
    }
    block.line("source", [Cell::styled(FAINT, finding.reference)]);
    format!("{}{}", line(finding, false, columns), block.render(columns))
}

/// Code and name, and the title unless it was `told` before.
pub fn line(finding: &Finding, told: bool, columns: usize) -> String {
    let severity = finding.severity;
    let first = Cell::styled(severity_style(severity), severity.as_str()).padded(INDENT);
    let code = Cell::styled(STRONG, format!("{} {}", finding.code, finding.name));
    let head = match told {
        true => code.to_string(),
        false => format!("{code}  {}", harmless(&finding.title)),
    };
    let mut text = wrap(&head, columns, &first, &" ".repeat(INDENT));
    text.push('\n');
    text
}

/// Where something was seen: `nccl.log:42`.
pub fn place(quote: &Quote) -> String {
    match &quote.at {
        Spot::Line(line) => format!("{}:{line}", quote.source),
        Spot::Key(place) | Spot::Device(place) => format!("{} {place}", quote.source),
    }
}

/// What is quoted. Columns that were set apart by tabs stay apart.
pub fn words(quote: &Quote) -> String {
    quote.text.replace('\t', "  ")
}

fn evidence(finding: &Finding, most: usize, block: &mut Block) {
    for (index, quote) in finding.evidence.iter().take(most).enumerate() {
        let label = if index == 0 { "seen" } else { "" };
        let at = Cell::styled(FAINT, format!("{}: ", place(quote)));
        block.line(label, [at, Cell::from(words(quote))]);
    }
    let left = finding.evidence.len().saturating_sub(most);
    if left > 0 {
        block.line("", [Cell::styled(FAINT, format!("and {left} more"))]);
    }
}

fn cost(finding: &Finding, block: &mut Block) {
    let Some(cost) = &finding.cost else {
        if finding.severity != Severity::Note && !finding.cost_basis.is_empty() {
            block.line("cost", [Cell::from(&finding.cost_basis)]);
        }
        return;
    };
    block.cost(cost);
    block.line("", [Cell::styled(FAINT, &finding.cost_basis)]);
}

fn steps(finding: &Finding, most: usize, block: &mut Block) {
    block.steps(finding.fix.iter().take(most));
    let left = finding.fix.len().saturating_sub(most);
    if left > 0 {
        block.line("", [Cell::styled(FAINT, format!("and {left} more"))]);
    }
}
