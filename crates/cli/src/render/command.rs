//! Commands for people to copy: a long one goes on over several lines that a shell takes as one.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

use super::style::{CODE, paint};
use super::text::harmless;

/// What ends a line that goes on.
const GOES_ON: &str = " \\";

/// The command in at most `columns` columns as far as its words allow, the first line starting with
/// `first`, the others with `rest`. Lines break between words, never inside quotes; a comment that
/// does not fit goes on a line of its own.
pub fn render(command: &str, columns: usize, first: &str, rest: &str) -> String {
    let command = harmless(command.trim());
    let (code, comment) = apart(&command);
    let room = |indent: &str| columns.saturating_sub(indent.width());
    if command.width() <= room(first) {
        return format!("{first}{}\n", paint(CODE, &command));
    }
    let mut lines: Vec<String> = vec![String::new()];
    for word in words(code) {
        let indent = if lines.len() == 1 { first } else { rest };
        let Some(line) = lines.last_mut() else { break };
        let wanted = line.width() + 1 + word.width() + GOES_ON.width();
        if !line.is_empty() && wanted > room(indent) {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    let last = lines.len().saturating_sub(1);
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let indent = if at == 0 { first } else { rest };
        let end = if at == last { "" } else { GOES_ON };
        text.push_str(&format!(
            "{indent}{}\n",
            paint(CODE, format!("{line}{end}"))
        ));
    }
    if !comment.is_empty() {
        let words = textwrap::wrap(
            comment.trim_start_matches('#').trim(),
            room(rest).max(12) - 2,
        );
        for line in words {
            text.push_str(&format!("{rest}{}\n", paint(CODE, format!("# {line}"))));
        }
    }
    text
}

/// The command, and the comment behind it.
fn apart(command: &str) -> (&str, Cow<'_, str>) {
    let mut at = 0;
    for word in words(command) {
        let from = at + command[at..].find(word).unwrap_or(0);
        if word.starts_with('#') {
            return (command[..from].trim_end(), Cow::Borrowed(&command[from..]));
        }
        at = from + word.len();
    }
    (command, Cow::Borrowed(""))
}

/// The words of a command; what stands in quotes is part of one.
fn words(command: &str) -> impl Iterator<Item = &str> {
    let mut rest = command;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(' ');
        let mut quote = None;
        let mut escaped = false;
        let end = rest.char_indices().find_map(|(at, c)| {
            match (quote, c) {
                _ if escaped => escaped = false,
                (None | Some('"'), '\\') => escaped = true,
                (None, '\'' | '"') => quote = Some(c),
                (None, ' ') => return Some(at),
                (Some(open), c) if c == open => quote = None,
                _ => {}
            }
            None
        });
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;

    fn wrapped(command: &str) -> String {
        plain(&render(command, 30, "$ ", "    "))
    }

    #[test]
    fn given_a_short_command_it_stands_as_it_is_with_its_comment() {
        assert_eq!(wrapped("echo 'a b'   # right"), "$ echo 'a b'   # right\n");
    }

    #[test]
    fn given_a_long_command_the_shell_sees_the_same_words() {
        let command = "NCCL_DEBUG=INFO job 2>&1 | grep -E 'GPU Direct RDMA|via NET' | tee x";
        let text = wrapped(command);
        assert_eq!(
            text,
            "$ NCCL_DEBUG=INFO job 2>&1 | \\\n    grep -E \\\n    'GPU Direct RDMA|via NET' \\\n    | tee x\n"
        );
        let joined = text
            .trim_start_matches("$ ")
            .replace("\\\n", " ")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(joined, command);
    }

    #[test]
    fn given_a_comment_that_does_not_fit_it_ends_no_line_that_goes_on() {
        let text =
            wrapped("export NCCL_NET_GDR_LEVEL=SYS   # mpirun: -x NCCL_NET_GDR_LEVEL; srun: ALL");
        assert_eq!(
            text,
            "$ export \\\n    NCCL_NET_GDR_LEVEL=SYS\n    # mpirun: -x\n    # NCCL_NET_GDR_LEVEL;\n    # srun: ALL\n"
        );
    }

    #[test]
    fn given_quotes_that_do_not_end_nothing_is_lost() {
        let text = wrapped("grep 'never ends and goes on and on and on");
        assert!(text.contains("'never ends and goes on and on and on"));
    }
}
