//! Questions about checkpoints, interruptions, data and storage.

use clap::{Args, ValueEnum};
use crowfly_plan::catalog::StorageClass;
use crowfly_plan::checkpoint::{Checkpoint, Interval, Storage, Tier, failures};
use crowfly_plan::loading::{Data, Loading, Samples};
use crowfly_route::topology::Topology;

use super::scenario::{CatalogFiles, ClusterArgs, ModelArgs, SpreadArgs, StoreArgs};
use super::{Answered, Export, once};
use crate::failure::Failure;
use crate::render::plan as render;

const CHECKPOINT_SCHEMA: &str = "crowfly.plan.checkpoint/1";
const INTERVAL_SCHEMA: &str = "crowfly.plan.interval/1";
const LOADING_SCHEMA: &str = "crowfly.plan.loading/1";
const STORAGE_SCHEMA: &str = "crowfly.plan.storage/1";
/// One storage of each class, where none is named.
const CLASSES: [(&str, Option<f64>); 3] = [
    ("gcs-rapid-cache", None),
    ("gcp-managed-lustre-1000", Some(100.0)),
    ("dgx-h100-local-nvme", None),
];

/// Arguments of `crowfly plan checkpoint`.
#[derive(Args, Debug)]
pub struct CheckpointArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pub export: Export,
}

/// Answers `crowfly plan checkpoint`.
pub fn checkpoint(args: &CheckpointArgs, machine: Option<&Topology>) -> Result<Answered, Failure> {
    let setting = args.cluster.resolve(machine)?;
    let model = args.model.resolve(&setting.catalog)?;
    let asked = match args.store.resolve(&setting.catalog)? {
        Some(storage) => vec![storage],
        None => {
            let each = CLASSES.into_iter();
            let each = each.map(|(id, tib)| Storage::from_catalog(&setting.catalog, id, tib));
            each.collect::<Result<_, _>>()?
        }
    };
    let measured = &setting.measured.storage;
    let answer = Checkpoint::of(&setting.catalog, &setting.cluster, &model, &asked, measured);
    let mut sheet = render::checkpoint(&model, &setting.cluster, &answer);
    let mut used = setting.cluster.server.used.clone();
    used.extend(model.used.clone());
    used.extend(asked.iter().flat_map(|storage| storage.used.clone()));
    sheet.rests_on(once(used));
    sheet.notes.extend(setting.notes);
    Ok(Answered::new(CHECKPOINT_SCHEMA, &answer, sheet))
}

/// Arguments of `crowfly plan interval`.
#[derive(Args, Debug)]
pub struct IntervalArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// GPUs of the job
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16_384,
        allow_negative_numbers = true
    )]
    gpus: u64,
    /// Seconds that training stands still at a checkpoint; without it, checkpoint over rate
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    stall: Option<f64>,
    /// Seconds that a restore takes; without it, as long as writing
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    restore: Option<f64>,
    /// Whose reported interruptions to count on
    #[arg(long, value_name = "ID", default_value = "llama3-405b")]
    reliability: String,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    catalog: CatalogFiles,
    #[command(flatten)]
    pub export: Export,
}

/// What storage serves where none is named, in 1e9 B/s: the article's.
const DEFAULT_STORAGE_GBS: f64 = 100.0;

/// GPUs of a server with drives of its own.
const GPUS_PER_SERVER: u64 = 8;

/// Answers `crowfly plan interval`.
pub fn interval(args: &IntervalArgs) -> Result<Answered, Failure> {
    let catalog = args.catalog.read()?;
    let model = args.model.resolve(&catalog)?;
    let failures = failures(&catalog, &args.reliability)?;
    let storage = match args.store.resolve(&catalog)? {
        Some(storage) => storage,
        None => Storage::of_rate(DEFAULT_STORAGE_GBS)?,
    };
    let bytes = model.checkpoint_bytes();
    // Drives inside servers serve each its own server, all at the same time.
    let parts = match storage.class {
        StorageClass::Local => args.gpus.div_ceil(GPUS_PER_SERVER) as f64,
        StorageClass::Object | StorageClass::Parallel => 1.0,
    };
    let stall = args.stall.unwrap_or(bytes / (storage.write.rate.0 * parts));
    let restore = args
        .restore
        .unwrap_or(bytes / (storage.read.rate.0 * parts));
    let mut answer = Interval::of(&failures, args.gpus, stall, restore)?;
    answer.used.extend(model.used.clone());
    answer.used.extend(storage.used);
    let mut sheet = render::interval(&model, args.gpus, &answer);
    sheet.notes.extend(storage.notes);
    sheet.rests_on(once(answer.used.clone()));
    Ok(Answered::new(INTERVAL_SCHEMA, &answer, sheet))
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum DataArg {
    /// Token ids
    #[default]
    Text,
    /// JPEG files
    Image,
    /// Clips
    Video,
}

/// Arguments of `crowfly plan loading`.
#[derive(Args, Debug)]
pub struct LoadingArgs {
    /// What the samples are
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    data: DataArg,
    /// Samples (or tokens) per second and GPU
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    samples_per_gpu: Option<f64>,
    /// Bytes of a sample
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    sample_bytes: Option<f64>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    workload: SpreadArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pub export: Export,
}

/// Answers `crowfly plan loading`.
pub fn loading(args: &LoadingArgs, machine: Option<&Topology>) -> Result<Answered, Failure> {
    let setting = args.cluster.resolve(machine)?;
    let workload = args.workload.resolve(&setting.catalog)?;
    workload.check(&setting.cluster)?;
    let store = args.store.resolve(&setting.catalog)?;
    let data = match args.data {
        DataArg::Text => Data::Text,
        DataArg::Image => Data::Image,
        DataArg::Video => Data::Video,
    };
    let samples = Samples {
        per_gpu: args.samples_per_gpu,
        bytes: args.sample_bytes,
    };
    let answer = Loading::of(&setting.cluster, &workload, data, samples, store.as_ref())?;
    let mut sheet = render::loading(&setting.cluster, &answer, store.as_ref());
    let mut used = setting.cluster.server.used.clone();
    used.extend(workload.model.used);
    used.extend(store.iter().flat_map(|store| store.used.clone()));
    sheet.rests_on(once(used));
    Ok(Answered::new(LOADING_SCHEMA, &answer, sheet))
}

/// Arguments of `crowfly plan storage`.
#[derive(Args, Debug)]
pub struct StorageArgs {
    /// Seconds that training may stand still at a checkpoint
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    stall: f64,
    /// A storage system of the catalogue to order from
    #[arg(long, value_name = "ID")]
    storage: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    catalog: CatalogFiles,
    #[command(flatten)]
    pub export: Export,
}

/// Answers `crowfly plan storage`.
pub fn storage(args: &StorageArgs) -> Result<Answered, Failure> {
    let catalog = args.catalog.read()?;
    let model = args.model.resolve(&catalog)?;
    let answer = Tier::of(&catalog, &model, args.stall, args.storage.as_deref())?;
    let mut sheet = render::tier(&model, &answer);
    sheet.rests_on(once(answer.used.clone()));
    Ok(Answered::new(STORAGE_SCHEMA, &answer, sheet))
}
