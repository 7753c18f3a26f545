//! What GPUDirect would change: here, and at 8, 64 and 512 servers by the planner's models with what
//! the run measured.

use std::sync::Arc;
use std::time::Duration;

use crowfly_mover::bench::copies;
use crowfly_mover::{Piece, Source};
use crowfly_plan::assess::SweepPoint;
use crowfly_plan::assess::sweep;
use crowfly_plan::calibrated::StagedRange;
use crowfly_plan::catalog::{Catalog, Used};
use crowfly_plan::checkpoint::{CheckpointOn, MeasuredStorage, Storage};
use crowfly_plan::cluster::{Cluster, Overrides, ServerSpec};
use crowfly_plan::figure::{Figure, Unit};
use crowfly_plan::step::{Path, Step};
use crowfly_plan::workload::Workload;
use crowfly_route::hop::{Candidate, Capacity, Provenance};
use crowfly_route::place::Place;
use serde::Serialize;

use super::standing::Log;
use super::{Plan, StepArgs};
use crate::commands::transfer;
use crate::failure::Failure;

/// The server that is planned with, unless another is named.
pub const SERVER: &str = "dgx-h100";
/// The storage, likewise.
pub const STORAGE: &str = "dgx-superpod-h100-guideline";
/// So many servers are planned.
pub const SERVERS: [u32; 3] = [8, 64, 512];
/// The curve goes this far.
const LARGEST: u32 = 512;
/// How long the memory's rate is measured.
const COPYING: Duration = Duration::from_millis(200);
/// Copies of less than this measure the caches.
const LEAST_COPY: u64 = 64 << 20;

/// From the least to the most that something takes; both ends are one where the model gives a point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Range {
    /// The least.
    pub least: Figure,
    /// The most.
    pub most: Figure,
}

impl Range {
    fn point(figure: Figure) -> Self {
        Self {
            most: figure.clone(),
            least: figure,
        }
    }
}

/// The same traffic directly and staged through host RAM; a way that is not there, or of which nothing
/// is known, is `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ways {
    /// Straight.
    pub direct: Option<Range>,
    /// Through host RAM.
    pub staged: Option<Range>,
}

/// This machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Here {
    /// The rate at which a core copies host memory, measured.
    pub copy: Option<Capacity>,
    /// What a batch would take on its way to a GPU besides what was measured, if it went through host
    /// memory: nothing where the copy goes on while the next part is read, all of it where it does not.
    pub bounce: Option<Range>,
    /// The same of one rank's part of a checkpoint.
    pub checkpoint_bounce: Option<Range>,
    /// Whether gradients crossed a network at all.
    pub crosses_network: bool,
    /// The ways from the data to a GPU of this machine, and what stands in them.
    pub to_gpu: Vec<Candidate>,
}

/// A cluster of so many servers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct At {
    /// Servers.
    pub servers: u32,
    /// GPUs.
    pub gpus: u64,
    /// The gradients of the whole model, in a step.
    pub gradients: Ways,
    /// A batch for every GPU.
    pub batch: Ways,
    /// A checkpoint of the whole model, written.
    pub write: Ways,
    /// The same, read back.
    pub restore: Ways,
    /// The computation that was measured, and what it does not hide of the gradients.
    pub step: Ways,
    /// By how much a staged step is longer, as a fraction.
    pub longer: Option<Range>,
}

/// What GPUDirect would change.
#[derive(Clone, Debug, Serialize)]
pub struct Outlook {
    /// This machine.
    pub here: Here,
    /// The server that is planned with.
    pub server: String,
    /// The storage.
    pub storage: String,
    /// Seconds of computation in a step, the mean of what was measured.
    pub compute: Figure,
    /// Clusters.
    pub at: Vec<At>,
    /// The exchange from one server on.
    pub curve: Vec<SweepPoint>,
    /// What all this stands on.
    pub assumptions: Vec<String>,
    /// Entries of the catalogue that it rests on.
    pub used: Vec<Used>,
}

impl Outlook {
    pub(super) fn of(args: &StepArgs, plan: &Plan, log: &Log) -> Result<Self, Failure> {
        let catalog = Catalog::built_in();
        let server = ServerSpec::from_catalog(&catalog, &args.server, &Overrides::default())?;
        let storage = Storage::from_catalog(&catalog, &args.storage, None)?;
        let workload = Workload::data_parallel(plan.model.clone());
        let compute = computed(log);
        let mut used = server.used.clone();
        used.extend(storage.used.iter().cloned());
        used.extend(plan.model.used.iter().cloned());
        let one = Cluster::new(server, 1, 1.0)?;
        let mut at = Vec::new();
        for servers in SERVERS {
            let cluster = one.with_servers(servers)?;
            let question = Question {
                catalog: &catalog,
                cluster: &cluster,
                workload: &workload,
                storage: &storage,
                compute: compute.value,
                batch: plan.order.batch.0 as f64,
            };
            at.push(question.answer());
        }
        let sizes = crowfly_plan::assess::sizes(1, LARGEST)?;
        Ok(Self {
            here: Here::of(plan, log)?,
            server: args.server.clone(),
            storage: args.storage.clone(),
            curve: sweep(&one, &workload, None, &sizes)?,
            at,
            assumptions: assumptions(plan, &compute),
            compute,
            used,
        })
    }
}

/// The mean of the stand-in's time in a step.
fn computed(log: &Log) -> Figure {
    let times = log
        .steps()
        .map(|(_, stepped)| stepped.times.compute + stepped.times.update);
    let (count, sum) = times.fold((0u64, 0.0), |(n, sum), time| (n + 1, sum + time));
    let how = format!("mean of {count} steps of the stand-in");
    Figure::new(
        sum / count.max(1) as f64,
        Unit::Seconds,
        Provenance::Measured(how),
    )
}

fn assumptions(plan: &Plan, compute: &Figure) -> Vec<String> {
    let model = &plan.model;
    vec![
        format!(
            "Gradients, batches and checkpoints are those of this run, per GPU: 2 B and 14 B for each of all {} B parameters of {}, and {} a batch.",
            crowfly_route::units::significant(model.params / 1e9),
            model.name,
            plan.order.batch
        ),
        format!(
            "A GPU computes as long in a step as the stand-in did here, {} s; choose --compute to say what a real step takes.",
            crowfly_route::units::significant(compute.value)
        ),
        "The calibrated model: plain data parallelism, NCCL's algorithms at rates that published runs reached; two thirds of the computation hide the exchange, but for the last bucket.".into(),
        "Staged is a range: at worst every byte passes host memory, at best processor caches take all of it.".into(),
        "Batches and checkpoints are bound by the storage system, which all servers share, unless a client's or the servers' links are slower; reading a batch is not part of the step, since loaders read ahead.".into(),
    ]
}

struct Question<'a> {
    catalog: &'a Catalog,
    cluster: &'a Cluster,
    workload: &'a Workload,
    storage: &'a Storage,
    compute: f64,
    batch: f64,
}

impl Question<'_> {
    fn answer(&self) -> At {
        let cluster = self.cluster;
        let range = StagedRange::of(cluster, None);
        let step = |path| Step::with_compute(cluster, self.workload, path, Some(self.compute));
        let direct = step(Path::Direct);
        let staged = range.as_ref().map(|range| {
            let (fast, slow) = (&range.fast, &range.slow);
            (step(Path::Staged(fast)), step(Path::Staged(slow)))
        });
        let beyond = direct.exchange.as_ref().is_some_and(|e| e.extrapolated);
        let seconds = |value: f64, how: &str| {
            Figure::computed(value, Unit::Seconds, format!("calibrated: {how}")).beyond(beyond)
        };
        let exchange = |step: &Step| seconds(step.gradients, "exchange of gradients");
        let total = |step: &Step| {
            let total = step.total.unwrap_or(self.compute + step.exposed);
            seconds(total, "measured computation and the exposed exchange")
        };
        let both = |of: &dyn Fn(&Step) -> Figure| Ways {
            direct: cluster
                .server
                .transport
                .direct_path()
                .map(|_| Range::point(of(&direct))),
            staged: staged.as_ref().map(|(fast, slow)| Range {
                least: of(fast),
                most: of(slow),
            }),
        };
        let whole = total(&direct).value;
        let longer = staged.as_ref().filter(|_| whole > 0.0).map(|(fast, slow)| {
            let by = |step: &Step| {
                let by = total(step).value / whole - 1.0;
                Figure::computed(by, Unit::Fraction, "staged step / direct step - 1")
            };
            Range {
                least: by(fast),
                most: by(slow),
            }
        });
        let gpus = cluster.gpus() as f64;
        let batch = self.stored(self.batch * gpus);
        let checkpoint = self.stored(self.workload.model.checkpoint_bytes());
        At {
            servers: cluster.servers,
            gpus: cluster.gpus(),
            gradients: both(&exchange),
            step: both(&total),
            longer,
            batch: read(&batch),
            restore: read(&checkpoint),
            write: Ways {
                direct: checkpoint.write_direct.map(Range::point),
                staged: Some(Range::point(checkpoint.write_staged)),
            },
        }
    }

    fn stored(&self, bytes: f64) -> CheckpointOn {
        let measured = MeasuredStorage::default();
        CheckpointOn::of(self.catalog, self.cluster, bytes, self.storage, &measured)
    }
}

fn read(on: &CheckpointOn) -> Ways {
    Ways {
        direct: on.restore_direct.clone().map(Range::point),
        staged: Some(Range::point(on.restore_staged.clone())),
    }
}

impl Here {
    fn of(plan: &Plan, log: &Log) -> Result<Self, Failure> {
        let order = &plan.order;
        // A report of a run that is over does not fail for want of this one rate.
        let copy = copies(order.batch.0.max(LEAST_COPY), 1, COPYING);
        let copy = copy.ok().flatten().map(|rate| Capacity {
            rate,
            provenance: Provenance::Measured("one core copying host memory after the run".into()),
        });
        let bounce = |bytes: f64| {
            let rate = copy.as_ref()?.rate.0;
            let figure = |value, how: &str| Figure::computed(value, Unit::Seconds, how);
            (rate > 0.0).then(|| Range {
                least: figure(0.0, "the copy goes on while the next part is read"),
                most: figure(bytes / rate, "bytes / measured rate of a copy"),
            })
        };
        let part = order.checkpoint_bytes().0 as f64 / f64::from(order.ranks.max(1));
        let crosses =
            |(_, stepped): (usize, &crowfly_mover::step::Stepped)| stepped.exchanged.hosts > 1;
        Ok(Self {
            bounce: bounce(order.batch.0 as f64),
            checkpoint_bounce: bounce(part),
            crosses_network: !plan.here && log.steps().any(crosses),
            to_gpu: to_gpu(order)?,
            copy,
        })
    }
}

/// The ways from the data to the first GPU of this machine, or the one that was read into.
fn to_gpu(order: &crowfly_mover::step::Order) -> Result<Vec<Candidate>, Failure> {
    let place = Place::Gpu(order.gpu.unwrap_or(0));
    let Some(path) = order.data.first() else {
        return Ok(Vec::new());
    };
    let source = Arc::new(Source::open(path)?);
    transfer::Machine::towards(&place)?.routes(&[Piece::whole(source)], &place)
}
