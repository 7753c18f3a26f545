//! How long one collective takes, by every algorithm.

use clap::{Args, ValueEnum};
use crowfly_plan::calibrated::{Algorithm, Collective, Estimate, Group, StagedRange};
use crowfly_route::units::Bytes;
use serde::Serialize;

use super::scenario::ClusterArgs;
use super::{Export, once};
use crate::failure::{Exit, Failure};
use crate::output::Output;
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
    export: Export,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum OpArg {
    #[default]
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
}

/// One way of doing it.
#[derive(Debug, Serialize)]
pub struct Way {
    /// Whether this is the one that counts.
    pub chosen: bool,
    /// How long.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Bus bandwidth in 1e9 B/s.
    pub busbw_gbs: Option<f64>,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Collected {
    /// Which collective.
    pub op: Collective,
    /// The buffer of one GPU.
    pub bytes: u64,
    /// GPUs.
    pub gpus: u64,
    /// Direct, by each algorithm that can; the fastest is chosen.
    pub direct: Vec<Way>,
    /// Staged at worst, by the fastest.
    pub staged_slow: Option<Way>,
    /// Staged at best, by the fastest.
    pub staged_fast: Option<Way>,
}

/// Answers.
pub fn run(args: &CollectiveArgs, out: &mut Output) -> Result<Exit, Failure> {
    let setting = args.cluster.resolve()?;
    let op = match args.op {
        OpArg::AllReduce => Collective::AllReduce,
        OpArg::ReduceScatter => Collective::ReduceScatter,
        OpArg::AllGather => Collective::AllGather,
        OpArg::AllToAll => Collective::AllToAll,
    };
    let bytes = args.size.0 as f64;
    let group = Group::of(&setting.cluster);
    let way = |estimate: Estimate, chosen| Way {
        busbw_gbs: estimate
            .bus_bandwidth(op, group.ranks(), bytes)
            .map(|rate| rate / 1e9),
        estimate,
        chosen,
    };
    let fastest = group.fastest(op, bytes);
    let each = Algorithm::ALL.into_iter().chain([Algorithm::Pairwise]);
    let direct = each
        .filter_map(|algorithm| group.estimate(op, bytes, Some(algorithm)))
        .map(|estimate| {
            let chosen = estimate.algorithm == fastest.algorithm;
            way(estimate, chosen)
        });
    let range = StagedRange::of(&setting.cluster, setting.measured.network_staged.as_ref());
    let nics = setting.cluster.domain_nics();
    let crosses = setting.cluster.domains() > 1;
    let staged = |rate: &_| way(group.clone().staged(nics, rate).fastest(op, bytes), true);
    let answer = Collected {
        op,
        bytes: args.size.0,
        gpus: setting.cluster.gpus(),
        direct: direct.collect(),
        staged_slow: range
            .as_ref()
            .filter(|_| crosses)
            .map(|range| staged(&range.slow)),
        staged_fast: range
            .as_ref()
            .filter(|_| crosses)
            .map(|range| staged(&range.fast)),
    };
    let mut sheet = render::collective(&setting.cluster, &answer);
    sheet.rests_on(once(setting.cluster.server.used.clone()));
    sheet.notes.extend(setting.notes);
    args.export.write(SCHEMA, &answer, &sheet, out)
}
