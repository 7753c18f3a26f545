//! Which way the storage library of a GPU's maker went, by its counters and the kernel module's.

use std::sync::Arc;

use crowfly_machine::gpu_storage::{Counters, Driver, NvidiaFsCounters, Ways};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;

use super::Account;
use crate::error::TransferError;
use crate::gpu::storage_path;
use crate::io::Direction;
use crate::job::{Job, Ledger};
use crate::work::Way;

/// What was counted before a transfer.
pub(crate) struct Counted {
    driver: Arc<Driver>,
    library: Option<Counters>,
    module: Option<NvidiaFsCounters>,
}

impl Counted {
    /// Counts from now on.
    pub(crate) fn from_now(driver: &Arc<Driver>) -> Self {
        Self {
            driver: Arc::clone(driver),
            library: driver.counters().ok(),
            module: NvidiaFsCounters::now(),
        }
    }

    fn library(&self, direction: Direction) -> Option<Ways> {
        let counted = self.driver.counters().ok()? - self.library?;
        Some(match direction {
            Direction::Read => counted.reads,
            Direction::Write => counted.writes,
        })
    }

    fn module(&self, direction: Direction) -> Option<u64> {
        let counted = NvidiaFsCounters::now()? - self.module?;
        Some(match direction {
            Direction::Read => counted.reads,
            Direction::Write => counted.writes,
        })
    }
}

/// What the counters say of requests that are done.
pub(crate) struct Found {
    pub class: Class,
    /// Why it is no better one.
    pub because: Option<String>,
    pub obstacle: Option<Obstacle>,
    /// The name under which the search for routes knows the way.
    pub route: &'static str,
    /// Whether some or all went through host memory.
    pub is_compat: bool,
}

impl Counted {
    /// What was counted since then, of the library by this name.
    pub(crate) fn found(&self, direction: Direction, name: Path) -> Found {
        let verdict = judge(self.library(direction), self.module(direction));
        let (class, because) = class_of(Some(verdict));
        Found {
            class,
            because,
            obstacle: obstacle_of(verdict, name),
            route: route_name(Some(verdict)),
            is_compat: matches!(verdict, Verdict::Compat { .. }),
        }
    }
}

/// Which way the requests of a transfer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// By the kernel's PCIe peer-to-peer DMA.
    Peer,
    /// By the maker's kernel module, or hipFile's fast path.
    Module,
    /// Some or all through host memory.
    Compat { posix: u64, all: u64 },
    /// Nothing tells.
    Unproven,
}

/// What the counters say; without the library's own, what the kernel module says that it did.
fn judge(library: Option<Ways>, module: Option<u64>) -> Verdict {
    match (library, module) {
        (Some(ways), _) if ways.posix > 0 => Verdict::Compat {
            posix: ways.posix,
            all: ways.posix.saturating_add(ways.direct()),
        },
        (Some(ways), _) if ways.peer > ways.module => Verdict::Peer,
        (Some(ways), _) if ways.module > 0 => Verdict::Module,
        (None, Some(requests)) if requests > 0 => Verdict::Module,
        _ => Verdict::Unproven,
    }
}

/// The class of bytes that the library moved, and why not a better one.
pub(super) fn class_of(verdict: Option<Verdict>) -> (Class, Option<String>) {
    match verdict {
        Some(Verdict::Peer | Verdict::Module) => (Class::Direct, None),
        Some(Verdict::Compat { posix, all }) => (
            Class::Staged,
            Some(format!(
                "{posix} of {all} requests went through host memory, by the library's counters"
            )),
        ),
        Some(Verdict::Unproven) | None => (
            Class::Staged,
            Some("nothing proves that the library went straight".into()),
        ),
    }
}

/// What kept the library from going straight, or from showing that it did.
fn obstacle_of(verdict: Verdict, name: Path) -> Option<Obstacle> {
    match verdict {
        Verdict::Peer | Verdict::Module => None,
        Verdict::Compat { posix, all } => Some(
            Obstacle::blocks(
                Code::CompatMode,
                format!("{name} went through host memory, and called it success"),
            )
            .seen(
                "its statistics",
                format!("{posix} of {all} requests by POSIX calls"),
            )
            .fixed_by(
                Fix::by_hand("Look at what keeps it from going straight for this file.")
                    .checked_by("gdscheck -p"),
            ),
        ),
        Verdict::Unproven => Some(
            Obstacle::unproven(
                Code::StorageUnproven,
                format!("which way {name} went cannot be told"),
            )
            .seen("its statistics", "not there, or nothing was counted")
            .fixed_by(Fix::by_hand(
                "Use cuFile 1.15 or newer, which counts requests by their way.",
            )),
        ),
    }
}

/// The name under which the search for routes knows cuFile's way.
pub(super) const fn route_name(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Peer) => "gpudirect-storage-p2pdma",
        _ => "gpudirect-storage",
    }
}

impl Account {
    pub(super) fn on_gpu(&self) -> bool {
        let ends = [&self.from, &self.to];
        ends.iter().any(|end| matches!(end, Place::Gpu(_)))
    }

    pub(super) fn storage_path(&self) -> Path {
        let driver = self.storage.as_ref().map(|counted| &counted.driver);
        driver.map_or(Path::CuFile, |driver| storage_path(driver.dialect()))
    }

    /// Which way the library went, if it moved anything.
    ///
    /// # Errors
    /// When only a direct way was allowed and it took another one.
    pub(super) fn by_storage(
        &self,
        job: &Job,
        ledger: &mut Ledger,
    ) -> Result<Option<Verdict>, TransferError> {
        let moved = ledger.delivered.get(&Way::Storage).copied().unwrap_or(0);
        let Some(counted) = self.storage.as_ref().filter(|_| moved > 0) else {
            return Ok(None);
        };
        let verdict = judge(
            counted.library(job.direction),
            counted.module(job.direction),
        );
        let name = self.storage_path();
        if let Some(obstacle) = obstacle_of(verdict, name) {
            ledger.meet(obstacle);
        }
        let straight = matches!(verdict, Verdict::Peer | Verdict::Module);
        if self.policy == Policy::Require && !straight {
            return Err(TransferError::Refused {
                from: Box::new(self.from.clone()),
                to: Box::new(self.to.clone()),
                policy: self.policy,
                obstacles: std::mem::take(&mut ledger.obstacles),
            });
        }
        Ok(Some(verdict))
    }

    /// Why bytes went through buffers in host memory.
    pub(super) fn why_staged(&self, ledger: &Ledger) -> String {
        const OF_STORAGE: [Code; 10] = [
            Code::NoStorageLibrary,
            Code::NoStorageDriver,
            Code::StorageDriverHangs,
            Code::StorageDriverRefused,
            Code::StorageUnproven,
            Code::CompatMode,
            Code::NoUdevRecord,
            Code::FileSystemUnsupported,
            Code::FileNotRegistered,
            Code::GpuRuntimeFailed,
        ];
        if let Some(path) = self.forced {
            return format!("path `{path}` was asked for");
        }
        if self.policy == Policy::Staged {
            return "policy `staged` was asked for".into();
        }
        let met = ledger.obstacles.iter();
        let mut known = met.filter(|obstacle| OF_STORAGE.contains(&obstacle.code));
        known.next().map_or_else(
            || "no storage library of the GPU's maker was looked for".into(),
            |obstacle| obstacle.summary.clone(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(peer: u64, module: u64, posix: u64) -> Ways {
        Ways {
            peer,
            module,
            posix,
            ..Ways::default()
        }
    }

    #[test]
    fn one_request_through_host_memory_is_enough_to_call_it_no_longer_direct() {
        let compat = judge(Some(ways(99, 0, 1)), Some(99));
        assert_eq!(compat, Verdict::Compat { posix: 1, all: 100 });
        let (class, because) = class_of(Some(compat));
        assert_eq!(class, Class::Staged);
        assert!(because.is_some_and(|why| why.contains("1 of 100")));
    }

    #[test]
    fn without_counters_nothing_is_called_direct_but_what_the_kernel_module_did() {
        assert_eq!(judge(None, None), Verdict::Unproven);
        assert_eq!(judge(None, Some(0)), Verdict::Unproven);
        assert_eq!(judge(None, Some(7)), Verdict::Module);
        assert_eq!(judge(Some(ways(0, 0, 0)), Some(7)), Verdict::Unproven);
        assert_eq!(class_of(Some(Verdict::Unproven)).0, Class::Staged);
    }

    #[test]
    fn the_two_direct_modes_are_two_routes() {
        let peer = judge(Some(ways(5, 0, 0)), None);
        let module = judge(Some(ways(0, 5, 0)), None);
        assert_eq!(route_name(Some(peer)), "gpudirect-storage-p2pdma");
        assert_eq!(route_name(Some(module)), "gpudirect-storage");
        assert_eq!(class_of(Some(peer)), (Class::Direct, None));
    }
}
