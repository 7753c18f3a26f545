//! `crowfly completions SHELL`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde::Serialize;

use crate::args::Cli;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// The version of the JSON form of a completion script.
pub const COMPLETIONS_SCHEMA: &str = "crowfly.completions/1";

/// Arguments of `crowfly completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell that will read the script
    #[arg(value_enum)]
    shell: Shell,
}

/// A script, and who reads it.
#[derive(Serialize)]
struct Completions {
    schema: &'static str,
    shell: String,
    script: String,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "crowfly", &mut script);
    let completions = Completions {
        schema: COMPLETIONS_SCHEMA,
        shell: args.shell.to_string(),
        script: String::from_utf8_lossy(&script).into_owned(),
    };
    out.show(&completions, |_| completions.script.clone())?;
    Ok(Exit::Ok)
}
