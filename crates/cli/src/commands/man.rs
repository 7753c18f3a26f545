//! `crowfly man [COMMAND]`.

use clap::{Args, CommandFactory};

use crate::args::Cli;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// Arguments of `crowfly man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// The command to describe; without it, crowfly as a whole
    command: Option<String>,
}

/// Prints the page in roff, for `man -l -`.
pub fn run(args: &ManArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut root = Cli::command();
    root.build();
    let page = match &args.command {
        None => root,
        Some(name) => root
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| Failure::usage(format!("crowfly has no command `{name}`")))?,
    };
    let mut roff = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut roff)
        .map_err(|error| Failure::output(&error))?;
    out.bytes(&roff)?;
    Ok(Exit::Ok)
}
