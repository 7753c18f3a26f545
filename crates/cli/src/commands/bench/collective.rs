//! `crowfly bench collective`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use crowfly_mover::bench::{
    CollectiveCase, CollectiveSample, MAX_COLLECTIVE, collective, passes, streams,
};
use crowfly_mover::collective::{Algorithm, CallOptions, Element, Group, GroupSettings, Reduction};
use crowfly_mover::fabric::rendezvous::{Directory, Folder, World};
use crowfly_mover::fabric::{Fabric, Settings, SharedKey};
use crowfly_route::collective::Collective;
use crowfly_route::hop::{Capacity, Provenance};
use crowfly_route::units::{Bytes, BytesPerSecond};
use serde::Serialize;

use crate::commands::key;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render;

mod started;

use started::Started;

/// The version of the JSON form.
pub const BENCH_COLLECTIVE_SCHEMA: &str = "crowfly.bench-collective/1";
/// The most sizes of one run.
const MAX_SIZES: usize = 32;
/// From what latency decides to what memory does.
const SIZES: &str = "1KiB,64KiB,1MiB,16MiB,64MiB";
/// The most ranks that are started here.
const MAX_STARTED: i64 = 64;
/// The name under which ranks meet when nobody gives one.
const JOB: &str = "bench-collective";
/// How long memory's rate is measured.
const CEILING_TIME: Duration = Duration::from_millis(200);

/// Arguments of `crowfly bench collective`.
#[derive(Args, Debug)]
pub struct CollectiveArgs {
    /// Start this many ranks on this machine, each on a processor of its own where there are enough; without it, be one of those that torchrun, mpirun or
    /// srun started, or start 2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_STARTED))]
    ranks: Option<u32>,
    /// What is done, separated by commas: all-reduce, reduce-scatter, all-gather, broadcast,
    /// all-to-all or barrier
    #[arg(
        long,
        value_name = "WHAT",
        value_delimiter = ',',
        default_value = "all-reduce"
    )]
    what: Vec<Collective>,
    /// The whole buffer of one rank; several, separated by commas, for a sweep
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = SIZES)]
    size: Vec<Bytes>,
    /// The kind of numbers: f32, f64, f16, bf16, i8, i16, i32, i64 or u8
    #[arg(long, value_name = "KIND", default_value = "f32")]
    element: Element,
    /// How they are reduced: sum, min, max, mean, product, and, or, xor
    #[arg(long, value_name = "HOW", default_value = "sum")]
    reduction: Reduction,
    /// Sum half precision in single precision and round once
    #[arg(long)]
    wide: bool,
    /// How it is done: flat, ring, direct, halving, doubling, tree, chain, hierarchical or
    /// dissemination; the fastest by the model, unless given
    #[arg(long, value_name = "ALGORITHM")]
    algorithm: Option<Algorithm>,
    /// The way between ranks of one machine
    #[arg(long, value_name = "PATH", default_value = "shm")]
    path: Way,
    /// Whose memory an all-reduce works on
    #[arg(long, value_name = "WHOSE", default_value = "own")]
    buffers: Whose,
    /// How often everything is measured, in turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// How long one measurement lasts, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,
    /// A folder that all ranks see, in which they find each other; under a launcher
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "key_file",
        conflicts_with = "ranks"
    )]
    folder: Option<PathBuf>,
    /// The key that all ranks share, 64 hexadecimal digits; under a launcher
    #[arg(long, value_name = "FILE", requires = "folder")]
    key_file: Option<PathBuf>,
    /// The address that others reach this rank at, of any port; under a launcher, on several machines
    #[arg(long, value_name = "IP")]
    address: Option<std::net::IpAddr>,
    /// Write a picture of rates and times by size
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Rank and folder of a process that another of this program started; the key comes by standard
    /// input
    #[arg(long, hide = true, num_args = 3)]
    started: Option<Vec<String>>,
}

/// A way between ranks of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// Memory that all of them map.
    Shm,
    /// TCP sockets.
    Tcp,
}

/// Whose memory an all-reduce works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// Memory of the program's own, as any library gives it.
    Own,
    /// The group's: ranks of one host have mapped each other's, and nothing is copied.
    Group,
}

/// One collective of one size, over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// What was done.
    pub collective: Collective,
    /// The whole buffer of one rank.
    pub size: Bytes,
    /// Numbers in it.
    pub count: u64,
    /// Seconds of a call, the median of the rounds.
    pub seconds: f64,
    /// The fastest and the slowest round.
    pub range: [f64; 2],
    /// CPU seconds for each decimal gigabyte of all ranks' buffers.
    pub cpu_per_gb: Option<f64>,
    /// Buffer over time.
    pub algorithm_bandwidth: Option<BytesPerSecond>,
    /// That times what each rank must send at least.
    pub bus_bandwidth: Option<BytesPerSecond>,
    /// Numbers that were wrong.
    pub wrong: u64,
    /// What the machine's memory would allow at most, where that is what limits.
    pub ceiling: Option<Capacity>,
    /// Algorithm bandwidth in units of that.
    pub share: Option<f64>,
    /// Every round.
    pub samples: Vec<CollectiveSample>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// [`BENCH_COLLECTIVE_SCHEMA`].
    pub schema: &'static str,
    /// Ranks.
    pub ranks: usize,
    /// Hosts they are on.
    pub hosts: usize,
    /// The kind of numbers.
    pub element: Element,
    /// How they were reduced.
    pub reduction: Reduction,
    /// Whether half precision was summed in single precision.
    pub wide: bool,
    /// Whose memory all-reduces worked on.
    pub buffers: Whose,
    /// Processors of this machine.
    pub processors: usize,
    /// Programs that wanted to run at the end, over a minute; unknown where the system does not say.
    pub load: Option<f64>,
    /// How often everything was measured.
    pub rounds: u16,
    /// What was found.
    pub points: Vec<Point>,
}

/// Measures, as one rank or with ranks that it starts.
pub fn run(args: &CollectiveArgs, out: &mut Output) -> Result<Exit, Failure> {
    let sizes = sizes(&args.size)?;
    if let Some(file) = &args.svg {
        crate::file::check_folder(file)?;
    }
    if let Some(given) = &args.started {
        let (rank, ranks, folder) = started::place(given)?;
        let key = key::from_stdin()?;
        let place = (rank, ranks);
        let processors = processors();
        let around = Around {
            processors,
            ceilings: Vec::new(),
        };
        let done = fabric(args, key, place).and_then(|fabric| {
            started::say_ready()?;
            measure(args, &sizes, fabric, &Folder::at(folder), place, around)
        });
        return match done {
            Ok(_) => Ok(Exit::Ok),
            Err(failure) => {
                started::say_why(&failure);
                Err(failure)
            }
        };
    }
    let world = World::from_environment()
        .map_err(|error| Failure::new("bad-launcher", Exit::Usage, error.to_string()))?;
    if let (Some(world), None) = (world, args.ranks) {
        return under_launcher(args, &sizes, &world, out);
    }
    let ranks = args.ranks.unwrap_or(2);
    // Before there are other ranks, which would share the memory's rate, and before this one is bound to a
    // processor, which would be the only one that it sees.
    let around = Around {
        processors: processors(),
        ceilings: ceilings(args, &sizes, ranks as usize),
    };
    let started = Started::start(ranks)?;
    let place = (0, ranks as usize);
    let fabric = fabric(args, started.key(), place)?;
    let table = measure(args, &sizes, fabric, &started, place, around);
    show(args, &table.map_err(|here| started.reason(here))?, out)
}

fn under_launcher(
    args: &CollectiveArgs,
    sizes: &[u64],
    world: &World,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let (Some(folder), Some(file)) = (&args.folder, &args.key_file) else {
        let what = "under a launcher, ranks find each other by --folder and --key-file";
        return Err(Failure::usage(what)
            .hint("give a folder that all of them see, and a key file that only you can read"));
    };
    let place = (world.rank as usize, world.size as usize);
    let key = key::from_file(file)?;
    let fabric = fabric(args, key, place)?;
    let around = Around {
        processors: processors(),
        ceilings: Vec::new(),
    };
    let table = measure(args, sizes, fabric, &Folder::at(folder), place, around)?;
    if world.rank > 0 {
        return Ok(Exit::Ok);
    }
    show(args, &table, out)
}

fn show(args: &CollectiveArgs, table: &Table, out: &mut Output) -> Result<Exit, Failure> {
    if let Some(file) = &args.svg {
        let picture = render::bench_collective_picture::render(table);
        crate::file::replace(file, picture.as_bytes())?;
    }
    out.show(table, |columns| {
        render::bench_collective::render(table, columns)
    })?;
    let wrong = table.points.iter().any(|point| point.wrong > 0);
    Ok(if wrong { Exit::Broken } else { Exit::Ok })
}

/// What the machine allows an all-reduce at most. By shared memory it reads and writes each rank's buffer
/// once at least; by sockets it sends what makes the bus bandwidth, and all ranks share the processors.
fn ceilings(args: &CollectiveArgs, sizes: &[u64], ranks: usize) -> Vec<(u64, Capacity)> {
    if ranks < 2 || !args.what.contains(&Collective::AllReduce) {
        return Vec::new();
    }
    let threads = processors().min(ranks);
    if args.path == Way::Tcp {
        let Ok(Some(rate)) = streams(threads, CEILING_TIME) else {
            return Vec::new();
        };
        let how = format!("{threads} plain sockets over loopback carrying what all ranks send");
        let sent = Collective::AllReduce.bus_factor(ranks as f64) * ranks as f64;
        let capacity = Capacity {
            rate: BytesPerSecond(rate.0 / sent),
            provenance: Provenance::Measured(how),
        };
        return sizes.iter().map(|size| (*size, capacity.clone())).collect();
    }
    let of = |size: &u64| {
        let rate = passes(size * ranks as u64, threads, CEILING_TIME);
        let rate = rate.ok().flatten()?;
        let how = format!("{threads} threads reading and writing all ranks' buffers once");
        let rate = BytesPerSecond(rate.0 / ranks as f64);
        Some((
            *size,
            Capacity {
                rate,
                provenance: Provenance::Measured(how),
            },
        ))
    };
    sizes.iter().filter_map(of).collect()
}

/// What is known of the machine before a rank is bound to a part of it.
struct Around {
    /// The processors that this process may run on.
    processors: usize,
    /// The most that an all-reduce of each size can reach, where that was measured.
    ceilings: Vec<(u64, Capacity)>,
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The fabric of one rank.
fn fabric(
    args: &CollectiveArgs,
    key: SharedKey,
    (rank, ranks): (usize, usize),
) -> Result<Arc<Fabric>, Failure> {
    // A launcher has bound its ranks already, as its user wants it.
    if args.folder.is_none() {
        started::bind(rank, ranks);
    }
    let mut settings = Settings {
        shm: args.path == Way::Shm,
        ..Settings::new(key)
    };
    if let Some(address) = args.address {
        settings.listen = (address, 0).into();
    }
    Ok(Arc::new(Fabric::new(settings)?))
}

/// Takes part as one rank.
fn measure(
    args: &CollectiveArgs,
    sizes: &[u64],
    fabric: Arc<Fabric>,
    directory: &dyn Directory,
    (rank, ranks): (usize, usize),
    around: Around,
) -> Result<Table, Failure> {
    let mut group = Group::form(
        fabric,
        directory,
        JOB,
        rank,
        ranks,
        GroupSettings::default(),
    )?;
    let mut found: Vec<(Collective, u64, Vec<CollectiveSample>)> = Vec::new();
    for what in &args.what {
        let sizes = if *what == Collective::Barrier {
            &[0][..]
        } else {
            sizes
        };
        found.extend(sizes.iter().map(|size| (*what, *size, Vec::new())));
    }
    for _ in 0..args.rounds {
        for (what, size, samples) in &mut found {
            let case = CollectiveCase {
                collective: *what,
                element: args.element,
                reduction: args.reduction,
                size: *size,
                shared: args.buffers == Whose::Group,
                options: CallOptions {
                    algorithm: args.algorithm,
                    wide: args.wide,
                    ..CallOptions::default()
                },
            };
            samples.push(collective(
                &mut group,
                case,
                Duration::from_millis(args.time),
            )?);
        }
    }
    group.barrier(CallOptions::default())?;
    let points = found.into_iter().filter_map(|(what, size, samples)| {
        let ceiling = around
            .ceilings
            .iter()
            .find(|(of, _)| *of == size && what == Collective::AllReduce);
        point(
            what,
            samples,
            ranks,
            ceiling.map(|(_, capacity)| capacity.clone()),
        )
    });
    Ok(Table {
        schema: BENCH_COLLECTIVE_SCHEMA,
        ranks,
        hosts: group.hosts().len(),
        element: args.element,
        reduction: args.reduction,
        wide: args.wide,
        buffers: args.buffers,
        processors: around.processors,
        load: crowfly_machine::usage::load_average(),
        rounds: args.rounds,
        points: points.collect(),
    })
}

/// What the rounds came to.
fn point(
    collective: Collective,
    samples: Vec<CollectiveSample>,
    ranks: usize,
    ceiling: Option<Capacity>,
) -> Option<Point> {
    let mut times: Vec<f64> = samples.iter().map(|sample| sample.seconds).collect();
    times.sort_by(f64::total_cmp);
    let (least, most) = (*times.first()?, *times.last()?);
    let seconds = *times.get(times.len() / 2)?;
    let last = samples.last()?;
    let size = last.receipt.size;
    let algorithm_bandwidth = size.per(seconds).filter(|_| size.0 > 0);
    let factor = collective.bus_factor(ranks as f64);
    let gigabytes = size.0 as f64 * ranks as f64 / 1e9;
    let spent: f64 = samples.iter().map(|s| s.cpu_seconds).sum::<f64>() / samples.len() as f64;
    let rate = ceiling.as_ref().map(|ceiling| ceiling.rate.0);
    Some(Point {
        collective,
        size,
        count: last.count,
        seconds,
        range: [least, most],
        cpu_per_gb: (gigabytes > 0.0).then(|| spent / gigabytes),
        bus_bandwidth: algorithm_bandwidth.map(|rate| BytesPerSecond(rate.0 * factor)),
        share: algorithm_bandwidth
            .zip(rate)
            .map(|(reached, most)| reached.0 / most),
        algorithm_bandwidth,
        wrong: samples.iter().map(|sample| sample.wrong).sum(),
        ceiling,
        samples,
    })
}

/// The sizes in order, each once.
fn sizes(given: &[Bytes]) -> Result<Vec<u64>, Failure> {
    let mut sizes: Vec<u64> = given.iter().map(|size| size.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if let Some(bad) = sizes
        .iter()
        .find(|size| **size < 8 || **size > MAX_COLLECTIVE)
    {
        let what = format!("--size {bad}: a buffer has 8 to {MAX_COLLECTIVE} bytes here");
        return Err(Failure::usage(what));
    }
    if sizes.len() > MAX_SIZES {
        let what = format!("{} sizes are too many; {MAX_SIZES} at most", sizes.len());
        return Err(Failure::usage(what));
    }
    Ok(sizes)
}
