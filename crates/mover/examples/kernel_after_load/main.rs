//! A kernel that follows a load without the host waiting in between: `kernel_after_load [--stand-in] FILE`.
//! Without a GPU it is waived; `--stand-in` plays one in this process. [`follow`] is the example.

mod follow;
#[path = "../gpu_support/gpus.rs"]
mod gpus;

use std::path::Path;

use crowfly_machine::trial;
use follow::follow;
use gpus::{CHILD, Outcome, first, played};

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let told = match arguments.as_slice() {
        [CHILD, question] => return Ok(trial::answer(question, std::io::stdout())?),
        ["--stand-in", file] => played(|gpu| follow(&gpu, Path::new(file)))?,
        [file] => match first("kernel_after_load", Path::new(file))? {
            Some(gpu) => follow(&gpu, Path::new(file))?,
            None => return Ok(()),
        },
        _ => return Err("kernel_after_load [--stand-in] FILE".into()),
    };
    println!("{told}");
    Ok(())
}
