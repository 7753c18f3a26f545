//! Small safetensors files for tests.

use std::fs;
use std::path::{Path, PathBuf};

use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::header::encode;

/// Writes a file of `U8` tensors, one for each name and length in bytes, and returns its path.
pub fn write_shard(folder: &Path, file: &str, tensors: &[(&str, u64)]) -> PathBuf {
    let shapes: Vec<[u64; 1]> = tensors.iter().map(|&(_, len)| [len]).collect();
    let entries = tensors
        .iter()
        .zip(&shapes)
        .map(|(&(name, _), shape)| (name, Dtype::U8, shape.as_slice()));
    let (mut bytes, header) = encode(&[], entries).unwrap();
    bytes.resize(header.data().end as usize, 7);
    let path = folder.join(file);
    fs::write(&path, bytes).unwrap();
    path
}
