//! The functions of CUDA's driver API and of HIP, found at run time.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::abi::{AccessDescriptor, AllocationProperties, Handle, IpcHandle, SUCCESS};
use super::error::GpuError;

/// Whose runtime it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// NVIDIA's CUDA, by its driver API.
    Cuda,
    /// AMD's HIP.
    Hip,
}

impl Dialect {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cuda, Self::Hip];

    /// The names under which the library is installed, newest first.
    pub const fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["libcuda.so.1"],
            Self::Hip => &["libamdhip64.so.7", "libamdhip64.so.6"],
        }
    }

    pub(crate) const fn of<T: Copy>(self, cuda: T, hip: T) -> T {
        match self {
            Self::Cuda => cuda,
            Self::Hip => hip,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.of("CUDA", "HIP"))
    }
}

/// A call that did not succeed.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// The library has no such function.
    Missing(&'static str),
    /// The function returned this.
    Answer { call: &'static str, code: c_int },
}

macro_rules! functions {
    (
        required { $($name:ident($cuda:literal, $hip:literal) ($($arg:ident: $type:ty),*);)+ }
        optional { $($later:ident($later_cuda:literal, $later_hip:literal) ($($later_arg:ident: $later_type:ty),*);)+ }
    ) => {
        /// What crowfly calls of a GPU's runtime. The real table comes from [`Functions::load`]; a
        /// test can put another in its place. A function that the library lacks, or that only the
        /// other maker's has, is `None`.
        #[derive(Clone)]
        #[allow(missing_docs, reason = "each is the C function of the dialect's name, with its signature")]
        pub struct Functions {
            pub dialect: Dialect,
            pub library: &'static str,
            $(pub $name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)+
            $(pub $later: Option<unsafe extern "C" fn($($later_type),*) -> c_int>,)+
        }

        impl Functions {
            /// A table without functions.
            pub const fn empty(dialect: Dialect, library: &'static str) -> Self {
                Self { dialect, library, $($name: None,)+ $($later: None,)+ }
            }

            fn from_library(dialect: Dialect, name: &'static str, library: &Library) -> Result<Self, GpuError> {
                let mut found = Self::empty(dialect, name);
                $(
                    let symbol = dialect.of($cuda, $hip);
                    if !symbol.is_empty() {
                        // SAFETY: the type is the signature that the maker documents for the symbol.
                        let function = unsafe { library.get(symbol.as_bytes()) };
                        found.$name = Some(*function.map_err(|error| missing(name, symbol, &error))?);
                    }
                )+
                $(
                    let symbol = dialect.of($later_cuda, $later_hip);
                    if !symbol.is_empty() {
                        // SAFETY: as above.
                        found.$later = unsafe { library.get(symbol.as_bytes()) }.ok().map(|function| *function);
                    }
                )+
                Ok(found)
            }

            functions!(@calls $($name($cuda, $hip) ($($arg: $type),*);)+ $($later($later_cuda, $later_hip) ($($later_arg: $later_type),*);)+);
        }
    };
    (@calls $($name:ident($cuda:literal, $hip:literal) ($($arg:ident: $type:ty),*);)+) => {
        $(
            /// # Safety
            /// As the maker documents the function of that name.
            #[allow(clippy::too_many_arguments, reason = "as the C function has")]
            pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), Refusal> {
                let call = match self.dialect.of($cuda, $hip) {
                    "" => self.dialect.of($hip, $cuda),
                    symbol => symbol,
                };
                let function = self.$name.ok_or(Refusal::Missing(call))?;
                // SAFETY: the caller's.
                match unsafe { function($($arg),*) } {
                    SUCCESS => Ok(()),
                    code => Err(Refusal::Answer { call, code }),
                }
            }
        )+
    };
}

functions! {
    required {
        init("cuInit", "hipInit") (flags: c_uint);
        device_count("cuDeviceGetCount", "hipGetDeviceCount") (count: *mut c_int);
        device_get("cuDeviceGet", "hipDeviceGet") (device: *mut c_int, ordinal: c_int);
        device_name("cuDeviceGetName", "hipDeviceGetName") (text: *mut c_char, len: c_int, device: c_int);
        device_memory("cuDeviceTotalMem_v2", "hipDeviceTotalMem") (bytes: *mut usize, device: c_int);
        device_bus("cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId") (text: *mut c_char, len: c_int, device: c_int);
        primary_retain("cuDevicePrimaryCtxRetain", "") (context: *mut Handle, device: c_int);
        primary_release("cuDevicePrimaryCtxRelease_v2", "") (device: c_int);
        context_push("cuCtxPushCurrent_v2", "") (context: Handle);
        context_pop("cuCtxPopCurrent_v2", "") (context: *mut Handle);
        set_device("", "hipSetDevice") (device: c_int);
        get_device("", "hipGetDevice") (device: *mut c_int);
        memory_info("cuMemGetInfo_v2", "hipMemGetInfo") (free: *mut usize, total: *mut usize);
        alloc("cuMemAlloc_v2", "hipMalloc") (address: *mut u64, len: usize);
        free("cuMemFree_v2", "hipFree") (address: u64);
        host_register("cuMemHostRegister_v2", "hipHostRegister") (start: *mut c_void, len: usize, flags: c_uint);
        host_unregister("cuMemHostUnregister", "hipHostUnregister") (start: *mut c_void);
        stream_create("cuStreamCreate", "hipStreamCreateWithFlags") (stream: *mut Handle, flags: c_uint);
        stream_destroy("cuStreamDestroy_v2", "hipStreamDestroy") (stream: Handle);
        stream_synchronize("cuStreamSynchronize", "hipStreamSynchronize") (stream: Handle);
        stream_wait_event("cuStreamWaitEvent", "hipStreamWaitEvent") (stream: Handle, event: Handle, flags: c_uint);
        event_create("cuEventCreate", "hipEventCreateWithFlags") (event: *mut Handle, flags: c_uint);
        event_destroy("cuEventDestroy_v2", "hipEventDestroy") (event: Handle);
        event_record("cuEventRecord", "hipEventRecord") (event: Handle, stream: Handle);
        event_query("cuEventQuery", "hipEventQuery") (event: Handle);
        event_synchronize("cuEventSynchronize", "hipEventSynchronize") (event: Handle);
        copy_in("cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync") (to: u64, from: *const c_void, len: usize, stream: Handle);
        copy_out("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync") (to: *mut c_void, from: u64, len: usize, stream: Handle);
        copy_within("cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync") (to: u64, from: u64, len: usize, stream: Handle);
    }
    optional {
        version("cuDriverGetVersion", "hipRuntimeGetVersion") (version: *mut c_int);
        error_text("cuGetErrorString", "hipDrvGetErrorString") (code: c_int, text: *mut *const c_char);
        device_attribute("cuDeviceGetAttribute", "") (value: *mut c_int, attribute: c_int, device: c_int);
        can_access_peer("cuDeviceCanAccessPeer", "hipDeviceCanAccessPeer") (can: *mut c_int, device: c_int, peer: c_int);
        enable_peer_context("cuCtxEnablePeerAccess", "") (peer: Handle, flags: c_uint);
        enable_peer_device("", "hipDeviceEnablePeerAccess") (peer: c_int, flags: c_uint);
        copy_between_contexts("cuMemcpyPeerAsync", "") (to: u64, to_context: Handle, from: u64, from_context: Handle, len: usize, stream: Handle);
        copy_between_devices("", "hipMemcpyPeerAsync") (to: u64, to_device: c_int, from: u64, from_device: c_int, len: usize, stream: Handle);
        fill("cuMemsetD8Async", "hipMemsetD8Async") (to: u64, byte: u8, len: usize, stream: Handle);
        ipc_get("cuIpcGetMemHandle", "hipIpcGetMemHandle") (handle: *mut IpcHandle, address: u64);
        ipc_open("cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle") (address: *mut u64, handle: IpcHandle, flags: c_uint);
        ipc_close("cuIpcCloseMemHandle", "hipIpcCloseMemHandle") (address: u64);
        address_range("cuMemGetAddressRange_v2", "hipMemGetAddressRange") (start: *mut u64, len: *mut usize, address: u64);
        pointer_attribute("cuPointerGetAttribute", "hipPointerGetAttribute") (value: *mut c_void, attribute: c_int, address: u64);
        pointer_set_attribute("cuPointerSetAttribute", "hipPointerSetAttribute") (value: *const c_void, attribute: c_int, address: u64);
        address_reserve("cuMemAddressReserve", "hipMemAddressReserve") (address: *mut u64, len: usize, alignment: usize, wanted: u64, flags: c_ulonglong);
        address_free("cuMemAddressFree", "hipMemAddressFree") (address: u64, len: usize);
        memory_create("cuMemCreate", "hipMemCreate") (handle: *mut u64, len: usize, properties: *const AllocationProperties, flags: c_ulonglong);
        memory_release("cuMemRelease", "hipMemRelease") (handle: u64);
        memory_map("cuMemMap", "hipMemMap") (address: u64, len: usize, offset: usize, handle: u64, flags: c_ulonglong);
        memory_unmap("cuMemUnmap", "hipMemUnmap") (address: u64, len: usize);
        memory_access("cuMemSetAccess", "hipMemSetAccess") (address: u64, len: usize, access: *const AccessDescriptor, count: usize);
        memory_granularity("cuMemGetAllocationGranularity", "hipMemGetAllocationGranularity") (bytes: *mut usize, properties: *const AllocationProperties, option: c_int);
        export_handle("cuMemExportToShareableHandle", "hipMemExportToShareableHandle") (shareable: *mut c_void, handle: u64, kind: c_int, flags: c_ulonglong);
        import_handle("cuMemImportFromShareableHandle", "hipMemImportFromShareableHandle") (handle: *mut u64, shareable: *mut c_void, kind: c_int);
        range_handle("cuMemGetHandleForAddressRange", "hipMemGetHandleForAddressRange") (handle: *mut c_void, address: u64, len: usize, kind: c_int, flags: c_ulonglong);
        wait_value("cuStreamWaitValue32_v2", "") (stream: Handle, address: u64, value: u32, flags: c_uint);
        wait_value_masked("", "hipStreamWaitValue32") (stream: Handle, address: u64, value: u32, flags: c_uint, mask: u32);
        write_value("cuStreamWriteValue32_v2", "hipStreamWriteValue32") (stream: Handle, address: u64, value: u32, flags: c_uint);
        flush_writes("cuFlushGPUDirectRDMAWrites", "") (target: c_int, scope: c_int);
    }
}

impl Functions {
    /// The functions of the installed runtime, which is opened once and never closed: it starts
    /// threads and registers exit handlers.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] names the library, or the first required function that it lacks.
    pub fn load(dialect: Dialect) -> Result<Arc<Self>, GpuError> {
        static LOADED: [OnceLock<Result<Arc<Functions>, GpuError>>; 2] =
            [OnceLock::new(), OnceLock::new()];
        let [cuda, hip] = &LOADED;
        dialect.of(cuda, hip).get_or_init(|| open(dialect)).clone()
    }
}

fn open(dialect: Dialect) -> Result<Arc<Functions>, GpuError> {
    let mut refused = None;
    for name in dialect.libraries() {
        // SAFETY: the runtimes may be loaded into any process; their initialisers touch no device.
        match unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => {
                let functions = Functions::from_library(dialect, name, &library);
                std::mem::forget(library);
                return functions.map(Arc::new);
            }
            Err(error) => {
                refused.get_or_insert(missing(name, name, &error));
            }
        }
    }
    Err(refused.unwrap_or(GpuError::Unsupported {
        library: "",
        symbol: "",
        why: "no library is known".into(),
    }))
}

fn missing(library: &'static str, symbol: &'static str, error: &libloading::Error) -> GpuError {
    let why = std::error::Error::source(error).map_or(error.to_string(), ToString::to_string);
    GpuError::Unsupported {
        library,
        symbol,
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_is_refused_with_the_first_that_is_missing() {
        // SAFETY: every process has it loaded already.
        let libc = unsafe { Library::open(Some("libc.so.6"), RTLD_NOW | RTLD_LOCAL) };
        let libc = libc.expect("every process has it");
        for (dialect, first) in [(Dialect::Cuda, "cuInit"), (Dialect::Hip, "hipInit")] {
            let error = Functions::from_library(dialect, "libc.so.6", &libc).err();
            let error = error.expect("no GPU's runtime");
            assert_eq!(error.code(), "gpu-unsupported");
            assert_eq!(error.call(), Some(first));
            assert!(error.to_string().contains("libc.so.6"), "{error}");
        }
    }

    #[test]
    fn a_function_that_is_missing_is_named_when_it_is_called_and_not_before() {
        let old = Functions::empty(Dialect::Cuda, "libcuda.so.1");
        // SAFETY: nothing is called, as there is no function.
        let refused = unsafe { old.range_handle(std::ptr::null_mut(), 0, 0, 0, 0) };
        let Err(Refusal::Missing(symbol)) = refused else {
            panic!("it is missing")
        };
        assert_eq!(symbol, "cuMemGetHandleForAddressRange");
        // SAFETY: as above.
        let other = unsafe { old.set_device(0) };
        assert!(matches!(other, Err(Refusal::Missing("hipSetDevice"))));
    }

    #[test]
    fn the_installed_runtime_has_every_required_function() {
        let loaded: Vec<_> = Dialect::ALL.into_iter().map(Functions::load).collect();
        for error in loaded.iter().filter_map(|loaded| loaded.as_ref().err()) {
            let whole =
                matches!(error, GpuError::Unsupported { library, symbol, .. } if library == symbol);
            assert!(whole, "the library is there: {error}");
        }
        if let [Err(cuda), Err(hip)] = loaded.as_slice() {
            crowfly_waive::waived!("{cuda}; {hip}");
        }
    }
}
