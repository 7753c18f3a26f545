//! The types and numbers of `cufile.h` that crowfly uses. Those of `hipfile.h` are the same unless
//! said otherwise.

use std::ffi::{c_int, c_uint, c_void};

/// `CUfileError_t`, which functions return by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: c_int,
    pub gpu_code: c_int,
}

impl Status {
    pub const SUCCESS: Self = Self::of(0);

    pub const fn of(code: c_int) -> Self {
        Self { code, gpu_code: 0 }
    }
}

/// `CUfileDescr_t` with a file descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub kind: c_int,
    /// A union with a pointer: a descriptor in its first four bytes.
    pub handle: Handle,
    pub operations: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union Handle {
    pub fd: c_int,
    pub pointer: *mut c_void,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`
pub const HANDLE_FD: c_int = 1;

/// `CUfileIOParams_t` with its only union member.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchParameters {
    pub mode: c_int,
    pub base: *mut c_void,
    pub file_offset: i64,
    pub memory_offset: i64,
    pub len: usize,
    pub file: *mut c_void,
    pub opcode: c_int,
    pub cookie: *mut c_void,
}

/// `CUfileIOEvents_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchEvent {
    pub cookie: *mut c_void,
    pub status: c_int,
    pub result: usize,
}

/// `CUFILE_BATCH`
pub const BATCH: c_int = 1;
pub const BATCH_READ: c_int = 0;
/// `CUFILE_COMPLETE`
pub const BATCH_COMPLETE: c_int = 0x10;
/// `CUFILE_WAITING` and `CUFILE_PENDING`
pub const BATCH_UNFINISHED: c_int = 0x1 | 0x2;

/// `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE`
pub const PARAMETER_ALLOW_COMPAT: c_int = 1;
/// `CUFILE_PARAM_LOG_DIR`
pub const PARAMETER_LOG_FOLDER: c_int = 2;
/// `CU_FILE_ALLOW_COMPAT_MODE`, a bit's number in the control flags.
pub const CONTROL_ALLOW_COMPAT: c_uint = 1;
/// `CU_FILE_NVME_SUPPORTED`: drives on PCIe, asked about for peer-to-peer DMA.
pub const STATUS_NVME: c_int = 4;
/// `CUFILE_P2PDMA`, a bit's number in the peer-to-peer flags.
pub const P2P_PCI: c_uint = 0;
/// Level of statistics that tells each GPU's ways apart.
pub const STATISTICS_LEVEL: c_int = 3;

pub const DRIVER_NOT_INITIALIZED: c_int = 5001;
pub const PLATFORM_NOT_SUPPORTED: c_int = 5007;
pub const DEVICE_NOT_SUPPORTED: c_int = 5009;
pub const CUDA_DRIVER_ERROR: c_int = 5011;
pub const PERMISSION_DENIED: c_int = 5025;
pub const SETUP_ERROR: c_int = 5033;
pub const IO_DISABLED: c_int = 5034;
/// All codes are above this.
pub const BASE: c_int = 5000;

/// What a code means, in few words. The libraries' own texts are macros of their headers.
pub const fn meaning(code: c_int) -> &'static str {
    match code {
        5001 => "its driver is not there, and falling back is not allowed",
        5002 => "a property is invalid",
        5003 => "a property is out of range",
        5004 => "library and kernel module do not fit together",
        5005 => "the kernel module's version cannot be read",
        5006 => "it is shutting down",
        5007 => "the platform is not supported",
        5008 => "the file cannot be read this way",
        5009 => "the GPU is not supported",
        5010 => "the kernel module refused",
        5011 => "the GPU's driver refused",
        5012 | 5013 => "the address is not of a GPU's memory",
        5014 | 5016 | 5017 => "the range is longer than the memory",
        5015 => "another GPU is current",
        5018 => "files of this kind are not supported",
        5019 => "the file is not opened as it has to be",
        5020 => "the file is not opened with O_DIRECT",
        5022 => "an argument is invalid",
        5023 => "the memory is registered already",
        5024 => "the memory is not registered",
        5025 => "permission denied",
        5026 => "it is open already",
        5027 => "the file could not be registered",
        5028 => "the file is registered already",
        5029 => "it finds no GPU",
        5030 => "internal error",
        5031 => "no file descriptor is left",
        5033 => "it could not set itself up",
        5034 => "its configuration switches it off for the file",
        5035 => "the batch could not be submitted",
        5036 => "the GPU's memory could not be pinned",
        5037 => "the batch is full",
        5038 => "it has no operations on streams",
        _ => "unknown code",
    }
}
