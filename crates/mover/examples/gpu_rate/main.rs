//! Rates into a GPU by each path, beside plain copies of pinned and of pageable memory and the link's
//! limit: `gpu_rate FILE [RESULTS]`. The storage library of the GPU's maker is among them where it goes
//! straight for the file; else the reason is in the table. Without a GPU it is waived, with the reason, and
//! writes no results.
//!
//! `gpu_rate --stand-in FILE` goes through the same with a GPU that exists only in this process: it tries
//! the program, measures nothing, and says so in every line.

#[path = "../gpu_support/gpus.rs"]
mod gpus;
mod rates;

use std::path::Path;

use crowfly_machine::trial;
use gpus::{CHILD, Outcome, first, played};
use rates::{Subject, table};

const USAGE: &str = "gpu_rate [--stand-in] FILE [RESULTS]";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [CHILD, question] => Ok(trial::answer(question, std::io::stdout())?),
        ["--stand-in", file] => played(|gpu| {
            let stand_in = true;
            print!("{}", table(&Subject { gpu, stand_in }, Path::new(file))?);
            Ok(())
        }),
        ["--stand-in", _, _] => Err("what a stand-in is timed at is no result to be kept".into()),
        [file] => measured(Path::new(file), None),
        [file, results] => measured(Path::new(file), Some(Path::new(results))),
        _ => Err(USAGE.into()),
    }
}

fn measured(file: &Path, results: Option<&Path>) -> Outcome<()> {
    let Some(gpu) = first("gpu_rate", file)? else {
        return Ok(());
    };
    let stand_in = false;
    let table = table(&Subject { gpu, stand_in }, file)?;
    print!("{table}");
    if let Some(results) = results {
        std::fs::write(results, table)?;
    }
    Ok(())
}
