//! `doctor --list-rules` and `doctor --rule CODE`: what is looked for.

use crowfly_doctor::rule::Page;
use crowfly_doctor::{Family, Rule};
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render;

/// The version of the JSON form of the list of rules.
pub const RULES_SCHEMA: &str = "crowfly.rules/1";
/// The version of the JSON form of one rule.
pub const RULE_SCHEMA: &str = "crowfly.rule/1";
/// The most rules that are suggested for a code that is none.
const FEW: usize = 3;
/// An id has a letter or two and a number.
const MAX_ID: usize = 5;
/// A part of a name must be this long to tell anything.
const MIN_PART: usize = 3;
/// No name is longer; more of what was asked for is not compared.
const MAX_NAME: usize = 64;

#[derive(Serialize)]
struct List {
    schema: &'static str,
    rules: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    id: &'static str,
    name: &'static str,
    family: Family,
    summary: &'static str,
}

#[derive(Serialize)]
struct Explained {
    schema: &'static str,
    #[serde(flatten)]
    entry: Entry,
    #[serde(flatten)]
    page: Page,
}

impl Entry {
    const fn of(rule: &Rule) -> Self {
        Self {
            id: rule.id,
            name: rule.name,
            family: rule.family,
            summary: rule.summary,
        }
    }
}

/// Prints every rule on a line.
pub fn list(out: &mut Output) -> Result<Exit, Failure> {
    let list = List {
        schema: RULES_SCHEMA,
        rules: Rule::all().map(Entry::of).collect(),
    };
    out.show(&list, render::diagnosis::rules::list)?;
    Ok(Exit::Ok)
}

/// Prints the page of one rule.
pub fn page(code: &str, out: &mut Output) -> Result<Exit, Failure> {
    let Some(rule) = Rule::find(code) else {
        return Err(unknown(code));
    };
    let explained = Explained {
        schema: RULE_SCHEMA,
        entry: Entry::of(rule),
        page: rule.page,
    };
    out.show(&explained, |columns| {
        render::diagnosis::rules::page(rule, columns)
    })?;
    Ok(Exit::Ok)
}

fn unknown(code: &str) -> Failure {
    let alike: Vec<String> = nearest(code)
        .iter()
        .map(|rule| format!("{} {}", rule.id, rule.name))
        .collect();
    let hint = match alike.as_slice() {
        [] => "`crowfly doctor --list-rules` lists them".to_owned(),
        [one] => format!("do you mean {one}? `crowfly doctor --list-rules` lists all"),
        several => format!(
            "do you mean one of {}? `crowfly doctor --list-rules` lists all",
            several.join(", ")
        ),
    };
    Failure::usage(format!("there is no rule `{code}`")).hint(hint)
}

/// The rules whose id or name is like what was asked for, the likest first.
fn nearest(asked: &str) -> Vec<&'static Rule> {
    let asked = asked.to_ascii_lowercase();
    let mut alike: Vec<(usize, &Rule)> = Rule::all()
        .filter_map(|rule| Some((distance(&asked, rule)?, rule)))
        .collect();
    alike.sort_by_key(|(distance, _)| *distance);
    alike.into_iter().take(FEW).map(|(_, rule)| rule).collect()
}

/// How far a rule is from what was asked for; `None` where the two have little in common.
fn distance(asked: &str, rule: &Rule) -> Option<usize> {
    let (id, digits) = (rule.id.to_ascii_lowercase(), |c: char| c.is_ascii_digit());
    let numbered = asked.ends_with(digits);
    if numbered && asked.len() <= MAX_ID {
        let family = |text: &str| text.trim_end_matches(digits).to_owned();
        let number = |text: &str| {
            text.trim_start_matches(|c| !digits(c))
                .parse::<usize>()
                .ok()
        };
        // Of one family the numbers decide: `N99` is nearest to the last of them.
        return (family(asked) == family(&id))
            .then(|| Some(number(asked)?.abs_diff(number(&id)?)))
            .flatten();
    }
    if asked.len() >= MIN_PART && rule.name.contains(asked) {
        return Some(0);
    }
    let edits = edits(asked, rule.name);
    (edits <= rule.name.len() / 3).then_some(edits)
}

/// The fewest characters to add, remove or replace between two words (Levenshtein).
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, c) in from.chars().take(MAX_NAME).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_a_slip_the_rule_that_was_meant_comes_first() {
        for (asked, meant) in [
            ("gpu-nic-to-far", "gpu-nic-too-far"),
            ("chanels-without-gdrdma", "channels-without-gdrdma"),
            ("GPU_NIC_TOO_FAR", "gpu-nic-too-far"),
            ("too-far", "gpu-nic-too-far"),
        ] {
            let found = nearest(asked).first().map(|rule| rule.name);
            assert_eq!(found, Some(meant), "{asked}");
        }
    }

    #[test]
    fn given_a_number_that_a_family_does_not_have_its_nearest_ones_come_first() {
        let ids: Vec<&str> = nearest("K99").iter().map(|rule| rule.id).collect();
        assert!(ids.iter().all(|id| id.starts_with('K')), "{ids:?}");
        assert_eq!(ids.len(), FEW);
    }

    #[test]
    fn given_nothing_alike_nothing_is_suggested() {
        assert!(nearest("qqqqqqqqqqqq").is_empty());
        assert!(nearest("").is_empty());
        assert!(nearest(&"n".repeat(100_000)).is_empty());
    }
}
