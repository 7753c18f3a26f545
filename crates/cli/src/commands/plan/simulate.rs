//! The flows of a fabric, simulated.

use clap::{Args, ValueEnum};
use crowfly_plan::fabric::Wiring;
use crowfly_plan::sim::{CheckpointTraffic, Placement, Routing, Simulation};
use crowfly_route::topology::Topology;
use crowfly_route::units::Bytes;

use super::scenario::{ClusterArgs, ModelArgs};
use super::{Answered, Export, once};
use crate::failure::Failure;
use crate::render::plan as render;

const SCHEMA: &str = "crowfly.plan.simulation/1";

/// Arguments of `crowfly plan simulate`.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// The buffer of one GPU that is reduced; without it, the model's gradients
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// An all-to-all at the same time: what each GPU sends in all
    #[arg(long, value_name = "SIZE")]
    all_to_all: Option<Bytes>,
    /// A checkpoint of the model at the same time, to storage of this many GB/s on the same fabric
    #[arg(long, value_name = "GBS", allow_negative_numbers = true)]
    checkpoint_gbs: Option<f64>,
    /// Ports of a switch
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true
    )]
    radix: u32,
    /// How switches choose among the links up
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    routing: RoutingArg,
    /// Which NICs share a leaf switch
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    wiring: WiringArg,
    /// Spine switches of a fabric of two tiers; without it, as few as do
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    spines: Option<u32>,
    /// Which servers are neighbours in a ring
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    placement: PlacementArg,
    /// Share of the links between leaf and spine that failed
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    failed_links: f64,
    /// NICs that failed; the next rail's carries their traffic
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    failed_nics: u32,
    /// Share of the servers that are slow
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    stragglers: f64,
    /// What is left of the rate of a slow server's NICs
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.5,
        allow_negative_numbers = true
    )]
    straggler_rate: f64,
    /// What everything random comes from
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    pub export: Export,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum RoutingArg {
    /// Packet by packet, by load
    #[default]
    Adaptive,
    /// Flow by flow, by a hash
    Static,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum WiringArg {
    /// Those of one rail
    #[default]
    Rails,
    /// All those of a server
    Servers,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum PlacementArg {
    /// Servers of one leaf follow each other
    #[default]
    Packed,
    /// Any server follows any
    Scattered,
}

/// Answers.
pub fn answer(args: &SimulateArgs, machine: Option<&Topology>) -> Result<Answered, Failure> {
    let setting = args.cluster.resolve(machine)?;
    let model = args.model.resolve(&setting.catalog)?;
    let bytes = args
        .size
        .map_or(model.gradient_bytes(), |size| size.0 as f64);
    let simulation = Simulation {
        all_to_all: args.all_to_all.map(|size| size.0 as f64),
        checkpoint: args.checkpoint_gbs.map(|gbs| CheckpointTraffic {
            bytes: model.checkpoint_bytes(),
            storage: gbs * 1e9,
        }),
        routing: match args.routing {
            RoutingArg::Adaptive => Routing::Adaptive,
            RoutingArg::Static => Routing::Static,
        },
        wiring: match args.wiring {
            WiringArg::Rails => Wiring::Rails,
            WiringArg::Servers => Wiring::Servers,
        },
        spines: args.spines,
        placement: match args.placement {
            PlacementArg::Packed => Placement::Packed,
            PlacementArg::Scattered => Placement::Scattered,
        },
        failed_links: args.failed_links,
        failed_nics: args.failed_nics,
        stragglers: args.stragglers,
        straggler_rate: args.straggler_rate,
        seed: args.seed,
        ..Simulation::of(setting.cluster.clone(), args.radix, bytes)
    };
    let answer = simulation.run()?;
    let mut sheet = render::simulation(&answer);
    let mut used = setting.cluster.server.used.clone();
    used.extend(model.used);
    sheet.rests_on(once(used));
    Ok(Answered::new(SCHEMA, &answer, sheet))
}
