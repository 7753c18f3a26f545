//! Questions to the planner. A question of the page *is* a command line of `crowfly plan`: its options
//! are read by the same parser, answered by the same code, and shown beside the answer.

use std::ffi::OsString;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use crowfly_plan::catalog::{Catalog, Shelf};
use crowfly_plan::quantity::{self, Quantity};
use crowfly_plan::workload::Sharding;
use serde::Serialize;
use serde_json::value::RawValue;

use super::asked::Query;
use super::machines::{Choice, Machine, SERVER};
use super::server::{MAX_EVIDENCE_BYTES, Page};
use super::shell::quoted;
use super::{reply, work};
use crate::args::{Cli, Parsed};
use crate::commands::Command;
use crate::commands::plan::{Answered, PlanArgs};
use crate::failure::Failure;
use crate::render::plan::Sheet;

const ABOUT_SCHEMA: &str = "crowfly.ui.about/1";
const PLAN_SCHEMA: &str = "crowfly.ui.plan/1";
/// Options of a question.
const MAX_OPTIONS: usize = 64;
/// The longest value.
const MAX_VALUE: usize = 256;

/// The questions that the page asks.
const QUESTIONS: [&str; 6] = [
    "checkpoint",
    "interval",
    "loading",
    "storage",
    "fabric",
    "collective",
];
/// The options that it may give: those that name no file.
const OPTIONS: [&str; 31] = [
    "server",
    "servers",
    "nics",
    "nic-gbps",
    "memory-gbs",
    "pcie-gen",
    "pcie-lanes",
    "pairs-per-uplink",
    "nvlink-domain",
    "oversubscription",
    "model",
    "params",
    "sharding",
    "tensor",
    "pipeline",
    "expert",
    "tokens-per-gpu",
    "sweep",
    "storage",
    "storage-tib",
    "storage-gbs",
    "stall",
    "restore",
    "gpus",
    "reliability",
    "data",
    "samples-per-gpu",
    "sample-bytes",
    "switch",
    "tiers",
    "size",
];
/// The options that stand alone.
const FLAGS: [&str; 1] = ["recompute"];

/// What the page can ask about.
#[derive(Serialize)]
struct About {
    schema: &'static str,
    version: &'static str,
    machines: Vec<Choice>,
    servers: Vec<Named>,
    models: Vec<Named>,
    storage: Vec<Named>,
    adapters: Vec<f64>,
    sharding: Vec<&'static str>,
    ranges: Vec<Range>,
    evidence_bytes: usize,
}

/// An entry of the catalogue.
#[derive(Serialize)]
struct Named {
    id: String,
    summary: String,
    verified: bool,
}

/// From where to where an option goes.
#[derive(Clone, Serialize)]
struct Range {
    option: &'static str,
    name: &'static str,
    least: f64,
    most: f64,
}

/// An answer.
#[derive(Serialize)]
struct Plan<'a> {
    schema: &'static str,
    /// What asks the same on a command line.
    command: &'a str,
    /// What that prints with `--json`.
    document: Box<RawValue>,
    sheet: &'a Sheet,
    #[serde(skip_serializing_if = "Option::is_none")]
    picture: Option<String>,
}

/// What the page can ask about.
pub async fn about(State(page): State<Arc<Page>>) -> Response {
    work::answer(page, |page| {
        let catalog = Catalog::built_in();
        let mut adapters: Vec<f64> = catalog.nics.iter().map(|nic| nic.facts.gbps).collect();
        adapters.sort_by(f64::total_cmp);
        adapters.dedup();
        let range = |quantity: Quantity| Range {
            option: quantity.option,
            name: quantity.name,
            least: quantity.least,
            most: quantity.most,
        };
        reply::json(&About {
            schema: ABOUT_SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            machines: page.machines.choices(&catalog),
            servers: named(&catalog.servers),
            models: named(&catalog.models),
            storage: named(&catalog.storage),
            adapters,
            sharding: Sharding::ALL.map(Sharding::as_str).to_vec(),
            ranges: [
                quantity::NIC_RATE,
                quantity::MEMORY_RATE,
                quantity::STORAGE_RATE,
                quantity::STORAGE_CAPACITY,
                quantity::OVERSUBSCRIPTION,
            ]
            .map(range)
            .to_vec(),
            evidence_bytes: MAX_EVIDENCE_BYTES,
        })
    })
    .await
}

fn named<F: crowfly_plan::catalog::Facts>(shelf: &Shelf<F>) -> Vec<Named> {
    let entry = |entry: &crowfly_plan::catalog::Entry<F>| Named {
        id: entry.id.clone(),
        summary: entry.facts.summary(),
        verified: entry.basis.is_verified(),
    };
    shelf.iter().map(entry).collect()
}

/// The answer to a question, with everything that the page draws of it.
pub async fn plan(
    State(page): State<Arc<Page>>,
    Query(options): Query<Vec<(String, String)>>,
) -> Response {
    work::answer(page, move |page| {
        let asked = Asked::read(page, &options)?;
        let mut answered = asked.answer()?;
        let picture = answered.picture();
        reply::json(&Plan {
            schema: PLAN_SCHEMA,
            command: &asked.command,
            document: reply::raw(answered.json()?)?,
            sheet: &answered.sheet,
            picture,
        })
    })
    .await
}

/// The answer to a question in a form to keep.
pub async fn export(
    State(page): State<Arc<Page>>,
    Query(mut options): Query<Vec<(String, String)>>,
) -> Response {
    let form = options.iter().position(|(name, _)| name == "form");
    let form = form.map(|at| options.remove(at).1).unwrap_or_default();
    work::answer(page, move |page| {
        let mut answered = Asked::read(page, &options)?.answer()?;
        let (kind, disposition, content) = match form.as_str() {
            "json" => {
                let document = [answered.json()?, b"\n"].concat();
                (
                    "application/json",
                    "attachment; filename=\"plan.json\"",
                    document,
                )
            }
            "csv" => {
                let table = answered.sheet.csv().into_bytes();
                (
                    "text/csv; charset=utf-8",
                    "attachment; filename=\"plan.csv\"",
                    table,
                )
            }
            "markdown" => {
                let text = answered.sheet.markdown().into_bytes();
                (
                    "text/markdown; charset=utf-8",
                    "attachment; filename=\"plan.md\"",
                    text,
                )
            }
            "svg" => {
                let picture = answered
                    .picture()
                    .ok_or_else(|| Failure::usage("that question has no picture"))?;
                (
                    "image/svg+xml",
                    "attachment; filename=\"plan.svg\"",
                    picture.into_bytes(),
                )
            }
            _ => {
                let hint = "forms are json, csv, markdown and svg";
                return Err(Failure::usage("no such form").hint(hint));
            }
        };
        let mut response = reply::typed(StatusCode::OK, kind, content);
        let disposition = HeaderValue::from_static(disposition);
        response
            .headers_mut()
            .insert(header::CONTENT_DISPOSITION, disposition);
        Ok(response)
    })
    .await
}

/// A question that was read.
struct Asked {
    command: String,
    args: Box<PlanArgs>,
    machine: Option<Arc<Machine>>,
}

impl Asked {
    /// Reads the options of a question: `question` names it, `machine` gives the server, and the rest
    /// are options of the command line.
    fn read(page: &Page, options: &[(String, String)]) -> Result<Self, Failure> {
        if options.len() > MAX_OPTIONS {
            return Err(Failure::usage(format!("more than {MAX_OPTIONS} options")));
        }
        let mut words = vec!["crowfly".to_owned(), "plan".to_owned()];
        let mut given = Vec::new();
        let mut machine = None;
        for (name, value) in options {
            if value.len() > MAX_VALUE {
                let what = format!("`{name}` is longer than {MAX_VALUE} bytes");
                return Err(Failure::usage(what));
            }
            match name.as_str() {
                "question" if QUESTIONS.contains(&value.as_str()) => words.push(value.clone()),
                "machine" => match value.strip_prefix(SERVER) {
                    Some(server) => given.push(format!("--server={server}")),
                    None => machine = Some(page.machines.find(Some(value))?),
                },
                flag if FLAGS.contains(&flag) => given.push(format!("--{flag}")),
                option if OPTIONS.contains(&option) => given.push(format!("--{option}={value}")),
                _ => {
                    let what = format!("the page does not ask `{name}={value}`");
                    return Err(Failure::usage(what));
                }
            }
        }
        words.extend(given);
        let args = match Cli::read(words.iter().map(OsString::from).collect()) {
            Parsed::Run(cli) => match cli.command {
                Command::Plan(args) => args,
                _ => return Err(Failure::usage("that is no question to the planner")),
            },
            Parsed::Misused(failure, _) => return Err(failure),
            Parsed::Explain(..) => return Err(Failure::usage("help is on the command line")),
        };
        let mut shown: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        if let Some(machine) = &machine {
            let file = match &machine.choice {
                Some(("--from" | "--snapshot", file)) => file.as_str(),
                _ => "machine.json",
            };
            shown.extend(["--from-snapshot".to_owned(), quoted(file)]);
        }
        Ok(Self {
            command: shown.join(" "),
            args,
            machine,
        })
    }

    fn answer(&self) -> Result<Answered, Failure> {
        let topology = self.machine.as_ref().map(|machine| &machine.topology);
        self.args.answer(topology)
    }
}
