//! `crowfly explain FILE…`: what logs, command output and snapshots say together.

use std::path::PathBuf;

use clap::Args;
use crowfly_doctor::Case;

use super::doctor::answer::{Answer, AnswerArgs};
use super::doctor::evidence;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// Arguments of `crowfly explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// What to read, all of one story: logs, the output of commands, snapshots, as they were pasted
    /// or saved; `-`, or nothing, for standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// Reads, judges, and answers.
pub fn run(args: &ExplainArgs, out: &mut Output) -> Result<Exit, Failure> {
    if args.files.is_empty() && evidence::stdin_is_terminal() {
        return Err(Failure::usage("nothing was given to explain").hint(
            "name files, or pipe into it: `nvidia-smi topo -m | crowfly explain`; \
             `crowfly doctor` looks at this machine",
        ));
    }
    let mut case = Case::new();
    evidence::read_named(&args.files, &mut case, out)?;
    args.answer.give("explain", &Answer::new(case, None), out)
}
