//! Where in an archive of `torch.save` the bytes of its one tensor are.

use std::ops::Range;

use super::MAX_ITEM_PICKLE_BYTES;
use super::pickle::{Allowed, Pickle, Value};
use super::zip::Archive;
use crate::checkpoint::dtype::Dtype;

/// Everything that PyTorch names in the pickle of a plain tensor.
const ALLOWED: &[Allowed] = &[
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch.storage", "UntypedStorage"),
    ("torch", "*"),
    ("collections", "OrderedDict"),
];

/// The bytes of a tensor.
pub(super) struct Stored {
    pub range: Range<u64>,
    /// Where they are not in the order of rows.
    pub strides: Option<Vec<u64>>,
}

/// The element type that PyTorch calls so.
pub(super) fn dtype_of(name: &str) -> Option<Dtype> {
    Some(match name {
        "float64" => Dtype::F64,
        "float32" => Dtype::F32,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::BF16,
        "float8_e4m3fn" => Dtype::F8_E4M3,
        "float8_e4m3fnuz" => Dtype::F8_E4M3FNUZ,
        "float8_e5m2" => Dtype::F8_E5M2,
        "float8_e5m2fnuz" => Dtype::F8_E5M2FNUZ,
        "float8_e8m0fnu" => Dtype::F8_E8M0,
        "complex64" => Dtype::C64,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint64" => Dtype::U64,
        "uint32" => Dtype::U32,
        "uint16" => Dtype::U16,
        "uint8" => Dtype::U8,
        "bool" => Dtype::Bool,
        _ => return None,
    })
}

/// The element type of a storage class of PyTorch.
fn dtype_of_storage(name: &str) -> Option<Dtype> {
    Some(match name {
        "DoubleStorage" => Dtype::F64,
        "FloatStorage" => Dtype::F32,
        "HalfStorage" => Dtype::F16,
        "BFloat16Storage" => Dtype::BF16,
        "ComplexFloatStorage" => Dtype::C64,
        "LongStorage" => Dtype::I64,
        "IntStorage" => Dtype::I32,
        "ShortStorage" => Dtype::I16,
        "CharStorage" => Dtype::I8,
        "ByteStorage" => Dtype::U8,
        "BoolStorage" => Dtype::Bool,
        _ => return None,
    })
}

/// Finds the tensor that an archive holds, which has to be of this type and shape.
pub(super) fn find(archive: &Archive<'_>, dtype: Dtype, shape: &[u64]) -> Result<Stored, String> {
    let entry = archive
        .find("data.pkl")
        .ok_or("its archive has no data.pkl")?;
    let bytes = archive.contents(entry, MAX_ITEM_PICKLE_BYTES)?;
    let pickle = Pickle::parse(&bytes, ALLOWED).map_err(|error| error.to_string())?;
    if let Some(order) = archive.find("byteorder") {
        let order = archive.contents(order, 16)?;
        if order != b"little" {
            return Err("its numbers are not little-endian".into());
        }
    }
    let tensor = Rebuilt::read(&pickle).ok_or("its pickle is not that of a plain tensor")?;
    if tensor.dtype != dtype {
        return Err(format!("it is {}, not {dtype}", tensor.dtype));
    }
    if tensor.shape != shape {
        return Err(format!("its shape is {:?}, not {shape:?}", tensor.shape));
    }
    let data = archive
        .find(&format!("data/{}", tensor.key))
        .ok_or("its archive has no storage")?;
    let size = dtype.bits() / 8;
    let begin = archive.begin(data)?;
    let span = tensor.span().ok_or("its strides reach too far")?;
    let start = tensor.offset.checked_mul(size);
    let end = tensor
        .offset
        .checked_add(span)
        .and_then(|elements| elements.checked_mul(size));
    match (start, end) {
        (Some(start), Some(end)) if end <= data.bytes => Ok(Stored {
            range: begin + start..begin + end,
            strides: (!tensor.is_row_major()).then_some(tensor.strides),
        }),
        _ => Err(format!(
            "it needs more than the {} bytes of its storage",
            data.bytes
        )),
    }
}

/// What the pickle of a tensor says.
struct Rebuilt {
    dtype: Dtype,
    key: String,
    offset: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

impl Rebuilt {
    fn read(pickle: &Pickle) -> Option<Self> {
        let id = pickle.result();
        let rebuilt = |name| pickle.made(id, "torch._utils", name);
        let (arguments, _) =
            rebuilt("_rebuild_tensor_v2").or_else(|| rebuilt("_rebuild_tensor_v3"))?;
        let arguments = pickle.items(arguments)?;
        let (storage, offset) = (*arguments.first()?, *arguments.get(1)?);
        let (shape, strides) = (*arguments.get(2)?, *arguments.get(3)?);
        let Value::Outside(mark) = pickle.get(storage) else {
            return None;
        };
        // ("storage", class, key, device, elements)
        let mark = pickle.items(*mark)?;
        let Value::Global { name: class, .. } = pickle.get(*mark.get(1)?) else {
            return None;
        };
        let dtype = match dtype_of_storage(class) {
            Some(dtype) => dtype,
            // Newer types have no storage class and come as an argument instead.
            None => match pickle.get(*arguments.get(6)?) {
                Value::Global { module, name } if module == "torch" => dtype_of(name)?,
                _ => return None,
            },
        };
        let rebuilt = Self {
            dtype,
            key: pickle.text(*mark.get(2)?)?.to_owned(),
            offset: pickle.count(offset)?,
            shape: pickle.counts(shape)?,
            strides: pickle.counts(strides)?,
        };
        (rebuilt.shape.len() == rebuilt.strides.len()).then_some(rebuilt)
    }

    /// Elements from the first to the end of the last.
    fn span(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let steps = self.shape.iter().zip(&self.strides);
        steps
            .map(|(dim, stride)| (dim - 1).checked_mul(*stride))
            .try_fold(1u64, |all, step| all.checked_add(step?))
    }

    fn is_row_major(&self) -> bool {
        let mut expected = 1u64;
        for (&dim, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if dim != 1 && stride != expected {
                return self.shape.contains(&0);
            }
            expected = expected.saturating_mul(dim);
        }
        true
    }
}
