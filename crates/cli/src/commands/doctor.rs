//! `crowfly doctor`: is this machine on the straight way, and if not, why, and what helps.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use crowfly_doctor::Case;

use crate::failure::{Exit, Failure};
use crate::machine::MachineArgs;
use crate::output::Output;

pub mod answer;
pub mod evidence;
pub mod fixes;
pub mod host;
pub mod probes;
mod rules;
pub mod slots;
pub mod watch;

use answer::{Answer, AnswerArgs};
use host::Host;
use probes::Probes;

/// Seconds between two looks, where the user does not say.
const PERIOD: &str = "10";
/// What the live machine is called in evidence.
const HERE: &str = "this machine";

/// Arguments of `crowfly doctor`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
The exit status tells the verdict: 0 direct, 1 staged, socket or slow, 2 broken, 3 not enough evidence.")]
pub struct DoctorArgs {
    /// More of the same story: logs, the output of commands, other machines' snapshots; `-` for
    /// standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    answer: AnswerArgs,
    /// Look again every so many seconds, and tell what changed
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = PERIOD,
          value_parser = clap::value_parser!(u64).range(1..=86_400),
          conflicts_with_all = ["json", "html", "fix_script"])]
    watch: Option<u64>,
    /// Also try out, in a child process with a time limit, what GPUs, NICs and drives of this machine
    /// let each other do: open, export, register and reach memory, and read files straight into it
    #[arg(long, conflicts_with_all = ["snapshot", "root", "watch", "fix_script"])]
    probe: bool,
    /// List what is looked for
    #[arg(long)]
    list_rules: bool,
    /// Explain what is looked for by one rule, on a page
    #[arg(long, value_name = "CODE", conflicts_with = "list_rules")]
    rule: Option<String>,
}

/// Looks, judges, and answers.
pub fn run(args: &DoctorArgs, out: &mut Output) -> Result<Exit, Failure> {
    if args.list_rules {
        return rules::list(out);
    }
    if let Some(code) = &args.rule {
        return rules::page(code, out);
    }
    match args.watch {
        None => args.answer.give("doctor", &args.look(out)?, out),
        Some(_) if args.files.iter().any(|file| file.as_os_str() == "-") => Err(Failure::usage(
            "standard input (`-`) can be read only once, and --watch reads again and again",
        )),
        Some(seconds) => {
            let all = args.answer.all || out.verbose();
            let period = Duration::from_secs(seconds);
            watch::run(period, all, out, |out| args.look(out))
        }
    }
}

impl DoctorArgs {
    fn look(&self, out: &mut Output) -> Result<Answer, Failure> {
        let mut case = Case::new();
        case.add_snapshot(self.name().as_str(), self.machine.look()?);
        let host = case.machines.first().and_then(Host::of);
        if !self.files.is_empty() {
            evidence::read_named(&self.files, &mut case, out)?;
        }
        let machine = case.machines.first().filter(|_| self.probe);
        let probes = machine.map(Probes::run);
        Ok(Answer::new(case, host).with_probes(probes))
    }

    /// What the machine is called in evidence.
    fn name(&self) -> String {
        match self.machine.elsewhere() {
            Some(path) => path.display().to_string(),
            None => HERE.to_owned(),
        }
    }
}
