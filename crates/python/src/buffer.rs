//! The buffer protocol, on every Python from 3.9 on.
//!
//! The stable ABI has it from 3.11 on; PyO3 offers it to a class only when built for those. The slots and the
//! structure are the same since 3.9, the first version that takes these slots from a type's specification. So
//! the class with the buffer is made here, by hand, below the one that PyO3 makes.

use std::ffi::{CStr, c_char, c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::dtype;
use crate::tensor::TensorBase;
use crate::view::View;

/// Slot numbers of `typeslots.h`, part of the stable ABI.
const GET_BUFFER: c_int = 1;
const RELEASE_BUFFER: c_int = 2;

/// What a consumer asks for, from `pybuffer.h`.
mod asks {
    use std::ffi::c_int;

    pub const WRITABLE: c_int = 0x1;
    pub const FORMAT: c_int = 0x4;
    pub const ND: c_int = 0x8;
    pub const STRIDES: c_int = 0x10 | ND;
    pub const C_CONTIGUOUS: c_int = 0x20 | STRIDES;
    pub const F_CONTIGUOUS: c_int = 0x40 | STRIDES;
    pub const ANY_CONTIGUOUS: c_int = 0x80 | STRIDES;
}

/// `Py_buffer` of `pybuffer.h`.
#[repr(C)]
struct Buffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

/// What the pointers of a buffer lead to.
struct Layout {
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

/// A class that is `base` and has the buffer protocol besides. Its name is dotted.
pub fn with_buffer<'py>(
    base: &Bound<'py, PyType>,
    name: &'static CStr,
    doc: &'static CStr,
) -> PyResult<Bound<'py, PyType>> {
    let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(GET_BUFFER, get_buffer as *mut c_void),
        slot(RELEASE_BUFFER, release_buffer as *mut c_void),
        slot(ffi::Py_tp_doc, doc.as_ptr().cast_mut().cast()),
        slot(0, std::ptr::null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr(),
        // As large as the base.
        basicsize: 0,
        itemsize: 0,
        flags: ffi::Py_TPFLAGS_DEFAULT as _,
        slots: slots.as_mut_ptr(),
    };
    // Python 3.9 takes nothing but a tuple.
    let bases = PyTuple::new(base.py(), [base])?;
    // SAFETY: the names are static; Python copies the slots while it makes the type.
    let made = unsafe {
        let made = ffi::PyType_FromSpecWithBases(&raw mut spec, bases.as_ptr());
        Bound::from_owned_ptr_or_err(base.py(), made)?
    };
    Ok(made.cast_into::<PyType>()?)
}

unsafe extern "C" fn get_buffer(
    object: *mut ffi::PyObject,
    buffer: *mut Buffer,
    flags: c_int,
) -> c_int {
    // SAFETY: Python calls this holding its lock, with an object of the type that was made above and a
    // buffer to be filled in.
    unsafe {
        let py = Python::assume_attached();
        (*buffer).obj = std::ptr::null_mut();
        let object = Bound::from_borrowed_ptr(py, object);
        let filled = object
            .cast::<TensorBase>()
            .map_err(PyErr::from)
            .and_then(|tensor| fill(py, &tensor.get().view, flags));
        match filled {
            Ok(filled) => {
                *buffer = filled;
                // The consumer's reference keeps the memory.
                (*buffer).obj = object.into_ptr();
                0
            }
            Err(error) => {
                error.restore(py);
                -1
            }
        }
    }
}

unsafe extern "C" fn release_buffer(_object: *mut ffi::PyObject, buffer: *mut Buffer) {
    // SAFETY: Python calls this once for each buffer that was filled in, whose layout is a box.
    drop(unsafe { Box::from_raw((*buffer).internal.cast::<Layout>()) });
}

fn fill(py: Python<'_>, view: &View, flags: c_int) -> PyResult<Buffer> {
    let asked = |what: c_int| flags & what == what;
    let refuse = |why: String| Err(PyBufferError::new_err(why));
    if view.on_gpu() {
        return refuse("this tensor is in a device's memory; take tensor.cpu()".into());
    }
    let (Some(format), Some(item)) = (dtype::to_format(view.dtype), view.item()) else {
        return refuse(format!(
            "the buffer protocol has no element type {}; take tensor.bytes(), or DLPack",
            view.dtype
        ));
    };
    if asked(asks::WRITABLE) && view.readonly {
        return refuse("this tensor is read-only".into());
    }
    let compact = view.is_compact();
    let needs_compact = !asked(asks::STRIDES)
        || asked(asks::C_CONTIGUOUS)
        || asked(asks::ANY_CONTIGUOUS)
        || (asked(asks::F_CONTIGUOUS) && view.shape.len() > 1);
    if needs_compact && !compact {
        return refuse(
            "this tensor has gaps between its elements; take tensor.contiguous()".into(),
        );
    }
    if asked(asks::F_CONTIGUOUS) && view.shape.iter().filter(|dim| **dim > 1).count() > 1 {
        return refuse("the last dimension of this tensor is the fastest, not the first".into());
    }
    let step = |stride: &i64| stride.saturating_mul(item as i64) as ffi::Py_ssize_t;
    let mut layout = Box::new(Layout {
        shape: view
            .shape
            .iter()
            .map(|dim| *dim as ffi::Py_ssize_t)
            .collect(),
        strides: view.strides.iter().map(step).collect(),
    });
    let null = std::ptr::null_mut();
    Ok(Buffer {
        buf: view.pointer(py).cast_mut().cast(),
        obj: std::ptr::null_mut(),
        len: view.bytes() as ffi::Py_ssize_t,
        itemsize: item as ffi::Py_ssize_t,
        readonly: c_int::from(view.readonly),
        ndim: if asked(asks::ND) {
            view.shape.len() as c_int
        } else {
            1
        },
        format: if asked(asks::FORMAT) {
            format.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        },
        shape: if asked(asks::ND) {
            layout.shape.as_mut_ptr()
        } else {
            null
        },
        strides: if asked(asks::STRIDES) {
            layout.strides.as_mut_ptr()
        } else {
            null
        },
        suboffsets: null,
        internal: Box::into_raw(layout).cast(),
    })
}
