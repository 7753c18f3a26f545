//! A tensor as the wheel sees it: who owns the memory, where in it the elements lie, what they are.

use std::sync::Arc;

use crowfly_machine::gpu::{DeviceMemory, Dialect};
use crowfly_mover::Region;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::gpu::{self, CopyRequest, Gpu, To};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::dlpack::abi::{self, DLDevice};
use crate::fault::{Class, Fault};

/// Bytes on which new memory for tensors begins: what vector instructions and other libraries like.
pub const ALIGNMENT: usize = 64;

/// Who keeps the memory alive.
#[derive(Debug)]
pub enum Owner {
    /// The engine's memory.
    Region(Region),
    /// Bytes of Python, which never change.
    Bytes(Py<PyBytes>),
}

/// Elements of one type in memory that somebody owns. All of them lie inside of it.
#[derive(Debug)]
pub struct View {
    /// Keeps the memory.
    pub owner: Owner,
    /// Of the first element, in bytes from the start of the owner's.
    pub offset: usize,
    /// The type of the elements.
    pub dtype: Dtype,
    /// Elements along each dimension.
    pub shape: Box<[i64]>,
    /// Elements from one to the next along each dimension.
    pub strides: Box<[i64]>,
    /// Whether nobody may write.
    pub readonly: bool,
}

impl View {
    /// A compact tensor at a place in somebody's memory.
    ///
    /// # Errors
    /// When it does not lie inside.
    pub fn new(
        owner: Owner,
        offset: usize,
        dtype: Dtype,
        shape: &[u64],
        owned: usize,
    ) -> Result<Self, Fault> {
        let bytes = dtype.bytes_of(shape).ok();
        let end = bytes.and_then(|bytes| offset.checked_add(usize::try_from(bytes).ok()?));
        let signed: Option<Box<[i64]>> = shape.iter().map(|d| i64::try_from(*d).ok()).collect();
        match (end, signed) {
            (Some(end), Some(shape)) if end <= owned => Ok(Self {
                readonly: matches!(owner, Owner::Bytes(_)),
                owner,
                offset,
                dtype,
                strides: compact(&shape),
                shape,
            }),
            _ => Err(Fault::new(
                Class::Format,
                "out-of-range",
                format!("a tensor {dtype} {shape:?} at {offset} does not fit into {owned} bytes"),
            )),
        }
    }

    /// The same tensor once more.
    pub fn another(&self, py: Python<'_>) -> Self {
        Self {
            owner: match &self.owner {
                Owner::Region(region) => Owner::Region(region.clone()),
                Owner::Bytes(bytes) => Owner::Bytes(bytes.clone_ref(py)),
            },
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            ..*self
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        let elements: i64 = self.shape.iter().product();
        (elements as u64 * self.dtype.bits() / 8) as usize
    }

    /// Bytes of one element; `None` of the types smaller than a byte.
    pub fn item(&self) -> Option<usize> {
        let bits = self.dtype.bits() as usize;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Where the first element is.
    pub fn pointer(&self, py: Python<'_>) -> *const u8 {
        let start = match &self.owner {
            Owner::Region(region) => region.as_ptr(),
            Owner::Bytes(bytes) => bytes.as_bytes(py).as_ptr(),
        };
        start.wrapping_add(self.offset)
    }

    /// Whether the elements follow each other without gaps, the last dimension fastest.
    pub fn is_compact(&self) -> bool {
        let wanted = compact(&self.shape);
        let matters = |(dim, (stride, want)): (&i64, (&i64, &i64))| *dim <= 1 || stride == want;
        self.is_empty()
            || self
                .shape
                .iter()
                .zip(self.strides.iter().zip(&wanted))
                .all(matters)
    }

    /// Whether the first element begins where its type wants it.
    pub fn is_aligned(&self, py: Python<'_>) -> bool {
        // A complex number is two of half its size.
        let unit = match self.dtype {
            Dtype::C64 => 4,
            _ => self.item().unwrap_or(1),
        };
        self.is_empty() || self.pointer(py).addr().is_multiple_of(unit)
    }

    /// In which device's memory it is.
    pub fn device(&self) -> DLDevice {
        let facts = self.gpu_memory().map(|memory| memory.gpu());
        match facts {
            None => DLDevice {
                device_type: abi::CPU,
                device_id: 0,
            },
            Some(gpu) => DLDevice {
                device_type: match gpu.runtime().dialect() {
                    Dialect::Cuda => abi::CUDA,
                    Dialect::Hip => abi::ROCM,
                },
                device_id: gpu.facts().ordinal(),
            },
        }
    }

    /// Whether it is in a GPU's memory, which no core reads.
    pub fn on_gpu(&self) -> bool {
        self.gpu_memory().is_some()
    }

    fn gpu_memory(&self) -> Option<&Arc<DeviceMemory>> {
        match &self.owner {
            Owner::Region(region) => region.device().map(|(memory, _)| memory),
            Owner::Bytes(_) => None,
        }
    }

    /// The place of the memory in crowfly's words.
    pub fn place(&self) -> Place {
        match &self.owner {
            Owner::Region(region) => region.place(),
            Owner::Bytes(_) => Place::Host(None),
        }
    }

    /// Whether the memory is a mapping of a file, which changes with it.
    pub fn follows_file(&self) -> bool {
        matches!(&self.owner, Owner::Region(region) if region.follows_file())
    }

    /// A compact copy in memory of its own, of the same device. Python's lock is let go meanwhile.
    ///
    /// # Errors
    /// When there is no memory, or the elements do not follow each other in a GPU's memory or are smaller than
    /// a byte.
    pub fn copied(&self, py: Python<'_>) -> Result<Self, Fault> {
        match (self.gpu_memory(), self.place()) {
            (Some(memory), Place::Gpu(number)) => {
                let gpu = Arc::new(Gpu::over(number, Arc::clone(memory.gpu())));
                self.moved(py, To::Gpu(gpu))
            }
            _ => self.gathered(py),
        }
    }

    /// The same in host memory: this tensor where it is there already, or else a compact copy.
    ///
    /// # Errors
    /// As [`View::copied`].
    pub fn in_host_memory(&self, py: Python<'_>) -> Result<Self, Fault> {
        match self.on_gpu() {
            true => self.moved(py, To::Host(None)),
            false => Ok(self.another(py)),
        }
    }

    /// A compact copy somewhere else, by a GPU's copy engine.
    ///
    /// # Errors
    /// As [`View::copied`].
    pub fn moved(&self, py: Python<'_>, to: To) -> Result<Self, Fault> {
        let Owner::Region(region) = &self.owner else {
            return Err(Fault::usage("bytes of Python go to no GPU by themselves"));
        };
        if !self.is_compact() {
            let what = "this tensor has gaps between its elements, in a device's memory";
            let fault = Fault::new(Class::Layout, "not-contiguous", what);
            return Err(
                fault.hint("make a framework's tensor of it, and take that one's .contiguous()")
            );
        }
        let range = self.offset..self.offset + self.bytes();
        let outside = || {
            Fault::new(
                Class::Format,
                "out-of-range",
                "it lies outside of its memory",
            )
        };
        let from = region.part(range).ok_or_else(outside)?;
        let request = CopyRequest {
            from,
            to,
            policy: Policy::Prefer,
            candidates: Vec::new(),
        };
        let copied = py.detach(|| gpu::copy(request))?;
        let region = copied.regions.into_iter().next().ok_or_else(outside)?;
        Ok(self.compact_in(region))
    }

    /// The same elements without gaps, at the beginning of another memory.
    fn compact_in(&self, region: Region) -> Self {
        Self {
            owner: Owner::Region(region),
            offset: 0,
            dtype: self.dtype,
            strides: compact(&self.shape),
            shape: self.shape.clone(),
            readonly: false,
        }
    }

    /// Copies all bytes of a tensor without gaps, without the risk of a signal.
    ///
    /// # Errors
    /// When the file or the device behind the memory is gone.
    pub fn read(&self, py: Python<'_>, out: &mut [u8]) -> Result<(), Fault> {
        let short = |why: String| Fault::new(Class::Io, "memory-gone", why);
        let ended = || short("the memory ended before the tensor".into());
        match &self.owner {
            Owner::Bytes(bytes) => {
                let all = bytes.as_bytes(py);
                let end = self.offset + out.len();
                out.copy_from_slice(all.get(self.offset..end).ok_or_else(ended)?);
            }
            Owner::Region(region) => {
                let wanted = out.len();
                let read = py.detach(|| region.read_at(self.offset, out));
                if read.map_err(|error| short(error.to_string()))? < wanted {
                    return Err(ended());
                }
            }
        }
        Ok(())
    }

    /// A compact copy in host memory, by a core.
    fn gathered(&self, py: Python<'_>) -> Result<Self, Fault> {
        let bytes = self.bytes();
        let mut region = Region::zeroed(bytes, None)?;
        if let Some(out) = region.as_mut_slice() {
            let rows = self.rows()?;
            let from = self.pointer(py).addr();
            py.detach(|| rows.gather(from, out));
        }
        Ok(self.compact_in(region))
    }

    fn rows(&self) -> Result<Rows, Fault> {
        let total = self.bytes();
        if self.is_compact() {
            let dims = Vec::new();
            return Ok(Rows { dims, row: total });
        }
        let item = self.item().ok_or_else(|| self.not_bytewise())? as i64;
        let mut dims: Vec<(i64, i64)> = self
            .shape
            .iter()
            .zip(&self.strides)
            .map(|(dim, stride)| (*dim, stride * item))
            .collect();
        // The innermost dimensions that follow each other are one row.
        let mut row = item;
        while let Some((dim, stride)) = dims.last().copied() {
            if dim != 1 && stride != row {
                break;
            }
            row *= dim;
            dims.pop();
        }
        Ok(Rows {
            dims,
            row: row as usize,
        })
    }

    /// Why a tensor of this type cannot be cut.
    pub fn not_bytewise(&self) -> Fault {
        let what = format!(
            "elements of type {} are smaller than a byte: only whole tensors of them can be taken",
            self.dtype
        );
        Fault::new(Class::Layout, "sub-byte", what)
    }
}

/// Elements from one to the next along each dimension of a tensor without gaps.
pub fn compact(shape: &[i64]) -> Box<[i64]> {
    let mut strides = vec![1; shape.len()];
    let mut step: i64 = 1;
    for (stride, dim) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.saturating_mul((*dim).max(1));
    }
    strides.into()
}

/// Rows of bytes that lie apart in regular steps.
struct Rows {
    /// How many, and bytes from one to the next, outermost first.
    dims: Vec<(i64, i64)>,
    /// Bytes of one.
    row: usize,
}

impl Rows {
    /// Lays the rows end to end.
    fn gather(&self, from: usize, out: &mut [u8]) {
        if self.row == 0 || out.is_empty() {
            return;
        }
        let mut at = vec![0_i64; self.dims.len()];
        for row in out.chunks_exact_mut(self.row) {
            let skip: i64 = at
                .iter()
                .zip(&self.dims)
                .map(|(n, (_, step))| n * step)
                .sum();
            let start =
                std::ptr::with_exposed_provenance::<u8>(from.wrapping_add_signed(skip as isize));
            // SAFETY: the view's elements all lie inside of memory that its owner keeps, and the new memory
            // is nobody else's.
            unsafe { std::ptr::copy_nonoverlapping(start, row.as_mut_ptr(), self.row) };
            for (n, (count, _)) in at.iter_mut().zip(&self.dims).rev() {
                *n += 1;
                if *n < *count {
                    break;
                }
                *n = 0;
            }
        }
    }
}
