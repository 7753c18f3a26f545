//! `crowfly step`: a training run in small, with all three paths of its data.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use crowfly_mover::Destination;
use crowfly_mover::fabric::rendezvous::World;
use crowfly_mover::fabric::{Settings, SharedKey};
use crowfly_mover::step::{Batches, Kill, Order, Recovery, Shards, Work};
use crowfly_plan::catalog::Catalog;
use crowfly_plan::workload::ModelSpec;
use crowfly_route::place::Place;
use crowfly_route::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::commands::{gpu, transfer};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render;

mod amount;
mod attempts;
mod foreman;
pub mod ground;
mod hand;
mod launched;
pub mod outlook;
pub mod standing;

use amount::Scale;
use ground::Ground;
use outlook::Outlook;
use standing::{About, Log, Standing};

/// Batches that are made for a run at most; a longer one reads them again.
const MADE: Bytes = Bytes(1 << 30);
/// The rank's folder for its checkpoints, and for data, in the folder of the run.
const CHECKPOINTS: &str = "checkpoints";
const DATA: &str = "data";

/// Arguments of `crowfly step`.
#[derive(Args, Debug)]
pub struct StepArgs {
    /// Start this many ranks on this machine; without it, be one of those that torchrun, mpirun or
    /// srun started, or start 2
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    /// How many steps
    #[arg(long, value_name = "N", default_value_t = 12)]
    steps: u64,
    /// The model whose gradients and checkpoints these are, of the planner's catalogue
    #[arg(long, value_name = "ID", default_value = "llama3-8b")]
    model: String,
    /// How much of its parameters is run here, such as 1/1000 or 0.001
    #[arg(long, value_name = "FRACTION", default_value = "1/1000")]
    scale: Scale,
    /// What each rank reads in a step, a multiple of 4096
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    batch: Bytes,
    /// Read batches from this file, or the files in this folder; without it, from data that is made
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Where batches are read to: host, or gpu:N
    #[arg(long, value_name = "PLACE", default_value = "host")]
    to: Place,
    /// How much the stand-in computes in a step: a time such as 50ms, or work such as 2GFLOP; its
    /// gradients once, unless given
    #[arg(long, value_name = "WORK", value_parser = amount::work)]
    compute: Option<Work>,
    /// Save a checkpoint after every so many steps
    #[arg(long, value_name = "K", default_value_t = 4)]
    every: u64,
    /// Save none
    #[arg(long, conflicts_with = "every")]
    no_checkpoints: bool,
    /// Kill a rank (SIGKILL) between its computation and its exchange of the step --at-step
    #[arg(long, value_name = "RANK", requires = "at_step")]
    kill_rank: Option<u32>,
    /// In which step it is killed
    #[arg(long, value_name = "STEP", requires = "kill_rank")]
    at_step: Option<u64>,
    /// What happens when a rank is lost: another process takes its place, or the others go on
    #[arg(long, value_name = "WHAT", default_value = "restart")]
    after_loss: AfterLoss,
    /// The way between ranks of one machine
    #[arg(long, value_name = "PATH", default_value = "shm")]
    path: Way,
    /// What all that is made up follows from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many seconds an exchange may take, or a rank wait for others to save; 86400 at most
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    deadline: f64,
    /// A server of the catalogue, of which 8, 64 and 512 are planned
    #[arg(long, value_name = "ID", default_value = outlook::SERVER)]
    server: String,
    /// A storage system of the catalogue that these read from and save to
    #[arg(long, value_name = "ID", default_value = outlook::STORAGE)]
    storage: String,
    /// Use this folder, which is made or empty, and leave everything in it
    #[arg(long, value_name = "FOLDER", conflicts_with = "keep")]
    dir: Option<PathBuf>,
    /// Leave data and checkpoints behind, and say where
    #[arg(long)]
    keep: bool,
    /// Write the report as a page that needs nothing but itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The key that all ranks share, 64 hexadecimal digits; under a launcher
    #[arg(long, value_name = "FILE", requires = "dir", conflicts_with = "ranks")]
    key_file: Option<PathBuf>,
    /// The address that others reach this rank at, of any port; under a launcher, on several machines
    #[arg(long, value_name = "IP", requires = "key_file")]
    address: Option<std::net::IpAddr>,
    /// Be a rank that another process of this program started, which says the rest by standard input
    #[arg(long, hide = true)]
    started: bool,
}

/// A way between ranks of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    /// Memory that all of them map.
    Shm,
    /// TCP sockets.
    Tcp,
}

impl Way {
    fn settings(self, key: SharedKey) -> Settings {
        Settings {
            shm: self == Self::Shm,
            ..Settings::new(key)
        }
    }
}

/// What happens when a rank is lost.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AfterLoss {
    /// Another process takes its place.
    Restart,
    /// The others go on without it.
    Shrink,
}

/// Runs, as one rank or with ranks that it starts.
pub fn run(args: &StepArgs, out: &mut Output) -> Result<Exit, Failure> {
    if args.started {
        return Ok(hand::be_started());
    }
    if let Some(file) = &args.html {
        crate::file::check_folder(file)?;
    }
    let world = World::from_environment()
        .map_err(|error| Failure::new("bad-launcher", Exit::Usage, error.to_string()))?;
    let plan = Plan::new(args)?;
    match (world, args.ranks) {
        (Some(world), None) => launched::run(args, plan, &world, out),
        _ => on_this_machine(args, plan, out),
    }
}

fn on_this_machine(args: &StepArgs, mut plan: Plan, out: &mut Output) -> Result<Exit, Failure> {
    plan.order.check()?;
    args.destination()?;
    let ground = match &args.dir {
        Some(folder) => Ground::given(folder)?,
        None => Ground::lent(args.keep)?,
    };
    plan.lay_out(args, ground.folder())?;
    plan.order.check_disk(ground.folder(), plan.made())?;
    plan.order.check_memory()?;
    plan.make(out)?;
    let log = foreman::run(&plan.order, args.path, ground.folder(), out)?;
    if let Some(kept) = ground.kept() {
        out.note(&format!(
            "Data and checkpoints are in {}.",
            crate::path::shown(kept)
        ));
    }
    report(args, &plan, &log, out)
}

/// Shows what became of a run.
fn report(args: &StepArgs, plan: &Plan, log: &Log, out: &mut Output) -> Result<Exit, Failure> {
    let outlook = Outlook::of(args, plan, log)?;
    let standing = Standing::new(plan.about(args), log, outlook);
    if let Some(file) = &args.html {
        let page = render::step::page(&standing);
        crate::file::replace(file, page.as_bytes())?;
    }
    out.show(&standing, |columns| {
        render::step::render(&standing, columns)
    })?;
    Ok(match standing.is_sound() {
        true => Exit::Ok,
        false => Exit::Broken,
    })
}

impl StepArgs {
    fn recovery(&self) -> Recovery {
        match self.after_loss {
            AfterLoss::Restart => Recovery::Restart,
            AfterLoss::Shrink => Recovery::Shrink,
        }
    }

    fn gpu(&self) -> Result<Option<u32>, Failure> {
        match self.to {
            Place::Host(None) => Ok(None),
            Place::Gpu(index) => Ok(Some(index)),
            ref other => {
                let what = format!("batches cannot be read to {other}");
                Err(Failure::new("not-a-destination", Exit::Usage, what)
                    .hint("choose host or gpu:N"))
            }
        }
    }

    /// Where batches go, found out before anything is made.
    fn destination(&self) -> Result<Destination, Failure> {
        destination(self.gpu()?, self.data.as_deref())
    }
}

/// Opens where batches go; `file` is one that they are read from.
fn destination(gpu: Option<u32>, file: Option<&std::path::Path>) -> Result<Destination, Failure> {
    let Some(index) = gpu else {
        return Ok(Destination::Host(None));
    };
    let place = Place::Gpu(index);
    let machine = transfer::Machine::towards(&place)?;
    let opened = gpu::open(index, &machine.topology, file);
    opened.map(Destination::Gpu).map_err(|obstacles| {
        let what = format!("{place} cannot be read into on this machine");
        Failure::new("no-gpu", Exit::Unavailable, what).with_obstacles(obstacles)
    })
}

/// What is to be done, and what has to be made for it first.
struct Plan {
    order: Order,
    model: ModelSpec,
    shards: Option<Shards>,
    /// Whether all ranks are started on this machine by this process.
    here: bool,
}

impl Plan {
    fn new(args: &StepArgs) -> Result<Self, Failure> {
        let model = ModelSpec::from_catalog(&Catalog::built_in(), &args.model)?;
        let parameters = args.scale.of(model.params);
        let layers = u64::from(model.layers.unwrap_or(1)).min(parameters.max(1));
        let kill = args.kill_rank.zip(args.at_step);
        let order = Order {
            ranks: args.ranks.unwrap_or(2),
            steps: args.steps,
            parameters,
            layers: u32::try_from(layers).unwrap_or(u32::MAX),
            seed: args.seed,
            batch: args.batch,
            data: Vec::new(),
            work: args.compute.unwrap_or(Work::Once),
            every: (!args.no_checkpoints).then_some(args.every),
            checkpoints: PathBuf::new(),
            recovery: args.recovery(),
            kill: kill.map(|(rank, step)| Kill { rank, step }),
            deadline: args.deadline,
            gpu: args.gpu()?,
        };
        Ok(Self {
            order,
            model,
            shards: None,
            here: true,
        })
    }

    /// Says where everything is, in the folder of the run.
    fn lay_out(&mut self, args: &StepArgs, folder: &std::path::Path) -> Result<(), Failure> {
        let order = &mut self.order;
        order.checkpoints = folder.join(CHECKPOINTS);
        if let Some(path) = &args.data {
            let path = transfer::local(path)?;
            let path = std::path::absolute(&path).unwrap_or(path);
            order.data = Batches::found(&path)?;
            Batches::open(&order.data, order.batch)?;
            return Ok(());
        }
        let wanted = order.steps.saturating_mul(order.ranks.into());
        let most = (MADE.0 / order.batch.0.max(1)).max(order.ranks.into());
        let batches = wanted.min(most);
        let shards = Shards::plan(&folder.join(DATA), order.seed, order.batch, batches);
        order.data = shards.files();
        self.shards = Some(shards);
        Ok(())
    }

    fn made(&self) -> Bytes {
        self.shards.as_ref().map_or(Bytes(0), Shards::bytes)
    }

    /// Makes the data, where none is given.
    fn make(&self, out: &Output) -> Result<(), Failure> {
        let Some(shards) = &self.shards else {
            return Ok(());
        };
        let progress = out.progress();
        progress.start("making data", shards.bytes().0);
        shards.make(|made| progress.at(made))?;
        Ok(())
    }

    fn about(&self, args: &StepArgs) -> About {
        About::new(&self.order, &self.model, args, self.made(), self.here)
    }
}
