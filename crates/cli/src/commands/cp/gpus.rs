//! Copies with a GPU's memory at one end or both: within this machine, from and to servers and stores. What a
//! GPU's memory holds is a process's own, so as a source it is a pattern that is put there first, and as a
//! destination the bytes are dropped when they have arrived: such a copy measures the way, and checks what
//! came.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crowfly_mover::digest::{self, GRID};
use crowfly_mover::fabric::Incarnation;
use crowfly_mover::gpu::{CopyRequest, Gpu, Sample, To, copy, digest_of};
use crowfly_mover::objects::ObjectUrl;
use crowfly_mover::service::{Auth, Dialing, Location};
use crowfly_mover::{Engine, Region, SaveRequest, Source, TransferError};
use crowfly_route::place::Place;
use crowfly_route::receipt::{Receipt, Verification};
use crowfly_route::search::candidates;
use crowfly_route::units::Bytes;

use super::{CP_SCHEMA, Cp, CpArgs, Side, show};
use crate::commands::{gpu, transfer};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::shown;

/// What the pattern follows from.
pub(super) const SEED: u64 = 0x0c20_3f17;

/// What is copied.
#[derive(Debug, PartialEq, Eq)]
pub enum Errand {
    /// A file into a GPU's memory.
    Load(PathBuf, u32),
    /// A pattern in a GPU's memory into a file.
    Save(u32, PathBuf),
    /// A pattern in a GPU's memory into another's, or into another part of the same.
    Across(u32, u32),
    /// A pattern in a GPU's memory into host memory.
    Out(u32),
    /// A pattern in host memory into a GPU's.
    In(u32),
    /// What a server exposes into a GPU's memory.
    Fetch(Location, u32),
    /// A pattern in a GPU's memory to a server.
    Send(u32, Location),
    /// An object into a GPU's memory.
    Download(ObjectUrl, u32),
    /// A pattern in a GPU's memory into a store.
    Upload(u32, ObjectUrl),
}

/// One side, as far as an errand can have it.
enum End {
    Here(Place),
    There(Location),
    Store(ObjectUrl),
}

impl Errand {
    /// What two sides mean; `None` where no GPU of this machine is one of them.
    pub fn read(from: &OsStr, to: &OsStr) -> Option<Self> {
        let end = |text: &OsStr| match super::side(text) {
            Ok(Side::Host) => Some(End::Here(Place::Host(None))),
            Ok(Side::File(path)) => Some(End::Here(Place::File(path.to_str()?.to_owned()))),
            Ok(Side::Served(location)) => Some(End::There(location)),
            Ok(Side::Object(url)) => Some(End::Store(url)),
            Ok(_) => None,
            Err(_) => text.to_str()?.parse().ok().map(End::Here),
        };
        let (from, to) = match (end(from)?, end(to)?) {
            (End::Here(from), End::Here(to)) => (from, to),
            (End::There(from), End::Here(Place::Gpu(to))) => return Some(Self::Fetch(from, to)),
            (End::Here(Place::Gpu(from)), End::There(to)) => return Some(Self::Send(from, to)),
            (End::Store(from), End::Here(Place::Gpu(to))) => return Some(Self::Download(from, to)),
            (End::Here(Place::Gpu(from)), End::Store(to)) => return Some(Self::Upload(from, to)),
            _ => return None,
        };
        let path = |path: &String| PathBuf::from(path);
        match (&from, &to) {
            (Place::File(file), Place::Gpu(gpu)) => Some(Self::Load(path(file), *gpu)),
            (Place::Gpu(gpu), Place::File(file)) => Some(Self::Save(*gpu, path(file))),
            (Place::Gpu(from), Place::Gpu(to)) => Some(Self::Across(*from, *to)),
            (Place::Gpu(gpu), Place::Host(None)) => Some(Self::Out(*gpu)),
            (Place::Host(None), Place::Gpu(gpu)) => Some(Self::In(*gpu)),
            _ => None,
        }
    }
}

/// Copies, and tells.
pub fn run(
    args: &CpArgs,
    errand: &Errand,
    lives: [Option<Incarnation>; 2],
    out: &mut Output,
) -> Result<Exit, Failure> {
    let refuse = |what: &str| Err(Failure::usage(what));
    if args.recursive {
        return refuse("a folder is not copied into or out of a GPU's memory; name a file");
    }
    if args.preserve {
        return refuse("bytes in a GPU's memory have no permissions and times to be preserved");
    }
    if args.resume {
        return refuse("bytes in a GPU's memory are dropped at the end, so nothing can be resumed");
    }
    let served = [
        matches!(errand, Errand::Fetch(..)),
        matches!(errand, Errand::Send(..)),
    ];
    args.own_keys_apply(served)?;
    if !served.contains(&true) {
        args.connection.is_not_given()?;
    }
    let kept = matches!(errand, Errand::Save(..));
    let receipt = match errand {
        Errand::Fetch(location, index) => {
            let (gpu, dialing) = connected(args, *index, (served, lives), out)?;
            let sides = (Side::Served(location.clone()), Side::Gpu(gpu));
            return show(&super::carry(args, sides, dialing, out)?, out);
        }
        Errand::Send(index, location) => {
            let (gpu, dialing) = connected(args, *index, (served, lives), out)?;
            let sample = Sample::new(&gpu, size(args)?, SEED)?;
            let sides = (
                Side::Loaded(sample.region.clone()),
                Side::Served(location.clone()),
            );
            let mut cp = super::carry(args, sides, dialing, out)?;
            held_against(&sample, &mut cp)?;
            return show(&cp, out);
        }
        Errand::Download(url, index) => {
            let (gpu, _) = opened(*index, "copied to")?;
            let sides = (Side::Object(url.clone()), Side::Gpu(gpu));
            let dialing = Dialing::by(Auth::Open)?;
            return show(&super::carry(args, sides, dialing, out)?, out);
        }
        Errand::Upload(index, url) => {
            let (gpu, _) = opened(*index, "copied from")?;
            let sample = Sample::new(&gpu, size(args)?, SEED)?;
            let sides = (
                Side::Loaded(sample.region.clone()),
                Side::Object(url.clone()),
            );
            let mut cp = super::carry(args, sides, Dialing::by(Auth::Open)?, out)?;
            held_against(&sample, &mut cp)?;
            return show(&cp, out);
        }
        Errand::Load(file, index) => {
            let way = gpu::Way {
                policy: args.policy,
                verify: !args.no_verify,
            };
            gpu::load(&transfer::local(file)?, *index, &way, out)?.receipt
        }
        Errand::Save(index, file) => save(args, *index, file, out)?,
        Errand::Across(from, to) => {
            let (source, target) = (gpu::at(*from, "copied from")?, gpu::at(*to, "copied to")?);
            let sample = Sample::new(&source, size(args)?, SEED)?;
            carry(args, sample, To::Gpu(target))?
        }
        Errand::Out(index) => {
            let source = gpu::at(*index, "copied from")?;
            let sample = Sample::new(&source, size(args)?, SEED)?;
            carry(args, sample, To::Host(None))?
        }
        Errand::In(index) => {
            let target = gpu::at(*index, "copied to")?;
            let sample = Sample::new(&target, size(args)?, SEED)?;
            // The same bytes, in host memory.
            let host = copied(args, sample.region.clone(), To::Host(None))?;
            let region = host.regions.into_iter().next();
            let region = region.ok_or(Failure::from(TransferError::WorkerDied))?;
            let sample = Sample { region, ..sample };
            carry(args, sample, To::Gpu(target))?
        }
    };
    let cp = Cp {
        schema: CP_SCHEMA,
        from: receipt.from.clone(),
        to: receipt.to.clone(),
        files: 1,
        unchanged: 0,
        folders: 0,
        resumed: Bytes(0),
        skipped: 0,
        kept,
        legs: Vec::new(),
        receipt,
    };
    show(&cp, out)
}

/// Holds what left, as the copy saw it, against what was put into the GPU's memory; what both ends agree on
/// has then arrived.
pub(super) fn held_against(sample: &Sample, cp: &mut Cp) -> Result<(), Failure> {
    let (checksum, agreed) = match &cp.receipt.verification {
        Verification::Agreed { checksum, .. } => (checksum, true),
        Verification::Computed { checksum, .. } => (checksum, false),
        _ => return Ok(()),
    };
    let found = u64::from_str_radix(checksum, 16).unwrap_or_default();
    let matched = compared(sample, &cp.to.to_string(), found)?;
    if agreed {
        cp.receipt.verification = matched;
    }
    Ok(())
}

/// A GPU, and the machine that it is in.
fn opened(index: u32, done: &'static str) -> Result<(Arc<Gpu>, transfer::Machine), Failure> {
    let machine = transfer::Machine::towards(&Place::Gpu(index))?;
    let gpu = gpu::open(index, &machine.topology, None)
        .map_err(|obstacles| gpu::refused(index, done, obstacles))?;
    Ok((gpu, machine))
}

/// The GPU, and how a server is connected to by the NICs nearest to it.
fn connected(
    args: &CpArgs,
    index: u32,
    (served, lives): ([bool; 2], [Option<Incarnation>; 2]),
    out: &mut Output,
) -> Result<(Arc<Gpu>, Dialing), Failure> {
    let [from_server, _] = served;
    let done = match from_server {
        true => "copied to",
        false => "copied from",
    };
    let (gpu, machine) = opened(index, done)?;
    let mut dialing = super::dialing(args, (served, lives), out)?;
    dialing.fabric.topology = Some(Arc::new(machine.topology));
    Ok((gpu, dialing))
}

pub(super) fn size(args: &CpArgs) -> Result<usize, Failure> {
    let wanted = args.size.unwrap_or(super::SIZE);
    match usize::try_from(wanted.0) {
        Ok(size) if size > 0 => Ok(size),
        _ => Err(Failure::usage(format!(
            "--size {wanted}: nothing can be copied"
        ))),
    }
}

fn save(args: &CpArgs, index: u32, file: &Path, out: &Output) -> Result<Receipt, Failure> {
    let path = transfer::local(file)?;
    let gpu = with_storage(args, index, &path)?;
    let sample = Sample::new(&gpu, size(args)?, SEED)?;
    let request = SaveRequest {
        region: sample.region.clone(),
        path: path.clone(),
        policy: args.policy,
        path_asked: None,
    };
    let transfer = Engine::default().save_from(request, &gpu)?;
    let what = format!("writing {}", shown(&path));
    let mut receipt = transfer::follow(transfer, &what, &out.progress())?.receipt;
    if !args.no_verify {
        let source = Source::open(&path)?;
        // What the drive has, not what the kernel still remembers of it.
        let _ = source.drop_cache();
        let read = read_again(&path).map_err(|error| Failure::reading(&path, &error))?;
        receipt.verification = compared(&sample, &path.display().to_string(), read)?;
    }
    Ok(receipt)
}

/// The checksum of a file.
fn read_again(path: &Path) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let mut sums = Vec::new();
    let mut piece = Vec::new();
    loop {
        piece.clear();
        (&mut file).take(GRID).read_to_end(&mut piece)?;
        if piece.is_empty() {
            return Ok(digest::whole(sums));
        }
        sums.push(digest::piece(&piece));
    }
}

/// The GPU, with its maker's storage library where that brings its bytes straight into files beside
/// this one.
fn with_storage(args: &CpArgs, index: u32, path: &Path) -> Result<Arc<Gpu>, Failure> {
    let machine = transfer::Machine::towards(&Place::Gpu(index))?;
    let beside = path
        .parent()
        .filter(|_| args.policy != crowfly_route::policy::Policy::Staged);
    // A library is tried with a file that is there.
    let trial = beside.and_then(|folder| tempfile::NamedTempFile::new_in(folder).ok());
    let file = trial.as_ref().map(tempfile::NamedTempFile::path);
    gpu::open(index, &machine.topology, file)
        .map_err(|obstacles| gpu::refused(index, "copied from", obstacles))
}

fn copied(args: &CpArgs, from: Region, to: To) -> Result<crowfly_mover::Loaded, Failure> {
    let machine = transfer::Machine::here()?;
    let place = match &to {
        To::Host(node) => Place::Host(*node),
        To::Gpu(gpu) => gpu.place(),
    };
    let known = candidates(&machine.topology, None, &from.place(), &place);
    Ok(copy(CopyRequest {
        from,
        to,
        policy: args.policy,
        candidates: known.unwrap_or_default(),
    })?)
}

/// Copies a sample and checks what came.
fn carry(args: &CpArgs, sample: Sample, to: To) -> Result<Receipt, Failure> {
    let loaded = copied(args, sample.region.clone(), to)?;
    let mut receipt = loaded.receipt;
    if let Some(region) = loaded.regions.first().filter(|_| !args.no_verify) {
        let place = region.place().to_string();
        let found = digest_of(region).map_err(|error| {
            let what = format!("what arrived in {place} could not be read: {error}");
            Failure::new("gpu-call-failed", Exit::Io, what)
        })?;
        receipt.verification = compared(&sample, &place, found)?;
    }
    Ok(receipt)
}

/// What came, held against what was put into the GPU's memory.
fn compared(sample: &Sample, path: &str, found: u64) -> Result<Verification, Failure> {
    let hex = |sum: u64| format!("{sum:016x}");
    match found == sample.digest {
        true => Ok(Verification::Matched {
            algorithm: digest::ALGORITHM.to_owned(),
            checksum: hex(found),
        }),
        false => Err(TransferError::Differs {
            path: path.to_owned(),
            expected: hex(sample.digest),
            found: hex(found),
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_sides_mean_is_read_only_where_a_gpu_of_this_machine_is_one_of_them() {
        let read = |from: &str, to: &str| Errand::read(OsStr::new(from), OsStr::new(to));
        assert_eq!(
            read("m.bin", "gpu:1"),
            Some(Errand::Load("m.bin".into(), 1))
        );
        assert_eq!(read("gpu:0", "./m"), Some(Errand::Save(0, "./m".into())));
        assert_eq!(read("gpu:0", "gpu:1"), Some(Errand::Across(0, 1)));
        assert_eq!(read("gpu:2", "host:"), Some(Errand::Out(2)));
        assert_eq!(read("host", "gpu:2"), Some(Errand::In(2)));
        let there = || Location::of(OsStr::new("crowfly://h:1/m")).expect("a location");
        let fetch = read("crowfly://h:1/m", "gpu:0");
        assert_eq!(fetch, Some(Errand::Fetch(there(), 0)));
        let send = read("gpu:1", "crowfly://h:1/m");
        assert_eq!(send, Some(Errand::Send(1, there())));
        let object = || "s3://bucket/m".parse::<ObjectUrl>().expect("an object");
        let download = read("s3://bucket/m", "gpu:0");
        assert_eq!(download, Some(Errand::Download(object(), 0)));
        let upload = read("gpu:1", "s3://bucket/m");
        assert_eq!(upload, Some(Errand::Upload(1, object())));
        for (from, to) in [
            ("a", "b"),
            ("crowfly://h:1/m", "a"),
            ("s3://bucket/m", "a"),
            ("gs://bucket/m", "gpu:0"),
            ("gpu:x", "b"),
            ("host:1", "gpu:0"),
        ] {
            assert_eq!(read(from, to), None, "{from} {to}");
        }
    }
}
