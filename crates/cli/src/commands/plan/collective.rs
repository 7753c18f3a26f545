//! How long one collective takes, by every algorithm.

use clap::{Args, ValueEnum};
use crowfly_plan::calibrated::{Collective, Ways};
use crowfly_route::topology::Topology;
use crowfly_route::units::Bytes;

use super::scenario::ClusterArgs;
use super::{Answered, Export, once};
use crate::failure::Failure;
use crate::render::plan as render;

const SCHEMA: &str = "crowfly.plan.collective/1";

/// Arguments of `crowfly plan collective`.
#[derive(Args, Debug)]
pub struct CollectiveArgs {
    /// Which
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    op: OpArg,
    /// The buffer of one GPU, as nccl-tests counts it
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    size: Bytes,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    pub export: Export,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum OpArg {
    #[default]
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
}

/// Answers.
pub fn answer(args: &CollectiveArgs, machine: Option<&Topology>) -> Result<Answered, Failure> {
    let setting = args.cluster.resolve(machine)?;
    let op = match args.op {
        OpArg::AllReduce => Collective::AllReduce,
        OpArg::ReduceScatter => Collective::ReduceScatter,
        OpArg::AllGather => Collective::AllGather,
        OpArg::AllToAll => Collective::AllToAll,
    };
    let staged = setting.measured.network_staged.as_ref();
    let answer = Ways::of(&setting.cluster, op, args.size.0, staged)?;
    let mut sheet = render::collective(&setting.cluster, &answer);
    sheet.rests_on(once(setting.cluster.server.used.clone()));
    sheet.notes.extend(setting.notes);
    Ok(Answered::new(SCHEMA, &answer, sheet))
}
