//! RDMA: reliable connections over InfiniBand or RoCE through libibverbs.
//!
//! [`discover`] finds the ports that can be used and says why others cannot. A port is a
//! [`VerbsNic`]; a [link](super::provider::Link) to a peer is a few queue pairs ("lanes") between
//! two ports. Ops are posted by the thread that asks, as one chain on one lane whose last request
//! is signalled; one thread for each port fetches completions.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};

use crowfly_machine::gpu::GpuExporter;
use crowfly_machine::verbs::{
    Access as VerbsAccess, Context, DmaBufSupport, GidFilter, LinkLayer, MemoryRegion, Patience,
    Pinned, Port, PortGid, ProtectionDomain, Registered, Verbs, VerbsError, ranked,
    register_device, register_host, register_host_ordered,
};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::Path;

use self::endpoint::VerbsEndpoint;
use self::loopback::Loopback;
use self::pump::Pump;
use super::memory::Backing;
use super::port::PortCount;
use super::provider::{Endpoint, Meeting, Provider, Registration, Role};
use super::region::Access;

mod endpoint;
mod hello;
mod hops;
mod link;
mod loopback;
mod pump;
mod visible;

/// How patient a connection is when nobody says: it gives up a peer's NIC that does not answer after
/// two to ten seconds (NICs take up to four times what is asked for), in time for other rails to carry on
/// within a transfer's usual deadline.
const PATIENCE: Patience = Patience {
    timeout: 16,
    retries: 7,
    receiver_retries: 7,
    receiver_timer: 12,
};
/// What soft-RoCE counts to at the most; it takes the 7 of the hardware for *for ever*.
const SOFTWARE_RETRIES: u8 = 6;

/// The most lanes of one link.
pub const MAX_LANES: usize = 8;

/// How a port is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsSettings {
    /// Queue pairs to each peer, [`MAX_LANES`] at most. Two keep a fast port busy while one waits
    /// for an answer.
    pub lanes: usize,
    /// Requests in flight on each.
    pub depth: usize,
    /// How patient a connection is with a peer that does not answer.
    pub patience: Patience,
    /// Which of the port's addresses may be used.
    pub address: GidFilter,
}

impl Default for VerbsSettings {
    fn default() -> Self {
        Self {
            lanes: 2,
            depth: 128,
            patience: PATIENCE,
            address: GidFilter::Any,
        }
    }
}

/// One port of an RDMA device.
pub struct VerbsNic {
    core: Arc<NicCore>,
    pump: Arc<Pump>,
}

/// What a port and its links share.
struct NicCore {
    name: String,
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    port: Port,
    settings: VerbsSettings,
    software: bool,
    /// By what the port pushes its own writes into a GPU's memory, made when it is first needed.
    loopback: OnceLock<Result<Loopback, String>>,
}

impl fmt::Debug for VerbsNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsNic({})", self.core.name)
    }
}

/// The ports that can be used, and why others, or none at all, cannot.
pub fn discover(verbs: &Verbs, settings: &VerbsSettings) -> (Vec<Arc<VerbsNic>>, Vec<Obstacle>) {
    let (mut nics, mut obstacles) = (Vec::new(), Vec::new());
    let names = match verbs.devices() {
        Ok(names) => names,
        Err(error) => return (nics, vec![unusable("libibverbs", &error)]),
    };
    if names.is_empty() {
        let none = Obstacle::blocks(Code::NoRdmaDevice, "the machine has no RDMA device")
            .seen("ibv_get_device_list", "no devices");
        return (nics, vec![none]);
    }
    for name in names {
        let ports = verbs.open(&name).and_then(|context| {
            let limits = context.limits()?;
            Ok((context, 1..=limits.ports))
        });
        match ports {
            Err(error) => obstacles.push(unusable(&name, &error)),
            Ok((context, ports)) => {
                for port in ports {
                    match VerbsNic::open(&context, port, settings.clone()) {
                        Ok(nic) => nics.push(Arc::new(nic)),
                        Err(obstacle) => obstacles.push(*obstacle),
                    }
                }
            }
        }
    }
    (nics, obstacles)
}

impl VerbsNic {
    /// Gets a port ready for use.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(
        context: &Arc<Context>,
        port: u8,
        settings: VerbsSettings,
    ) -> Result<Self, Box<Obstacle>> {
        let name = format!("{}:{port}", context.name());
        if context.is_iwarp() {
            return Err(Box::new(
                Obstacle::blocks(
                    Code::NotBuilt,
                    format!("{name} speaks iWARP, which this build does not connect"),
                )
                .seen("ibv_device.transport_type", "iWARP"),
            ));
        }
        let failed = |error: VerbsError| Box::new(unusable(&name, &error));
        let port = context.port(port).map_err(failed)?;
        if !port.active {
            return Err(Box::new(is_down(&name)));
        }
        let domain = context.protection_domain().map_err(failed)?;
        let software = context.is_software();
        let mut settings = settings;
        if software {
            settings.patience.retries = settings.patience.retries.min(SOFTWARE_RETRIES);
        }
        let core = Arc::new(NicCore {
            name: name.clone(),
            context: Arc::clone(context),
            domain,
            port,
            settings,
            software,
            loopback: OnceLock::new(),
        });
        let pump = Pump::start(&name).map_err(|error| {
            Box::new(
                Obstacle::blocks(Code::QueuePairRefused, format!("{name} cannot be served"))
                    .seen("thread", error.to_string()),
            )
        })?;
        Ok(Self { core, pump })
    }

    /// Whether it registers memory that another device exports as a dma-buf.
    pub fn takes_dma_bufs(&self) -> bool {
        matches!(self.core.domain.takes_dma_bufs(), DmaBufSupport::Yes)
    }

    /// Why its bytes are not straight, when the kernel plays the device in software.
    pub fn detour(&self) -> Option<Obstacle> {
        self.core.software.then(|| {
            Obstacle::blocks(
                Code::SoftwareNic,
                format!("{} is played by the kernel in software", self.core.name),
            )
            .seen(
                format!("/sys/class/infiniband/{}/device", self.core.context.name()),
                "absent",
            )
            .fixed_by(Fix::by_hand("Use an RDMA card."))
        })
    }
}

impl NicCore {
    /// The port's addresses, best first; none within one InfiniBand subnet is no fault.
    fn addresses(&self) -> Result<Vec<PortGid>, VerbsError> {
        let gids = self.context.addresses(&self.port)?;
        let usable = ranked(&gids, &self.settings.address);
        if usable.is_empty() && self.port.link_layer == LinkLayer::Ethernet {
            let wanted = &self.settings.address;
            return Err(VerbsError::NoAddress {
                device: self.context.name().to_owned(),
                port: self.port.number,
                wanted: (*wanted != GidFilter::Any).then(|| wanted.to_string()),
            });
        }
        Ok(usable)
    }

    fn counters(&self) -> Result<PortCount, String> {
        PortCount::of_rdma_port(self.context.name(), self.port.number)
    }

    fn refused(&self, error: &VerbsError) -> Obstacle {
        unusable(&self.name, error)
    }
}

fn is_down(name: &str) -> Obstacle {
    Obstacle::blocks(Code::PortDown, format!("{name} is not active"))
        .seen("ibv_query_port", "state is not ACTIVE")
        .fixed_by(Fix::by_hand(
            "Look at the cable and the peer port; bring the interface up.",
        ))
}

/// What it means that something other than registering memory failed.
fn unusable(what: &str, error: &VerbsError) -> Obstacle {
    match error {
        VerbsError::Unsupported { .. } => Obstacle::blocks(
            Code::NoVerbsLibrary,
            format!("{what} cannot be used: libibverbs is missing or too old"),
        )
        .fixed_by(Fix::run(
            "Install rdma-core.",
            "apt-get install ibverbs-providers",
        )),
        _ => Obstacle::blocks(Code::QueuePairRefused, format!("{what} cannot be used")),
    }
    .seen("libibverbs", error.to_string())
}

impl Provider for VerbsNic {
    fn path(&self) -> Path {
        Path::Verbs
    }

    fn class(&self) -> Class {
        if self.core.software {
            Class::Socket
        } else {
            Class::Direct
        }
    }

    fn nic(&self) -> &str {
        &self.core.name
    }

    fn line_rate(&self) -> Option<f64> {
        let bits = self.core.context.rate(self.core.port.number)?;
        (!self.core.software).then_some(bits / 8.0)
    }

    fn is_virtual_function(&self) -> bool {
        let device = self.core.context.name();
        std::path::Path::new("/sys/class/infiniband")
            .join(device)
            .join("device/physfn")
            .exists()
    }

    fn fit(&self, theirs: &[u8], _: &Meeting) -> Result<u8, String> {
        let core = &self.core;
        let theirs = hello::Hello::from_bytes(theirs)?;
        let ours = core.addresses().map_err(|error| error.to_string())?;
        let infiniband = core.port.link_layer == LinkLayer::InfiniBand;
        endpoint::joined_by(infiniband, &ours, &theirs)
            .map_err(|why| format!("{} of the other end: {why}", core.name))
    }

    fn register(
        &self,
        memory: &Arc<Backing>,
        access: Access,
    ) -> Result<Registration, Vec<Obstacle>> {
        let wanted = VerbsAccess {
            local_write: memory.writable(),
            remote_read: access.allows_read(),
            remote_write: access.allows_write() && memory.writable(),
            relaxed_ordering: false,
        };
        let pinned: Arc<dyn Pinned> = Arc::clone(memory) as _;
        let place = memory.place();
        let done = match memory.device() {
            Some(device) => {
                // What the driver itself copies is seen in order by the NIC; where it refuses, copies
                // of this process are waited for in any case.
                let _ = device.order_for_devices();
                let owner = place.to_string();
                let exporter = GpuExporter::new(Arc::clone(device.gpu()), owner);
                let facts = device.gpu().facts().for_registration();
                register_device(&self.core.domain, &pinned, &exporter, &facts, wanted)
            }
            None if matches!(place, Place::Gpu(_)) => {
                return Err(vec![
                    Obstacle::blocks(
                        Code::NoGpuRuntime,
                        format!("nobody said by which runtime memory of {place} can be exported"),
                    )
                    .seen("place", place.to_string()),
                ]);
            }
            _ if access.is_ordered() => register_host_ordered(&self.core.domain, &pinned, wanted),
            None => register_host(&self.core.domain, &pinned, wanted),
        };
        let Registered {
            region,
            mut obstacles,
            flush,
            ..
        } = done?;
        obstacles.extend(self.detour());
        let gpu = memory.device().map(|device| Arc::clone(device.gpu()));
        let flushed = visible::flush(&self.core, &region, gpu, &flush);
        Ok(Registration {
            address: region.address(),
            key: region.keys().remote.to_le_bytes().to_vec(),
            keep: region,
            obstacles,
            visibility: flush.without_flush(),
            flush: flushed,
        })
    }

    fn endpoint(&self, role: Role, _: &Meeting) -> Result<Box<dyn Endpoint>, Obstacle> {
        // It may have gone down, or come up with other properties, since it was opened.
        let port = self.core.context.port(self.core.port.number);
        let port = port.map_err(|error| self.core.refused(&error))?;
        if !port.active {
            return Err(is_down(&self.core.name));
        }
        let made = VerbsEndpoint::new(&self.core, &self.pump, role);
        let endpoint = made.map_err(|error| self.core.refused(&error))?;
        Ok(Box::new(endpoint))
    }
}

/// The region that [`Provider::register`] kept.
fn region_of(registration: &Registration) -> Option<Arc<MemoryRegion>> {
    Arc::clone(&registration.keep).downcast().ok()
}

/// A lock whose holder never leaves it in disorder.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
