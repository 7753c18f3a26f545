//! `crowfly bench net`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use crowfly_mover::bench::{Held, MAX_SIZE};
use crowfly_mover::fabric::{Fabric, NicFilter, Settings, SharedKey};
use crowfly_mover::service::amiss;
use crowfly_route::place::Place;
use crowfly_route::receipt;
use crowfly_route::units::Bytes;

use crate::commands::directory::{DirectoryArgs, own_name};
use crate::commands::{gpu, key};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render;

pub mod other;
pub mod standing;
mod survey;

use other::Other;

/// The scheme that a peer's address may have in front.
const SCHEME: &str = "crowfly://";
/// The most sizes of one run.
const MAX_SIZES: usize = 32;
/// From small messages to large blocks; the largest twice over is each path's memory at each end.
const SIZES: &str = "64,4KiB,64KiB,1MiB,8MiB,64MiB";

/// Arguments of `crowfly bench net`.
#[derive(Args, Debug)]
pub struct NetArgs {
    /// Measure against `crowfly bench net --listen` at this address (host:port), or at that of @NAME;
    /// without it, against a second process on this machine, started for the purpose
    #[arg(
        long,
        value_name = "ADDR",
        requires = "key_file",
        conflicts_with = "listen"
    )]
    peer: Option<String>,
    /// Be the other end for whoever has the key, until interrupted; port 0 takes any that is free
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// With --listen: write down in --directory where this is, under NAME or the rank that torchrun, mpirun
    /// or srun gave; `--peer @NAME` or `--peer @rankN` finds it there
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "", requires = "listen")]
    announce: Option<String>,
    /// Where names are.
    #[command(flatten)]
    directory: DirectoryArgs,
    /// The key that both ends share, 64 hexadecimal digits; --listen makes the file if it is missing
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The paths to measure; all that the two ends have, unless given
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    path: Vec<Way>,
    /// Bytes of one transfer; several, separated by commas, for a sweep
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = SIZES)]
    size: Vec<Bytes>,
    /// How often everything is measured, in turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// How long one measurement lasts, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,
    /// Measure both directions at once as well
    #[arg(long)]
    both: bool,
    /// Use these NICs alone, as `mlx5_0,mlx5_1:1`, `mlx5_*` or `^eth0`; a name that does not exist is
    /// an error
    #[arg(long, value_name = "FILTER")]
    nic: Option<NicFilter>,
    /// The memory of this end: host, or gpu:N; the receipts tell whether its bytes pass host memory
    #[arg(long, value_name = "PLACE", default_value = "host")]
    memory: Place,
    /// The same of the second process; one that listens elsewhere has its own --memory
    #[arg(long, value_name = "PLACE", default_value = "host", conflicts_with_all = ["listen", "peer"])]
    peer_memory: Place,
    /// Write a picture of rates and latencies by size
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The key comes and the end is told by standard input, the address goes to standard output
    #[arg(long, hide = true, conflicts_with_all = ["listen", "peer", "key_file"])]
    piped: bool,
}

/// A path of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// Memory that both processes map.
    Shm,
    /// The kernel's copy between two processes.
    Cma,
    /// RDMA by libibverbs.
    Verbs,
    /// TCP sockets.
    Tcp,
}

impl Way {
    const fn path(self) -> receipt::Path {
        match self {
            Self::Shm => receipt::Path::Shm,
            Self::Cma => receipt::Path::Cma,
            Self::Verbs => receipt::Path::Verbs,
            Self::Tcp => receipt::Path::Tcp,
        }
    }
}

/// Measures, or is measured against.
pub fn run(args: &NetArgs, out: &mut Output) -> Result<Exit, Failure> {
    if args.piped {
        let (key, memory) = (key::from_stdin()?, memory(&args.memory)?);
        return other::be_piped(settings(args, key, &memory), memory);
    }
    if let Some(listen) = args.listen {
        let Some(file) = &args.key_file else {
            let what = "--listen takes the key that both ends share: --key-file is missing";
            return Err(Failure::usage(what)
                .hint("name a file that does not exist yet, and a key is put into it"));
        };
        let memory = memory(&args.memory)?;
        let settings = Settings {
            listen,
            ..settings(args, key::from_file_or_new(file, out)?, &memory)
        };
        let announced = match &args.announce {
            None => None,
            Some(name) => Some((own_name(name)?, args.directory.open()?)),
        };
        return other::listen(settings, memory, announced, out);
    }
    let sizes = sizes(&args.size)?;
    if let Some(file) = &args.svg {
        crate::file::check_folder(file)?;
    }
    let memory = memory(&args.memory)?;
    let (key, other) = match &args.peer {
        Some(address) => {
            let file = args.key_file.as_deref();
            let key = file.map_or_else(
                || Err(Failure::usage("--key-file is missing")),
                key::from_file,
            );
            let address = address.strip_prefix(SCHEME).unwrap_or(address);
            let other = match address.strip_prefix('@') {
                Some(name) => Other::at(&args.directory.find(name)?),
                None => match amiss(address) {
                    None => Other::at(address),
                    Some(why) => return Err(Failure::usage(format!("--peer {address}: {why}"))),
                },
            };
            (key?, other)
        }
        None => {
            let key = SharedKey::generate()?;
            if args.nic.is_some() {
                // What is wrong with it is better told by this process than by the other.
                Fabric::new(settings(args, key.clone(), &memory))?;
            }
            // So is what is wrong with its memory.
            drop(self::memory(&args.peer_memory)?);
            let other = Other::start(&key, args.nic.as_ref(), &args.peer_memory)?;
            (key, other)
        }
    };
    let plan = survey::Plan {
        wanted: args.path.iter().map(|way| way.path()).collect(),
        sizes,
        rounds: usize::from(args.rounds),
        time: Duration::from_millis(args.time),
        both: args.both,
        memory: memory.clone(),
    };
    let standing = survey::run(&plan, settings(args, key, &memory), &other, out)?;
    if let Some(file) = &args.svg {
        let picture = render::bench_picture::render(&standing);
        crate::file::replace(file, picture.as_bytes())?;
    }
    out.show(&standing, |columns| {
        render::bench_net::render(&standing, columns)
    })?;
    Ok(Exit::Ok)
}

/// The memory that a place names.
fn memory(place: &Place) -> Result<Held, Failure> {
    match place {
        Place::Host(None) => Ok(Held::Host),
        Place::Gpu(index) => gpu::at(*index, "measured from").map(Held::Gpu),
        other => Err(Failure::new(
            "not-a-memory",
            Exit::Usage,
            format!("nothing is measured from {other}"),
        )
        .hint("choose host or gpu:N")),
    }
}

fn settings(args: &NetArgs, key: SharedKey, memory: &Held) -> Settings {
    Settings {
        gpus: match memory {
            Held::Host => Vec::new(),
            Held::Gpu(gpu) => vec![gpu.clone()],
        },
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        nics: args.nic.clone().unwrap_or_default(),
        ..Settings::new(key)
    }
}

/// The sizes in order, each once.
fn sizes(given: &[Bytes]) -> Result<Vec<u64>, Failure> {
    let mut sizes: Vec<u64> = given.iter().map(|size| size.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if let Some(bad) = sizes.iter().find(|size| **size == 0 || **size > MAX_SIZE) {
        let what = format!("--size {bad}: a transfer has 1 to {MAX_SIZE} bytes here");
        return Err(Failure::usage(what));
    }
    if sizes.len() > MAX_SIZES {
        let what = format!("{} sizes are too many; {MAX_SIZES} at most", sizes.len());
        return Err(Failure::usage(what));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_sizes_in_any_order_each_is_measured_once_and_none_is_empty_or_endless() {
        let of = |given: &[u64]| {
            let given: Vec<Bytes> = given.iter().copied().map(Bytes).collect();
            sizes(&given)
        };
        assert_eq!(of(&[8, 1, 8]).expect("sizes"), [1, 8]);
        for bad in [&[0][..], &[MAX_SIZE + 1], &Vec::from_iter(1..=33)] {
            assert_eq!(of(bad).expect_err("refused").exit(), Exit::Usage);
        }
    }
}
