//! The fixes of a diagnosis as steps of a script: which may run, and why the others may not.

use std::collections::BTreeSet;

use crowfly_doctor::{Diagnosis, Verdict};
use crowfly_route::obstacle::Fix;
use serde::Serialize;

use crate::render;

mod command;

use command::Weight;

/// The version of the JSON form of a script.
pub const FIX_SCRIPT_SCHEMA: &str = "crowfly.fix-script/1";

/// A script that a person reads and then runs.
#[derive(Debug, Serialize)]
pub struct FixScript {
    schema: &'static str,
    /// What it was written for.
    pub verdict: Verdict,
    /// The steps, in the order of the findings, each once.
    pub steps: Vec<Step>,
    /// The script itself.
    pub script: String,
}

/// One step.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The finding that asks for it, `N5`.
    pub finding: &'static str,
    /// The finding's name.
    pub name: &'static str,
    /// What to do, for a person.
    pub what: String,
    /// The command.
    pub command: Option<String>,
    /// Whether the script runs the command.
    pub runs: Runs,
    /// What the script shows before it runs the command, because it is lost otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// How what it did is taken back; the next boot does so in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Why the script does not run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<&'static str>,
    /// The command that shows whether it worked.
    pub check: Option<String>,
    /// Whether the script runs the check.
    pub check_runs: bool,
}

/// Whether a script runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runs {
    /// It does: it is known to do no harm, and to be undone by the next boot.
    Here,
    /// It is a setting that every rank of the job needs; set in a script it would reach none.
    InTheJob,
    /// It does not: someone has to decide.
    HeldBack,
    /// There is no command.
    ByHand,
}

impl FixScript {
    /// The script for a diagnosis that a command of this name came to.
    pub fn new(command: &str, diagnosis: &Diagnosis) -> Self {
        let mut seen = BTreeSet::new();
        let mut steps = Vec::new();
        for finding in &diagnosis.findings {
            for fix in &finding.fix {
                if seen.insert((fix.what.as_str(), fix.command.as_deref())) {
                    steps.push(Step::new(finding.code, finding.name, fix));
                }
            }
        }
        let script = render::diagnosis::script::render(command, diagnosis.verdict, &steps);
        Self {
            schema: FIX_SCRIPT_SCHEMA,
            verdict: diagnosis.verdict,
            steps,
            script,
        }
    }
}

impl Step {
    fn new(finding: &'static str, name: &'static str, fix: &Fix) -> Self {
        let (runs, why_not) = match fix.command.as_deref().map(command::weigh) {
            None => (Runs::ByHand, None),
            Some(Weight::Harmless) => (Runs::Here, None),
            Some(Weight::Setting) => (Runs::InTheJob, None),
            Some(Weight::Held(why)) => (Runs::HeldBack, Some(why)),
        };
        let ran = fix.command.as_deref().filter(|_| runs == Runs::Here);
        Self {
            before: ran.and_then(command::before),
            undo: ran.and_then(command::undo),
            finding,
            name,
            what: fix.what.clone(),
            command: fix.command.clone(),
            runs,
            why_not,
            check: fix.check.clone(),
            check_runs: fix.check.as_deref().is_some_and(command::only_looks),
        }
    }
}
