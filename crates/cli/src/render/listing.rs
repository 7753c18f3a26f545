//! A checkpoint's tensors as a table.

use std::fmt::Write;

use crowfly_route::units::Bytes;

use super::cell::Cell;
use super::style::{STRONG, WARN, paint};
use super::table::Table;
use super::text::{count, harmless, wrap};
use crate::commands::load::listing::Listing;

/// The listing in at most `columns` columns.
pub fn render(listing: &Listing<'_>, columns: usize) -> String {
    let mut text = String::new();
    if !listing.tensors.is_empty() {
        text = table(listing).render(columns);
        text.push('\n');
    }
    text.push_str(&paint(STRONG, summary(listing)));
    text.push('\n');
    for note in &listing.notes {
        let note = wrap(&harmless(note), columns, "note: ", "      ");
        text.push_str(&paint(WARN, note));
        text.push('\n');
    }
    text
}

fn table(listing: &Listing<'_>) -> Table {
    let several = listing.files.len() > 1;
    let mut table = Table::new().flexible("tensor").text("dtype");
    table = table.flexible("shape").number("size");
    if several {
        table = table.flexible("file");
    }
    for tensor in &listing.tensors {
        let mut row = vec![
            Cell::from(tensor.name),
            tensor.dtype.into(),
            shape(tensor.shape).into(),
            tensor.bytes.to_string().into(),
        ];
        if several && let Some(file) = listing.files.get(tensor.file) {
            let name = file.path.file_name().unwrap_or_default();
            row.push(name.to_string_lossy().into());
        }
        table.row(row);
    }
    table
}

fn shape(shape: &[u64]) -> String {
    let [first, rest @ ..] = shape else {
        return "scalar".into();
    };
    let mut text = first.to_string();
    for dimension in rest {
        let _ = write!(text, "×{dimension}");
    }
    text
}

fn summary(listing: &Listing<'_>) -> String {
    let path = listing.path.display().to_string();
    let path = harmless(&path);
    if listing.kind == "raw" {
        let Bytes(exact) = listing.bytes;
        return format!("{} ({exact} bytes) in {path}, no tensors", listing.bytes);
    }
    if listing.tensors.is_empty() {
        return format!("no tensors: {path} holds nothing of what was asked for");
    }
    format!(
        "{}, {} in {} of {path}",
        count(listing.tensors.len(), "tensor"),
        listing.bytes,
        count(listing.files.len(), "file"),
    )
}
