//! Copies of loaded bytes between memories of GPUs and host memory, with a receipt.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crowfly_machine::gpu::{
    DeviceMemory, Gpu as Device, GpuError, HostRegistration, InFlight, PeerRefusal, Stream,
};
use crowfly_machine::usage;
use crowfly_machine::verbs::Pinned;
use crowfly_route::hop::{Candidate, Carrier, Class, CpuWork, Hop, HostUse, Route, Stop};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{
    CpuSeconds, Path, RECEIPT_SCHEMA, Receipt, Share, Verification, Visibility,
};
use crowfly_route::search::obstacles_of_better;
use crowfly_route::units::{Bytes, NumaNode};

use super::Gpu;
use crate::engine::since;
use crate::error::TransferError;
use crate::memory::{Memory, MemoryError, Region};
use crate::transfer::Loaded;

/// What one buffer between two GPUs holds.
const BUFFER: usize = 8 << 20;
/// How many there are: while one is filled, another is emptied.
const BUFFERS: usize = 4;

/// Where a copy goes.
#[derive(Clone, Debug)]
pub enum To {
    /// New host memory, on a node if it matters.
    Host(Option<NumaNode>),
    /// New memory of this GPU.
    Gpu(Arc<Gpu>),
}

/// What to copy.
#[derive(Debug)]
pub struct CopyRequest {
    /// The bytes: a GPU's, or plain host memory.
    pub from: Region,
    /// Where to. At least one end has to be a GPU.
    pub to: To,
    /// How far they may stray: between GPUs that do not reach each other, through host memory.
    pub policy: Policy,
    /// The routes considered between the two places, best first, when a topology is known.
    pub candidates: Vec<Candidate>,
}

/// Copies, and waits for it.
///
/// # Errors
/// When the policy does not allow the way that is open, the bytes are neither a GPU's nor plain
/// host memory, or a GPU fails.
pub fn copy(request: CopyRequest) -> Result<Loaded, TransferError> {
    let cpu = usage::this_thread();
    let from = request.from.place();
    let (to, memory) = target(&request)?;
    let len = request.from.len();
    let failed = |source| TransferError::Gpu {
        path: from.to_string(),
        offset: 0,
        source,
    };
    let started = Instant::now();
    let done = match (request.from.device(), memory.device()) {
        (Some((source, range)), Some(target)) => between(source, range, target, &request, &to)?,
        (Some((source, range)), None) => out(source, range, &memory).map_err(failed)?,
        (None, Some(target)) if request.from.as_slice().is_some() => {
            into(&request.from, target).map_err(failed)?
        }
        (None, _) => return Err(refused(&request, &to, vec![no_copy(&from)])),
    };
    let direct = done.class == Class::Direct;
    if request.policy == Policy::Require && !direct {
        return Err(refused(&request, &to, done.obstacles));
    }
    let wall = started.elapsed().as_secs_f64();
    let receipt = done.receipt(&request, to, len, wall, since(cpu));
    Ok(Loaded {
        regions: vec![Region::new(memory, 0..len)],
        receipt,
    })
}

fn target(request: &CopyRequest) -> Result<(Place, Arc<Memory>), TransferError> {
    let len = request.from.len();
    Ok(match &request.to {
        To::Host(node) => (Place::Host(*node), Memory::host(len, *node)?),
        To::Gpu(gpu) => {
            let memory = DeviceMemory::allocate(gpu.device(), len);
            let memory = memory.map_err(|source| MemoryError::Gpu {
                gpu: gpu.index(),
                bytes: len,
                source,
            })?;
            (gpu.place(), Memory::of_gpu(gpu.index(), memory)?)
        }
    })
}

fn refused(request: &CopyRequest, to: &Place, obstacles: Vec<Obstacle>) -> TransferError {
    TransferError::Refused {
        from: Box::new(request.from.place()),
        to: Box::new(to.clone()),
        policy: request.policy,
        obstacles,
    }
}

/// Why bytes are loaded rather than copied.
fn no_copy(from: &Place) -> Obstacle {
    Obstacle::blocks(
        Code::NotBuilt,
        format!("a GPU's copy engine has no part in a copy from {from}, or its bytes can vanish"),
    )
    .seen(
        "memory",
        "neither a GPU's nor plain host memory of this process",
    )
    .fixed_by(Fix::by_hand("Load the file into the GPU's memory instead."))
}

/// What was done, for the receipt.
struct Done {
    route: &'static str,
    class: Class,
    bounced: u64,
    because: Option<String>,
    obstacles: Vec<Obstacle>,
}

impl Done {
    const fn straight(route: &'static str) -> Self {
        Self {
            route,
            class: Class::Direct,
            bounced: 0,
            because: None,
            obstacles: Vec::new(),
        }
    }

    fn receipt(
        self,
        request: &CopyRequest,
        to: Place,
        len: usize,
        wall_seconds: f64,
        cpu: CpuSeconds,
    ) -> Receipt {
        let from = request.from.place();
        let bytes = Bytes(len as u64);
        let known = request.candidates.iter().map(|candidate| &candidate.route);
        let route = known
            .clone()
            .find(|route| self.names().contains(&route.name.as_str()))
            .cloned()
            .unwrap_or_else(|| bare_route(self.route, &from, &to));
        let mut obstacles = self.obstacles;
        for obstacle in obstacles_of_better(&request.candidates, &route) {
            if !obstacles.iter().any(|known| known.code == obstacle.code) {
                obstacles.push(obstacle.clone());
            }
        }
        let path = match self.class {
            Class::Direct => Path::GpuCopy,
            _ => Path::Staged,
        };
        Receipt {
            schema: RECEIPT_SCHEMA.into(),
            policy: request.policy,
            requested: bytes,
            shares: vec![Share {
                path,
                class: self.class,
                bytes,
                because: self.because,
            }],
            bounced: Bytes(self.bounced),
            overread: Bytes(0),
            retries: 0,
            wall_seconds,
            cpu,
            ceiling: route.ceiling().map(|ceiling| ceiling.capacity),
            obstacles,
            visibility: Visibility::NotNeeded("the GPU's copies were waited for".into()),
            verification: Verification::NotAsked,
            route,
            from,
            to,
        }
    }

    /// The names under which the search for routes may know it.
    fn names(&self) -> &'static [&'static str] {
        match self.route {
            "gpu-peer-to-peer" => &["nvlink", "xgmi", "gpu-peer-to-peer"],
            "host-staged" => &["host-staged"],
            "pageable" => &["pageable"],
            _ => &["pinned"],
        }
    }
}

/// From GPU to GPU: by a copy engine where one reaches the other, or else through host memory.
fn between(
    source: &Arc<DeviceMemory>,
    range: Range<usize>,
    target: &Arc<DeviceMemory>,
    request: &CopyRequest,
    to: &Place,
) -> Result<Done, TransferError> {
    let from = request.from.place();
    let failed = |source| TransferError::Gpu {
        path: from.to_string(),
        offset: 0,
        source,
    };
    let in_the_way = match request.policy {
        Policy::Socket => return Err(refused(request, to, Vec::new())),
        Policy::Staged => None,
        // The one that has the bytes writes: that is faster over PCIe than reading.
        Policy::Require | Policy::Prefer => match source.gpu().reach(target.gpu()) {
            Ok(()) => {
                across(source, range, target).map_err(failed)?;
                return Ok(Done::straight("gpu-peer-to-peer"));
            }
            Err(refusal) => Some(no_peer_access(&from, to, &refusal)),
        },
    };
    if request.policy == Policy::Require {
        return Err(refused(request, to, in_the_way.into_iter().collect()));
    }
    let because = match &in_the_way {
        Some(obstacle) => obstacle.summary.clone(),
        None => "policy `staged` was asked for".into(),
    };
    let mut obstacles: Vec<Obstacle> = in_the_way.into_iter().collect();
    let bounced = range.len() as u64;
    through_host(source, range, target, &mut obstacles).map_err(|error| match error {
        Bounce::Gpu(error) => failed(error),
        Bounce::Memory(error) => error.into(),
    })?;
    Ok(Done {
        route: "host-staged",
        class: Class::Staged,
        bounced,
        because: Some(because),
        obstacles,
    })
}

/// Why one GPU does not copy to another.
pub(crate) fn no_peer_access(from: &Place, to: &Place, refusal: &PeerRefusal) -> Obstacle {
    let at = match refusal {
        PeerRefusal::Impossible { call } => call,
        PeerRefusal::Failed(error) => error.call().unwrap_or("peer access"),
        PeerRefusal::OtherMaker => "the runtimes",
    };
    Obstacle::blocks(
        Code::GpuWithoutPeerAccess,
        format!("{from} does not reach the memory of {to}"),
    )
    .seen(at, refusal.to_string())
    .fixed_by(
        Fix::by_hand(
            "Look at the chipset, ACS and the IOMMU between them, and at what GeForce cards do not have.",
        )
        .checked_by("nvidia-smi topo -p2p r"),
    )
}

fn across(
    source: &Arc<DeviceMemory>,
    range: Range<usize>,
    target: &Arc<DeviceMemory>,
) -> Result<(), GpuError> {
    let stream = Stream::new(source.gpu())?;
    stream.copy_across(target, 0, source, range)?.wait()
}

/// What can fail on the way through host memory.
enum Bounce {
    Gpu(GpuError),
    Memory(MemoryError),
}

impl From<GpuError> for Bounce {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

impl From<MemoryError> for Bounce {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

/// Out of one GPU into pinned buffers and from there into the other, overlapped.
fn through_host(
    source: &Arc<DeviceMemory>,
    range: Range<usize>,
    target: &Arc<DeviceMemory>,
    obstacles: &mut Vec<Obstacle>,
) -> Result<(), Bounce> {
    let (from, to) = (source.gpu(), target.gpu());
    let buffers = Memory::host(BUFFERS * BUFFER, from.facts().numa)?;
    let pinned: Arc<dyn Pinned> = buffers as _;
    let _pins = [pin(from, &pinned, obstacles), pin(to, &pinned, obstacles)];
    let (leaving, arriving) = (Stream::new(from)?, Stream::new(to)?);
    let joined = from.runtime().dialect() == to.runtime().dialect();
    let mut busy: [Option<InFlight>; BUFFERS] = [const { None }; BUFFERS];
    let mut done = 0;
    while done < range.len() {
        let len = BUFFER.min(range.len() - done);
        let index = done / BUFFER % BUFFERS;
        // A buffer is filled again only when what was in it has arrived.
        if let Some(flight) = busy.get_mut(index).and_then(Option::take) {
            flight.wait()?;
        }
        let (slot, at) = (index * BUFFER, range.start + done);
        let left = leaving.copy_out(&pinned, slot, source, at..at + len)?;
        match left.event() {
            Some(event) if joined => arriving.wait_for(event)?,
            _ => {}
        }
        if !joined {
            left.wait()?;
        }
        let arrives = arriving.copy_in(target, done, &pinned, slot..slot + len)?;
        if let Some(busy) = busy.get_mut(index) {
            *busy = Some(arrives);
        }
        done += len;
    }
    for flight in busy.into_iter().flatten() {
        flight.wait()?;
    }
    Ok(())
}

/// Pins host memory; where that is refused, copies are slower and not wrong.
pub(crate) fn pin(
    gpu: &Arc<Device>,
    memory: &Arc<dyn Pinned>,
    obstacles: &mut Vec<Obstacle>,
) -> Option<HostRegistration> {
    match HostRegistration::new(gpu, Arc::clone(memory)) {
        Ok(pinned) => Some(pinned),
        Err(error) => {
            let known = obstacles
                .iter()
                .any(|o| o.code == Code::HostMemoryNotPinned);
            if !known {
                obstacles.push(
                    Obstacle::slows(
                        Code::HostMemoryNotPinned,
                        "the host memory of the copy could not be pinned",
                    )
                    .seen(error.call().unwrap_or("host register"), error.to_string())
                    .fixed_by(
                        Fix::run("Raise the limit on locked memory.", "ulimit -l unlimited")
                            .checked_by("ulimit -l"),
                    ),
                );
            }
            None
        }
    }
}

/// Out of a GPU into host memory.
fn out(
    source: &Arc<DeviceMemory>,
    range: Range<usize>,
    memory: &Arc<Memory>,
) -> Result<Done, GpuError> {
    let mut obstacles = Vec::new();
    let host: Arc<dyn Pinned> = Arc::clone(memory) as _;
    let pinned = pin(source.gpu(), &host, &mut obstacles);
    let stream = Stream::new(source.gpu())?;
    stream.copy_out(&host, 0, source, range)?.wait()?;
    Ok(by_host(pinned.is_some(), obstacles))
}

/// From plain host memory into a GPU.
fn into(region: &Region, target: &Arc<DeviceMemory>) -> Result<Done, GpuError> {
    let mut obstacles = Vec::new();
    let host: Arc<dyn Pinned> = Arc::clone(region.memory()) as _;
    let pinned = pin(target.gpu(), &host, &mut obstacles);
    let stream = Stream::new(target.gpu())?;
    let range = region.start()..region.start() + region.len();
    stream.copy_in(target, 0, &host, range)?.wait()?;
    Ok(by_host(pinned.is_some(), obstacles))
}

/// A copy that one end of is host memory. Memory that is not pinned goes through a buffer of the
/// runtime's.
fn by_host(pinned: bool, obstacles: Vec<Obstacle>) -> Done {
    if pinned {
        return Done {
            obstacles,
            ..Done::straight("pinned")
        };
    }
    Done {
        class: Class::Staged,
        because: obstacles.first().map(|obstacle| obstacle.summary.clone()),
        obstacles,
        ..Done::straight("pageable")
    }
}

/// The hops where no topology is known.
fn bare_route(name: &str, from: &Place, to: &Place) -> Route {
    let stop = |place: &Place, use_| match place {
        Place::Gpu(index) => Stop::Gpu { index: *index },
        Place::Host(numa) => Stop::Host { use_, numa: *numa },
        _ => Stop::Host { use_, numa: None },
    };
    let gpu = |place: &Place| match place {
        Place::Gpu(index) => Some(Carrier::Dma {
            device: format!("gpu{index}"),
        }),
        _ => None,
    };
    let copy = || Carrier::Cpu {
        work: CpuWork::UserCopy,
    };
    let hop = Hop::bare;
    let own = HostUse::Application;
    let bounce = || Stop::Host {
        use_: HostUse::Bounce,
        numa: None,
    };
    let carrier = gpu(from).or_else(|| gpu(to)).unwrap_or_else(copy);
    let hops = match name {
        "host-staged" => vec![
            hop(stop(from, own), bounce(), carrier),
            hop(bounce(), stop(to, own), gpu(to).unwrap_or_else(copy)),
        ],
        "pageable" => match gpu(from) {
            Some(_) => vec![
                hop(stop(from, own), bounce(), carrier),
                hop(bounce(), stop(to, own), copy()),
            ],
            None => vec![
                hop(stop(from, own), bounce(), copy()),
                hop(bounce(), stop(to, own), carrier),
            ],
        },
        _ => vec![hop(stop(from, own), stop(to, own), carrier)],
    };
    Route {
        name: name.into(),
        from: from.clone(),
        to: to.clone(),
        hops,
    }
}
