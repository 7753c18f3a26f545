//! The shape of a made-up transformer of a given size.

use crowfly_route::units::Bytes;

use crate::checkpoint::dtype::Dtype;

/// The type of every element.
pub(super) const DTYPE: Dtype = Dtype::BF16;

const ELEMENT: u64 = DTYPE.bits() / 8;

/// The width of the inner layer of each block, in hidden widths.
const INNER: u64 = 4;

/// One tensor.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
}

impl Part {
    fn new(name: impl Into<String>, shape: &[u64]) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
        }
    }

    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * ELEMENT
    }
}

/// Tensors that take exactly `total`, an even number of at least
/// [`MIN_SEEDED`](super::MIN_SEEDED).
///
/// Some thirty to a hundred blocks take seven eighths; the embedding and the head share the rest row
/// by row, and what is less than a row of both becomes the head's bias.
pub(super) fn parts(total: Bytes) -> Vec<Part> {
    let hidden = hidden_width(total);
    let inner = INNER * hidden;
    let layer: Vec<(&str, Vec<u64>)> = vec![
        ("input_layernorm", vec![hidden]),
        ("self_attn.q_proj", vec![hidden, hidden]),
        ("self_attn.k_proj", vec![hidden, hidden]),
        ("self_attn.v_proj", vec![hidden, hidden]),
        ("self_attn.o_proj", vec![hidden, hidden]),
        ("post_attention_layernorm", vec![hidden]),
        ("mlp.gate_proj", vec![inner, hidden]),
        ("mlp.up_proj", vec![inner, hidden]),
        ("mlp.down_proj", vec![hidden, inner]),
    ];
    let layer_bytes: u64 = layer
        .iter()
        .map(|(_, shape)| shape.iter().product::<u64>() * ELEMENT)
        .sum();
    let layers = (total.0 - total.0 / 8) / layer_bytes;
    let rest = total.0 - layers * layer_bytes - hidden * ELEMENT;
    let rows = rest / (2 * hidden * ELEMENT);
    let bias = rest % (2 * hidden * ELEMENT) / ELEMENT;

    let mut parts = vec![Part::new("model.embed_tokens.weight", &[rows, hidden])];
    for number in 0..layers {
        for (name, shape) in &layer {
            parts.push(Part::new(
                format!("model.layers.{number}.{name}.weight"),
                shape,
            ));
        }
    }
    parts.push(Part::new("model.norm.weight", &[hidden]));
    parts.push(Part::new("lm_head.weight", &[rows, hidden]));
    if bias > 0 {
        parts.push(Part::new("lm_head.bias", &[bias]));
    }
    parts
}

/// A power of two, so that a block takes between a thirtieth and a hundredth of the whole.
fn hidden_width(total: Bytes) -> u64 {
    const NARROWEST: u64 = 8;
    const WIDEST: u64 = 8192;
    // A block takes about 32 · width² bytes.
    let width = (total.0 / 1024).isqrt().clamp(NARROWEST, WIDEST);
    1 << width.ilog2()
}

/// Cuts the tensors into `shards` runs of about the same bytes, none of them empty; there are at
/// least as many tensors.
pub(super) fn cut(parts: &[Part], shards: u32) -> Vec<&[Part]> {
    let total: u64 = parts.iter().map(Part::bytes).sum();
    let mut runs = Vec::new();
    let mut rest = parts;
    let mut before = 0;
    for left in (1..=shards as usize).rev() {
        let wanted = (total - before) / left as u64;
        let (mut len, mut bytes) = (0, 0);
        // Leave at least one tensor for each run still to come.
        while len + left <= rest.len() && (bytes < wanted || len == 0 || left == 1) {
            bytes += rest.get(len).map_or(0, Part::bytes);
            len += 1;
        }
        let (run, after) = rest.split_at(len);
        runs.push(run);
        rest = after;
        before += bytes;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::seeded::{MAX_SEEDED, MIN_SEEDED};

    #[test]
    fn the_parts_take_exactly_the_size_asked_for() {
        for total in [
            MIN_SEEDED,
            Bytes(MIN_SEEDED.0 + 2),
            Bytes(1_234_566),
            Bytes::mib(1),
            Bytes::gib(1),
            MAX_SEEDED,
        ] {
            let parts = parts(total);
            assert_eq!(parts.iter().map(Part::bytes).sum::<u64>(), total.0);
            assert!(parts.iter().all(|part| part.bytes() > 0), "{total}");
        }
    }

    #[test]
    fn a_gibibyte_looks_like_a_transformer() {
        let parts = parts(Bytes::gib(1));
        let shape = |name: &str| {
            let part = parts.iter().find(|part| part.name == name);
            part.map(|part| part.shape.clone())
        };
        assert_eq!(
            shape("model.layers.26.mlp.up_proj.weight"),
            Some(vec![4096, 1024])
        );
        assert_eq!(shape("model.norm.weight"), Some(vec![1024]));
        assert_eq!(shape("model.embed_tokens.weight"), shape("lm_head.weight"));
    }

    #[test]
    fn every_run_has_a_tensor_and_none_is_much_larger_than_its_share() {
        let parts = parts(Bytes::mib(4));
        for shards in [1, 2, 3, 4, 7, 64, 200] {
            let runs = cut(&parts, shards);
            assert_eq!(runs.len(), shards as usize);
            assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), parts.len());
            let largest = parts.iter().map(Part::bytes).max().unwrap_or(0);
            for run in runs {
                let bytes: u64 = run.iter().map(Part::bytes).sum();
                assert!(!run.is_empty());
                assert!(bytes <= Bytes::mib(4).0 / u64::from(shards) + largest);
            }
        }
    }
}
