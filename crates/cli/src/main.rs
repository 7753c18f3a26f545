//! The `crowfly` command: the outline of the program.
//!
//! Arguments become a command, the command asks the libraries, a renderer turns values into one
//! screen of text or one JSON document, and a [`failure::Failure`] becomes a sentence and an exit
//! status. Nothing below this crate prints, and nothing in this crate moves data.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

mod args;
mod commands;
#[cfg(test)]
mod documented;
mod failure;
mod file;
mod input;
mod interrupt;
mod machine;
mod output;
mod path;
mod render;
mod ui;

use args::{Cli, Global, Parsed};
use output::Output;

/// The stack that is enough for every command, in bytes: reading the command line alone takes some hundred
/// kilobytes where the program was built without optimisation.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    if limit.is_none_or(|bytes| bytes >= STACK as u64) {
        return run();
    }
    // `ulimit -s` is about the first thread alone. Where there is no other, it has to do.
    let roomy = std::thread::Builder::new().stack_size(STACK).spawn(run);
    match roomy.map(std::thread::JoinHandle::join) {
        Ok(Ok(status)) => status,
        // What it said of its end stands there already.
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_) => run(),
    }
}

/// All of it, in a frame of its own.
#[inline(never)]
fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let [_, first, question] = arguments.as_slice()
        && first == commands::gpu::CHILD
    {
        return commands::gpu::child(question);
    }
    // First of all, so that no signal finds the process as the system made it.
    let global = Global::scan(&arguments);
    if let Err(failure) = interrupt::take_over(global) {
        return Output::new(&global).finish(Err(failure));
    }
    let status = match Cli::read(arguments) {
        Parsed::Run(cli) => {
            let mut out = Output::new(&cli.global);
            let result = cli.command.run(&mut out);
            out.finish(result)
        }
        Parsed::Explain(explanation, global) => {
            let mut out = Output::new(&global);
            let shown = out.show(&explanation, |_| explanation.laid_out.clone());
            out.finish(shown.map(|()| failure::Exit::Ok))
        }
        Parsed::Misused(failure, global) => Output::new(&global).finish(Err(failure)),
    };
    interrupt::let_end();
    status
}
