//! The `crowfly` command: the outline of the program.
//!
//! Arguments become a command, the command asks the libraries, a renderer turns values into one
//! screen of text or one JSON document, and a [`failure::Failure`] becomes a sentence and an exit
//! status. Nothing below this crate prints, and nothing in this crate moves data.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod args;
mod commands;
#[cfg(test)]
mod documented;
mod failure;
mod file;
mod interrupt;
mod machine;
mod output;
mod path;
mod render;

use args::{Cli, Parsed};
use output::Output;

fn main() -> ExitCode {
    match Cli::parse_from_env() {
        Parsed::Run(cli) => {
            let mut out = Output::new(&cli.global);
            let result = cli.command.run(&mut out);
            out.finish(result)
        }
        Parsed::Explain(text, global) => {
            let mut out = Output::new(&global);
            let result = out.text(&text).map(|()| failure::Exit::Ok);
            out.finish(result)
        }
        Parsed::Misused(failure, global) => Output::new(&global).finish(Err(failure)),
    }
}
