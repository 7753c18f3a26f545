//! What to buy, and what to rent.

use clap::{Args, ValueEnum};
use crowfly_plan::catalog::{CloudProvider, Confidence};
use crowfly_plan::fabric::{BillOfMaterials, DEFAULT_SWITCH};
use crowfly_route::topology::Topology;
use serde::Serialize;

use super::scenario::{CatalogFiles, ClusterArgs};
use super::{Answered, Export, once};
use crate::failure::Failure;
use crate::render::plan as render;

const FABRIC_SCHEMA: &str = "crowfly.plan.fabric/1";
const SHAPES_SCHEMA: &str = "crowfly.plan.shapes/1";

/// Arguments of `crowfly plan fabric`.
#[derive(Args, Debug)]
pub struct FabricArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// A switch of the catalogue
    #[arg(long, value_name = "ID", default_value = DEFAULT_SWITCH)]
    switch: String,
    /// How many tiers; without it, as few as do
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    tiers: Option<u32>,
    #[command(flatten)]
    pub export: Export,
}

/// Answers `crowfly plan fabric`.
pub fn fabric(args: &FabricArgs, machine: Option<&Topology>) -> Result<Answered, Failure> {
    let setting = args.cluster.resolve(machine)?;
    let bill = BillOfMaterials::of(&setting.catalog, &setting.cluster, &args.switch, args.tiers)?;
    let mut sheet = render::fabric(&setting.cluster, &bill);
    sheet.rests_on(once(bill.used.clone()));
    Ok(Answered::new(FABRIC_SCHEMA, &bill, sheet))
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CloudArg {
    Gcp,
    Aws,
    Azure,
    Oci,
}

/// Arguments of `crowfly plan shapes`.
#[derive(Args, Debug)]
pub struct ShapesArgs {
    /// Shapes of one cloud alone
    #[arg(long, value_enum, value_name = "CLOUD")]
    cloud: Option<CloudArg>,
    #[command(flatten)]
    catalog: CatalogFiles,
    #[command(flatten)]
    pub export: Export,
}

/// A shape and its direct path.
#[derive(Debug, Serialize)]
pub struct Shape {
    /// Its name.
    pub id: String,
    /// Who rents it out.
    pub cloud: CloudProvider,
    /// Its accelerator.
    pub gpu: String,
    /// How many.
    pub gpus: u32,
    /// How GPU memory reaches the network; `None` where it does not without a detour.
    pub direct_path: Option<&'static str>,
    /// Network per GPU in one direction, 1e9 B/s; `None` where it is not known.
    pub gbs_per_gpu: Option<f64>,
    /// How sure it is.
    pub confidence: Confidence,
    /// Whether it may be relied on.
    pub verified: bool,
    /// What a reader should know.
    pub note: Option<String>,
}

#[derive(Serialize)]
struct Shapes {
    shapes: Vec<Shape>,
}

/// Answers `crowfly plan shapes`.
pub fn shapes(args: &ShapesArgs) -> Result<Answered, Failure> {
    let catalog = args.catalog.read()?;
    let wanted = args.cloud.map(|cloud| match cloud {
        CloudArg::Gcp => CloudProvider::Gcp,
        CloudArg::Aws => CloudProvider::Aws,
        CloudArg::Azure => CloudProvider::Azure,
        CloudArg::Oci => CloudProvider::Oci,
    });
    let rented = catalog.servers.iter().filter_map(|entry| {
        let facts = &entry.facts;
        let cloud = facts
            .cloud
            .filter(|cloud| wanted.is_none_or(|wanted| wanted == *cloud))?;
        let total = facts.nics.zip(facts.nic_gbps);
        Some(Shape {
            id: entry.id.clone(),
            cloud,
            gpu: facts.gpu.clone(),
            gpus: facts.gpus,
            direct_path: facts.transport.direct_path(),
            gbs_per_gpu: total
                .map(|(nics, gbps)| f64::from(nics) * gbps / 8.0 / f64::from(facts.gpus)),
            confidence: entry.basis.confidence,
            verified: entry.basis.is_verified(),
            note: entry.basis.note.clone(),
        })
    });
    let answer = Shapes {
        shapes: rented.collect(),
    };
    let sheet = render::shapes(&answer.shapes);
    Ok(Answered::new(SHAPES_SCHEMA, &answer, sheet))
}
