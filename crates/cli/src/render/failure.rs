//! An error for people: the sentence, what stands in the way, the hint.

use super::receipt::standing_in_the_way;
use super::style::{BAD, CODE, paint};
use super::text::{harmless, wrap};
use crate::failure::Failure;

/// The error in at most `columns` columns.
pub fn render(failure: &Failure, columns: usize) -> String {
    if let Some(text) = failure.laid_out_text() {
        return text.to_owned();
    }
    let label = format!("error[{}]: ", failure.code());
    let mut text = wrap(
        &format!("{label}{}", harmless(failure.message())),
        columns,
        "",
        "  ",
    );
    text = text.replacen(&label, &paint(BAD, &label), 1);
    text.push('\n');
    if let Some(hint) = failure.hint_text() {
        let hint = wrap(
            &format!("hint: {}", harmless(hint)),
            columns,
            "  ",
            "        ",
        );
        text.push_str(&hint.replacen("hint:", &paint(CODE, "hint:"), 1));
        text.push('\n');
    }
    text.push_str(&standing_in_the_way(failure.obstacles(), columns));
    text
}
