//! One open GPU: what is known of it, being current on a thread, its peers.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use crowfly_route::units::{Bytes, NumaNode, PciAddress};

use super::abi::{self, Handle};
use super::error::GpuError;
use super::functions::{Dialect, Functions, Refusal};
use super::runtime::Runtime;
use crate::verbs::GpuFacts;

/// What a runtime says of a GPU. `None` where it does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The runtime's own handle of it.
    pub(super) device: c_int,
    /// The model.
    pub name: String,
    /// Where it is.
    pub address: PciAddress,
    /// All of its memory.
    pub memory: Bytes,
    /// The node of host memory that is nearest to it.
    pub numa: Option<NumaNode>,
    /// Such as (9, 0).
    pub compute_capability: Option<(u32, u32)>,
    /// Whether the CPU reaches its memory over a coherent link beside PCIe.
    pub coherent_link: Option<bool>,
    /// Whether the driver says that it exports memory as dma-bufs. Only an export proves it.
    pub exports_dma_buf: Option<bool>,
    /// Whether writes of other devices can be flushed by [`Gpu::flush_writes`].
    pub flushes_for_host: Option<bool>,
    /// Whether the GPU sees other devices' writes in order without a flush.
    pub orders_writes: Option<bool>,
}

impl Facts {
    /// The number by which the runtime, and every library on top of it, calls it in this process.
    pub const fn ordinal(&self) -> i32 {
        self.device
    }

    /// What the registration of memory with a NIC needs to know.
    pub fn for_registration(&self) -> GpuFacts {
        GpuFacts {
            compute_capability: self.compute_capability,
            coherent_link: self.coherent_link == Some(true),
        }
    }
}

/// What became of writes that other devices had made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteFlush {
    /// Nothing had to be done; why.
    NotNeeded(&'static str),
    /// They were flushed.
    Flushed,
    /// They could not be; why.
    Impossible(String),
}

/// Why one GPU does not reach another's memory.
#[derive(Clone, Debug)]
pub enum PeerRefusal {
    /// The two are of different runtimes.
    OtherMaker,
    /// The runtime says that it cannot be.
    Impossible {
        /// The function asked.
        call: &'static str,
    },
    /// It can be, and switching it on failed.
    Failed(GpuError),
}

impl fmt::Display for PeerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherMaker => f.write_str("the two GPUs have different runtimes"),
            Self::Impossible { call } => write!(f, "{call} answered no"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// A GPU, open.
pub struct Gpu {
    runtime: Arc<Runtime>,
    facts: Facts,
    /// CUDA's primary context; null in HIP, which has none to hold.
    context: Handle,
    /// Devices whose memory this one was given access to.
    peers: Mutex<BTreeSet<c_int>>,
}

// SAFETY: the runtimes' functions are thread-safe, and a context has no thread affinity.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.facts.address)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.runtime.dialect() == Dialect::Cuda {
            // SAFETY: retained once by `open`; memory, streams and events hold an `Arc` of this.
            let _ = unsafe { self.functions().primary_release(self.facts.device) };
        }
    }
}

/// A GPU that is current on this thread until this is dropped.
pub(super) struct Current<'g> {
    gpu: &'g Gpu,
    /// In HIP, the device that was current before.
    before: Option<c_int>,
    /// What is current is so on one thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let functions = self.gpu.functions();
        match self.before {
            // SAFETY: a device that was current before.
            Some(device) => drop(unsafe { functions.set_device(device) }),
            None => {
                let mut popped = std::ptr::null_mut();
                // SAFETY: the context was pushed on this thread, which this value never leaves.
                drop(unsafe { functions.context_pop(&raw mut popped) });
            }
        }
    }
}

impl Gpu {
    pub(super) fn open(runtime: &Arc<Runtime>, facts: Facts) -> Result<Arc<Self>, GpuError> {
        let mut context = std::ptr::null_mut();
        if runtime.dialect() == Dialect::Cuda {
            let functions = runtime.functions();
            // SAFETY: it writes one handle; the device is one that the runtime showed.
            let retained = unsafe { functions.primary_retain(&raw mut context, facts.device) };
            retained.map_err(|refusal| runtime.error(&facts.address.to_string(), refusal))?;
        }
        Ok(Arc::new(Self {
            runtime: Arc::clone(runtime),
            facts,
            context,
            peers: Mutex::default(),
        }))
    }

    /// What is known of it.
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its runtime.
    pub const fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    pub(super) fn functions(&self) -> &Functions {
        self.runtime.functions()
    }

    pub(super) fn did(&self, outcome: Result<(), Refusal>) -> Result<(), GpuError> {
        outcome.map_err(|refusal| {
            self.runtime
                .error(&format!("GPU {}", self.facts.address), refusal)
        })
    }

    /// Makes the GPU current on this thread, and what was current before again afterwards: the
    /// thread may be another library's.
    pub(super) fn enter(&self) -> Result<Current<'_>, GpuError> {
        let functions = self.functions();
        match self.runtime.dialect() {
            Dialect::Cuda => {
                // SAFETY: the context is held by this value.
                self.did(unsafe { functions.context_push(self.context) })?;
                Ok(Current {
                    gpu: self,
                    before: None,
                    _of_this_thread: PhantomData,
                })
            }
            Dialect::Hip => {
                let mut before = 0;
                // SAFETY: it writes one integer.
                self.did(unsafe { functions.get_device(&raw mut before) })?;
                // SAFETY: a device that the runtime showed.
                self.did(unsafe { functions.set_device(self.facts.device) })?;
                Ok(Current {
                    gpu: self,
                    before: Some(before),
                    _of_this_thread: PhantomData,
                })
            }
        }
    }

    /// Makes the GPU current for a call of another library, such as cuFile's.
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn current<R>(&self, call: impl FnOnce() -> R) -> Result<R, GpuError> {
        let _current = self.enter()?;
        Ok(call())
    }

    /// Memory that is free now.
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn free_memory(&self) -> Result<Bytes, GpuError> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two integers.
        self.did(unsafe { self.functions().memory_info(&raw mut free, &raw mut total) })?;
        Ok(Bytes(free as u64))
    }

    /// Lets this GPU reach another's memory, once.
    ///
    /// # Errors
    /// Why it does not.
    pub fn reach(&self, other: &Self) -> Result<(), PeerRefusal> {
        if self.runtime.dialect() != other.runtime.dialect() {
            return Err(PeerRefusal::OtherMaker);
        }
        let (device, peer) = (self.facts.device, other.facts.device);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if device == peer || peers.contains(&peer) {
            return Ok(());
        }
        let functions = self.functions();
        let mut can = 0;
        // SAFETY: it writes one integer; both devices are ones that the runtime showed.
        let asked = unsafe { functions.can_access_peer(&raw mut can, device, peer) };
        self.did(asked).map_err(PeerRefusal::Failed)?;
        if can == 0 {
            let call = functions
                .dialect
                .of("cuDeviceCanAccessPeer", "hipDeviceCanAccessPeer");
            return Err(PeerRefusal::Impossible { call });
        }
        let _current = self.enter().map_err(PeerRefusal::Failed)?;
        let enabled = match functions.dialect {
            // SAFETY: the other's context is held by `other`.
            Dialect::Cuda => unsafe { functions.enable_peer_context(other.context, 0) },
            // SAFETY: a device that the runtime showed.
            Dialect::Hip => unsafe { functions.enable_peer_device(peer, 0) },
        };
        match enabled {
            Ok(()) => {}
            Err(Refusal::Answer { code, .. }) if code == abi::PEER_ACCESS_ALREADY_ENABLED => {}
            Err(refusal) => return self.did(Err(refusal)).map_err(PeerRefusal::Failed),
        }
        peers.insert(peer);
        Ok(())
    }

    /// Makes what other devices wrote into this GPU's memory visible to work that is queued from
    /// now on.
    pub fn flush_writes(&self) -> WriteFlush {
        if self.facts.orders_writes == Some(true) {
            return WriteFlush::NotNeeded("the driver says that the GPU sees writes in order");
        }
        if self.facts.flushes_for_host != Some(true) {
            return WriteFlush::Impossible("the driver does not offer to flush".into());
        }
        let flushed = self.enter().and_then(|_current| {
            let (target, scope) = (abi::FLUSH_TARGET_CURRENT_CONTEXT, abi::FLUSH_TO_OWNER);
            // SAFETY: it has no memory to touch but that of the current context.
            self.did(unsafe { self.functions().flush_writes(target, scope) })
        });
        match flushed {
            Ok(()) => WriteFlush::Flushed,
            Err(error) => WriteFlush::Impossible(error.to_string()),
        }
    }

    pub(super) const fn context(&self) -> Handle {
        self.context
    }

    pub(super) const fn device(&self) -> c_int {
        self.facts.device
    }
}
