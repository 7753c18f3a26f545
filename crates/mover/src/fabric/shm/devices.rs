//! GPUs' memory between processes of one host: what the owner tells, and what the other end opens.
//!
//! The owner tells which GPU it is and by what its runtime opens the memory elsewhere: an allocation's
//! handle, or a descriptor for each piece. The other end opens it on that same GPU, which needs no
//! access between GPUs; whether its own GPU reaches it is found out when bytes are to be copied.
//!
//! Handles of allocations know no rights: whoever opens one can write, and reaches the whole
//! allocation. They go to processes of the same user alone, as everything on this path.

use std::sync::Arc;

use crowfly_machine::gpu::{
    DeviceMemory, Dialect, Gpu as Device, GpuError, IpcHandle, PeerRefusal, Runtime, Shared,
};
use crowfly_route::units::PciAddress;

use super::*;
use crate::fabric::memory::reaches;
use crate::gpu::{Gpu, no_peer_access};

/// The most pieces of one memory that are sent: 20 GiB of those that PyTorch maps.
const MAX_PIECES: usize = 1024;
/// The bytes of an allocation's handle.
const HANDLE: usize = 64;

/// What a message says a region's memory is.
const FILE: u8 = 0;
const ALLOCATION: u8 = 1;
const PIECE: u8 = 2;

/// A GPU's memory as its owner tells of it.
pub(super) struct Told {
    pub gpu: u32,
    pub address: PciAddress,
    pub dialect: Dialect,
    pub shared: Shared,
}

/// What has come of memory that comes in pieces.
pub(super) struct Arriving {
    told: Place,
    address: PciAddress,
    dialect: Dialect,
    pieces: Vec<(OwnedFd, usize)>,
    count: usize,
    len: u64,
    writable: bool,
}

/// What a peer told of its memory.
pub(super) enum Arrived {
    /// A memory file.
    File,
    /// All of a GPU's memory.
    Gpu {
        told: Told,
        len: u64,
        writable: bool,
    },
    /// One piece; this is the next to ask for.
    More(u16),
}

/// The GPUs on which memory of peers is opened.
pub(crate) struct Devices {
    open: Mutex<Vec<Arc<Device>>>,
}

impl Devices {
    pub(crate) fn of(gpus: &[Arc<Gpu>]) -> Self {
        let open = gpus.iter().map(|gpu| Arc::clone(gpu.device()));
        Self {
            open: Mutex::new(open.collect()),
        }
    }

    /// The GPU at an address, opened by a runtime that this process has at work already.
    fn at(
        &self,
        told: &Told,
        beside: Option<&Arc<Runtime>>,
    ) -> Result<Arc<Device>, Option<GpuError>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |device: &&Arc<Device>| {
            device.facts().address == told.address && device.runtime().dialect() == told.dialect
        };
        if let Some(device) = open.iter().find(same) {
            return Ok(Arc::clone(device));
        }
        let known = open.iter().map(|device| device.runtime());
        let mut runtimes = beside.into_iter().chain(known);
        let runtime = runtimes.find(|runtime| runtime.dialect() == told.dialect);
        let device = runtime.ok_or(None)?.open(told.address).map_err(Some)?;
        open.push(Arc::clone(&device));
        Ok(device)
    }

    /// Opens what a peer told of.
    fn memory(
        &self,
        told: &Told,
        len: u64,
        writable: bool,
        beside: Option<&Arc<Runtime>>,
    ) -> Result<Backing, Box<Obstacle>> {
        let place = Place::Gpu(told.gpu);
        let failed = |at: &str, why: String| {
            Box::new(
                Obstacle::blocks(
                    Code::GpuMemoryNotShared,
                    format!("this process cannot open memory that the peer shares of its {place}"),
                )
                .seen(at, why)
                .fixed_by(Fix::by_hand(
                    "Let both processes see the GPU (CUDA_VISIBLE_DEVICES), in one container or with a shared IPC namespace.",
                )),
            )
        };
        let device = self.at(told, beside).map_err(|error| match error {
            None => failed(
                "the runtime",
                format!("no {} is at work here", told.dialect),
            ),
            Some(error) => failed(error.call().unwrap_or("the runtime"), error.to_string()),
        })?;
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let memory = DeviceMemory::open(&device, &told.shared, bytes)
            .map_err(|error| failed(error.call().unwrap_or("the handle"), error.to_string()))?;
        Backing::of_gpu(told.gpu, memory, writable)
            .map_err(|error| failed("the address", error.to_string()))
    }
}

/// What another process opens a GPU's memory by.
pub(super) fn share(memory: &DeviceMemory, place: &Place) -> Result<Told, Box<Obstacle>> {
    let refused = |at: &str, why: String| {
        Box::new(
            Obstacle::blocks(
                Code::GpuMemoryNotShared,
                format!("this memory of {place} cannot be shared with processes of this host"),
            )
            .seen(at, why)
            .fixed_by(Fix::by_hand(
                "Register memory that the runtime's own allocator made.",
            )),
        )
    };
    let shared = memory
        .share()
        .map_err(|error| refused(error.call().unwrap_or("the memory"), error.to_string()))?;
    match &shared {
        Shared::Pieces(pieces) if pieces.len() > MAX_PIECES => Err(refused(
            "the memory",
            format!(
                "it has {} pieces; {MAX_PIECES} at most are sent",
                pieces.len()
            ),
        )),
        _ => Ok(Told {
            gpu: hops::gpu_of(place).map_or(u32::MAX, |(index, _)| index),
            address: memory.gpu().facts().address,
            dialect: memory.gpu().runtime().dialect(),
            shared,
        }),
    }
}

/// Why bytes do not go from one GPU's memory straight to the other's.
pub(super) fn unreached(verb: Verb, ours: &Backing, theirs: &Backing) -> Option<Obstacle> {
    let (from, to) = match verb {
        Verb::Write => (ours, theirs),
        Verb::Read => (theirs, ours),
    };
    let refusal: PeerRefusal = reaches(from, to).err()?;
    Some(no_peer_access(from.place(), to.place(), &refusal))
}

/// Asks for a region's memory, or for one more of its pieces.
pub(super) fn question(op: u64, capability: Capability, piece: u16) -> Frame {
    let mut body = Writer::default();
    body.raw(capability.as_bytes()).u16(piece);
    Frame::new(Kind::Map, op, body.finish())
}

/// The capability and the piece that a peer asks for.
pub(super) fn asked(body: &[u8]) -> Result<(Capability, u16), Violation> {
    let mut fields = Reader::new(body);
    let asked = fields
        .array()
        .zip(fields.u16())
        .filter(|_| fields.is_done());
    let (capability, piece) = asked.ok_or(Violation("a malformed question for memory"))?;
    Ok((Capability::from_bytes(capability), piece))
}

/// How a message about memory begins.
fn begin(len: u64, writable: bool, kind: u8) -> Writer {
    let mut body = Writer::default();
    body.u64(len).u8(u8::from(writable)).u8(kind);
    body
}

/// The answer that hands a memory file over.
pub(super) fn file(op: u64, len: u64, writable: bool, file: OwnedFd) -> Frame {
    Frame {
        descriptor: Some(file),
        ..Frame::new(Kind::Mapped, op, begin(len, writable, FILE).finish())
    }
}

/// The answer that hands a GPU's memory over, or one piece of it; `None` when there is no such piece.
pub(super) fn answer(op: u64, told: &Told, len: u64, writable: bool, piece: u16) -> Option<Frame> {
    let whose = |body: &mut Writer| {
        let at = told.address;
        body.u32(told.gpu).u32(at.domain);
        body.u8(at.bus).u8(at.device).u8(at.function);
        body.u8(match told.dialect {
            Dialect::Cuda => 0,
            Dialect::Hip => 1,
        });
    };
    match &told.shared {
        Shared::Handle { handle, offset } => {
            let mut body = begin(len, writable, ALLOCATION);
            whose(&mut body);
            body.u64(*offset).raw(&handle.bytes);
            Some(Frame::new(Kind::Mapped, op, body.finish()))
        }
        Shared::Pieces(pieces) => {
            let (descriptor, bytes) = pieces.get(usize::from(piece))?;
            let mut body = begin(len, writable, PIECE);
            whose(&mut body);
            body.u16(u16::try_from(pieces.len()).ok()?)
                .u64(*bytes as u64);
            Some(Frame {
                descriptor: Some(rustix::io::fcntl_dupfd_cloexec(descriptor, 0).ok()?),
                ..Frame::new(Kind::Mapped, op, body.finish())
            })
        }
    }
}

/// Reads what a peer told, and puts what comes in pieces together.
pub(super) fn arrived(
    state: &mut HashMap<Capability, Arriving>,
    capability: Capability,
    body: &[u8],
    descriptor: &mut Option<OwnedFd>,
) -> Result<Arrived, Violation> {
    const MALFORMED: Violation = Violation("a malformed answer about memory");
    let mut fields = Reader::new(body);
    let begun = (|| Some((fields.u64()?, fields.u8()? != 0, fields.u8()?)))();
    let (len, writable, kind) = begun.ok_or(MALFORMED)?;
    if kind == FILE {
        return match fields.is_done() {
            true => Ok(Arrived::File),
            false => Err(MALFORMED),
        };
    }
    let whose = (|| {
        let gpu = fields.u32()?;
        let address = PciAddress {
            domain: fields.u32()?,
            bus: fields.u8()?,
            device: fields.u8()?,
            function: fields.u8()?,
        };
        let dialect = match fields.u8()? {
            0 => Dialect::Cuda,
            1 => Dialect::Hip,
            _ => return None,
        };
        Some((gpu, address, dialect))
    })();
    let (gpu, address, dialect) = whose.ok_or(MALFORMED)?;
    let whole = |shared| Arrived::Gpu {
        told: Told {
            gpu,
            address,
            dialect,
            shared,
        },
        len,
        writable,
    };
    match kind {
        ALLOCATION => {
            let read = (|| Some((fields.u64()?, fields.array::<HANDLE>()?)))();
            let (offset, bytes) = read.filter(|_| fields.is_done()).ok_or(MALFORMED)?;
            let handle = IpcHandle { bytes };
            Ok(whole(Shared::Handle { handle, offset }))
        }
        PIECE => {
            let read = (|| Some((fields.u16()?, fields.u64()?)))();
            let (count, bytes) = read.filter(|_| fields.is_done()).ok_or(MALFORMED)?;
            let bytes = usize::try_from(bytes).map_err(|_| MALFORMED)?;
            let count = usize::from(count);
            if count == 0 || count > MAX_PIECES {
                return Err(Violation("memory of no or too many pieces"));
            }
            let descriptor = descriptor.take();
            let descriptor = descriptor.ok_or(Violation("a piece without its memory"))?;
            let known = state.entry(capability).or_insert_with(|| Arriving {
                told: Place::Gpu(gpu),
                address,
                dialect,
                pieces: Vec::new(),
                count,
                len,
                writable,
            });
            let same = known.told == Place::Gpu(gpu)
                && (known.address, known.dialect) == (address, dialect)
                && (known.count, known.len, known.writable) == (count, len, writable);
            if !same {
                return Err(Violation("pieces of different memories"));
            }
            known.pieces.push((descriptor, bytes));
            let have = known.pieces.len();
            if have < count {
                return u16::try_from(have)
                    .map(Arrived::More)
                    .map_err(|_| MALFORMED);
            }
            let pieces = state.remove(&capability).map(|known| known.pieces);
            Ok(whole(Shared::Pieces(pieces.unwrap_or_default())))
        }
        _ => Err(MALFORMED),
    }
}

impl ShmLink {
    /// Opens a GPU's memory that the peer shares, in a thread that copies: a driver may take its time.
    pub(super) fn open_device(
        &self,
        capability: Capability,
        told: Told,
        len: u64,
        writable: bool,
        hold: tether::Hold,
    ) {
        let Some(this) = self.this.upgrade() else {
            return;
        };
        self.copier.push(move || {
            let beside = this.runtime_at_work(&capability);
            let opened = this.devices.memory(&told, len, writable, beside.as_ref());
            let opened = opened.map(|memory| Mapped::new(memory, hold));
            let mapping = match &opened {
                Ok(mapped) => Mapping::Here(Arc::clone(mapped)),
                Err(obstacle) => Mapping::Refused(vec![(**obstacle).clone()]),
            };
            let waiting = {
                let mut state = this.state();
                let withdrawn = state.opening.remove(&capability).flatten();
                match state.maps.get(&capability) {
                    Some(Mapping::Asked(_)) => match state.maps.insert(capability, mapping) {
                        Some(Mapping::Asked(ops)) => ops,
                        _ => Vec::new(),
                    },
                    // It was withdrawn, or the link is closed.
                    _ => {
                        drop(state);
                        drop((opened, mapping));
                        withdrawn
                            .into_iter()
                            .for_each(|frame| this.conn.send(frame));
                        return;
                    }
                }
            };
            this.mapped.notify_all();
            for op in waiting {
                let stray = opened
                    .as_ref()
                    .ok()
                    .and_then(|mapped| Self::strays(&op, mapped));
                match (&opened, stray) {
                    (Ok(mapped), None) => this.dispatch(op, Arc::clone(mapped)),
                    (Ok(_), Some(detour)) => {
                        this.ended(op.id.0, Err(OpError::Elsewhere(vec![detour])));
                    }
                    (Err(obstacle), _) => {
                        let why = vec![(**obstacle).clone()];
                        this.ended(op.id.0, Err(OpError::Elsewhere(why)));
                    }
                }
            }
        });
    }

    /// A runtime that ops which wait for memory have at work.
    fn runtime_at_work(&self, capability: &Capability) -> Option<Arc<Runtime>> {
        let state = self.state();
        let Some(Mapping::Asked(ops)) = state.maps.get(capability) else {
            return None;
        };
        let mut locals = ops.iter().filter_map(|op| op.local.as_ref());
        locals.find_map(|local| {
            let device = local.region.backing().device()?;
            Some(Arc::clone(device.gpu().runtime()))
        })
    }
}
