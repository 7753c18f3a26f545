//! A maker's runtime and the GPUs that it shows.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

use crowfly_route::units::{Bytes, PciAddress};

use super::abi;
use super::device::{Facts, Gpu};
use super::error::GpuError;
use super::functions::{Dialect, Functions, Refusal};
use crate::numa;

/// A maker's runtime, initialised.
pub struct Runtime {
    functions: Arc<Functions>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runtime({})", self.functions.library)
    }
}

impl Runtime {
    /// The installed runtime. Initialising can take seconds on machines with many GPUs.
    ///
    /// # Errors
    /// When the library or a function is missing, or the runtime finds no driver or no GPU.
    pub fn load(dialect: Dialect) -> Result<Arc<Self>, GpuError> {
        let functions = Functions::load(dialect)?;
        // SAFETY: the functions are those of the runtime.
        unsafe { Self::with(functions) }
    }

    /// A runtime by a table of functions.
    ///
    /// # Safety
    /// Each function must behave as its maker documents.
    ///
    /// # Errors
    /// When the runtime does not start.
    pub unsafe fn with(functions: Arc<Functions>) -> Result<Arc<Self>, GpuError> {
        let runtime = Self { functions };
        // SAFETY: may be called any number of times, from any thread.
        runtime.did(unsafe { runtime.functions.init(0) })?;
        Ok(Arc::new(runtime))
    }

    /// Whose runtime it is.
    pub fn dialect(&self) -> Dialect {
        self.functions.dialect
    }

    /// The library's file name.
    pub fn library(&self) -> &'static str {
        self.functions.library
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The version of the interface: 12080 for CUDA 12.8; `None` where the library does not say.
    pub fn version(&self) -> Option<u32> {
        let mut version = 0;
        // SAFETY: it writes one integer.
        let asked = unsafe { self.functions.version(&raw mut version) };
        asked.ok().and_then(|()| u32::try_from(version).ok())
    }

    /// The GPUs that the runtime shows this process, in PCI address order. A variable such as
    /// `CUDA_VISIBLE_DEVICES` can hide some.
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn gpus(&self) -> Result<Vec<Facts>, GpuError> {
        let mut count = 0;
        // SAFETY: it writes one integer.
        self.did(unsafe { self.functions.device_count(&raw mut count) })?;
        let mut gpus = (0..count)
            .map(|ordinal| self.facts(ordinal))
            .collect::<Result<Vec<_>, _>>()?;
        gpus.sort_by_key(|gpu| gpu.address);
        Ok(gpus)
    }

    /// Opens the GPU at an address, for the life of the value.
    ///
    /// # Errors
    /// When the runtime does not show it, or cannot give it a context.
    pub fn open(self: &Arc<Self>, address: PciAddress) -> Result<Arc<Gpu>, GpuError> {
        let gpus = self.gpus()?;
        match gpus.iter().find(|gpu| gpu.address == address) {
            Some(facts) => Gpu::open(self, facts.clone()),
            None => Err(GpuError::NoSuchGpu {
                library: self.library(),
                address,
                known: gpus.iter().map(|gpu| gpu.address).collect(),
            }),
        }
    }

    /// The GPU whose memory an address is in, and its place in the order of [`Runtime::gpus`].
    ///
    /// # Errors
    /// What the runtime answers: it knows no memory there, or of none of its GPUs.
    pub fn owner_of(&self, address: u64) -> Result<(usize, Facts), GpuError> {
        let mut ordinal: c_int = -1;
        let to = (&raw mut ordinal).cast();
        // SAFETY: the attribute is an integer of 32 bits.
        self.did(unsafe {
            self.functions
                .pointer_attribute(to, abi::POINTER_DEVICE_ORDINAL, address)
        })?;
        let mut gpus = self.gpus()?.into_iter().enumerate();
        let owner = gpus.find(|(_, gpu)| gpu.device == ordinal);
        owner.ok_or_else(|| GpuError::Call {
            gpu: format!("memory at {address:#x}"),
            call: self
                .functions
                .dialect
                .of("cuPointerGetAttribute", "hipPointerGetAttribute"),
            code: 0,
            meaning: format!("it is of device {ordinal}, which the runtime does not show"),
        })
    }

    fn facts(&self, ordinal: c_int) -> Result<Facts, GpuError> {
        let f = &self.functions;
        let mut device = 0;
        // SAFETY: it writes one integer.
        self.did(unsafe { f.device_get(&raw mut device, ordinal) })?;
        let text = |call: &dyn Fn(*mut c_char, c_int) -> Result<(), Refusal>| {
            let mut text = [0u8; abi::TEXT];
            self.did(call(text.as_mut_ptr().cast(), abi::TEXT as c_int))?;
            let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
            Ok(text.to_string_lossy().into_owned())
        };
        // SAFETY: each writes a C string of at most the length given.
        let name = text(&|to, len| unsafe { f.device_name(to, len, device) })?;
        // SAFETY: as above.
        let bus = text(&|to, len| unsafe { f.device_bus(to, len, device) })?;
        let address: PciAddress = bus.parse().map_err(|_| GpuError::Call {
            gpu: name.clone(),
            call: f.dialect.of("cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId"),
            code: 0,
            meaning: format!("`{bus}` is no PCI address"),
        })?;
        let mut bytes = 0;
        // SAFETY: it writes one integer.
        self.did(unsafe { f.device_memory(&raw mut bytes, device) })?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: it writes one integer.
            let asked = unsafe { f.device_attribute(&raw mut value, which, device) };
            asked.ok().map(|()| value)
        };
        let part = |which| attribute(which).and_then(|value| u32::try_from(value).ok());
        let major = part(abi::ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = part(abi::ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        let yes = |which| attribute(which).map(|value| value > 0);
        Ok(Facts {
            device,
            name,
            address,
            memory: Bytes(bytes as u64),
            numa: numa::node_of_pci_device(address),
            compute_capability: major.zip(minor),
            coherent_link: yes(abi::ATTRIBUTE_HOST_PAGE_TABLES),
            exports_dma_buf: yes(abi::ATTRIBUTE_DMA_BUF_SUPPORTED),
            flushes_for_host: attribute(abi::ATTRIBUTE_FLUSH_WRITES_OPTIONS)
                .map(|options| options & abi::FLUSH_OPTION_HOST != 0),
            orders_writes: attribute(abi::ATTRIBUTE_WRITES_ORDERING)
                .map(|scope| scope >= abi::WRITES_ORDERED_FOR_OWNER),
        })
    }

    pub(super) fn did(&self, outcome: Result<(), Refusal>) -> Result<(), GpuError> {
        outcome.map_err(|refusal| self.error(self.library(), refusal))
    }

    /// A refusal in the runtime's own words.
    pub(super) fn error(&self, gpu: &str, refusal: Refusal) -> GpuError {
        match refusal {
            Refusal::Missing(symbol) => GpuError::Unsupported {
                library: self.library(),
                symbol,
                why: "the installed version does not have it".into(),
            },
            Refusal::Answer { call, code } => GpuError::Call {
                gpu: gpu.to_owned(),
                call,
                code,
                meaning: self.meaning(code),
            },
        }
    }

    fn meaning(&self, code: c_int) -> String {
        let mut text = std::ptr::null();
        // SAFETY: it writes one pointer.
        let known = unsafe { self.functions.error_text(code, &raw mut text) };
        if known.is_err() || text.is_null() {
            return "no explanation".into();
        }
        // SAFETY: both runtimes give static C strings.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}
