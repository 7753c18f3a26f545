//! `crowfly man [COMMAND]`.

use clap::{Args, CommandFactory};
use serde::Serialize;

use crate::args::Cli;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// The version of the JSON form of a manual page.
pub const MAN_SCHEMA: &str = "crowfly.man/1";

/// Arguments of `crowfly man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// The command to describe; without it, crowfly as a whole
    command: Option<String>,
}

/// A page, and what it describes.
#[derive(Serialize)]
struct Page<'a> {
    schema: &'static str,
    command: Option<&'a str>,
    roff: String,
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
    let page = Page {
        schema: MAN_SCHEMA,
        command: args.command.as_deref(),
        roff: String::from_utf8_lossy(&roff).into_owned(),
    };
    out.show(&page, |_| page.roff.clone())?;
    Ok(Exit::Ok)
}
