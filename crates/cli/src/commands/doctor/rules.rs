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
    let asked = code.to_ascii_lowercase();
    let like = |rule: &&Rule| {
        let family = rule.id.trim_end_matches(|c: char| c.is_ascii_digit());
        let letters = asked.trim_end_matches(|c: char| c.is_ascii_digit());
        let numbered = letters.len() < asked.len();
        let named = asked.len() > 2 && rule.name.contains(asked.as_str());
        named || (numbered && family.eq_ignore_ascii_case(letters))
    };
    let alike: Vec<String> = Rule::all()
        .filter(like)
        .take(FEW)
        .map(|rule| format!("{} {}", rule.id, rule.name))
        .collect();
    let hint = match alike.as_slice() {
        [] => "`crowfly doctor --list-rules` lists them".to_owned(),
        alike => format!(
            "there is {}; `crowfly doctor --list-rules` lists all",
            alike.join(", ")
        ),
    };
    Failure::usage(format!("there is no rule `{code}`")).hint(hint)
}
