//! A training step: compute, the traffic of every kind of parallelism, and what of it the backward
//! pass hides.

use serde::Serialize;

use crate::calibrated::constants::{COMPUTE_SHARE, PAIRWISE_SHARE};
use crate::calibrated::{Algorithm, Bound, Collective, Estimate, Group, StagedRate};
use crate::cluster::Cluster;
use crate::workload::{GRADIENT_BYTES, Sharding, Workload};

/// Of forward and backward pass, the backward pass is two thirds.
const BACKWARD_SHARE: f64 = 2.0 / 3.0;
/// With everything worked out again the forward pass happens twice: 4 passes for 3.
const RECOMPUTE_FACTOR: f64 = 4.0 / 3.0;
/// FLOPs per parameter and token, forward and backward (Kaplan et al., arXiv 2001.08361).
const FLOPS_PER_PARAMETER: f64 = 6.0;
/// FLOPs of attention per layer, width, position and token, forward and backward (Narayanan et al.,
/// arXiv 2104.04473).
const FLOPS_OF_ATTENTION: f64 = 12.0;
/// All-reduces of activations per layer of a tensor-parallel group: two forward, two backward
/// (Shoeybi et al., arXiv 1909.08053).
const TENSOR_REDUCES: f64 = 4.0;
/// Two more where the forward pass happens twice.
const TENSOR_REDUCES_AGAIN: f64 = 2.0;
/// All-to-alls per layer with experts: to the experts and back, forward and backward.
const EXPERT_EXCHANGES: f64 = 4.0;
/// Activations in bf16.
const ACTIVATION_BYTES: f64 = 2.0;
/// Where a model's layers are not known, its gradients are taken to come in this many buckets.
const BUCKETS: u32 = 32;
/// Where a model's sequence is not known.
const SEQUENCE: u32 = 4096;

/// The seconds of one training step. What is zero does not happen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Arithmetic of one GPU; `None` where the GPU's rate is not known, and then `total` is too.
    pub compute: Option<f64>,
    /// GPUs waiting for the pipeline to fill and drain.
    pub bubble: f64,
    /// All-reduces of activations among tensor-parallel GPUs.
    pub tensor: f64,
    /// Activations from stage to stage.
    pub pipeline: f64,
    /// All-to-alls among experts.
    pub expert: f64,
    /// The exchange of gradients, and of weights where those are sharded, as if nothing hid it.
    pub gradients: f64,
    /// How that is done; `None` where there is nothing to exchange.
    pub exchange: Option<Estimate>,
    /// What the computation does not hide of it.
    pub exposed: f64,
    /// All of the step.
    pub total: Option<f64>,
    /// Bytes that each NIC sends for gradients.
    pub gradient_bytes_per_nic: f64,
}

/// FLOPs of one step over all GPUs.
pub fn flops(workload: &Workload, tokens: f64) -> f64 {
    let model = &workload.model;
    let dense = FLOPS_PER_PARAMETER * model.active_params * tokens;
    let shape = model.layers.zip(model.hidden).zip(model.sequence);
    let attention = shape.map_or(0.0, |((layers, hidden), sequence)| {
        let per_token = f64::from(layers) * f64::from(hidden) * f64::from(sequence);
        FLOPS_OF_ATTENTION * per_token * tokens
    });
    let again = if workload.recompute {
        RECOMPUTE_FACTOR
    } else {
        1.0
    };
    (dense + attention) * again
}

/// How the adapters are reached: directly, or staged at this rate.
#[derive(Clone, Copy, Debug)]
pub enum Path<'a> {
    /// By the adapters' own DMA.
    Direct,
    /// Through host RAM.
    Staged(&'a StagedRate),
}

impl Step {
    /// A step of `workload` on `cluster`.
    pub fn of(cluster: &Cluster, workload: &Workload, path: Path<'_>) -> Self {
        let gpus = cluster.gpus() as f64;
        let tokens = workload.tokens_per_gpu as f64 * gpus;
        let compute = cluster
            .server
            .gpu_flops
            .map(|rate| flops(workload, tokens) / gpus / (rate * COMPUTE_SHARE));
        Self::with_compute(cluster, workload, path, compute)
    }

    /// The same with the seconds of arithmetic of one GPU as somebody measured them.
    pub fn with_compute(
        cluster: &Cluster,
        workload: &Workload,
        path: Path<'_>,
        compute: Option<f64>,
    ) -> Self {
        let layout = Layout::of(cluster, workload, path);
        let group = layout.data_parallel();
        let (gradients, exchange) = layout.gradients(&group, None);
        let micro_batches = layout.micro_batches();
        let tensor = layout.tensor(micro_batches);
        let expert = layout.expert();
        let pipeline = layout.pipeline(micro_batches);
        let waiting = (layout.pp - 1.0) / micro_batches;
        let bubble = compute.map_or(0.0, |compute| (compute + tensor + expert) * waiting);
        let exposed = layout.exposed(gradients, compute);
        let total = compute.map(|compute| compute + bubble + tensor + pipeline + expert + exposed);
        let n = f64::from(group.domains);
        let shared = layout.gradient_bytes() / f64::from(group.per_domain);
        let nics = f64::from(cluster.domain_nics()) * f64::from(group.per_domain)
            / f64::from(cluster.domain_gpus());
        let per_nic = f64::from(group.per_domain) / nics.max(f64::MIN_POSITIVE);
        Self {
            compute,
            bubble,
            tensor,
            pipeline,
            expert,
            gradients,
            exchange,
            exposed,
            total,
            gradient_bytes_per_nic: workload.sharding.volumes() * (n - 1.0) / n * shared * per_nic,
        }
    }
}

/// The seconds of the direct exchange of gradients by one algorithm.
pub(crate) fn exchange_by(cluster: &Cluster, workload: &Workload, algorithm: Algorithm) -> f64 {
    let layout = Layout::of(cluster, workload, Path::Direct);
    layout.gradients(&layout.data_parallel(), Some(algorithm)).0
}

/// Who exchanges what with whom.
struct Layout<'a> {
    cluster: &'a Cluster,
    workload: &'a Workload,
    all: Group,
    tp: f64,
    pp: f64,
}

impl<'a> Layout<'a> {
    fn of(cluster: &'a Cluster, workload: &'a Workload, path: Path<'_>) -> Self {
        let direct = Group::of(cluster);
        let all = match path {
            Path::Direct => direct,
            Path::Staged(rate) => direct.staged(cluster.domain_nics(), rate),
        };
        Self {
            cluster,
            workload,
            all,
            tp: f64::from(workload.tensor.max(1)),
            pp: f64::from(workload.pipeline.max(1)),
        }
    }

    /// `size` GPUs that stand next to each other, with their share of the adapters; `stride` GPUs of
    /// other groups stand between two of them.
    fn group(&self, size: u64, stride: u64) -> Group {
        let domain = u64::from(self.all.per_domain).max(1);
        let per_domain = (domain / stride.max(1)).clamp(1, size.max(1));
        let domains = size.div_ceil(per_domain).max(1);
        let share = per_domain as f64 / domain as f64;
        Group {
            domains: u32::try_from(domains).unwrap_or(u32::MAX),
            per_domain: u32::try_from(per_domain).unwrap_or(u32::MAX),
            network: crowfly_route::units::BytesPerSecond(self.all.network.0 * share),
            ..self.all.clone()
        }
    }

    fn data_parallel(&self) -> Group {
        let product = u64::from(self.workload.tensor) * u64::from(self.workload.pipeline);
        let size = self.cluster.gpus() / product.max(1);
        self.group(size.max(1), self.workload.tensor.into())
    }

    /// Gradients of the parameters that one GPU holds.
    fn gradient_bytes(&self) -> f64 {
        GRADIENT_BYTES * self.workload.model.params / (self.tp * self.pp)
    }

    /// By the fastest algorithm, or by `only` that one where it can do it.
    fn gradients(&self, group: &Group, only: Option<Algorithm>) -> (f64, Option<Estimate>) {
        if group.ranks() <= 1.0 {
            return (0.0, None);
        }
        let bytes = self.gradient_bytes();
        let by = |collective| group.estimate(collective, bytes, only);
        match self.workload.sharding {
            Sharding::Ddp => {
                let all = by(Collective::AllReduce);
                (all.as_ref().map_or(0.0, |all| all.seconds), all)
            }
            sharding => {
                let scatter = by(Collective::ReduceScatter);
                let gather = by(Collective::AllGather);
                let gathers = sharding.volumes() - 1.0;
                let seconds = |way: &Option<Estimate>| way.as_ref().map_or(0.0, |way| way.seconds);
                (seconds(&scatter) + gathers * seconds(&gather), scatter)
            }
        }
    }

    /// The last bucket is ready when nothing is left to hide it.
    fn exposed(&self, gradients: f64, compute: Option<f64>) -> f64 {
        let Some(compute) = compute else {
            return gradients;
        };
        let buckets = f64::from(self.workload.model.layers.unwrap_or(BUCKETS).max(1));
        let hiding = match self.workload.sharding {
            // Weights are gathered during the forward pass as well.
            Sharding::Zero3 => compute,
            _ => compute * BACKWARD_SHARE,
        };
        (gradients - hiding).max(gradients / buckets)
    }

    fn sequence(&self) -> f64 {
        f64::from(self.workload.model.sequence.unwrap_or(SEQUENCE))
    }

    /// Sequences that one replica works on, one a micro-batch.
    fn micro_batches(&self) -> f64 {
        let replica = self.workload.tokens_per_gpu as f64 * self.tp * self.pp;
        (replica / self.sequence()).max(1.0)
    }

    fn activation_bytes(&self) -> Option<f64> {
        let hidden = self.workload.model.hidden?;
        Some(self.sequence() * f64::from(hidden) * ACTIVATION_BYTES)
    }

    fn tensor(&self, micro_batches: f64) -> f64 {
        let shape = self.activation_bytes().zip(self.workload.model.layers);
        let (Some((bytes, layers)), true) = (shape, self.tp > 1.0) else {
            return 0.0;
        };
        let again = if self.workload.recompute {
            TENSOR_REDUCES_AGAIN
        } else {
            0.0
        };
        let reduces = (TENSOR_REDUCES + again) * f64::from(layers) / self.pp * micro_batches;
        let group = self.group(self.workload.tensor.into(), 1);
        reduces * group.fastest(Collective::AllReduce, bytes).seconds
    }

    fn pipeline(&self, micro_batches: f64) -> f64 {
        let (Some(bytes), true) = (self.activation_bytes(), self.pp > 1.0) else {
            return 0.0;
        };
        let per_gpu = self.all.network.0 / f64::from(self.all.per_domain.max(1));
        // Forward and backward; the GPUs of a stage send a share each.
        2.0 * micro_batches * bytes / self.tp / (per_gpu * PAIRWISE_SHARE)
    }

    fn expert(&self) -> f64 {
        let model = &self.workload.model;
        let (Some(experts), Some(hidden), true) =
            (model.experts, model.hidden, self.workload.expert > 1)
        else {
            return 0.0;
        };
        let copies = self.workload.tokens_per_gpu as f64 * f64::from(experts.per_token);
        let bytes = copies * f64::from(hidden) * ACTIVATION_BYTES;
        let group = self.group(self.workload.expert.into(), 1);
        let exchange = group.fastest(Collective::AllToAll, bytes).seconds;
        EXPERT_EXCHANGES * f64::from(experts.layers) / self.pp * exchange
    }
}

/// What limits the exchange of gradients of a step.
pub fn cap(step: &Step) -> Option<Bound> {
    step.exchange.as_ref().map(|exchange| exchange.bound)
}
