//! Which of several machines wrote a line, in what tools print that run a command on many.
//!
//! pdsh and clush put `host: ` before each line, dshbak and clush -b put the host between two rules
//! above its lines, ansible puts `host | CHANGED | rc=0 >>` above them, and head and tail put
//! `==> file <==` above each file's.

use crate::evidence::line::{plain, undecorated};

/// Most writers of one source that are kept apart; lines of others are read as if unnamed.
pub(super) const MAX_WRITERS: usize = 256;
/// Most bytes of lines that are read apart; what each machine says of itself is short, and every
/// reader's own limits count for each machine.
pub(super) const MAX_APART_BYTES: usize = 4 << 20;
/// Longest name of a host or file.
const MAX_NAME: usize = 96;
/// Dashes of a rule.
const RULE: usize = 8;

/// Splits `host: text`.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    let name = host(text)?;
    let rest = text.get(name.len()..)?.strip_prefix(':')?;
    match rest.strip_prefix(' ') {
        Some(rest) => Some((name, rest)),
        None => rest.is_empty().then_some((name, rest)),
    }
}

/// The host's name that a text begins with. A number alone is the task of `srun -l`.
fn host(text: &str) -> Option<&str> {
    let end = text
        .bytes()
        .take(MAX_NAME)
        .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        .count();
    let name = text.get(..end)?;
    (name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().any(|b| b.is_ascii_alphabetic()))
    .then_some(name)
}

/// Whether every line of a head has a host before it, and more of them begin something known behind
/// it than with it.
pub(super) fn are_named(head: &str, begins: impl Fn(&str) -> bool) -> bool {
    // The last line may be cut.
    let whole = head.rsplit_once('\n').map_or(head, |(whole, _)| whole);
    let cleaned: Vec<_> = whole
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| plain(line.trim_end()))
        .collect();
    let (mut named, mut unnamed) = (0, 0);
    for line in &cleaned {
        let (text, _) = undecorated(line);
        let Some((_, rest)) = split(text) else {
            return false;
        };
        named += usize::from(begins(rest));
        unnamed += usize::from(begins(text));
    }
    named > unnamed
}

/// Lines above a writer's lines.
#[derive(Debug, Default)]
pub(super) struct Headings {
    /// What the last lines were of a heading between two rules.
    between: Between,
}

#[derive(Debug, Default)]
enum Between {
    #[default]
    Nothing,
    /// A rule.
    Rule,
    /// A rule and a name.
    Named(String),
}

impl Headings {
    /// The writer that a line announces.
    pub(super) fn announced(&mut self, text: &str) -> Option<String> {
        let text = text.trim();
        if !text.starts_with(['=', '-']) && matches!(self.between, Between::Nothing) {
            return ansible(text).map(str::to_owned);
        }
        if let Some(inside) = text
            .strip_prefix("==> ")
            .and_then(|t| t.strip_suffix(" <=="))
        {
            self.between = Between::Nothing;
            return named(inside);
        }
        let rule = text.len() >= RULE && text.bytes().all(|b| b == b'-');
        match (std::mem::take(&mut self.between), rule) {
            (Between::Named(name), true) => Some(name),
            (_, true) => {
                self.between = Between::Rule;
                None
            }
            (Between::Rule, false) => {
                if let Some(name) = host(text).filter(|name| name.len() == text.len()) {
                    self.between = Between::Named(name.to_owned());
                }
                None
            }
            (_, false) => None,
        }
    }
}

/// `host | CHANGED | rc=0 >>`.
fn ansible(text: &str) -> Option<&str> {
    let name = text.ends_with(">>").then(|| host(text))??;
    let rest = text.get(name.len()..)?.strip_prefix(" | ")?;
    ["CHANGED", "SUCCESS", "FAILED", "UNREACHABLE"]
        .iter()
        .any(|word| rest.starts_with(word))
        .then_some(name)
}

fn named(text: &str) -> Option<String> {
    (!text.is_empty() && text.len() <= MAX_NAME).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_before_every_line_is_told_from_a_label() {
        let known = |text: &str| text.starts_with("GPU0");
        assert!(are_named(
            "gpu-1: \tGPU0\ngpu-1: GPU0 X\ngpu-2: GPU0 X\n",
            known
        ));
        assert!(!are_named("NIC0: mlx5_0\nNIC1: mlx5_1\n", known));
        assert!(!are_named("gpu-1: GPU0\nand words\n", known));
        assert!(!are_named("7: GPU0 X\n7: GPU0 X\n", known));
        assert!(are_named("gpu-1: GPU0 X\n", known));
        assert!(!are_named("", known));
    }

    #[test]
    fn headings_announce_hosts_and_files() {
        let mut headings = Headings::default();
        let announced: Vec<_> = [
            "----------------",
            "gpu-a01",
            "----------------",
            "==> node1/topo.txt <==",
            "gpu7.example | CHANGED | rc=0 >>",
            "----------------",
            "words and more",
            "----------------",
        ]
        .iter()
        .map(|line| headings.announced(line))
        .collect();
        assert_eq!(
            announced,
            [
                None,
                None,
                Some("gpu-a01".into()),
                Some("node1/topo.txt".into()),
                Some("gpu7.example".into()),
                None,
                None,
                None
            ]
        );
    }
}
