//! `crowfly plan`: whether the straight way matters for a cluster and a model, what it costs, what
//! to buy.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use crowfly_plan::catalog::Used;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render::plan::Sheet;
use crate::{file, path};

mod assess;
mod buy;
mod catalog;
mod collective;
mod data;
mod scenario;
mod simulate;

pub use buy::Shape;

/// Arguments of `crowfly plan`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PlanArgs {
    /// Another question than whether the straight way matters
    #[command(subcommand)]
    question: Option<Question>,
    #[command(flatten)]
    assess: assess::AssessArgs,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// How large a checkpoint is, how long it stalls training and how long a restore takes
    Checkpoint(data::CheckpointArgs),
    /// How often to write checkpoints, and what interruptions cost
    Interval(data::IntervalArgs),
    /// What training reads, against what the store serves and the CPUs decode
    Loading(data::LoadingArgs),
    /// How much storage keeps a checkpoint's stall below what is allowed
    Storage(data::StorageArgs),
    /// The fabric to buy: switches, cables, ports left, power, cost
    Fabric(buy::FabricArgs),
    /// Which cloud shape has which direct path
    Shapes(buy::ShapesArgs),
    /// How long one collective takes, by every algorithm
    Collective(collective::CollectiveArgs),
    /// Simulate the flows of a fabric: collectives, checkpoints, failed links, slow servers
    Simulate(simulate::SimulateArgs),
    /// What the planner knows, with sources and confidence
    Catalog(catalog::CatalogArgs),
    /// Published measurements beside what the planner predicts of them
    Validate(catalog::ValidateArgs),
    /// Claims about GPUDirect that are wrong, and what is right
    Claims(catalog::ClaimsArgs),
}

/// How an answer is written.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct Export {
    /// Write the tables as comma-separated values
    #[arg(long, conflicts_with = "markdown")]
    csv: bool,
    /// Write the answer as Markdown
    #[arg(long)]
    markdown: bool,
}

/// As [`Export`], and a picture.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct ExportPicture {
    #[command(flatten)]
    export: Export,
    /// Also draw it into an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document<'a, T> {
    schema: &'static str,
    #[serde(flatten)]
    answer: &'a T,
}

impl Export {
    /// Writes an answer: as one JSON document, or as its sheet in the form asked for.
    fn write<T: Serialize>(
        &self,
        schema: &'static str,
        answer: &T,
        sheet: &Sheet,
        out: &mut Output,
    ) -> Result<Exit, Failure> {
        if out.is_json() && (self.csv || self.markdown) {
            return Err(Failure::usage(
                "--json goes with neither --csv nor --markdown",
            ));
        }
        if self.csv {
            out.bytes(sheet.csv().as_bytes())?;
        } else if self.markdown {
            out.bytes(sheet.markdown().as_bytes())?;
        } else {
            let document = Document { schema, answer };
            out.show(&document, |columns| sheet.text(columns))?;
        }
        Ok(Exit::Ok)
    }
}

impl ExportPicture {
    fn write<T: Serialize>(
        &self,
        schema: &'static str,
        answer: &T,
        sheet: &Sheet,
        picture: impl FnOnce() -> String,
        out: &mut Output,
    ) -> Result<Exit, Failure> {
        if let Some(to) = &self.svg {
            file::replace(to, picture().as_bytes())?;
            out.note(&format!("picture written to {}", path::shown(to)));
        }
        self.export.write(schema, answer, sheet, out)
    }
}

/// Each entry once.
fn once(mut used: Vec<Used>) -> Vec<Used> {
    let mut seen = Vec::new();
    used.retain(|entry| {
        let key = (entry.kind, entry.id.clone());
        let new = !seen.contains(&key);
        seen.push(key);
        new
    });
    used
}

/// Answers.
pub fn run(args: &PlanArgs, out: &mut Output) -> Result<Exit, Failure> {
    match &args.question {
        None => assess::run(&args.assess, out),
        Some(Question::Checkpoint(args)) => data::checkpoint(args, out),
        Some(Question::Interval(args)) => data::interval(args, out),
        Some(Question::Loading(args)) => data::loading(args, out),
        Some(Question::Storage(args)) => data::storage(args, out),
        Some(Question::Fabric(args)) => buy::fabric(args, out),
        Some(Question::Shapes(args)) => buy::shapes(args, out),
        Some(Question::Collective(args)) => collective::run(args, out),
        Some(Question::Simulate(args)) => simulate::run(args, out),
        Some(Question::Catalog(args)) => catalog::list(args, out),
        Some(Question::Validate(args)) => catalog::validate(args, out),
        Some(Question::Claims(args)) => catalog::claims(args, out),
    }
}
