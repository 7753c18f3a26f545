//! The race itself: every way in turn, each time with a cold page cache.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crowfly_mover::gpu::Gpu;
use crowfly_mover::{Destination, Engine, MemoryError, Piece, Request, Source, TransferError};
use crowfly_route::hop::Candidate;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::{Path, Receipt};
use crowfly_route::topology::Topology;
use crowfly_route::units::{Bytes, PciAddress};

use super::standing::Lane;
use crate::commands::{gpu, transfer};
use crate::failure::Failure;
use crate::output::Output;

/// One way of moving the bytes.
pub struct Way {
    /// How it is called.
    pub name: String,
    /// The engine path that is forced.
    pub path: Path,
    /// Where the bytes go.
    pub destination: Destination,
    /// The routes from the bytes to the destination.
    pub candidates: Vec<Candidate>,
}

impl Way {
    /// The engine's paths into host memory.
    pub fn to_host(candidates: &[Candidate]) -> Vec<Self> {
        let paths = Path::STORAGE.into_iter().filter(|path| *path != Path::Peer);
        paths
            .map(|path| Self {
                name: path.to_string(),
                path,
                destination: Destination::Host(None),
                candidates: candidates.to_vec(),
            })
            .collect()
    }

    /// The drive's own DMA into memory that a device publishes.
    pub fn to_peer(address: PciAddress, candidates: Vec<Candidate>) -> Self {
        Self {
            name: Path::Peer.to_string(),
            path: Path::Peer,
            destination: Destination::Peer(address),
            candidates,
        }
    }
}

impl Way {
    /// The engine's paths into a GPU's memory.
    pub fn to_gpu(gpu: &Arc<Gpu>, candidates: &[Candidate]) -> Vec<Self> {
        let own = gpu.storage().map(|_| gpu.storage_path());
        let paths = own.into_iter().chain([Path::Staged, Path::Cached]);
        let way = |path: Path| Self {
            name: format!("{} {path}", gpu.place()),
            path,
            destination: Destination::Gpu(Arc::clone(gpu)),
            candidates: candidates.to_vec(),
        };
        paths.map(way).collect()
    }
}

/// The first GPU, if the machine has one that can be opened; what is in the way where it cannot.
pub fn first_gpu(topology: &Topology, pieces: &[Piece]) -> Result<Option<Arc<Gpu>>, Vec<Obstacle>> {
    if topology.gpus.is_empty() {
        return Ok(None);
    }
    let file = pieces.first().map(|piece| piece.source.path());
    gpu::open(0, topology, file).map(Some)
}

/// The device with the most peer memory left, of those that publish it to drives.
pub fn roomiest_peer(topology: &Topology) -> Option<PciAddress> {
    let published = topology.pci.iter().filter_map(|(address, function)| {
        let memory = function.peer_memory.filter(|memory| memory.published)?;
        Some((*address, memory.available))
    });
    let roomiest = published.max_by_key(|(_, available)| *available);
    roomiest.map(|(address, _)| address)
}

/// What came of a contest.
#[derive(Debug)]
pub struct Outcome {
    /// The ways that ran.
    pub lanes: Vec<Lane>,
    /// Why the others did not.
    pub missing: Vec<Obstacle>,
    /// The most bytes that the page cache could not be made to forget before a run.
    pub warm: Bytes,
}

/// Runs every way `runs` times over the same bytes, taken in turns so that a disturbance of the
/// machine falls on all of them.
pub fn run(
    from: &Place,
    pieces: &[Piece],
    ways: &[Way],
    runs: usize,
    out: &Output,
) -> Result<Outcome, Failure> {
    let progress = out.progress();
    let engine = Engine::default();
    let mut tracks: Vec<Vec<Receipt>> = ways.iter().map(|_| Vec::new()).collect();
    let mut missing: Vec<Obstacle> = Vec::new();
    let mut open: Vec<bool> = vec![true; ways.len()];
    let mut warm = Bytes(0);
    for (index, round) in turns(ways.len(), runs) {
        let (Some(way), Some(track), Some(open)) =
            (ways.get(index), tracks.get_mut(index), open.get_mut(index))
        else {
            continue;
        };
        if !*open {
            continue;
        }
        warm = warm.max(forget(pieces)?);
        let request = Request {
            destination: way.destination.clone(),
            path: Some(way.path),
            candidates: way.candidates.clone(),
            ..Request::to_host(from.clone(), pieces.to_vec())
        };
        match engine.load(request) {
            Ok(transfer) => {
                let what = format!("{} {}/{runs}", way.name, round + 1);
                let loaded = transfer::follow(transfer, &what, &progress)?;
                track.push(loaded.receipt);
            }
            Err(TransferError::Refused { obstacles, .. }) => {
                *open = false;
                missing.extend(obstacles);
            }
            Err(TransferError::Memory(MemoryError::Peer {
                address,
                bytes,
                source,
            })) => {
                *open = false;
                missing.push(without_peer_memory(address, Bytes(bytes as u64), &source));
            }
            Err(TransferError::Memory(MemoryError::Gpu { gpu, bytes, source })) => {
                *open = false;
                let what = format!("gpu:{gpu} could not give {} of memory", Bytes(bytes as u64));
                missing.push(
                    Obstacle::blocks(Code::GpuRuntimeFailed, what)
                        .seen(source.call().unwrap_or("allocation"), source.to_string())
                        .fixed_by(Fix::by_hand(
                            "Race over fewer bytes (--size), or end the program that holds the memory",
                        )),
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    let lanes = ways.iter().zip(tracks);
    Ok(Outcome {
        lanes: lanes
            .filter_map(|(way, receipts)| Lane::new(&way.name, receipts))
            .collect(),
        missing,
        warm,
    })
}

fn without_peer_memory(address: PciAddress, wanted: Bytes, error: &io::Error) -> Obstacle {
    let what = format!("{address} could not give {wanted} of peer memory");
    Obstacle::blocks(Code::PeerMemoryExhausted, what)
        .seen("mmap(p2pmem/allocate)", error.to_string())
        .fixed_by(Fix::by_hand(
            "Race over fewer bytes (--size), or end the program that holds the peer memory",
        ))
}

/// Who runs when: every contestant once a round, each round beginning with the next one.
fn turns(contestants: usize, rounds: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| {
        (0..contestants).map(move |turn| ((turn + round) % contestants, round))
    })
}

/// Makes the page cache forget the pieces' files; returns how many bytes it would not forget.
fn forget(pieces: &[Piece]) -> Result<Bytes, Failure> {
    let cached = |source: &Arc<Source>, range: &Range<u64>| source.cached(range).unwrap_or(0);
    let mut left = Bytes(0);
    for piece in pieces {
        piece
            .source
            .drop_cache()
            .map_err(|error| Failure::reading(piece.source.path(), &error))?;
        left += Bytes(cached(&piece.source, &piece.range));
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_runs_once_a_round_and_none_always_goes_first() {
        let order: Vec<usize> = turns(3, 3).map(|(way, _)| way).collect();
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        assert_eq!(turns(0, 3).count(), 0);
    }
}
