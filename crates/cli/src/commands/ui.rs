//! `crowfly ui`: a page to play with, for a browser on this machine.

use std::process::{Command, Stdio};

use clap::Args;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::machine::DescribedMachineArgs;
use crate::output::Output;
use crate::ui::server::{Listening, USUAL_PORT};
use crate::ui::{Here, Machines};

/// The version of the JSON form of where the page is.
pub const UI_SCHEMA: &str = "crowfly.ui/1";
/// What the machine at hand is called.
const HERE: &str = "this machine";
/// What opens an address in the reader's browser.
const OPENER: &str = "xdg-open";

/// Arguments of `crowfly ui`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
The page is served on 127.0.0.1 alone and asks nothing of the network. Whoever may open a connection
to that address on this machine can ask it what you could ask. Ctrl-C ends it.")]
pub struct UiArgs {
    /// The port to listen on, 0 for any that is free; without it 2769, or any should that be taken
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// Open the page in the browser
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    machine: DescribedMachineArgs,
}

/// Where the page is.
#[derive(Debug, Serialize)]
struct Served {
    schema: &'static str,
    url: String,
    port: u16,
    machine: String,
}

/// Serves the page until a signal ends the process.
pub fn run(args: &UiArgs, out: &mut Output) -> Result<Exit, Failure> {
    let choice = args.machine.choice();
    let look = args.machine.look();
    if choice.is_some() {
        // What the user named has to be there; of this machine the page itself says what is wrong.
        look.as_ref().map_err(Clone::clone)?;
    }
    let name = choice.as_ref().map_or(HERE, |(_, value)| value).to_owned();
    let listening = Listening::on(args.port)?;
    let served = Served {
        schema: UI_SCHEMA,
        url: listening.url(),
        port: listening.port(),
        machine: name.clone(),
    };
    if args.port.is_none() && served.port != USUAL_PORT {
        out.note(&format!("port {USUAL_PORT} is taken, so this is another"));
    }
    out.show(&served, |_| format!("The page is at {}", served.url))?;
    if args.open {
        open(&served.url, out);
    }
    let args = args.machine.clone();
    let here = Here { name, args, look };
    listening.serve(Machines::new(here))
}

/// Asks the desktop to show the page. Without a desktop the address is enough.
fn open(url: &str, out: &mut Output) {
    let mut command = Command::new(OPENER);
    let silent = command.arg(url).stdin(Stdio::null()).stdout(Stdio::null());
    match silent.stderr(Stdio::null()).spawn() {
        Ok(mut opener) => {
            // Whoever shows the page may take as long as it likes; its end is waited for beside us, and
            // without a thread for that, by nobody.
            let beside = std::thread::Builder::new().name("crowfly-opener".into());
            let _ = beside.spawn(move || opener.wait());
        }
        Err(error) => out.note(&format!(
            "could not run {OPENER} ({error}): open the address yourself"
        )),
    }
}
