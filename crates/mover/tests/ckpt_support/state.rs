//! States to save, and what must come back.

use crowfly_mover::Engine;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::select::RankSlice;
use crowfly_mover::ckpt::{Archive, RestoreOptions, Restored, State, TensorPart, Want};

/// A tensor with memory of its own.
pub struct Owned {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// Bytes that differ from tensor to tensor, from place to place and from step to step.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length.div_ceil(8))
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .take(length)
        .collect()
}

pub fn owned(name: &str, dtype: Dtype, shape: &[u64], seed: u64) -> Owned {
    let bytes = dtype.bytes_of(shape).expect("a size") as usize;
    Owned {
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
        bytes: pattern(seed, bytes),
    }
}

/// A small model at a step: several types, a scalar, an empty tensor, one larger than a block of
/// checksums.
pub fn model(step: u64) -> Vec<Owned> {
    vec![
        owned("embed.weight", Dtype::BF16, &[300, 64], step),
        owned("layers.0.weight", Dtype::F32, &[800, 801], step + 1),
        owned("layers.0.bias", Dtype::F32, &[801], step + 2),
        owned("optim.count", Dtype::I64, &[], step + 3),
        owned("optim.mask", Dtype::Bool, &[7], step + 4),
        owned("empty", Dtype::F16, &[0, 4], step + 5),
    ]
}

pub fn state(tensors: &[Owned]) -> State<'_> {
    State {
        tensors: tensors
            .iter()
            .map(|t| TensorPart::whole(&t.name, t.dtype, &t.shape, &t.bytes))
            .collect(),
        objects: Default::default(),
    }
}

pub fn alone() -> RankSlice {
    RankSlice::new(0, 1).expect("one rank")
}

pub fn restore(archive: &Archive, wants: &[Want]) -> Vec<Restored> {
    let reading = archive
        .restore(&Engine::default(), wants, RestoreOptions::default())
        .expect("can be restored");
    reading.wait().expect("restored").tensors
}

/// Whether an archive holds exactly these tensors.
pub fn assert_holds(archive: &Archive, tensors: &[Owned]) {
    let names: Vec<&str> = archive.tensors().map(|(name, _)| name).collect();
    let mut expected: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let wants: Vec<Want> = tensors.iter().map(|t| Want::whole(&t.name)).collect();
    for (restored, tensor) in restore(archive, &wants).iter().zip(tensors) {
        assert_eq!(restored.name, tensor.name);
        assert_eq!(
            (restored.dtype, &restored.extent.shape),
            (tensor.dtype, &tensor.shape)
        );
        let bytes = restored.bytes.as_slice().expect("plain memory");
        assert!(bytes == tensor.bytes, "{} differs", tensor.name);
    }
}
