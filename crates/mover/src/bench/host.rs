//! The end that is measured against.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_route::place::Place;

use super::protocol::{Answer, Ask, VERSION, hear, say};
use super::{BenchError, MAX_ROUND_TRIPS, MAX_SIZE, PATIENCE};
use crate::fabric::rendezvous::{Directory, Presence, RendezvousError, attend};
use crate::fabric::{
    Access, Buffer, Fabric, FabricError, Imm, Options, Peer, Region, RegionDescriptor, Settings,
};
use crate::gpu::Gpu;

/// Peers that are served at one time: one for each path, for a few who measure.
pub const MAX_GUESTS: usize = 16;
/// How often it is looked whether to end.
const GLANCE: Duration = Duration::from_millis(50);
/// How long a guest may leave its line unused.
const IDLE: Duration = Duration::from_secs(600);
/// Bytes of a page, each of which is touched before the clock starts.
const PAGE: usize = 4096;

/// In what memory an end has its bytes.
#[derive(Clone, Debug, Default)]
pub enum Held {
    /// In host memory.
    #[default]
    Host,
    /// In memory of a GPU.
    Gpu(Arc<Gpu>),
}

impl Held {
    /// The place.
    pub fn place(&self) -> Place {
        match self {
            Self::Host => Place::Host(None),
            Self::Gpu(gpu) => gpu.place(),
        }
    }

    /// Memory for measurements, every page of it there already.
    pub(super) fn memory(&self, bytes: u64, mappable: bool) -> Result<Buffer, BenchError> {
        let len = usize::try_from(bytes).map_err(|_| BenchError::TooLarge {
            asked: crowfly_route::units::Bytes(bytes),
        })?;
        match self {
            Self::Host => host_memory(len, mappable),
            Self::Gpu(gpu) => Ok(Buffer::on_gpu(gpu, len).map_err(FabricError::from)?),
        }
    }
}

/// The end that is measured against: it lends memory to whoever knows the key and answers pings.
#[derive(Debug)]
pub struct Host {
    fabric: Fabric,
    memory: Held,
    next_imm: AtomicU32,
    guests: Arc<AtomicUsize>,
}

fn host_memory(len: usize, mappable: bool) -> Result<Buffer, BenchError> {
    let buffer = if mappable {
        Buffer::zeroed(len, None)
    } else {
        Buffer::private(len)
    };
    let mut buffer = buffer.map_err(FabricError::from)?;
    if let Some(bytes) = buffer.as_mut_slice() {
        bytes.chunks_mut(PAGE).for_each(|page| page.fill(1));
    }
    Ok(buffer)
}

impl Host {
    /// Listens where the settings say, and lends host memory.
    ///
    /// # Errors
    /// As [`Fabric::new`].
    pub fn new(settings: Settings) -> Result<Self, BenchError> {
        Self::lending(settings, Held::Host)
    }

    /// Listens where the settings say, and lends memory of this kind.
    ///
    /// # Errors
    /// As [`Fabric::new`].
    pub fn lending(settings: Settings, memory: Held) -> Result<Self, BenchError> {
        Ok(Self {
            fabric: Fabric::new(settings)?,
            memory,
            next_imm: AtomicU32::new(1),
            guests: Arc::default(),
        })
    }

    /// Where it can be reached.
    pub fn address(&self) -> SocketAddr {
        self.fabric.address()
    }

    /// Writes down where it can be reached, for as long as the answer lives.
    ///
    /// # Errors
    /// [`RendezvousError`].
    pub fn announce(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Presence, RendezvousError> {
        attend(&self.fabric, directory, name)
    }

    /// Serves all who come until `ended` says so. What fails between it and one guest ends that
    /// guest's visit and is theirs to report.
    pub fn serve(&self, ended: &AtomicBool) {
        std::thread::scope(|scope| {
            while !ended.load(Ordering::Acquire) {
                let Ok(peer) = self.fabric.accept(GLANCE) else {
                    continue;
                };
                if self.guests.fetch_add(1, Ordering::AcqRel) >= MAX_GUESTS {
                    self.guests.fetch_sub(1, Ordering::AcqRel);
                    peer.close();
                    continue;
                }
                let guest = peer.clone();
                let visit = move || {
                    let _ = self.entertain(&guest, ended);
                    guest.close();
                    self.guests.fetch_sub(1, Ordering::AcqRel);
                };
                let thread = std::thread::Builder::new().name("crowfly-guest".into());
                if let Err(error) = thread.spawn_scoped(scope, visit) {
                    let _ = refuse(&peer, &format!("it could start no thread: {error}"));
                    peer.close();
                    self.guests.fetch_sub(1, Ordering::AcqRel);
                }
            }
        });
    }

    /// One guest's visit.
    fn entertain(&self, peer: &Peer, ended: &AtomicBool) -> Result<(), BenchError> {
        let options = Options::within(PATIENCE);
        let Ask::Open {
            version,
            bytes,
            mappable,
            descriptor,
        } = hear(peer, options)?
        else {
            return refuse(peer, "it has not asked for memory yet");
        };
        if version != VERSION {
            let why = format!("it speaks version {VERSION}, not {version}");
            return refuse(peer, &why);
        }
        if bytes > 2 * MAX_SIZE {
            return refuse(peer, &format!("it lends {} bytes at most", 2 * MAX_SIZE));
        }
        let theirs = RegionDescriptor::from_bytes(&descriptor).map_err(FabricError::from)?;
        let region = self
            .memory
            .memory(bytes, mappable)
            .and_then(|buffer| Ok(self.fabric.register(buffer, Access::READ_WRITE)?));
        let region = match region {
            Ok(region) => region,
            Err(error) => return refuse(peer, &error.to_string()),
        };
        let _leaving = Leaving(peer);
        let imm = Imm(self.next_imm.fetch_add(1, Ordering::Relaxed));
        let opened = Answer::Opened {
            descriptor: region.descriptor().to_bytes().map_err(FabricError::from)?,
            imm: imm.0,
        };
        say(peer, &opened, options)?;
        while let Some(ask) = self.next(peer, ended)? {
            match ask {
                Ask::Usage => say(peer, &Answer::Used(usage::this_process()), options)?,
                Ask::Echo { bytes, times } if times <= MAX_ROUND_TRIPS => {
                    self.echo(peer, &region, &theirs, imm, bytes, times)?;
                }
                Ask::Echo { .. } | Ask::Open { .. } => {
                    return refuse(peer, "it does not do that on an open line");
                }
            }
        }
        Ok(())
    }

    /// The next question; `None` when there is none any more.
    fn next(&self, peer: &Peer, ended: &AtomicBool) -> Result<Option<Ask>, BenchError> {
        let until = Instant::now() + IDLE;
        while Instant::now() < until && !ended.load(Ordering::Acquire) && peer.lost().is_none() {
            match hear(peer, Options::within(GLANCE)) {
                Err(BenchError::Fabric(FabricError::Deadline { .. })) => {}
                other => return other.map(Some),
            }
        }
        Ok(None)
    }

    fn echo(
        &self,
        peer: &Peer,
        region: &Region,
        theirs: &RegionDescriptor,
        imm: Imm,
        bytes: u64,
        times: u32,
    ) -> Result<(), BenchError> {
        let options = Options::within(PATIENCE);
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (from, to) = (region.slice(0..len)?, theirs.slice(0..bytes)?);
        say(peer, &Answer::Listening, options)?;
        let counter = self.fabric.counter(imm);
        for _ in 0..times {
            counter.wait(1, PATIENCE)?;
            counter.take(1);
            peer.write_imm(&from, &to, imm, options).wait()?;
        }
        Ok(())
    }
}

/// Says goodbye before the memory is taken away that was lent, whatever ends the visit.
struct Leaving<'a>(&'a Peer);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn refuse(peer: &Peer, why: &str) -> Result<(), BenchError> {
    let why = why.to_owned();
    say(peer, &Answer::Refused { why }, Options::within(PATIENCE))
}
