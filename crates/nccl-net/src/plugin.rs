//! What all communicators of a process share: the devices, the objects that NCCL holds, the summary.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, RwLock};

use crowfly_mover::fabric::Access;
use crowfly_route::policy::Policy;

use crate::abi;
use crate::account::{CommReceipt, Summary, append};
use crate::calls::COMMUNICATORS;
use crate::comm::{Comm, locked};
use crate::device::{Device, survey};
use crate::door::Door;
use crate::error::NetError;
use crate::gpus::Gpus;
use crate::handle::{self, Handle};
use crate::logger;
use crate::memory::Memory;
use crate::records::TICKET;
use crate::settings::Settings;
use crate::table::Table;

/// Comms by the number that NCCL knows them by.
pub(crate) static COMMS: Table<Comm> = Table::of("comm");
/// Listening comms.
pub(crate) static LISTENING: Table<Listening> = Table::of("listening comm");
/// Registered memory.
pub(crate) static MEMORIES: Table<Memory> = Table::of("registered memory");
static ATTEMPTS: Table<Attempt> = Table::of("attempt to connect");
static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

/// Bits of a request's number that count the requests of its comm.
const REQUEST_BITS: u32 = 24;
const REQUEST_MASK: usize = (1 << REQUEST_BITS) - 1;

struct Running {
    plugin: Arc<Plugin>,
    /// Communicators that began and were not finalized.
    users: usize,
}

/// What all communicators share.
pub(crate) struct Plugin {
    pub settings: Settings,
    pub gpus: Gpus,
    devices: RwLock<Vec<Arc<Device>>>,
    summary: Mutex<Summary>,
}

/// A listening comm.
pub(crate) struct Listening {
    door: Arc<Door>,
    ticket: [u8; TICKET],
}

/// A connection that a thread is making.
struct Attempt(Mutex<Option<Result<Comm, NetError>>>);

/// The running plugin.
pub(crate) fn running() -> Result<Arc<Plugin>, NetError> {
    let running = locked(&RUNNING);
    let plugin = running.as_ref().map(|running| Arc::clone(&running.plugin));
    plugin.ok_or(NetError::NotInitialized)
}

/// A communicator begins.
pub(crate) fn begin() -> Result<(), NetError> {
    let mut running = locked(&RUNNING);
    if let Some(running) = &mut *running {
        running.users += 1;
        return Ok(());
    }
    let plugin = Arc::new(Plugin::start()?);
    *running = Some(Running { plugin, users: 1 });
    settle_at_exit();
    Ok(())
}

/// A communicator ends, and with the last one the devices' part of the fabric.
pub(crate) fn end() -> Result<(), NetError> {
    let mut running = locked(&RUNNING);
    let users = running.as_mut().ok_or(NetError::NotInitialized)?;
    users.users -= 1;
    let last = if users.users == 0 {
        running.take()
    } else {
        None
    };
    drop(running);
    if let Some(last) = last {
        last.plugin.summarize();
    }
    Ok(())
}

impl Plugin {
    fn start() -> Result<Self, NetError> {
        let settings = Settings::from_environment()?;
        let (devices, obstacles) = survey(&settings)?;
        let version = env!("CARGO_PKG_VERSION");
        let policy = settings.policy;
        logger::info(&format!("crowfly {version}, policy {policy}"));
        for (number, device) in devices.iter().enumerate() {
            let assumed = if device.speed_assumed {
                " (assumed)"
            } else {
                ""
            };
            logger::info(&format!(
                "device {number}: {}, {} Mb/s{assumed}",
                device.name.to_string_lossy(),
                device.speed,
            ));
        }
        for obstacle in &obstacles {
            logger::info(&logger::line(obstacle));
        }
        // NCCL takes another network when this one fails, unless it is told to take no other.
        if policy == Policy::Require && std::env::var_os("NCCL_NET").is_none() {
            logger::warn(
                "set NCCL_NET=crowfly, or NCCL may use another network when this one refuses",
            );
        }
        Ok(Self {
            summary: Mutex::new(Summary::new(policy)),
            settings,
            gpus: Gpus::default(),
            devices: RwLock::new(devices),
        })
    }

    pub(crate) fn devices(&self) -> Vec<Arc<Device>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.clone()
    }

    pub(crate) fn device(&self, number: c_int) -> Result<Arc<Device>, NetError> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        let device = usize::try_from(number).ok().and_then(|n| devices.get(n));
        device.cloned().ok_or(NetError::NoSuchDevice {
            device: number,
            count: devices.len(),
        })
    }

    /// Makes one device of several; its number.
    pub(crate) fn merge(&self, numbers: &[c_int]) -> Result<c_int, NetError> {
        let mut parts = Vec::new();
        for number in numbers {
            parts.push((*number, self.device(*number)?));
        }
        let merged = Arc::new(Device::merged(&parts, &self.settings)?);
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        logger::info(&format!(
            "device {}: {}, {} Mb/s",
            devices.len(),
            merged.name.to_string_lossy(),
            merged.speed
        ));
        devices.push(merged);
        Ok(c_int::try_from(devices.len() - 1).unwrap_or(c_int::MAX))
    }

    pub(crate) fn listen(&self, device: c_int) -> Result<(usize, Handle), NetError> {
        let door = self.device(device)?.door(&self.settings)?;
        let handle = door.listen()?;
        let ticket = handle.ticket;
        let number = LISTENING.keep(Arc::new(Listening { door, ticket }));
        Ok((number, handle))
    }

    /// Starts to connect, or looks what became of it; the comm once there is one.
    pub(crate) fn connect(
        &self,
        device: c_int,
        bytes: &mut [u8; abi::HANDLE],
    ) -> Result<Option<usize>, NetError> {
        let number = handle::attempt(bytes);
        if number == 0 {
            let handle = Handle::decode(bytes)?;
            let door = self.device(device)?.door(&self.settings)?;
            let attempt = Arc::new(Attempt(Mutex::new(None)));
            let mine = Arc::clone(&attempt);
            std::thread::Builder::new()
                .name("crowfly-dial".into())
                .spawn(move || {
                    let made = door.connect(&handle).map(Comm::Send);
                    *locked(&mine.0) = Some(made);
                })
                .map_err(|error| crowfly_mover::fabric::FabricError::Setup {
                    what: "starting a thread",
                    source: Arc::new(error),
                })?;
            handle::note_attempt(bytes, ATTEMPTS.keep(attempt));
            return Ok(None);
        }
        let attempt = ATTEMPTS.get(number)?;
        let Some(made) = locked(&attempt.0).take() else {
            return Ok(None);
        };
        ATTEMPTS.take(number)?;
        handle::note_attempt(bytes, 0);
        let comm = made?;
        greet(&comm);
        Ok(Some(COMMS.keep(Arc::new(comm))))
    }

    fn write(&self, receipt: &CommReceipt) {
        locked(&self.summary).add(receipt);
        self.append(receipt);
    }

    fn append(&self, document: &impl serde::Serialize) {
        if let Some(path) = &self.settings.receipts
            && let Err(error) = append(path, document)
        {
            logger::unwritten(path, &error);
        }
    }

    fn summarize(&self) {
        let summary = locked(&self.summary).clone();
        self.append(&summary);
        let bytes = |account: &crate::account::Account| account.bytes;
        logger::info(&format!(
            "{} comms, {} failed, {} sent, {} received",
            summary.comms,
            summary.failed,
            bytes(&summary.sent),
            bytes(&summary.received)
        ));
    }
}

impl Listening {
    /// The next comm that came, if one has come.
    pub(crate) fn accept(&self) -> Result<Option<usize>, NetError> {
        let Some(receiver) = self.door.accept(&self.ticket)? else {
            return Ok(None);
        };
        let comm = Comm::Receive(receiver);
        greet(&comm);
        Ok(Some(COMMS.keep(Arc::new(comm))))
    }

    pub(crate) fn close(&self) {
        self.door.stop_listening(&self.ticket);
    }
}

/// Says which rails a new comm has.
fn greet(comm: &Comm) {
    let (line, way) = match comm {
        Comm::Send(sender) => (sender.line(), "to"),
        Comm::Receive(receiver) => (receiver.line(), "from"),
    };
    let rails: Vec<String> = line
        .peer
        .rails()
        .iter()
        .map(|rail| format!("{}:{}", rail.path, rail.nic))
        .collect();
    logger::info(&format!(
        "{}: {way} {} at {} by {}",
        line.door.device,
        line.peer.incarnation(),
        line.peer.address(),
        rails.join(", ")
    ));
}

/// Registers memory with the device of a comm: for peers to write into where it receives.
///
/// # Safety
/// As for [`Memory::register`].
pub(crate) unsafe fn register(
    comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    kind: c_int,
) -> Result<usize, NetError> {
    let comm = COMMS.named(comm)?;
    let access = match &*comm {
        Comm::Send(_) => Access::LOCAL,
        Comm::Receive(_) => Access::WRITE,
    };
    let (plugin, fabric) = (running()?, comm.line().fabric());
    // SAFETY: as the caller promises.
    let memory = unsafe { Memory::register(fabric, &plugin.gpus, data, len, kind, access) }?;
    Ok(MEMORIES.keep(Arc::new(memory)))
}

pub(crate) fn deregister(comm: *mut c_void, memory: *mut c_void) -> Result<(), NetError> {
    let comm = COMMS.named(comm)?;
    let memory = MEMORIES.take(memory.addr())?;
    comm.release(&memory)
}

/// The number of a request: that of its comm, and its own within the comm.
pub(crate) const fn request(comm: usize, number: u32) -> usize {
    comm << REQUEST_BITS | number as usize & REQUEST_MASK
}

/// The comm of a request, and its number there.
pub(crate) fn of_request(pointer: *mut c_void) -> Result<(Arc<Comm>, u32), NetError> {
    let number = pointer.addr();
    let comm = COMMS
        .get(number >> REQUEST_BITS)
        .map_err(|_| NetError::Unknown("request"))?;
    Ok((comm, (number & REQUEST_MASK) as u32))
}

/// Closes a comm and writes its receipt.
pub(crate) fn close(pointer: *mut c_void) -> Result<(), NetError> {
    let comm = COMMS.take(pointer.addr())?;
    let receipt = comm.close();
    if let Ok(plugin) = running() {
        plugin.write(&receipt);
    }
    Ok(())
}

/// Programs often end without closing anything: what went by is written then as well.
pub(crate) fn settle_at_exit() {
    static ONCE: Once = Once::new();
    static PROCESS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn settle() {
        // A child that was forked has the parent's comms in its memory and none of its own.
        if PROCESS.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        let told = || {
            for communicator in COMMUNICATORS.all() {
                communicator.write(false);
            }
        };
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(told));
        // Whoever holds the lock is at work still and will not come to an end.
        let Ok(running) = RUNNING.try_lock() else {
            return;
        };
        let Some(plugin) = running.as_ref().map(|running| Arc::clone(&running.plugin)) else {
            return;
        };
        drop(running);
        let write = || {
            for receipt in COMMS.all().iter().filter_map(|comm| comm.so_far()) {
                plugin.write(&receipt);
            }
            plugin.summarize();
        };
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write));
    }

    ONCE.call_once(|| {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the function takes nothing, panics into nobody, and its code stays loaded.
        unsafe { libc::atexit(settle) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::pointer;

    #[test]
    fn a_request_leads_back_to_its_comm_and_a_made_up_one_nowhere() {
        let number = request(0x1234, 7);
        assert_eq!((number >> REQUEST_BITS, number & REQUEST_MASK), (0x1234, 7));
        for made_up in [0, 1, usize::MAX, number] {
            let error = of_request(pointer(made_up)).err().expect("nothing");
            assert_eq!(error.to_string(), NetError::Unknown("request").to_string());
        }
    }
}
