//! Settling a transfer's account: from what the workers counted to a receipt, with a look from
//! outside at the claims that can be checked.

use std::ops::Range;
use std::os::fd::AsFd;

use crowfly_route::hop::{Candidate, Capacity, Carrier, Class, CpuWork, Hop, HostUse, Route, Stop};
use crowfly_route::obstacle::{Code, Confidence, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{
    FILLED_BY_DRIVE, Path, RECEIPT_SCHEMA, Receipt, Share, Verification, Visibility,
};
use crowfly_route::search::obstacles_of_better;
use crowfly_route::units::Bytes;

use crate::digest;
use crate::error::TransferError;
use crate::job::{Job, Ledger};
use crate::memory::Memory;
use crate::request::{Piece, Verify};
use crate::work::Way;

mod joined;
mod storage;

pub(crate) use joined::joined;
pub(crate) use storage::Counted;

/// Why bytes came out of the page cache.
const IN_CACHE: &str = "already in the page cache";

/// What the page cache held before the transfer, by piece.
pub(crate) struct Before(Vec<Option<u64>>);

impl Before {
    pub(crate) fn look(pieces: &[Piece]) -> Self {
        Self(pieces.iter().map(|p| p.source.cached(&p.range)).collect())
    }

    /// Bytes that lay in the page cache; none where the kernel does not say.
    fn cached(&self) -> u64 {
        self.0.iter().flatten().sum()
    }

    /// Whether all bytes of a piece lay in the page cache.
    pub(crate) fn all_cached(&self, pieces: &[Piece], index: usize) -> bool {
        let length = |piece: &Piece| piece.range.end - piece.range.start;
        match (self.0.get(index), pieces.get(index)) {
            (Some(Some(cached)), Some(piece)) => *cached >= length(piece),
            _ => false,
        }
    }
}

/// What is needed to write a receipt once the workers are done.
pub(crate) struct Account {
    pub from: Place,
    pub to: Place,
    pub policy: Policy,
    pub forced: Option<Path>,
    pub verify: Verify,
    pub candidates: Vec<Candidate>,
    pub ceiling: Option<Capacity>,
    pub pieces: Vec<Piece>,
    pub before: Before,
    /// What the storage library of a GPU's maker had counted before, where it is used.
    pub storage: Option<Counted>,
}

impl Account {
    pub(crate) fn settle(self, job: &Job, requested: Bytes) -> Result<Receipt, TransferError> {
        for piece in &self.pieces {
            piece.source.unchanged()?;
        }
        let mut ledger = job.take_ledger();
        let through_cache = self.grown(&mut ledger);
        let verification = self.verify(job)?;
        let verdict = self.by_storage(job, &mut ledger)?;
        let mut shares = self.shares(&ledger, through_cache, verdict);
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        let path = shares.first().map_or(Path::Direct, |share| share.path);
        let route = self.route(path, verdict);
        let ceiling = route.ceiling().map(|c| c.capacity).or(self.ceiling.clone());
        Ok(Receipt {
            schema: RECEIPT_SCHEMA.into(),
            policy: self.policy,
            requested,
            bounced: Bytes(ledger.bounced + through_cache),
            overread: Bytes(ledger.overread),
            retries: ledger.retries,
            wall_seconds: job.wall().as_secs_f64(),
            cpu: ledger.cpu,
            ceiling,
            obstacles: self.obstacles(&ledger, &shares, verdict),
            visibility: match &self.to {
                Place::Gpu(_) => Visibility::NotNeeded("the GPU's copies, and the storage library's requests, were waited for".into()),
                Place::Peer(_) => Visibility::NotNeeded("the drive's writes to the BAR completed before its completion entry (PCIe ordering)".into()),
                _ => Visibility::NotNeeded("host memory is coherent with DMA".into()),
            },
            verification,
            shares,
            route,
            from: self.from,
            to: self.to,
        })
    }

    /// Bytes of direct reads that went through the page cache after all: some file systems accept
    /// O_DIRECT and serve it from the cache, which then holds pages that nothing else explains.
    fn grown(&self, ledger: &mut Ledger) -> u64 {
        let by = |way| ledger.delivered.get(&way).copied().unwrap_or(0);
        let direct = by(Way::Direct);
        let looks = self.pieces.iter().zip(&self.before.0);
        let growth = looks.filter_map(|(piece, before)| {
            let after = piece.source.cached(&piece.range)?;
            Some(after.saturating_sub((*before)?))
        });
        let unexplained = growth
            .sum::<u64>()
            .saturating_sub(by(Way::Map) + by(Way::Copy))
            .min(direct);
        if unexplained <= direct / 2 {
            return 0;
        }
        ledger.meet(
            Obstacle::blocks(
                Code::NoDirectIo,
                format!("the file system of {} accepted O_DIRECT and read through the page cache", self.from),
            )
            .seen("cachestat", format!("{} more in the page cache than before", Bytes(unexplained)))
            .with_confidence(Confidence::Likely)
            .fixed_by(Fix::by_hand(
                "Keep the file on a file system that supports O_DIRECT; or another program read it at the same time.",
            )),
        );
        unexplained
    }

    fn shares(
        &self,
        ledger: &Ledger,
        through_cache: u64,
        verdict: Option<storage::Verdict>,
    ) -> Vec<Share> {
        let mut shares = Vec::new();
        let reason = |code: Option<Code>| {
            let met = |code| ledger.obstacles.iter().find(|o: &&Obstacle| o.code == code);
            let known = code
                .and_then(met)
                .or_else(|| met(Code::PeerDmaRefused))
                .or_else(|| met(Code::NoDirectIo));
            match (known, self.forced, self.policy) {
                (Some(obstacle), _, _) => obstacle.summary.clone(),
                (None, Some(path), _) => format!("path `{path}` was asked for"),
                (None, None, Policy::Staged) => "policy `staged` was asked for".into(),
                _ => match self.pieces.iter().find_map(|p| p.source.direct_obstacle()) {
                    Some(obstacle) => obstacle.summary.clone(),
                    None => IN_CACHE.into(),
                },
            }
        };
        for (way, bytes) in &ledger.delivered {
            let mut bytes = *bytes;
            let (path, class, because) = match way {
                Way::Direct => {
                    let cached = through_cache.min(bytes);
                    bytes -= cached;
                    if cached > 0 {
                        shares.push(Share {
                            path: Path::Cached,
                            class: Class::Staged,
                            bytes: Bytes(cached),
                            because: Some(reason(Some(Code::NoDirectIo))),
                        });
                    }
                    if self.on_gpu() {
                        let staged = (bytes > 0).then(|| Share {
                            path: Path::Staged,
                            class: Class::Staged,
                            bytes: Bytes(bytes),
                            because: Some(self.why_staged(ledger)),
                        });
                        shares.extend(staged);
                        continue;
                    }
                    let threaded = ledger.by_threads.min(bytes);
                    let peer = [&self.from, &self.to]
                        .iter()
                        .any(|end| matches!(end, Place::Peer(_)));
                    if threaded > 0 && !peer {
                        bytes -= threaded;
                        let asked = self.forced == Some(Path::Threads);
                        shares.push(Share {
                            path: Path::Threads,
                            class: Class::Direct,
                            bytes: Bytes(threaded),
                            because: Some(if asked {
                                "path `threads` was asked for".into()
                            } else {
                                "io_uring is not available".into()
                            }),
                        });
                    }
                    let path = if peer { Path::Peer } else { Path::Direct };
                    (path, Class::Direct, None)
                }
                Way::Bounce => (
                    Path::Staged,
                    Class::Staged,
                    Some(reason(Some(Code::SlowFreshMemory))),
                ),
                Way::Map => {
                    let mut mapped = |because: String, bytes: u64| {
                        shares.extend((bytes > 0).then_some(Share {
                            path: Path::Mapped,
                            class: Class::Direct,
                            bytes: Bytes(bytes),
                            because: Some(because),
                        }));
                    };
                    let instead = ledger.mapped_instead.min(bytes);
                    mapped(reason(Some(Code::SlowFreshMemory)), instead);
                    bytes -= instead;
                    let because = reason(None);
                    let filled = bytes.saturating_sub(self.before.cached());
                    if because == IN_CACHE && filled > 0 {
                        bytes -= filled;
                        mapped(FILLED_BY_DRIVE.into(), filled);
                    }
                    (Path::Mapped, Class::Direct, Some(because))
                }
                Way::Copy => (Path::Cached, Class::Staged, Some(reason(None))),
                Way::Storage => {
                    let (class, because) = storage::class_of(verdict);
                    (self.storage_path(), class, because)
                }
            };
            if bytes > 0 {
                shares.push(Share {
                    path,
                    class,
                    bytes: Bytes(bytes),
                    because,
                });
            }
        }
        shares
    }

    /// The route that a path stands for: the candidate that describes it, or a bare one.
    fn route(&self, path: Path, verdict: Option<storage::Verdict>) -> Route {
        let name = match path {
            Path::CuFile => storage::route_name(verdict),
            path => route_name(path, self.on_gpu()),
        };
        described(name, &self.candidates)
            .cloned()
            .unwrap_or_else(|| bare_route(path, name, &self.from, &self.to))
    }

    fn obstacles(
        &self,
        ledger: &Ledger,
        shares: &[Share],
        verdict: Option<storage::Verdict>,
    ) -> Vec<Obstacle> {
        let mut all = ledger.obstacles.clone();
        let mut add = |obstacle: &Obstacle| {
            if !all.iter().any(|known| known.code == obstacle.code) {
                all.push(obstacle.clone());
            }
        };
        let detour = shares
            .iter()
            .any(|s| s.class != Class::Direct || s.path == Path::Mapped);
        if detour {
            self.pieces
                .iter()
                .filter_map(|p| p.source.direct_obstacle())
                .for_each(&mut add);
        }
        if detour && self.forced.is_none() && self.policy == Policy::Prefer {
            let warm: Bytes = shares
                .iter()
                .filter(|s| s.path != Path::Peer && s.because.as_deref() == Some(IN_CACHE))
                .map(|s| s.bytes)
                .sum();
            if warm.0 > 0 {
                add(&Obstacle::blocks(
                    Code::AlreadyCached,
                    "reading the drive again would be the detour",
                )
                .seen(
                    "cachestat",
                    format!("{warm} of the range in the page cache"),
                ));
            }
        }
        let routes = shares.iter().map(|share| self.route(share.path, verdict));
        let taken: Vec<Route> = routes.collect();
        for taken in &taken {
            obstacles_of_better(&self.candidates, taken).for_each(&mut add);
        }
        all
    }

    fn verify(&self, job: &Job) -> Result<Verification, TransferError> {
        let Some(found) = job.digest().filter(|_| self.verify != Verify::No) else {
            return Ok(Verification::NotAsked);
        };
        let algorithm = digest::ALGORITHM.to_owned();
        let checksum = format!("{found:016x}");
        if self.verify == Verify::Compute {
            return Ok(Verification::Computed {
                algorithm,
                checksum,
            });
        }
        let expected = self.read_again(job)?;
        if expected == found {
            return Ok(Verification::Matched {
                algorithm,
                checksum,
            });
        }
        Err(TransferError::Differs {
            path: self.from.to_string(),
            expected: format!("{expected:016x}"),
            found: checksum,
        })
    }

    /// Digest of a second reading by the other way: through the page cache what came directly,
    /// directly what came out of the page cache.
    fn read_again(&self, job: &Job) -> Result<u64, TransferError> {
        let memory = Memory::host(digest::GRID as usize, None)?;
        let mut hashes = Vec::with_capacity(job.chunks().len());
        for chunk in job.chunks() {
            let piece = &self.pieces[chunk.piece];
            let other = piece.source.direct().filter(|_| chunk.way != Way::Direct);
            let (file, span): (_, Range<u64>) = match other {
                Some(direct) => {
                    let whole = crate::work::Chunk {
                        way: Way::Direct,
                        ..chunk.clone()
                    };
                    (&direct.file, whole.span(direct.align))
                }
                None => (piece.source.buffered(), chunk.wanted.clone()),
            };
            let failed = |source| TransferError::Read {
                path: piece.source.path().display().to_string(),
                offset: span.start,
                bytes: span.end - span.start,
                source,
            };
            let lead = (chunk.wanted.start - span.start) as usize;
            let wanted = (chunk.wanted.end - chunk.wanted.start) as usize;
            let target = memory.target(0..(span.end - span.start) as usize);
            let mut got = 0;
            while got < lead + wanted {
                let rest = target.part(got, target.len() - got);
                match rest.read_from(file.as_fd(), span.start + got as u64) {
                    Ok(0) => {
                        return Err(TransferError::Shrank {
                            path: piece.source.path().display().to_string(),
                            offset: span.start + got as u64,
                        });
                    }
                    Ok(bytes) => got += bytes,
                    Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            hashes.push(target.part(lead, wanted).with_bytes(digest::piece));
        }
        Ok(digest::whole(hashes))
    }
}

/// The name under which the search for routes knows a path.
const fn route_name(path: Path, on_gpu: bool) -> &'static str {
    match path {
        Path::Peer => "peer-to-peer",
        Path::Cached => "page-cache",
        Path::Mapped => "page-cache-mapped",
        Path::HipFile => "hipfile",
        Path::Staged if !on_gpu => "o-direct-staged",
        _ => "o-direct",
    }
}

fn described<'c>(name: &str, candidates: &'c [Candidate]) -> Option<&'c Route> {
    let mut routes = candidates.iter().map(|candidate| &candidate.route);
    routes.find(|route| route.name == name)
}

/// A path's route when no topology is known: the same hops without named links or rates.
pub(crate) fn bare_route(path: Path, name: &str, from: &Place, to: &Place) -> Route {
    let drive = Stop::Drive {
        name: "drive".into(),
    };
    let saves = matches!(to, Place::File(_) | Place::Drive(_));
    let memory = if saves { from } else { to };
    let numa = match memory {
        Place::Host(node) => *node,
        _ => None,
    };
    let host = |use_| Stop::Host { use_, numa };
    let end = match memory {
        Place::Peer(address) => Stop::Peer { address: *address },
        Place::Gpu(index) => Stop::Gpu { index: *index },
        _ => host(HostUse::Application),
    };
    let hop = Hop::bare;
    let dma = || Carrier::Dma {
        device: "drive".into(),
    };
    let by_gpu = |index: u32| Carrier::Dma {
        device: format!("gpu{index}"),
    };
    let mut hops = match (path, memory) {
        (Path::Cached, Place::Gpu(index)) => {
            let copy = Carrier::Cpu {
                work: CpuWork::KernelCopy,
            };
            vec![
                hop(drive, host(HostUse::PageCache), dma()),
                hop(host(HostUse::PageCache), host(HostUse::Bounce), copy),
                hop(host(HostUse::Bounce), end, by_gpu(*index)),
            ]
        }
        (Path::Staged, Place::Gpu(index)) => vec![
            hop(drive, host(HostUse::Bounce), dma()),
            hop(host(HostUse::Bounce), end, by_gpu(*index)),
        ],
        (Path::Staged, _) => {
            let copy = Carrier::Cpu {
                work: CpuWork::UserCopy,
            };
            vec![
                hop(drive, host(HostUse::Bounce), dma()),
                hop(host(HostUse::Bounce), end, copy),
            ]
        }
        (Path::Cached, _) => {
            let copy = Carrier::Cpu {
                work: CpuWork::KernelCopy,
            };
            vec![
                hop(drive, host(HostUse::PageCache), dma()),
                hop(host(HostUse::PageCache), end, copy),
            ]
        }
        (Path::Mapped, _) => vec![hop(drive, host(HostUse::PageCache), dma())],
        _ => vec![hop(drive, end, dma())],
    };
    if saves {
        hops.reverse();
        for hop in &mut hops {
            std::mem::swap(&mut hop.from, &mut hop.to);
        }
    }
    Route {
        name: name.into(),
        from: from.clone(),
        to: to.clone(),
        hops,
    }
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::machines;
    use crowfly_route::search;

    use super::*;

    #[test]
    fn every_path_into_memory_is_a_route_that_the_search_knows() {
        let machine = machines::dgx_h100();
        let snapshot = machine.snapshot();
        let from = Place::Drive("nvme0".into());
        let found = |to: &str| {
            let to = to.parse().expect("a place");
            search::candidates(&machine.topology(), Some(&snapshot), &from, &to).expect("routes")
        };
        let to_host = found("host");
        for path in Path::STORAGE.into_iter().filter(|path| *path != Path::Peer) {
            let name = route_name(path, false);
            let known = described(name, &to_host).map(Route::counters);
            let bare = bare_route(path, name, &from, &Place::Host(None)).counters();
            let expected = crowfly_route::hop::Counters {
                pcie_hops: 2,
                ..bare
            };
            assert_eq!(known, Some(expected), "{path}");
        }
    }

    #[test]
    fn a_copy_out_of_a_buffer_is_a_touch_and_a_pass_more_than_the_straight_way() {
        let (file, host) = (Place::File("in".into()), Place::Host(None));
        let name = route_name(Path::Staged, false);
        let bounced = bare_route(Path::Staged, name, &file, &host);
        assert_eq!((name, bounced.class()), ("o-direct-staged", Class::Staged));
        let counters = bounced.counters();
        assert_eq!((counters.copies, counters.cpu_touches), (2, 1));
        assert_eq!(route_name(Path::Staged, true), "o-direct");
    }

    #[test]
    fn a_save_takes_the_ways_of_a_load_backwards() {
        let (file, host) = (Place::File("out".into()), Place::Host(None));
        for path in [Path::Direct, Path::Cached, Path::Threads] {
            let name = route_name(path, false);
            let load = bare_route(path, name, &file, &host);
            let save = bare_route(path, name, &host, &file);
            assert_eq!(save.counters(), load.counters(), "{path}");
            let ends = |route: &Route| {
                let first = route.hops.first().map(|hop| hop.from.clone());
                (first, route.hops.last().map(|hop| hop.to.clone()))
            };
            let (start, end) = ends(&load);
            assert_eq!(ends(&save), (end, start), "{path}");
        }
    }

    fn account(from: Place, to: Place, policy: Policy) -> Account {
        Account {
            from,
            to,
            policy,
            forced: None,
            verify: Verify::No,
            candidates: Vec::new(),
            ceiling: None,
            pieces: Vec::new(),
            before: Before::look(&[]),
            storage: None,
        }
    }

    #[test]
    fn cached_bytes_are_mapped_for_that_and_others_where_fresh_memory_is_slow_for_that() {
        let mut account = account(Place::File("in".into()), Place::Host(None), Policy::Prefer);
        account.before = Before(vec![Some(1000)]);
        let mut ledger = Ledger::default();
        ledger.meet(Obstacle::slows(Code::SlowFreshMemory, "slow memory"));
        ledger.delivered = [(Way::Map, 1700), (Way::Bounce, 60)].into();
        ledger.mapped_instead = 400;
        let shares = account.shares(&ledger, 0, None);
        let told = shares.iter().map(|share| {
            let because = share.because.as_deref().unwrap_or_default();
            (share.path, share.bytes.0, because)
        });
        let expected = [
            (Path::Staged, 60, "slow memory"),
            (Path::Mapped, 400, "slow memory"),
            (Path::Mapped, 300, FILLED_BY_DRIVE),
            (Path::Mapped, 1000, IN_CACHE),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn bytes_that_a_drive_takes_out_of_peer_memory_go_by_the_peer_path() {
        let peer: Place = "peer:0000:04:00.0".parse().expect("a place");
        let account = account(peer, Place::File("out".into()), Policy::Require);
        let mut ledger = Ledger::default();
        ledger.delivered.insert(Way::Direct, 4096);
        let shares = account.shares(&ledger, 0, None);
        let told: Vec<_> = shares.iter().map(|s| (s.path, s.class, s.bytes)).collect();
        assert_eq!(told, [(Path::Peer, Class::Direct, Bytes(4096))]);
    }
}
