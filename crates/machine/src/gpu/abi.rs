//! The types and numbers of `cuda.h` that crowfly uses. Those of `hip_runtime_api.h` are the same
//! unless said otherwise.

use std::ffi::{c_int, c_uchar, c_ushort, c_void};

/// A context, stream or event: opaque, owned by the runtime.
pub type Handle = *mut c_void;

/// What another process opens memory by (`CUipcMemHandle`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    /// Opaque bytes, to be sent as they are.
    pub bytes: [u8; 64],
}

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub kind: c_int,
    pub id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProperties {
    pub kind: c_int,
    pub handle_types: c_int,
    pub location: Location,
    pub win32_metadata: *mut c_void,
    pub compression: c_uchar,
    pub gpu_direct_rdma_capable: c_uchar,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 4],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDescriptor {
    pub location: Location,
    pub flags: c_int,
}

pub const SUCCESS: c_int = 0;
pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NOT_READY: c_int = 600;
pub const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
pub const HOST_MEMORY_ALREADY_REGISTERED: c_int = 712;

/// `CU_STREAM_NON_BLOCKING`
pub const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`; HIP: `hipEventDisableTiming`
pub const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all GPUs.
pub const HOST_REGISTER_PORTABLE: u32 = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which both runtimes demand.
pub const IPC_LAZY_PEER_ACCESS: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`
pub const WAIT_VALUE_GEQ: u32 = 0;

pub const ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub const ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;
/// Above 0 on GPUs whose memory the CPU reaches over a coherent link.
pub const ATTRIBUTE_HOST_PAGE_TABLES: c_int = 100;
pub const ATTRIBUTE_FLUSH_WRITES_OPTIONS: c_int = 117;
pub const ATTRIBUTE_WRITES_ORDERING: c_int = 118;
pub const ATTRIBUTE_DMA_BUF_SUPPORTED: c_int = 124;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`
pub const FLUSH_OPTION_HOST: c_int = 1;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`: the GPU that owns the memory sees writes in order.
pub const WRITES_ORDERED_FOR_OWNER: c_int = 100;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`
pub const FLUSH_TARGET_CURRENT_CONTEXT: c_int = 0;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`
pub const FLUSH_TO_OWNER: c_int = 100;

pub const POINTER_MEMORY_TYPE: c_int = 2;
pub const POINTER_SYNC_MEMOPS: c_int = 6;
pub const POINTER_DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`, which HIP's pointer attribute counts the same way.
pub const MEMORY_TYPE_DEVICE: u32 = 2;

pub const ALLOCATION_PINNED: c_int = 1;
pub const HANDLE_POSIX_FD: c_int = 1;
pub const LOCATION_DEVICE: c_int = 1;
pub const ACCESS_READ_WRITE: c_int = 3;
pub const GRANULARITY_MINIMUM: c_int = 0;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
pub const RANGE_DMA_BUF_FD: c_int = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`
pub const RANGE_MAPPING_PCIE: u64 = 1;

/// Longest name and longest bus address that are asked for.
pub const TEXT: usize = 256;
