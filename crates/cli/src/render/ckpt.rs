//! What the questions about checkpoints answer, as tables and sentences.

use crowfly_route::units::{Bytes, significant};

use super::cell::Cell;
use super::receipt;
use super::style::{BAD, GOOD, STRONG, WARN, paint};
use super::table::Table;
use super::text::{count, harmless, wrap};
use crate::commands::ckpt::diff::{Comparison, Differing, Kind};
use crate::commands::ckpt::ls::{Listing, Row};
use crate::commands::ckpt::prune::Pruning;
use crate::commands::ckpt::verify::{State, Verdict, Verification};
use crate::path::shown;

/// A listing in at most `columns` columns.
pub fn listing(listing: &Listing, columns: usize) -> String {
    let mut table = Table::new().number("step").text("format").number("ranks");
    table = table.number("size").number("tensors").number("age");
    table = table.flexible("state");
    for row in &listing.checkpoints {
        table.row(cells(row));
    }
    for attempt in &listing.unfinished {
        let state = match attempt.live {
            true => Cell::styled(WARN, "being saved"),
            false => Cell::styled(WARN, "cut off; removed by the next save"),
        };
        let nothing = Cell::nothing;
        let step = attempt.step.to_string();
        table.row([
            step.into(),
            "crowfly".into(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
            state,
        ]);
    }
    let mut text = table.render(columns);
    text.push('\n');
    let complete = listing.checkpoints.iter().filter(|row| row.complete);
    let bytes: Bytes = complete.clone().filter_map(|row| row.bytes).sum();
    let summary = format!(
        "{}, {bytes} in {}",
        count(complete.count(), "complete checkpoint"),
        shown(&listing.path)
    );
    text.push_str(&paint(STRONG, summary));
    text.push('\n');
    for note in &listing.notes {
        let note = wrap(&harmless(note), columns, "note: ", "      ");
        text.push_str(&paint(WARN, note));
        text.push('\n');
    }
    text
}

fn cells(row: &Row) -> [Cell; 7] {
    let or_nothing = |text: Option<String>| text.map_or_else(Cell::nothing, Cell::from);
    let state = match &row.fault {
        None => Cell::styled(GOOD, "complete"),
        Some(fault) => Cell::styled(BAD, format!("{}: {}", fault.code, fault.message)),
    };
    [
        or_nothing(row.step.map(|step| step.to_string())),
        row.format.into(),
        or_nothing(row.world.map(|world| world.to_string())),
        or_nothing(row.bytes.map(|bytes| bytes.to_string())),
        or_nothing(row.tensors.map(|tensors| tensors.to_string())),
        or_nothing(row.age_seconds.map(age)),
        state,
    ]
}

/// A time that has passed, in its largest unit: `12 s`, `3 min`, `5 h`, `8 d`.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A verification in at most `columns` columns.
pub fn verification(verification: &Verification, columns: usize, detailed: bool) -> String {
    let mut text = String::new();
    for verdict in &verification.checkpoints {
        text.push_str(&wrap(&sentence(verdict), columns, "", "  "));
        text.push('\n');
        for fault in &verdict.faults {
            let label = format!("{}: ", fault.code);
            let fault = wrap(
                &format!("{label}{}", harmless(&fault.message)),
                columns,
                "  ",
                "    ",
            );
            text.push_str(&fault.replacen(&label, &paint(BAD, &label), 1));
            text.push('\n');
        }
        for note in &verdict.notes {
            let note = wrap(&harmless(note), columns, "  note: ", "        ");
            text.push_str(&paint(WARN, note));
            text.push('\n');
        }
        if detailed && let Some(receipt) = &verdict.receipt {
            text.push('\n');
            text.push_str(&receipt::render(receipt, columns, detailed));
        }
    }
    text
}

fn sentence(verdict: &Verdict) -> String {
    let what = shown(&verdict.path);
    let tensors = count(verdict.tensors, "tensor");
    match verdict.state {
        State::Damaged => {
            let faults = count(verdict.faults.len(), "fault");
            format!("{}: {what}, {faults}", paint(BAD, "damaged"))
        }
        State::Unsure => {
            let matching = match verdict.checked {
                Bytes(0) => String::new(),
                checked => format!("; {checked} match theirs"),
            };
            format!(
                "{}: no checksums for {} of {what}, which could be read ({tensors}, {}){matching}",
                paint(WARN, "unsure"),
                verdict.unchecked,
                verdict.format.unwrap_or_default()
            )
        }
        State::Whole if verdict.checked.0 == 0 => format!(
            "{}: {what}, {tensors} of no bytes, so there is nothing to compare",
            paint(GOOD, "whole")
        ),
        State::Whole => format!(
            "{}: {what}, {tensors}, {} match the checksums that were saved",
            paint(GOOD, "whole"),
            verdict.checked
        ),
    }
}

/// A comparison in at most `columns` columns.
pub fn comparison(comparison: &Comparison, columns: usize) -> String {
    let mut text = String::new();
    if !comparison.tensors.is_empty() {
        let mut table = Table::new().flexible("tensor").text("change");
        table = table.flexible("type and shape").number("differing");
        table = table.number("max |Δ|").number("L2");
        for tensor in &comparison.tensors {
            table.row(differing(tensor));
        }
        text = table.render(columns);
        text.push('\n');
    }
    let differ = match comparison.tensors.len() {
        1 => "1 tensor differs".to_owned(),
        tensors => format!("{tensors} tensors differ"),
    };
    let (same, compared) = (comparison.same, comparison.compared);
    let summary = format!("{differ}, {same} the same; {compared} of each compared");
    text.push_str(&paint(STRONG, summary));
    text.push('\n');
    for note in &comparison.notes {
        text.push_str(&wrap(&harmless(note), columns, "note: ", "      "));
        text.push('\n');
    }
    text
}

fn differing(tensor: &Differing) -> [Cell; 6] {
    let kind = match (&tensor.before, &tensor.after) {
        (Some(before), Some(after)) if tensor.change == "reshaped" => {
            format!("{} → {}", named(before), named(after))
        }
        (Some(kind), _) | (None, Some(kind)) => named(kind),
        (None, None) => String::new(),
    };
    let number =
        |value: Option<f64>| value.map_or_else(Cell::nothing, |value| scientific(value).into());
    let share = tensor.differing.map(|differing| {
        let not_finite = tensor.not_finite.unwrap_or(0);
        match not_finite {
            0 => differing.to_string(),
            some => format!("{differing} ({some} not finite)"),
        }
    });
    [
        Cell::from(&tensor.name),
        tensor.change.into(),
        kind.into(),
        share.map_or_else(Cell::nothing, Cell::from),
        number(tensor.max_abs),
        number(tensor.l2),
    ]
}

fn named(kind: &Kind) -> String {
    let shape: Vec<String> = kind.shape.iter().map(u64::to_string).collect();
    match shape.as_slice() {
        [] => format!("{} scalar", kind.dtype),
        shape => format!("{} {}", kind.dtype, shape.join("×")),
    }
}

/// Three significant digits, with an exponent where these are far from the point.
fn scientific(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if (1e-3..1e6).contains(&v.abs()) => significant(v),
        v => format!("{v:.2e}"),
    }
}

/// A pruning in at most `columns` columns.
pub fn pruning(pruning: &Pruning, columns: usize) -> String {
    let verb = if pruning.dry_run {
        "Would remove"
    } else {
        "Removed"
    };
    let mut lines = vec![format!(
        "{verb} {} of {}{}",
        count(pruning.removed.len(), "step"),
        shown(&pruning.path),
        listed(&pruning.removed)
    )];
    lines.push(match pruning.kept.is_empty() {
        true => "Kept none: it has no complete step".to_owned(),
        false => format!("Kept{}", listed(&pruning.kept)),
    });
    if !pruning.in_use.is_empty() {
        lines.push(format!("Being read, so kept{}", listed(&pruning.in_use)));
    }
    if !pruning.damaged.is_empty() {
        lines.push(format!(
            "Damaged, so left alone{}",
            listed(&pruning.damaged)
        ));
    }
    let wrapped = lines.iter().map(|line| wrap(line, columns, "", "  "));
    let mut text = wrapped.collect::<Vec<_>>().join("\n");
    text.push('\n');
    text
}

fn listed(steps: &[u64]) -> String {
    let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
    match steps.as_slice() {
        [] => String::new(),
        steps => format!(": {}", steps.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_distances_read_in_the_unit_that_suits_them() {
        assert_eq!(
            [59, 60, 7_200, 200_000].map(age),
            ["59 s", "1 min", "2 h", "2 d"]
        );
        let read = [0.0, 0.5, 1.25e-7, 3e9].map(scientific);
        assert_eq!(read, ["0", "0.500", "1.25e-7", "3.00e9"]);
    }
}
