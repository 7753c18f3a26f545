//! The stand-in for a model: numbers of the right sizes, and a computation that uses them and every
//! byte of the batch.
//!
//! Each parameter is a regression of its own. A batch is a row of pairs of bytes `(x, y)`, taken to
//! lie between -1 and 1; pair `k` belongs to parameter `k` modulo their number, and what is made
//! small is the square of `w x − y`. The gradients are real, the update is Adam's (Kingma and Ba,
//! arXiv 1412.6980), and nothing but the order of the batches decides the result: all of it is the
//! same bits for the same seed, data and ranks.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::order::Work;
use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::seeded;
use crate::ckpt::TensorPart;
use crate::collective::{Element, narrow};
use crate::digest;
use crate::memory::{MemoryError, zeros};

/// bf16 weights 2, fp32 master weights 4, two Adam moments 4 each.
pub const STATE_BYTES_PER_PARAMETER: u64 = 14;
/// Floating point operations for one pair: two bytes to numbers 4, prediction, difference, gradient
/// and sum 4.
pub const FLOPS_PER_PAIR: f64 = 8.0;

/// Adam's constants.
const RATE: f32 = 1e-3;
const FIRST_DECAY: f32 = 0.9;
const SECOND_DECAY: f32 = 0.999;
const TINY: f32 = 1e-8;

/// Half the range of a byte.
const HALF: f32 = 127.5;

/// The tensors of a layer, and bytes of a parameter in each.
const KINDS: [(&str, Dtype, usize); 4] = [
    ("weight", Dtype::BF16, 2),
    ("master", Dtype::F32, 4),
    ("first", Dtype::F32, 4),
    ("second", Dtype::F32, 4),
];

/// One layer's part of the state.
struct Layer {
    /// The names of its tensors, as [`KINDS`] has them.
    names: [String; 4],
    shape: [u64; 1],
    /// Their bytes.
    tensors: [Vec<u8>; 4],
}

/// Parameters and the optimizer's state, which all ranks have alike, and this rank's gradients.
pub(super) struct Model {
    layers: Vec<Layer>,
    /// In single precision, before the exchange.
    sums: Vec<f32>,
    /// In half precision, which is exchanged.
    gradients: Vec<u8>,
    /// Steps that are done.
    pub step: u64,
    /// Batches that all ranks together have read.
    pub cursor: u64,
}

/// What a computation came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Computed {
    pub passes: u64,
    pub flops: f64,
}

fn single(bytes: [u8; 4]) -> f32 {
    f32::from_le_bytes(bytes)
}

impl Model {
    /// The state that a run begins with.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(parameters: u64, layers: u32, seed: u64) -> Result<Self, MemoryError> {
        let (layers, parameters) = (u64::from(layers.max(1)), parameters as usize);
        let mut made = Vec::new();
        for number in 0..layers {
            // The first ones are larger by one where it does not come out even.
            let (least, left) = (parameters as u64 / layers, parameters as u64 % layers);
            let size = (least + u64::from(number < left)) as usize;
            let first = number * least + number.min(left);
            let [weight, master, first_moment, second_moment] =
                KINDS.map(|(_, _, bytes)| zeros(bytes * size));
            let mut layer = Layer {
                names: KINDS.map(|(kind, ..)| format!("layer.{number}.{kind}")),
                shape: [size as u64],
                tensors: [weight?, master?, first_moment?, second_moment?],
            };
            layer.begin(seed, first);
            made.push(layer);
        }
        Ok(Self {
            layers: made,
            sums: zeros(parameters)?,
            gradients: zeros(2 * parameters)?,
            step: 0,
            cursor: 0,
        })
    }

    /// What is exchanged.
    pub fn gradients(&mut self) -> &mut [u8] {
        &mut self.gradients
    }

    /// Works the gradients of a batch out, as often as is asked for: more than once is as good as
    /// once, and takes longer.
    pub fn compute(&mut self, batch: &[u8], work: Work) -> Computed {
        let pairs = batch.as_chunks::<2>().0;
        let count = pairs.len().max(self.sums.len());
        let one = FLOPS_PER_PAIR * count as f64;
        let began = Instant::now();
        let mut passes = 0;
        loop {
            self.pass(pairs, count);
            passes += 1;
            let enough = match work {
                Work::Once => true,
                Work::Seconds(seconds) => began.elapsed() >= Duration::from_secs_f64(seconds),
                Work::Flops(flops) => passes as f64 * one >= flops,
            };
            if enough {
                break;
            }
        }
        // The mean over the pairs of one parameter.
        let scale = self.sums.len() as f32 / count.max(1) as f32;
        for sum in &mut self.sums {
            *sum *= scale;
        }
        const BLOCK: usize = 1024;
        let mut wide = [0; 4 * BLOCK];
        let blocks = self
            .sums
            .chunks(BLOCK)
            .zip(self.gradients.chunks_mut(2 * BLOCK));
        for (sums, out) in blocks {
            for (bytes, sum) in wide.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                *bytes = sum.to_le_bytes();
            }
            narrow(
                Element::Bf16,
                wide.get(..2 * out.len()).unwrap_or_default(),
                out,
            );
        }
        Computed {
            passes,
            flops: passes as f64 * one,
        }
    }

    /// Adds the gradients of so many pairs up; after the last pair of the batch comes the first again.
    fn pass(&mut self, pairs: &[[u8; 2]], count: usize) {
        self.sums.fill(0.0);
        if pairs.is_empty() {
            return;
        }
        let mut at = 0;
        let mut done = 0;
        'pairs: while done < count {
            let mut first = 0;
            for layer in &self.layers {
                let [_, master, ..] = &layer.tensors;
                let weights = master.as_chunks::<4>().0;
                let mut of_layer = 0;
                while of_layer < weights.len() {
                    let run = (weights.len() - of_layer)
                        .min(pairs.len() - at)
                        .min(count - done);
                    let sums = self.sums.get_mut(first + of_layer..first + of_layer + run);
                    let weights = weights.get(of_layer..of_layer + run).unwrap_or_default();
                    let pairs_now = pairs.get(at..at + run).unwrap_or_default();
                    add_up(sums.unwrap_or_default(), weights, pairs_now);
                    of_layer += run;
                    done += run;
                    at = (at + run) % pairs.len();
                    if done == count {
                        break 'pairs;
                    }
                }
                first += weights.len();
            }
        }
        black_box(&mut self.sums);
    }

    /// Takes the exchanged gradients in: a step of Adam.
    pub fn update(&mut self) {
        self.step += 1;
        let power = i32::try_from(self.step).unwrap_or(i32::MAX);
        let corrections = (
            1.0 - FIRST_DECAY.powi(power),
            1.0 - SECOND_DECAY.powi(power),
        );
        let mut gradients = self.gradients.as_chunks::<2>().0;
        for layer in &mut self.layers {
            let (mine, rest) = gradients.split_at(layer.shape[0] as usize);
            gradients = rest;
            layer.update(mine, corrections);
        }
    }

    /// The tensors, of which every rank holds everything.
    pub fn tensors(&self) -> Vec<TensorPart<'_>> {
        let parts = self.layers.iter().flat_map(|layer| {
            let named = layer.names.iter().zip(KINDS).zip(&layer.tensors);
            named.map(|((name, (_, dtype, _)), bytes)| {
                TensorPart::replicated(name, dtype, &layer.shape, bytes)
            })
        });
        parts.collect()
    }

    /// Where the bytes of a tensor are.
    pub fn tensor_mut(&mut self, name: &str) -> Option<&mut [u8]> {
        self.layers.iter_mut().find_map(|layer| {
            let at = layer.names.iter().position(|known| known == name)?;
            layer.tensors.get_mut(at).map(Vec::as_mut_slice)
        })
    }

    /// A checksum of everything that a run leaves: all tensors, the step, and where the data is.
    pub fn digest(&self) -> u64 {
        let tensors = self.layers.iter().flat_map(|layer| &layer.tensors);
        let pieces = tensors.map(|bytes| digest::piece(bytes));
        digest::whole(pieces.chain([self.step, self.cursor]))
    }
}

/// Adds the gradients of pairs to the sums of their parameters.
fn add_up(sums: &mut [f32], weights: &[[u8; 4]], pairs: &[[u8; 2]]) {
    for ((sum, weight), [x, y]) in sums.iter_mut().zip(weights).zip(pairs) {
        let x = (f32::from(*x) - HALF) / HALF;
        let y = (f32::from(*y) - HALF) / HALF;
        *sum += (single(*weight) * x - y) * x;
    }
}

impl Layer {
    /// Weights between -1 and 1 that follow from a seed; moments of zero.
    fn begin(&mut self, seed: u64, first: u64) {
        let [weight, master, ..] = &mut self.tensors;
        seeded::fill(seed, 4 * first, master);
        for bytes in master.as_chunks_mut::<4>().0 {
            let random = i32::from_le_bytes(*bytes);
            *bytes = (random as f32 / i32::MIN as f32).to_le_bytes();
        }
        narrow(Element::Bf16, master, weight);
    }

    fn update(&mut self, gradients: &[[u8; 2]], (first_left, second_left): (f32, f32)) {
        let [weight, master, first, second] = &mut self.tensors;
        let numbers = master
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .zip(first.as_chunks_mut::<4>().0)
            .zip(second.as_chunks_mut::<4>().0);
        for (((master, first), second), gradient) in numbers.zip(gradients) {
            let [low, high] = *gradient;
            // A bf16 is the upper half of a single.
            let gradient = single([0, 0, low, high]);
            let m = FIRST_DECAY * single(*first) + (1.0 - FIRST_DECAY) * gradient;
            let v = SECOND_DECAY * single(*second) + (1.0 - SECOND_DECAY) * gradient * gradient;
            let step = (m / first_left) / ((v / second_left).sqrt() + TINY);
            *first = m.to_le_bytes();
            *second = v.to_le_bytes();
            *master = (single(*master) - RATE * step).to_le_bytes();
        }
        narrow(Element::Bf16, master, weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        seeded::fill(9, 0, &mut bytes);
        bytes
    }

    /// The gradients by the formula, one pair at a time.
    fn by_the_formula(model: &Model, batch: &[u8]) -> Vec<f32> {
        let weights: Vec<f32> = model
            .layers
            .iter()
            .flat_map(|layer| layer.tensors[1].as_chunks::<4>().0)
            .map(|bytes| single(*bytes))
            .collect();
        let pairs = batch.as_chunks::<2>().0;
        let count = pairs.len().max(weights.len());
        let mut sums = vec![0f32; weights.len()];
        for k in 0..count {
            let [x, y] = pairs[k % pairs.len()].map(|byte| (f32::from(byte) - HALF) / HALF);
            let at = k % weights.len();
            sums[at] += (weights[at] * x - y) * x;
        }
        let scale = weights.len() as f32 / count as f32;
        sums.into_iter().map(|sum| sum * scale).collect()
    }

    #[test]
    fn gradients_are_those_of_the_formula_with_more_pairs_than_parameters_or_fewer() {
        for (parameters, layers, bytes) in [(10, 3, 400), (1000, 7, 64), (5, 5, 10)] {
            let mut model = Model::new(parameters, layers, 1).expect("memory");
            let batch = batch(bytes);
            model.compute(&batch, Work::Once);
            assert_eq!(model.sums, by_the_formula(&model, &batch), "{parameters}");
        }
    }

    #[test]
    fn computing_for_longer_changes_nothing_and_is_counted() {
        let batch = batch(4096);
        let mut once = Model::new(100, 2, 1).expect("memory");
        let mut often = Model::new(100, 2, 1).expect("memory");
        let one = once.compute(&batch, Work::Once);
        assert_eq!((one.passes, one.flops), (1, 2048.0 * FLOPS_PER_PAIR));
        let three = often.compute(&batch, Work::Flops(2.5 * one.flops));
        assert_eq!(three.passes, 3);
        assert_eq!(once.gradients, often.gradients);
        let timed = often.compute(&batch, Work::Seconds(0.01));
        assert!(timed.passes >= 1);
        assert_eq!(once.gradients, often.gradients);
    }

    #[test]
    fn every_byte_of_a_batch_and_every_step_changes_the_state() {
        let digest_of = |batch: &[u8], steps: usize| {
            let mut model = Model::new(64, 2, 1).expect("memory");
            for _ in 0..steps {
                model.compute(batch, Work::Once);
                model.update();
            }
            model.digest()
        };
        let plain = batch(256);
        let first = digest_of(&plain, 1);
        assert_eq!(first, digest_of(&plain, 1));
        assert_ne!(first, digest_of(&plain, 2));
        for at in [0, 1, 100, 255] {
            let mut other = plain.clone();
            other[at] ^= 0x40;
            assert_ne!(first, digest_of(&other, 1), "byte {at}");
        }
    }

    #[test]
    fn adam_s_first_step_moves_each_weight_by_its_rate_against_the_gradient() {
        let mut model = Model::new(8, 1, 1).expect("memory");
        let before: Vec<f32> = model.layers[0].tensors[1]
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| single(*b))
            .collect();
        model.compute(&batch(1024), Work::Once);
        let gradients: Vec<f32> = model
            .gradients
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[l, h]| single([0, 0, *l, *h]))
            .collect();
        model.update();
        let after = model.layers[0].tensors[1]
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| single(*b));
        for ((before, after), gradient) in before.iter().zip(after).zip(gradients) {
            let moved = after - before;
            assert!((moved + RATE * gradient.signum()).abs() < 1e-5, "{moved}");
        }
    }

    #[test]
    fn the_state_has_fourteen_bytes_a_parameter() {
        let model = Model::new(103, 4, 1).expect("memory");
        let bytes: usize = model.tensors().iter().map(|part| part.bytes.len()).sum();
        assert_eq!(bytes as u64, 103 * STATE_BYTES_PER_PARAMETER);
        assert_eq!(model.tensors().len(), 16);
    }
}
