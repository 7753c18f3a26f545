//! What the planner knows, how right it is, and which claims are wrong.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use crowfly_plan::catalog::{Catalog, Kind, Listed};
use crowfly_plan::claims::{CLAIMS, Claim};
use crowfly_plan::validate::Validation;
use serde::Serialize;

use super::scenario::CatalogFiles;
use super::{Answered, Export};
use crate::failure::Failure;
use crate::render::plan as render;

const CATALOG_SCHEMA: &str = "crowfly.plan.catalog/1";
const VALIDATE_SCHEMA: &str = "crowfly.plan.validate/1";
const CLAIMS_SCHEMA: &str = "crowfly.plan.claims/1";

/// Arguments of `crowfly plan catalog`.
#[derive(Args, Debug)]
pub struct CatalogArgs {
    /// Entries of one kind alone
    #[arg(long, value_parser = kinds(), value_name = "KIND")]
    kind: Option<Kind>,
    /// Entries that contain this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Show where each entry is from
    #[arg(long)]
    sources: bool,
    #[command(flatten)]
    catalog: CatalogFiles,
    #[command(flatten)]
    pub export: Export,
}

/// The kinds by their words in the catalogue.
fn kinds() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::as_str)).try_map(|word| {
        let named = |kind: &Kind| kind.as_str() == word;
        Kind::ALL.into_iter().find(named).ok_or("no kind of entry")
    })
}

/// An entry with all its facts and its sources spelled out.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    listed: Listed<'a>,
    facts: serde_json::Value,
    sources: Vec<&'a str>,
}

#[derive(Serialize)]
struct Entries<'a> {
    entries: Vec<Shown<'a>>,
}

/// Answers `crowfly plan catalog`.
pub fn list(args: &CatalogArgs) -> Result<Answered, Failure> {
    let catalog = args.catalog.read()?;
    let listed = catalog.list(args.kind, args.filter.as_deref());
    let sheet = render::catalog(&catalog, &listed, args.sources);
    let shown = listed.into_iter().map(|listed| {
        let sources = listed.basis.sources.iter().map(|key| catalog.source(key));
        Shown {
            facts: facts(&catalog, listed.kind, listed.id),
            sources: sources.collect(),
            listed,
        }
    });
    let answer = Entries {
        entries: shown.collect(),
    };
    Ok(Answered::new(CATALOG_SCHEMA, &answer, sheet))
}

/// All facts of an entry.
fn facts(catalog: &Catalog, kind: Kind, id: &str) -> serde_json::Value {
    macro_rules! of {
        ($shelf:ident) => {
            catalog
                .$shelf
                .get(id)
                .ok()
                .and_then(|entry| serde_json::to_value(&entry.facts).ok())
        };
    }
    let facts = match kind {
        Kind::Gpu => of!(gpus),
        Kind::Memory => of!(memory),
        Kind::Server => of!(servers),
        Kind::Nic => of!(nics),
        Kind::Switch => of!(switches),
        Kind::Pcie => of!(pcie),
        Kind::Storage => of!(storage),
        Kind::Fabric => of!(fabrics),
        Kind::Model => of!(models),
        Kind::Price => of!(prices),
        Kind::Reliability => of!(reliability),
    };
    facts.unwrap_or_default()
}

/// Arguments of `crowfly plan validate`.
#[derive(Args, Debug)]
pub struct ValidateArgs {
    #[command(flatten)]
    catalog: CatalogFiles,
    #[command(flatten)]
    pub export: Export,
}

/// Answers `crowfly plan validate`.
pub fn validate(args: &ValidateArgs) -> Result<Answered, Failure> {
    let catalog = args.catalog.read()?;
    let answer = Validation::of(&catalog)?;
    let sheet = render::validation(&answer);
    Ok(Answered::new(VALIDATE_SCHEMA, &answer, sheet))
}

/// Arguments of `crowfly plan claims`.
#[derive(Args, Debug)]
pub struct ClaimsArgs {
    #[command(flatten)]
    pub export: Export,
}

#[derive(Serialize)]
struct Claims {
    claims: &'static [Claim],
}

/// Answers `crowfly plan claims`.
pub fn claims(_: &ClaimsArgs) -> Answered {
    let sheet = render::claims(&CLAIMS);
    let answer = Claims { claims: &CLAIMS };
    Answered::new(CLAIMS_SCHEMA, &answer, sheet)
}
