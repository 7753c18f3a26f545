//! Fixes as a shell script that a person reads before running it.

use crowfly_doctor::Verdict;

use super::words;
use crate::commands::doctor::fixes::{Runs, Step};
use crate::output::MAX_COLUMNS;
use crate::render::text::{count, harmless, wrap};

const FIRST: &str = "#!/usr/bin/env bash\n";
const MANUAL: &str = "\
Nothing of it has been run. Read it, take out what you do not want, then run it on the machine that \
was looked at. What it runs loads drivers and sets knobs until the next boot, or only looks; running \
it again does no more. All else is commented out, with the reason.";
const HEAD: &str = "\
set -uo pipefail

failures=0
# A step that fails does not keep the others from running; the status at the end tells of it.
failed() { printf 'failed with exit status %s\\n' \"$1\"; failures=$((failures + 1)); }

step() { printf '\\n== %s\\n' \"$1\"; }
# A check prints what it sees, for you to judge; its status does not end the script.
check() { printf '\\n-- check: %s\\n' \"$1\"; }
";

/// The script that a command of this name was asked for, ending in a newline.
pub fn render(command: &str, verdict: Verdict, steps: &[Step]) -> String {
    let of = |runs: Runs| steps.iter().filter(move |step| step.runs == runs);
    let mut script = FIRST.to_owned();
    let written = format!("Written by `crowfly {command} --fix-script`. {MANUAL}");
    comment(&mut script, &written);
    script.push_str(HEAD);
    script.push('\n');
    comment(
        &mut script,
        &format!(
            "The verdict was: {}. {} of {} run here.",
            words(verdict),
            of(Runs::Here).count(),
            count(steps.len(), "step"),
        ),
    );
    for step in of(Runs::Here) {
        script.push('\n');
        title(&mut script, step);
        let told = format!("{} {}: {}", step.finding, step.name, step.what);
        script.push_str(&format!("step {}\n", quoted(&told)));
        if let Some(undo) = &step.undo {
            comment(&mut script, &format!("undo: {undo}, or boot again"));
        }
        if let Some(before) = &step.before {
            script.push_str(&format!("printf 'before: '; {before}\n"));
        }
        if let Some(command) = &step.command {
            // The brace stands on a line of its own: the command may end in a comment.
            script.push_str(&format!("{{ {command}\n}} || failed \"$?\"\n"));
        }
        check(&mut script, step);
    }
    section(
        &mut script,
        "For the job: settings that have to reach every rank, by the launcher's own option, and runs that show more.",
        of(Runs::InTheJob),
    );
    section(
        &mut script,
        "Held back: take the mark off what you have decided on.",
        of(Runs::HeldBack),
    );
    section(&mut script, "By hand.", of(Runs::ByHand));
    if of(Runs::Here).next().is_some() {
        script.push_str("\nexit \"$((failures > 0))\"\n");
    }
    script
}

fn section<'a>(script: &mut String, heading: &str, steps: impl Iterator<Item = &'a Step>) {
    let mut steps = steps.peekable();
    if steps.peek().is_none() {
        return;
    }
    script.push('\n');
    comment(script, &format!("==== {heading}"));
    for step in steps {
        script.push_str("#\n");
        title(script, step);
        if let Some(command) = &step.command {
            script.push_str(&format!("# {}\n", harmless(command)));
        }
        if let Some(why) = step.why_not {
            comment(script, &format!("held back: {why}"));
        }
        if let Some(check) = &step.check {
            script.push_str(&format!("# check: {}\n", harmless(check)));
        }
    }
}

fn title(script: &mut String, step: &Step) {
    comment(
        script,
        &format!("{} {}: {}", step.finding, step.name, step.what),
    );
}

/// A step's check, run where it only looks.
fn check(script: &mut String, step: &Step) {
    match &step.check {
        Some(check) if step.check_runs => {
            script.push_str(&format!("check {}\n", quoted(check)));
            // The brace stands on a line of its own: the check may end in a comment.
            script.push_str(&format!(
                "{{ {check}\n}} || printf '(exit status %s)\\n' \"$?\"\n"
            ));
        }
        Some(check) => script.push_str(&format!("# check by hand: {}\n", harmless(check))),
        None => {}
    }
}

/// A comment of one or more lines; no text can leave it.
fn comment(script: &mut String, text: &str) {
    script.push_str(&wrap(&harmless(text), MAX_COLUMNS, "# ", "# "));
    script.push('\n');
}

/// A word that the shell takes as it stands.
fn quoted(text: &str) -> String {
    format!("'{}'", harmless(text).replace('\'', r"'\''"))
}
