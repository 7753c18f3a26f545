//! `crowfly bench`: what the engine does, measured against what the machine can do.

use clap::{Args, Subcommand};

use crate::failure::{Exit, Failure};
use crate::output::Output;

pub mod collective;
pub mod net;

/// Arguments of `crowfly bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measure the ways from memory to memory between two processes, here or on two servers
    Net(Box<net::NetArgs>),
    /// Measure collectives among ranks: started here, or by torchrun, mpirun or srun
    Collective(Box<collective::CollectiveArgs>),
}

/// Measures.
pub fn run(args: &BenchArgs, out: &mut Output) -> Result<Exit, Failure> {
    match &args.what {
        What::Net(args) => net::run(args, out),
        What::Collective(args) => collective::run(args, out),
    }
}
