//! Arrays of other libraries, while their bytes are read.

use std::ptr::NonNull;

use crowfly_mover::checkpoint::dtype::Dtype;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyNotImplementedError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::dlpack::abi::{self, DLManagedTensor, DLManagedTensorVersioned, DLTensor};
use crate::dtype;
use crate::fault::{Class, Fault};
use crate::view::compact;

/// Device types of DLPack whose memory the CPU reads.
const READABLE: [i32; 3] = [abi::CPU, abi::CUDA_HOST, abi::ROCM_HOST];
/// The version of DLPack that is understood.
const MAX_VERSION: (u32, u32) = (1, 1);
/// More dimensions than any library has.
const MAX_DIMENSIONS: usize = 64;

/// The memory of an array without gaps, kept until dropped.
pub struct Borrowed {
    address: usize,
    len: usize,
    /// The type of the elements.
    pub dtype: Dtype,
    /// Elements along each dimension.
    pub shape: Vec<u64>,
    _keeper: Keeper,
}

/// What keeps a borrowed array's memory.
enum Keeper {
    Object(#[expect(dead_code, reason = "held, not used")] Py<PyAny>),
    Legacy(NonNull<DLManagedTensor>),
    Versioned(NonNull<DLManagedTensorVersioned>),
}

// SAFETY: a managed tensor may be given back from any thread; nothing else is done with the pointers.
unsafe impl Send for Keeper {}
// SAFETY: as above; shared access does nothing.
unsafe impl Sync for Keeper {}

impl Drop for Keeper {
    fn drop(&mut self) {
        // SAFETY: each managed tensor was taken from its capsule once, so it is given back once, here.
        unsafe {
            match self {
                Self::Object(_) => {}
                Self::Legacy(managed) => {
                    if let Some(delete) = managed.as_ref().deleter {
                        delete(managed.as_ptr());
                    }
                }
                Self::Versioned(managed) => {
                    if let Some(delete) = managed.as_ref().deleter {
                        delete(managed.as_ptr());
                    }
                }
            }
        }
    }
}

impl Borrowed {
    /// The memory of an array that speaks DLPack or NumPy's array interface.
    ///
    /// # Errors
    /// When it speaks neither, its memory is a device's, has gaps, or is of a type that no file can hold.
    pub fn of(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = array.py();
        match Self::by_dlpack(name, array) {
            // NumPy before 2.1 exports no read-only arrays, and no version exports some of its types.
            Err(error)
                if error.is_instance_of::<PyBufferError>(py)
                    || error.is_instance_of::<PyAttributeError>(py)
                    || error.is_instance_of::<PyNotImplementedError>(py) =>
            {
                Self::by_interface(name, array)
            }
            result => result,
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        let start = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: the exporter said that so many bytes are there, and keeps them until it is told. Another
        // thread of the program may write to them all the same; then what is read is a mixture of old and new.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }

    fn by_dlpack(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = array.py();
        let (kind, _): (i32, i32) = array.call_method0("__dlpack_device__")?.extract()?;
        if !READABLE.contains(&kind) {
            let what = format!("tensor `{name}` is in a device's memory");
            let fault = Fault::new(Class::Layout, "not-in-host-memory", what)
                .hint("move it to host memory first, such as with tensor.cpu()");
            return Err(fault.into());
        }
        let versioned = PyDict::new(py);
        versioned.set_item("max_version", MAX_VERSION)?;
        let capsule = match array.call_method("__dlpack__", (), Some(&versioned)) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                array.call_method0("__dlpack__")?
            }
            result => result?,
        };
        let capsule = capsule.cast::<PyCapsule>()?.as_ptr();
        // SAFETY: the capsule is alive; a valid name says what its pointer leads to, and renaming it makes the
        // managed tensor ours to give back.
        let (keeper, tensor) = unsafe {
            if ffi::PyCapsule_IsValid(capsule, abi::VERSIONED.as_ptr()) == 1 {
                let found = ffi::PyCapsule_GetPointer(capsule, abi::VERSIONED.as_ptr());
                let managed = NonNull::new(found.cast::<DLManagedTensorVersioned>());
                let managed = managed.ok_or_else(|| unusable(name))?;
                ffi::PyCapsule_SetName(capsule, abi::VERSIONED_USED.as_ptr());
                let keeper = Keeper::Versioned(managed);
                if managed.as_ref().version.major > abi::VERSION.major {
                    return Err(unusable(name).into());
                }
                (keeper, &raw const (*managed.as_ptr()).dl_tensor)
            } else if ffi::PyCapsule_IsValid(capsule, abi::LEGACY.as_ptr()) == 1 {
                let found = ffi::PyCapsule_GetPointer(capsule, abi::LEGACY.as_ptr());
                let managed = NonNull::new(found.cast::<DLManagedTensor>());
                let managed = managed.ok_or_else(|| unusable(name))?;
                ffi::PyCapsule_SetName(capsule, abi::LEGACY_USED.as_ptr());
                (
                    Keeper::Legacy(managed),
                    &raw const (*managed.as_ptr()).dl_tensor,
                )
            } else {
                return Err(unusable(name).into());
            }
        };
        // SAFETY: the managed tensor lives as long as its keeper, which moves into the result.
        let tensor = unsafe { &*tensor };
        Ok(Self::of_tensor(name, tensor, keeper)?)
    }

    fn of_tensor(name: &str, tensor: &DLTensor, keeper: Keeper) -> Result<Self, Fault> {
        let dims = usize::try_from(tensor.ndim).unwrap_or(usize::MAX);
        if dims > MAX_DIMENSIONS || (dims > 0 && tensor.shape.is_null()) {
            return Err(unusable(name));
        }
        let list = |pointer: *mut i64| match dims {
            0 => Vec::new(),
            // SAFETY: DLPack's arrays have as many entries as the tensor has dimensions.
            _ => unsafe { std::slice::from_raw_parts(pointer, dims) }.to_vec(),
        };
        let shape = list(tensor.shape);
        let strides = (!tensor.strides.is_null()).then(|| list(tensor.strides));
        let dtype = dtype::from_dlpack(tensor.dtype).ok_or_else(|| {
            let found = tensor.dtype;
            no_type(
                name,
                &format!("DLPack type {} of {} bits", found.code, found.bits),
            )
        })?;
        let offset = usize::try_from(tensor.byte_offset).map_err(|_| unusable(name))?;
        let address = tensor.data.expose_provenance().wrapping_add(offset);
        Self::compact(name, address, dtype, &shape, strides.as_deref(), keeper)
    }

    fn by_interface(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let neither = || {
            let what =
                format!("`{name}` is no tensor: it has neither __dlpack__ nor __array_interface__");
            Fault::new(Class::Layout, "not-a-tensor", what)
        };
        let found = array
            .getattr("__array_interface__")
            .map_err(|_| neither())?;
        let (address, _): (usize, bool) = found.get_item("data")?.extract()?;
        let typestr: String = found.get_item("typestr")?.extract()?;
        let dtype = dtype::from_typestr(&typestr).ok_or_else(|| no_type(name, &typestr))?;
        let shape: Vec<i64> = found.get_item("shape")?.extract()?;
        let bytes: Option<Vec<i64>> = match found.get_item("strides") {
            Ok(strides) => strides.extract()?,
            Err(_) => None,
        };
        let item = (dtype.bits() / 8) as i64;
        let strides = bytes.map(|bytes| bytes.iter().map(|b| b / item).collect::<Vec<_>>());
        let keeper = Keeper::Object(array.clone().unbind());
        Ok(Self::compact(
            name,
            address,
            dtype,
            &shape,
            strides.as_deref(),
            keeper,
        )?)
    }

    fn compact(
        name: &str,
        address: usize,
        dtype: Dtype,
        shape: &[i64],
        strides: Option<&[i64]>,
        keeper: Keeper,
    ) -> Result<Self, Fault> {
        let wanted = compact(shape);
        let apart = |strides: &[i64]| {
            let gap = |((dim, stride), want): ((&i64, &i64), &i64)| *dim > 1 && stride != want;
            shape.iter().zip(strides).zip(&wanted).any(gap)
        };
        if !shape.contains(&0) && strides.is_some_and(apart) {
            let what = format!("tensor `{name}` has gaps between its elements, or another order");
            let fault = Fault::new(Class::Layout, "not-contiguous", what);
            return Err(fault.hint("call .contiguous() on it first, or numpy.ascontiguousarray"));
        }
        let shape: Result<Vec<u64>, _> = shape.iter().map(|dim| u64::try_from(*dim)).collect();
        let shape = shape.map_err(|_| unusable(name))?;
        let len = dtype
            .bytes_of(&shape)
            .ok()
            .and_then(|len| isize::try_from(len).ok());
        let len = len.ok_or_else(|| unusable(name))?.unsigned_abs();
        if len > 0 && address == 0 {
            return Err(unusable(name));
        }
        Ok(Self {
            address,
            len,
            dtype,
            shape,
            _keeper: keeper,
        })
    }
}

fn unusable(name: &str) -> Fault {
    let what = format!("tensor `{name}` was exported in a form that makes no sense");
    Fault::new(Class::Layout, "bad-export", what)
}

fn no_type(name: &str, found: &str) -> Fault {
    let what = format!("tensor `{name}` has elements of {found}, which safetensors does not have");
    Fault::new(Class::Layout, "unknown-dtype", what)
}
