//! What `.metadata` says: which tensors there are, in which parts, and where each part lies.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value as Json;

use super::error::DcpError;
use super::pickle::{Allowed, Id, Pickle, Value};
use super::tensor::dtype_of;
use crate::checkpoint::dtype::Dtype;
use crate::ckpt::extent::Extent;

/// The deepest nesting of a state that is put together again.
const MAX_NESTING: usize = 64;

const CLASSES: &str = "torch.distributed.checkpoint.metadata";
const FILES: &str = "torch.distributed.checkpoint.filesystem";

/// Everything that PyTorch names in a `.metadata`.
const ALLOWED: &[Allowed] = &[
    (CLASSES, "Metadata"),
    (CLASSES, "TensorStorageMetadata"),
    (CLASSES, "BytesStorageMetadata"),
    (CLASSES, "TensorProperties"),
    (CLASSES, "ChunkStorageMetadata"),
    (CLASSES, "MetadataIndex"),
    (CLASSES, "StorageMeta"),
    (CLASSES, "_MEM_FORMAT_ENCODING"),
    (FILES, "_StorageInfo"),
    (FILES, "_StoragePrefix"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("torch", "float64"),
    ("torch", "float32"),
    ("torch", "float16"),
    ("torch", "bfloat16"),
    ("torch", "float8_e4m3fn"),
    ("torch", "float8_e4m3fnuz"),
    ("torch", "float8_e5m2"),
    ("torch", "float8_e5m2fnuz"),
    ("torch", "float8_e8m0fnu"),
    ("torch", "complex64"),
    ("torch", "complex128"),
    ("torch", "int64"),
    ("torch", "int32"),
    ("torch", "int16"),
    ("torch", "int8"),
    ("torch", "uint64"),
    ("torch", "uint32"),
    ("torch", "uint16"),
    ("torch", "uint8"),
    ("torch", "bool"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("collections", "OrderedDict"),
];

/// Where an item lies.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub file: String,
    pub offset: u64,
    pub length: u64,
}

/// A part of a tensor and where it lies.
pub(super) struct Chunk {
    pub extent: Extent,
    pub item: Item,
}

pub(super) struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub chunks: Vec<Chunk>,
}

pub(super) struct Described {
    pub tensors: Vec<Tensor>,
    /// Everything that is no tensor.
    pub objects: Vec<(String, Item)>,
    /// Where in the nested state each name stood: keys of dictionaries and places in lists.
    pub paths: BTreeMap<String, Vec<Json>>,
}

fn bad(what: impl Into<String>) -> DcpError {
    DcpError::Metadata { what: what.into() }
}

pub(super) fn read(bytes: &[u8]) -> Result<Described, DcpError> {
    let pickle = Pickle::parse(bytes, ALLOWED)?;
    let state = state(&pickle, pickle.result(), CLASSES, "Metadata")
        .ok_or_else(|| bad("it is no Metadata"))?;
    let described = pickle
        .field(state, "state_dict_metadata")
        .and_then(|id| pickle.pairs(id))
        .ok_or_else(|| bad("it has no state_dict_metadata"))?;
    let items = items(&pickle, state)?;
    let mut tensors = Vec::new();
    let mut objects = Vec::new();
    for &(name, value) in described {
        let name = pickle
            .text(name)
            .ok_or_else(|| bad("a name is no text"))?
            .to_owned();
        let place = |offset: Option<Vec<u64>>| {
            items
                .get(&(name.clone(), offset))
                .cloned()
                .ok_or_else(|| bad(format!("it does not say where {name:?} lies")))
        };
        if pickle
            .made(value, CLASSES, "BytesStorageMetadata")
            .is_some()
        {
            let item = place(None)?;
            objects.push((name, item));
            continue;
        }
        let wrong = |what: &str| bad(format!("{name:?} has no {what}"));
        let tensor = self::state(&pickle, value, CLASSES, "TensorStorageMetadata")
            .ok_or_else(|| bad(format!("{name:?} is neither a tensor nor bytes")))?;
        let shape = pickle
            .field(tensor, "size")
            .and_then(|id| size(&pickle, id))
            .ok_or_else(|| wrong("size"))?;
        let dtype = pickle
            .field(tensor, "properties")
            .and_then(|id| dtype_name(&pickle, id))
            .ok_or_else(|| wrong("type"))?;
        let dtype = dtype_of(dtype).ok_or_else(|| DcpError::Dtype {
            tensor: name.as_str().into(),
            dtype: dtype.into(),
        })?;
        dtype
            .bytes_of(&shape)
            .map_err(|fault| bad(format!("{name:?} of shape {shape:?}: {fault:?}")))?;
        let listed = pickle
            .field(tensor, "chunks")
            .and_then(|id| pickle.items(id))
            .ok_or_else(|| wrong("chunks"))?;
        let mut chunks = Vec::with_capacity(listed.len());
        for chunk in listed {
            let extent = chunk_extent(&pickle, *chunk).ok_or_else(|| wrong("usable chunk"))?;
            if extent.is_empty() && listed.len() > 1 {
                continue;
            }
            let item = place(Some(extent.offset.clone()))?;
            chunks.push(Chunk { extent, item });
        }
        tensors.push(Tensor {
            name,
            dtype,
            shape,
            chunks,
        });
    }
    Ok(Described {
        tensors,
        objects,
        paths: paths(&pickle, state),
    })
}

/// What the planner of the save noted; names that it did not note, or not as PyTorch's own does, have no path.
fn paths(pickle: &Pickle, metadata: Id) -> BTreeMap<String, Vec<Json>> {
    let noted = pickle
        .field(metadata, "planner_data")
        .and_then(|id| pickle.pairs(id))
        .unwrap_or_default();
    let step = |id: &Id| match pickle.get(*id) {
        Value::Text(key) => Some(Json::from(key.as_str())),
        Value::Int(place) => Some(Json::from(*place)),
        _ => None,
    };
    let path = |id: Id| -> Option<Vec<Json>> {
        let steps = pickle.items(id)?;
        let short = !steps.is_empty() && steps.len() <= MAX_NESTING;
        short.then(|| steps.iter().map(step).collect())?
    };
    let named = noted
        .iter()
        .filter_map(|(name, id)| Some((pickle.text(*name)?.to_owned(), path(*id)?)));
    named.collect()
}

/// The state that an instance of a class was given.
fn state(pickle: &Pickle, id: Id, module: &str, name: &str) -> Option<Id> {
    pickle.made(id, module, name)?.1
}

/// The numbers of a `torch.Size`.
fn size(pickle: &Pickle, id: Id) -> Option<Vec<u64>> {
    let (arguments, _) = pickle.made(id, "torch", "Size")?;
    match pickle.items(arguments)? {
        [] => Some(Vec::new()),
        [numbers] => pickle.counts(*numbers),
        _ => None,
    }
}

fn dtype_name(pickle: &Pickle, properties: Id) -> Option<&str> {
    let state = state(pickle, properties, CLASSES, "TensorProperties")?;
    // Its state is a tuple that begins with the type.
    match pickle.get(*pickle.items(state)?.first()?) {
        Value::Global { module, name } if module == "torch" => Some(name),
        _ => None,
    }
}

fn chunk_extent(pickle: &Pickle, id: Id) -> Option<Extent> {
    let state = state(pickle, id, CLASSES, "ChunkStorageMetadata")?;
    Some(Extent {
        offset: size(pickle, pickle.field(state, "offsets")?)?,
        shape: size(pickle, pickle.field(state, "sizes")?)?,
    })
}

/// Where each item lies, by name and, of tensors, by the offset of the part.
type Items = HashMap<(String, Option<Vec<u64>>), Item>;

fn items(pickle: &Pickle, metadata: Id) -> Result<Items, DcpError> {
    let pairs = pickle
        .field(metadata, "storage_data")
        .and_then(|id| pickle.pairs(id))
        .ok_or_else(|| bad("it has no storage_data"))?;
    let mut items = HashMap::with_capacity(pairs.len());
    for &(index, info) in pairs {
        let index = state(pickle, index, CLASSES, "MetadataIndex")
            .ok_or_else(|| bad("an item has no index"))?;
        let name = pickle
            .field(index, "fqn")
            .and_then(|id| pickle.text(id))
            .ok_or_else(|| bad("an item has no name"))?;
        let offset = match pickle.field(index, "offset") {
            None => None,
            Some(id) if *pickle.get(id) == Value::None => None,
            Some(id) => {
                let offset = size(pickle, id);
                Some(offset.ok_or_else(|| bad(format!("{name:?} has no usable offset")))?)
            }
        };
        let info = state(pickle, info, FILES, "_StorageInfo")
            .ok_or_else(|| bad(format!("{name:?} lies in no file")))?;
        let transformed = pickle.field(info, "transform_descriptors");
        let transformed = transformed.and_then(|id| pickle.items(id));
        if transformed.is_some_and(|transforms| !transforms.is_empty()) {
            return Err(bad(format!(
                "{name:?} was compressed or otherwise transformed"
            )));
        }
        let number = |key: &str| {
            pickle
                .field(info, key)
                .and_then(|id| pickle.count(id))
                .ok_or_else(|| bad(format!("{name:?} has no usable {key}")))
        };
        let file = pickle
            .field(info, "relative_path")
            .and_then(|id| pickle.text(id))
            .ok_or_else(|| bad(format!("{name:?} has no file")))?;
        let item = Item {
            file: file.to_owned(),
            offset: number("offset")?,
            length: number("length")?,
        };
        items.insert((name.to_owned(), offset), item);
    }
    Ok(items)
}
