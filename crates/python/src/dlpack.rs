//! Tensors go to other libraries, and come from them, without a copy.

pub mod abi;

use std::ffi::{CStr, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::dtype;
use crate::view::View;
use abi::{DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor};

/// What a capsule's consumer owns: the tensor, and all that its pointers lead to.
struct Held<T> {
    managed: T,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Keeps the memory.
    _view: View,
}

/// A capsule for a consumer that understands versions up to `max_version`.
///
/// # Errors
/// `BufferError` where DLPack, or that version of it, cannot say what the tensor is.
pub fn export(
    py: Python<'_>,
    view: View,
    max_version: Option<(u32, u32)>,
    copied: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let versioned = max_version.is_some_and(|(major, _)| major >= 1);
    if view.readonly && !versioned {
        return Err(PyBufferError::new_err(
            "this tensor is read-only, which a consumer of unversioned DLPack cannot be told; \
             ask with max_version=(1, 0) or take a copy",
        ));
    }
    let tensor = tensor(py, &view)?;
    let flags = if view.readonly {
        abi::FLAG_READ_ONLY
    } else {
        0
    } | if copied { abi::FLAG_IS_COPIED } else { 0 };
    if versioned {
        let managed = DLManagedTensorVersioned {
            version: abi::VERSION,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete_versioned),
            flags,
            dl_tensor: tensor,
        };
        let held = hold(managed, view, |m| &mut m.dl_tensor, |m| &mut m.manager_ctx);
        capsule(py, held.cast(), abi::VERSIONED, drop_versioned)
    } else {
        let managed = DLManagedTensor {
            dl_tensor: tensor,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete_legacy),
        };
        let held = hold(managed, view, |m| &mut m.dl_tensor, |m| &mut m.manager_ctx);
        capsule(py, held.cast(), abi::LEGACY, drop_legacy)
    }
}

/// Checks a consumer's stream against the array API's contract: none for host memory; for CUDA a positive number
/// (1 and 2 are the legacy and the thread's own default stream) or -1, not the ambiguous 0; for ROCm 0 or more than
/// 2, or -1.
///
/// # Errors
/// `BufferError` when it is none of these, `TypeError` when it is no number.
pub fn check_stream(here: DLDevice, stream: &Bound<'_, PyAny>) -> PyResult<()> {
    let number: i128 = stream.extract()?;
    let sense = number == -1
        || match here.device_type {
            abi::CUDA => number > 0,
            abi::ROCM => number == 0 || number > 2,
            _ => false,
        };
    match sense {
        true => Ok(()),
        false => Err(PyBufferError::new_err(format!(
            "stream {number} makes no sense for memory of DLPack device type {}",
            here.device_type
        ))),
    }
}

fn tensor(py: Python<'_>, view: &View) -> PyResult<DLTensor> {
    let dtype = dtype::to_dlpack(view.dtype).ok_or_else(|| {
        PyBufferError::new_err(format!("DLPack has no element type {}", view.dtype))
    })?;
    let ndim = i32::try_from(view.shape.len())
        .map_err(|_| PyBufferError::new_err("more dimensions than DLPack can count"))?;
    Ok(DLTensor {
        // Consumers take an empty tensor to have no memory at all.
        data: if view.is_empty() {
            std::ptr::null_mut()
        } else {
            view.pointer(py).cast_mut().cast()
        },
        device: view.device(),
        ndim,
        dtype,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    })
}

/// Puts a managed tensor where it stays until its deleter runs, with its pointers set. The managed tensor
/// comes first in what is returned, so that the pointer is one to it too.
fn hold<T>(
    managed: T,
    view: View,
    tensor: impl Fn(&mut T) -> &mut DLTensor,
    context: impl Fn(&mut T) -> &mut *mut c_void,
) -> *mut T {
    let mut held = Box::new(Held {
        managed,
        shape: view.shape.to_vec(),
        strides: view.strides.to_vec(),
        _view: view,
    });
    let (shape, strides) = (held.shape.as_mut_ptr(), held.strides.as_mut_ptr());
    let tensor = tensor(&mut held.managed);
    (tensor.shape, tensor.strides) = (shape, strides);
    let held = Box::into_raw(held);
    // SAFETY: just made and not shared yet.
    let managed = unsafe { &mut (*held).managed };
    *context(managed) = held.cast();
    std::ptr::from_mut(managed)
}

fn capsule<'py>(
    py: Python<'py>,
    held: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name is static, the pointer is not null, and the destructor knows what it points to.
    unsafe {
        let made = ffi::PyCapsule_New(held, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, made)
    }
}

unsafe extern "C" fn delete_legacy(managed: *mut DLManagedTensor) {
    // SAFETY: a consumer calls this once, with the pointer that `hold` gave out, whose context is the box.
    drop(unsafe { Box::from_raw((*managed).manager_ctx.cast::<Held<DLManagedTensor>>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: as above.
    drop(unsafe {
        Box::from_raw(
            (*managed)
                .manager_ctx
                .cast::<Held<DLManagedTensorVersioned>>(),
        )
    });
}

/// Frees what a capsule still owns: a consumer that took the tensor has renamed the capsule.
unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, holding its lock, with the capsule that is going away.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, abi::LEGACY.as_ptr()) == 1 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, abi::LEGACY.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, abi::VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, abi::VERSIONED.as_ptr()).cast());
        }
    }
}
