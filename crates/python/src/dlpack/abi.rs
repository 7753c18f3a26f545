//! The C structures of DLPack 1.1, as consumers in other libraries read them.

use std::ffi::c_void;

/// The version of the structures below.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };

/// Host memory, in [`DLDevice::device_type`].
pub const CPU: i32 = 1;
/// Memory of a GPU that CUDA drives.
pub const CUDA: i32 = 2;
/// Host memory that is pinned for CUDA.
pub const CUDA_HOST: i32 = 3;
/// Memory of a GPU that ROCm drives.
pub const ROCM: i32 = 10;
/// Host memory that is pinned for ROCm.
pub const ROCM_HOST: i32 = 11;

/// The consumer must not write.
pub const FLAG_READ_ONLY: u64 = 1;
/// The producer made a copy for this capsule.
pub const FLAG_IS_COPIED: u64 = 2;

/// The name of a capsule that holds a [`DLManagedTensor`].
pub const LEGACY: &std::ffi::CStr = c"dltensor";
/// What a consumer calls it once it has taken the tensor.
pub const LEGACY_USED: &std::ffi::CStr = c"used_dltensor";
/// The name of a capsule that holds a [`DLManagedTensorVersioned`].
pub const VERSIONED: &std::ffi::CStr = c"dltensor_versioned";
/// What a consumer calls it once it has taken the tensor.
pub const VERSIONED_USED: &std::ffi::CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLPackVersion {
    pub major: u32,
    pub minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    /// In elements; null of a compact tensor.
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    pub version: DLPackVersion,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}
