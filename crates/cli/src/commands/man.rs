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
    /// The command to describe, such as `load` or `bench net`; without it, crowfly as a whole
    command: Vec<String>,
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
    // Its words may come as one argument or as several.
    let name = args.command.join(" ");
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut page = &root;
    for word in name.split_whitespace() {
        let found = page.find_subcommand(word);
        page = found.ok_or_else(|| Failure::usage(format!("crowfly has no command `{name}`")))?;
    }
    let page = page.clone();
    let mut roff = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut roff)
        .map_err(|error| Failure::output(&error))?;
    let page = Page {
        schema: MAN_SCHEMA,
        command: Some(name.as_str()).filter(|name| !name.is_empty()),
        roff: String::from_utf8_lossy(&roff).into_owned(),
    };
    out.show(&page, |_| page.roff.clone())?;
    Ok(Exit::Ok)
}
