//! Starting transfers.

use std::path::PathBuf;
use std::sync::Arc;

use crowfly_mover::checkpoint::select::{RankSlice, Selection, Selector};
use crowfly_mover::checkpoint::{Checkpoint, Kind};
use crowfly_mover::{Engine as Inner, Request, Settings, Verify};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path as Way;
use crowfly_route::units::Bytes;
use pyo3::prelude::*;

use crate::device::Device;
use crate::fault::Fault;
use crate::layout::Landed;
use crate::machine;
use crate::transfer::Transfer;

/// Starts transfers. Its settings are measured while bytes move unless they are given.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Engine(pub Inner);

/// What a load is asked for, besides the file.
pub struct Asked<'a> {
    /// Globs; no globs pick everything.
    pub tensors: Vec<String>,
    /// One rank's share.
    pub shard: Option<(u32, u32)>,
    /// As Python calls it.
    pub device: &'a str,
    /// A policy's word.
    pub policy: &'a str,
    /// An engine path's word.
    pub path: Option<&'a str>,
    /// Whether to compare with a second reading.
    pub verify: bool,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, depth=None, workers=None, budget=None))]
    fn new(
        depth: Option<usize>,
        workers: Option<usize>,
        budget: Option<u64>,
    ) -> Result<Self, Fault> {
        if depth == Some(0) || workers == Some(0) {
            let what = "an engine needs at least one worker and one request in flight";
            return Err(
                Fault::usage(what).hint("leave depth and workers out to have them measured")
            );
        }
        let settings = Settings {
            depth,
            workers,
            budget: budget.map_or(Settings::default().budget, Bytes),
        };
        Ok(Self(Inner::new(settings)))
    }

    /// Starts loading a file, an index or a folder; see `crowfly.load_file`.
    #[pyo3(signature = (filename, *, tensors=None, shard=None, device="cpu", policy="prefer", path=None, verify=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn load(
        &self,
        py: Python<'_>,
        filename: PathBuf,
        tensors: Option<Vec<String>>,
        shard: Option<(u32, u32)>,
        device: &str,
        policy: &str,
        path: Option<&str>,
        verify: bool,
    ) -> PyResult<Transfer> {
        let asked = Asked {
            tensors: tensors.unwrap_or_default(),
            shard,
            device,
            policy,
            path,
            verify,
        };
        Ok(py.detach(|| start(&self.0, &filename, &asked))?)
    }
}

fn start(engine: &Inner, filename: &std::path::Path, asked: &Asked<'_>) -> Result<Transfer, Fault> {
    let policy: Policy = parsed(asked.policy)?;
    let path: Option<Way> = asked.path.map(parsed).transpose()?;
    let device: Device = asked.device.parse()?;
    let checkpoint = open(filename)?;
    let selection = select(asked, &checkpoint)?;
    let pieces = selection.pieces(&checkpoint)?;
    let destination = device.destination(filename, policy)?;
    let to = destination.place();
    let mut request = Request {
        destination: destination.clone(),
        policy,
        path,
        verify: if asked.verify {
            Verify::Compare
        } else {
            Verify::No
        },
        ..Request::to_host(place(filename), pieces.clone())
    };
    let running = if policy == Policy::Require {
        // A refusal names what stands in the way, so that has to be known before the first byte.
        request.candidates = machine::routes(&pieces, &to)?;
        engine.load(request)?
    } else {
        let mut running = engine.load(request)?;
        running.consider(machine::routes(&pieces, &to)?);
        running
    };
    Ok(Transfer::of_load(
        running,
        Landed {
            checkpoint: Arc::new(checkpoint),
            selection,
            destination,
        },
    ))
}

/// Opens what a caller means by a name: a file without a name that says otherwise is safetensors.
pub fn open(filename: &std::path::Path) -> Result<Checkpoint, Fault> {
    let checkpoint = Checkpoint::open(filename)?;
    match checkpoint.kind() {
        Kind::Raw => Ok(Checkpoint::open_safetensors(filename)?),
        _ => Ok(checkpoint),
    }
}

/// The tensors that are asked for.
pub fn select(asked: &Asked<'_>, checkpoint: &Checkpoint) -> Result<Selection, Fault> {
    let mut selector = Selector::default();
    if !asked.tensors.is_empty() {
        selector = selector.tensors(&asked.tensors)?;
    }
    if let Some((rank, ranks)) = asked.shard {
        selector = selector.slice(RankSlice::new(rank, ranks)?);
    }
    Ok(selector.select(checkpoint)?)
}

/// A word of crowfly's: a policy, an engine path.
pub fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(word: &str) -> Result<T, Fault> {
    word.parse()
        .map_err(|error: T::Err| Fault::usage(error.to_string()))
}

/// How a path stands in a receipt: so that it still means something elsewhere.
pub fn place(path: &std::path::Path) -> Place {
    let absolute = std::path::absolute(path);
    let path = absolute.as_deref().unwrap_or(path);
    Place::File(path.display().to_string())
}
