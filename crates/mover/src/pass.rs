//! One part of a file, moved on the calling thread: what the engine does for whoever brings the
//! threads and the memory along, such as a server that answers many peers.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use crowfly_machine::usage;
use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Share};
use crowfly_route::units::Bytes;

use crate::engine::since;
use crate::error::TransferError;
use crate::io::Direction;
use crate::io::blocking::Blocking;
use crate::job::{Job, Landing, Lane, Ledger};
use crate::memory::{BLOCK, Memory};
use crate::source::{Direct, Source};
use crate::tune::Tuner;
use crate::work::{Chunk, Terms, Way, cut};
use crate::worker::Worker;

/// Why the bytes go by threads where rings could be used.
const BY_THREADS: &str = "a copy's parts are moved by the threads that send them";

/// Where in a memory a pass puts its bytes, or finds them.
#[derive(Clone)]
pub(crate) struct Spot {
    /// The memory; from `at` to its end there is room for whole blocks.
    pub memory: Arc<Memory>,
    /// Its first byte, on a block.
    pub at: usize,
}

impl Spot {
    /// `range` starts on a block.
    fn landing(&self, range: &Range<u64>) -> Landing {
        Landing::Region {
            memory: Arc::clone(&self.memory),
            shift: (self.at as i64).wrapping_sub_unsigned(range.start),
        }
    }
}

/// Reads a range that starts on a block of an open file. Under the policy `require` it comes
/// directly or not at all; what lies in the page cache comes from there under others.
///
/// # Errors
/// What the engine meets; [`TransferError::Refused`] under `require`.
pub(crate) fn read(
    source: &Source,
    range: Range<u64>,
    spot: &Spot,
    policy: Policy,
) -> Result<Ledger, TransferError> {
    let strict = policy == Policy::Require;
    if strict && let Some(obstacle) = source.direct_obstacle() {
        return Err(TransferError::Refused {
            from: Box::new(Place::File(source.name())),
            to: Box::new(Place::Host(None)),
            policy,
            obstacles: vec![obstacle.clone()],
        });
    }
    let cached = |range: &Range<u64>| source.cached(range);
    let terms = Terms {
        direct: source.direct().is_some(),
        straight: Way::Direct,
        cache: !strict,
        map: false,
        prefer_cache: !strict,
        cached: &cached,
    };
    let mut chunks = Vec::new();
    cut(0, range.clone(), &terms, &mut chunks);
    let lane = Lane {
        name: source.name(),
        buffered: Arc::clone(source.buffered()),
        direct: source.direct().cloned(),
        landing: spot.landing(&range),
        may_detour: false,
        was_cached: false,
    };
    let mut ledger = run(Direction::Read, lane, chunks, strict)?;
    if let Some(obstacle) = source.direct_obstacle() {
        ledger.meet(obstacle.clone());
    }
    Ok(ledger)
}

/// A file that parts are written to.
pub(crate) struct Written {
    /// Its name in errors.
    pub name: String,
    /// By the page cache.
    pub buffered: Arc<File>,
    /// Directly, or why not.
    pub direct: Result<Direct, Box<Obstacle>>,
    /// Whether it may grow to whole blocks for a while, as direct writes need.
    pub may_be_padded: bool,
}

/// Writes a range that starts on a block. Where the file may be padded, the last block is written whole
/// and the caller cuts the rest off; otherwise a last part of a block goes through the page cache.
///
/// # Errors
/// What the engine meets; [`TransferError::Refused`] under `require` where nothing goes directly.
pub(crate) fn write(
    file: &Written,
    range: Range<u64>,
    spot: &Spot,
    policy: Policy,
) -> Result<Ledger, TransferError> {
    let strict = policy == Policy::Require;
    let direct = match &file.direct {
        Err(obstacle) if strict => {
            return Err(TransferError::Refused {
                from: Box::new(Place::Host(None)),
                to: Box::new(Place::File(file.name.clone())),
                policy,
                obstacles: vec![obstacle.as_ref().clone()],
            });
        }
        direct => direct.as_ref().ok(),
    };
    let terms = Terms {
        direct: direct.is_some(),
        straight: Way::Direct,
        cache: true,
        map: false,
        prefer_cache: false,
        cached: &|_| None,
    };
    let block = BLOCK as u64;
    let mut chunks = Vec::new();
    let whole = match range.end.is_multiple_of(block) || file.may_be_padded {
        true => range.end,
        false => (range.end / block * block).max(range.start),
    };
    let rest = match (direct, whole < range.end) {
        (Some(_), true) => Some(unaligned(range.end)),
        _ => None,
    };
    if let Some(obstacle) = rest.clone().filter(|_| strict) {
        return Err(TransferError::Refused {
            from: Box::new(Place::Host(None)),
            to: Box::new(Place::File(file.name.clone())),
            policy,
            obstacles: vec![obstacle],
        });
    }
    cut(0, range.start..whole, &terms, &mut chunks);
    if whole < range.end {
        chunks.push(Chunk {
            piece: 0,
            index: chunks.len(),
            wanted: whole..range.end,
            way: Way::Copy,
        });
    } else if direct.is_some() {
        // Whole blocks are written, and what lies behind the bytes may be someone else's.
        let end = spot.at + (range.end - range.start) as usize;
        spot.memory.target(end..end.next_multiple_of(BLOCK)).clear();
    }
    let lane = Lane {
        name: file.name.clone(),
        buffered: Arc::clone(&file.buffered),
        direct: direct.cloned(),
        landing: spot.landing(&range),
        may_detour: false,
        was_cached: false,
    };
    let mut ledger = run(Direction::Write, lane, chunks, strict)?;
    let met = file
        .direct
        .as_ref()
        .err()
        .map(|obstacle| obstacle.as_ref().clone());
    for obstacle in met.into_iter().chain(rest) {
        ledger.meet(obstacle);
    }
    Ok(ledger)
}

fn unaligned(end: u64) -> Obstacle {
    let what = "the limit on the size of files leaves no room for the last whole block";
    Obstacle::blocks(Code::Unaligned, what).seen("length", format!("{end} bytes"))
}

fn run(
    direction: Direction,
    lane: Lane,
    chunks: Vec<Chunk>,
    strict: bool,
) -> Result<Ledger, TransferError> {
    let cpu = usage::this_thread();
    let mut job = Job::new(direction, vec![lane], chunks, Tuner::fixed(1));
    job.strict = strict;
    let worker = Worker::new(&job, Blocking::default(), (0, 1), None, Ledger::default());
    let mut ledger = worker.run();
    ledger.cpu = since(cpu);
    match job.failure() {
        Some(error) => Err(error),
        None => Ok(ledger),
    }
}

/// The bytes that passes moved, by path.
pub(crate) fn shares(ledger: &Ledger) -> Vec<Share> {
    let because = |class: Class| {
        let mut met = ledger.obstacles.iter().map(|obstacle| &obstacle.summary);
        match class {
            Class::Direct => Some(BY_THREADS.to_owned()),
            _ => met
                .next()
                .cloned()
                .or_else(|| Some("already in the page cache".into())),
        }
    };
    let by = |way: &Way| match way {
        Way::Direct | Way::Storage => (Path::Threads, Class::Direct),
        Way::Bounce => (Path::Staged, Class::Staged),
        Way::Map => (Path::Mapped, Class::Direct),
        Way::Copy => (Path::Cached, Class::Staged),
    };
    let moved = ledger.delivered.iter().filter(|(_, bytes)| **bytes > 0);
    moved
        .map(|(way, bytes)| {
            let (path, class) = by(way);
            Share {
                path,
                class,
                bytes: Bytes(*bytes),
                because: because(class),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(bytes: usize) -> Spot {
        let memory = Memory::host(bytes, None).expect("memory");
        Spot { memory, at: BLOCK }
    }

    fn moved(ledger: &Ledger) -> u64 {
        shares(ledger).iter().map(|share| share.bytes.0).sum()
    }

    #[test]
    fn given_a_range_in_the_middle_what_is_read_is_what_is_written_elsewhere() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("from");
        let bytes: Vec<u8> = (0..100_001_u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &bytes).expect("written");
        let source = Source::open(&path).expect("opened");
        let spot = spot(256 << 10);
        let ledger = read(&source, 8192..100_001, &spot, Policy::Prefer).expect("read");
        assert_eq!(moved(&ledger), 100_001 - 8192);
        let mut first = [0; 3];
        spot.memory.target(BLOCK..BLOCK + 3).copy_out(0, &mut first);
        assert_eq!(first, bytes[8192..8195]);

        let to = folder.path().join("to");
        let file = Arc::new(File::create(&to).expect("made"));
        let written = Written {
            name: "to".into(),
            buffered: file,
            direct: Err(Box::new(Obstacle::blocks(Code::NoDirectIo, "not here"))),
            may_be_padded: true,
        };
        let ledger = write(&written, 0..91_809, &spot, Policy::Prefer).expect("written");
        assert_eq!(moved(&ledger), 91_809);
        assert_eq!(std::fs::read(&to).expect("read"), bytes[8192..]);
        let refused = write(&written, 0..1, &spot, Policy::Require).map(|_| ());
        assert_eq!(refused.expect_err("not directly").code(), "route-refused");
    }
}
