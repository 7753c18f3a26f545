//! What `load` did: one line, the notes, the receipt.

use crowfly_route::place::Place;

use super::receipt;
use super::style::{WARN, paint};
use super::text::{count, harmless, wrap};
use crate::commands::load::Load;

/// The load in at most `columns` columns; see [`receipt::render`].
pub fn render(load: &Load, columns: usize, detailed: bool) -> String {
    let mut text = wrap(&summary(load), columns, "", "  ");
    text.push('\n');
    for note in &load.notes {
        let note = wrap(&harmless(note), columns, "note: ", "      ");
        text.push_str(&paint(WARN, note));
        text.push('\n');
    }
    text.push('\n');
    text.push_str(&receipt::render(&load.receipt, columns, detailed));
    text
}

fn summary(load: &Load) -> String {
    let what = match load.tensors {
        0 => load.receipt.requested.to_string(),
        tensors => format!("{}, {}", count(tensors, "tensor"), load.receipt.requested),
    };
    let path = load.path.display().to_string();
    if load.files == 0 {
        let path = harmless(&path);
        return format!("Loaded nothing: {path} holds nothing of what was asked for");
    }
    let verb = if load.kept {
        let to = match &load.receipt.to {
            Place::Host(None) => "host memory".into(),
            place => place.to_string(),
        };
        format!("Loaded {what} into {to}")
    } else {
        format!("Passed {what} through host memory")
    };
    format!(
        "{verb}, from {} of {}",
        count(load.files, "file"),
        harmless(&path)
    )
}
