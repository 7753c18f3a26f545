//! The cluster and the workload that a question is about, from the command line.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use crowfly_plan::catalog::{Catalog, MAX_CATALOG_BYTES};
use crowfly_plan::checkpoint::Storage;
use crowfly_plan::cluster::{Cluster, Overrides, ServerSpec};
use crowfly_plan::observed::{Measured, Unusable};
use crowfly_plan::workload::{DEFAULT_TOKENS_PER_GPU, ModelSpec, Sharding, Workload};
use crowfly_route::receipt::{RECEIPT_SCHEMA, Receipt};
use crowfly_route::topology::Topology;

use crate::failure::{Exit, Failure};
use crate::input::read_bounded;
use crate::machine::described_in;
use crate::path::shown;

/// The largest receipt that is read.
const MAX_RECEIPT_BYTES: usize = 4 << 20;
/// The server of a question that names none.
const DEFAULT_SERVER: &str = "dgx-h100";
/// The model of a question that names none.
const DEFAULT_MODEL: &str = "70b";

/// Additions to what the planner knows.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Facts")]
pub struct CatalogFiles {
    /// Add entries to the catalogue from a TOML file of the same form
    #[arg(long = "catalog", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl CatalogFiles {
    /// The built-in catalogue with the additions.
    pub fn read(&self) -> Result<Catalog, Failure> {
        let mut catalog = Catalog::built_in();
        for file in &self.files {
            let bytes = read_bounded(file, MAX_CATALOG_BYTES)?;
            let text = String::from_utf8(bytes).map_err(|_| {
                let what = format!("could not read {}: it is not UTF-8 text", shown(file));
                Failure::new("catalog-not-toml", Exit::BadData, what)
            })?;
            catalog
                .add(&text)
                .map_err(|error| in_file(error.into(), file))?;
        }
        Ok(catalog)
    }
}

fn in_file(failure: Failure, file: &Path) -> Failure {
    let named = format!("{}: {}", shown(file), failure.message());
    let hint = failure.hint_text().map(str::to_owned);
    Failure::new(failure.code(), failure.exit(), named).maybe_hint(hint.as_deref())
}

/// The cluster.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// A server of the catalogue; without it and without a snapshot, dgx-h100
    #[arg(long, value_name = "ID", conflicts_with = "from_snapshot")]
    server: Option<String>,
    /// Take the server from a snapshot, or from a file of lstopo or NCCL
    #[arg(long, value_name = "FILE")]
    from_snapshot: Option<PathBuf>,
    /// How many servers
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        allow_negative_numbers = true
    )]
    servers: u32,
    /// NICs for GPU traffic per server
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    nics: Option<u32>,
    /// Line rate of a NIC in Gb/s
    #[arg(long, value_name = "GBPS", allow_negative_numbers = true)]
    nic_gbps: Option<f64>,
    /// Peak bandwidth of host memory in GB/s
    #[arg(long, value_name = "GBS", allow_negative_numbers = true)]
    memory_gbs: Option<f64>,
    /// PCIe generation of the slots
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=7))]
    pcie_gen: Option<u8>,
    /// PCIe lanes of the slots
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    pcie_lanes: Option<u8>,
    /// GPU and NIC pairs that share one PCIe uplink
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pairs_per_uplink: Option<u32>,
    /// GPUs that share one NVLink fabric
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    nvlink_domain: Option<u32>,
    /// Ports down per port up at the leaf switches
    #[arg(
        long,
        value_name = "RATIO",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    oversubscription: f64,
    /// Receipts (`crowfly load … --json`) whose measured rates replace the catalogue's
    #[arg(long, value_name = "FILE", num_args = 1..)]
    receipts: Vec<PathBuf>,
    #[command(flatten)]
    catalog: CatalogFiles,
}

/// The model and how it is spread.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A model of the catalogue; without it and without a size, 70b
    #[arg(long, value_name = "ID", conflicts_with = "params")]
    model: Option<String>,
    /// A dense model of this many parameters, such as 13B or 1.5T
    #[arg(long, value_name = "N", value_parser = parameters, allow_hyphen_values = true)]
    params: Option<f64>,
}

/// How the model is spread.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct SpreadArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What is sharded over the data-parallel group; FSDP is zero3
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    sharding: ShardingArg,
    /// Tensor parallel degree
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    tensor: u32,
    /// Pipeline parallel degree
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pipeline: u32,
    /// Expert parallel degree
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    expert: u32,
    /// Tokens of a step per GPU
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TOKENS_PER_GPU, allow_negative_numbers = true)]
    tokens_per_gpu: u64,
    /// Activations are worked out again in the backward pass
    #[arg(long)]
    recompute: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ShardingArg {
    /// Nothing: plain data parallelism
    #[default]
    Ddp,
    /// Optimizer state
    Zero1,
    /// Gradients as well
    Zero2,
    /// Weights as well
    Zero3,
}

/// What a store serves.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Storage")]
pub struct StoreArgs {
    /// A storage system of the catalogue
    #[arg(long, value_name = "ID", conflicts_with = "storage_gbs")]
    pub storage: Option<String>,
    /// Its capacity in TiB, where throughput is bought by capacity
    #[arg(
        long,
        value_name = "TIB",
        requires = "storage",
        conflicts_with = "storage_gbs",
        allow_negative_numbers = true
    )]
    storage_tib: Option<f64>,
    /// Or just its throughput in GB/s
    #[arg(long, value_name = "GBS", allow_negative_numbers = true)]
    storage_gbs: Option<f64>,
}

/// The cluster of a question, with what it was made from.
pub struct Setting {
    pub catalog: Catalog,
    pub cluster: Cluster,
    pub measured: Measured,
    /// What the user should know besides the answer.
    pub notes: Vec<String>,
}

impl ClusterArgs {
    fn overrides(&self) -> Overrides {
        Overrides {
            nics: self.nics,
            nic_gbps: self.nic_gbps,
            memory_gbs: self.memory_gbs,
            pcie_gen: self.pcie_gen,
            pcie_lanes: self.pcie_lanes,
            pairs_per_uplink: self.pairs_per_uplink,
            domain: self.nvlink_domain,
        }
    }

    /// Reads what is named and makes the cluster. The server is that of a `machine` that is given,
    /// else of the snapshot that is named, else of the catalogue.
    pub fn resolve(&self, machine: Option<&Topology>) -> Result<Setting, Failure> {
        let catalog = self.catalog.read()?;
        let mut notes = Vec::new();
        let measured = measured(&self.receipts, &mut notes)?;
        let overrides = self.overrides();
        let mut server = match (machine, &self.from_snapshot) {
            (Some(topology), _) => ServerSpec::from_topology(&catalog, topology, &overrides)?,
            (None, Some(file)) => {
                let (topology, _) = described_in(file)?;
                ServerSpec::from_topology(&catalog, &topology, &overrides)?
            }
            (None, None) => {
                let id = self.server.as_deref().unwrap_or(DEFAULT_SERVER);
                ServerSpec::from_catalog(&catalog, id, &overrides)?
            }
        };
        measured.apply(&mut server);
        notes.extend(memory_note(&server));
        let cluster = Cluster::new(server, self.servers, self.oversubscription)?;
        Ok(Setting {
            catalog,
            cluster,
            measured,
            notes,
        })
    }

    /// The same cluster of another server, written as `ID` or `ID:SERVERS`.
    pub fn other(&self, setting: &Setting, text: &str) -> Result<Cluster, Failure> {
        let (id, servers) = match text.split_once(':') {
            None => (text, self.servers),
            Some((id, count)) => {
                let bad = || Failure::usage(format!("`{text}` is not SERVER or SERVER:COUNT"));
                (id, count.parse().map_err(|_| bad())?)
            }
        };
        let mut server = ServerSpec::from_catalog(&setting.catalog, id, &self.overrides())?;
        setting.measured.apply(&mut server);
        Ok(Cluster::new(server, servers, self.oversubscription)?)
    }
}

/// That staged times lack a limit, where they do.
pub fn memory_note(server: &ServerSpec) -> Option<String> {
    server.memory.is_none().then(|| {
        format!(
            "the bandwidth of {}'s host memory is not known: staged times lack that limit (--memory-gbs)",
            server.name
        )
    })
}

fn measured(files: &[PathBuf], notes: &mut Vec<String>) -> Result<Measured, Failure> {
    let mut measured = Measured::default();
    for file in files {
        let receipt = receipt(file)?;
        notes.push(match measured.take(&receipt) {
            Ok(taken) => {
                let (file, rate) = (shown(file), receipt.rate().unwrap_or_default());
                format!("receipt {file}: {rate}, taken for {}", taken.as_str())
            }
            Err(why) => {
                let why = unusable(why);
                format!("receipt {} was not used: {why}", shown(file))
            }
        });
    }
    Ok(measured)
}

const fn unusable(why: Unusable) -> &'static str {
    match why {
        Unusable::TooSmall => "it is too small to be a rate",
        Unusable::Implausible => "no machine has such a rate",
        Unusable::NotWhole => "its bytes do not sum to those asked for",
        Unusable::OtherPlaces => "no plan is about a transfer between such places",
        Unusable::PageCache => {
            "its bytes went by the page cache, so that it tells of host memory and not of storage \
             (`--path direct` does not)"
        }
    }
}

/// A receipt on its own, or within the document of the command that printed it.
fn receipt(file: &Path) -> Result<Receipt, Failure> {
    let bad = |what: String| {
        let what = format!("could not use {} as a receipt: {what}", shown(file));
        Failure::new("not-a-receipt", Exit::BadData, what)
            .hint("a receipt is what `crowfly load … --json` prints")
    };
    let bytes = read_bounded(file, MAX_RECEIPT_BYTES)?;
    if bytes.len() > MAX_RECEIPT_BYTES {
        return Err(bad(format!("it is larger than {MAX_RECEIPT_BYTES} bytes")));
    }
    let mut document: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    if let Some(inner) = document.get_mut("receipt") {
        document = inner.take();
    }
    let schema = document.get("schema").and_then(|schema| schema.as_str());
    if schema != Some(RECEIPT_SCHEMA) {
        let seen = schema.unwrap_or("no schema").to_owned();
        return Err(bad(format!("it has {seen}, not {RECEIPT_SCHEMA}")));
    }
    serde_json::from_value(document).map_err(|error| bad(error.to_string()))
}

impl ModelArgs {
    /// The model.
    pub fn resolve(&self, catalog: &Catalog) -> Result<ModelSpec, Failure> {
        Ok(match self.params {
            Some(params) => ModelSpec::of_size(params)?,
            None => {
                let id = self.model.as_deref().unwrap_or(DEFAULT_MODEL);
                ModelSpec::from_catalog(catalog, id)?
            }
        })
    }
}

impl SpreadArgs {
    /// The workload.
    pub fn resolve(&self, catalog: &Catalog) -> Result<Workload, Failure> {
        Ok(Workload {
            sharding: match self.sharding {
                ShardingArg::Ddp => Sharding::Ddp,
                ShardingArg::Zero1 => Sharding::Zero1,
                ShardingArg::Zero2 => Sharding::Zero2,
                ShardingArg::Zero3 => Sharding::Zero3,
            },
            tensor: self.tensor,
            pipeline: self.pipeline,
            expert: self.expert,
            tokens_per_gpu: self.tokens_per_gpu,
            recompute: self.recompute,
            ..Workload::data_parallel(self.model.resolve(catalog)?)
        })
    }
}

impl StoreArgs {
    /// The storage that was named, if any.
    pub fn resolve(&self, catalog: &Catalog) -> Result<Option<Storage>, Failure> {
        Ok(match (&self.storage, self.storage_gbs) {
            (Some(id), _) => Some(Storage::from_catalog(catalog, id, self.storage_tib)?),
            (None, Some(gbs)) => Some(Storage::of_rate(gbs)?),
            (None, None) => None,
        })
    }
}

/// `70B`, `1.5T`, `350M`, `7e9`.
fn parameters(text: &str) -> Result<f64, String> {
    let units = [('M', 1e6), ('B', 1e9), ('T', 1e12)];
    let found = units.into_iter().find_map(|(unit, factor)| {
        let number = text.strip_suffix([unit, unit.to_ascii_lowercase()])?;
        Some((number, factor))
    });
    let (number, factor) = found.unwrap_or((text, 1.0));
    let value = number.trim().parse::<f64>().ok().filter(|v| v.is_finite());
    let value = value.ok_or_else(|| "write a number such as 70B, 1.5T or 7e9".to_owned())?;
    Ok(value * factor)
}

#[cfg(test)]
mod tests {
    use super::parameters;

    #[test]
    fn sizes_of_models_read_as_people_write_them() {
        assert_eq!(parameters("70B"), Ok(70e9));
        assert_eq!(parameters("1.5t"), Ok(1.5e12));
        assert_eq!(parameters("350M"), Ok(350e6));
        assert_eq!(parameters("7e9"), Ok(7e9));
        assert_eq!(parameters("-1B"), Ok(-1e9));
        for bad in ["", "B", "many", "inf", "1G"] {
            assert!(parameters(bad).is_err(), "{bad}");
        }
    }
}
