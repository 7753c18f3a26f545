//! What the cluster is to train: the model, how it is spread, and how much is in a step.

use serde::Serialize;

use crate::catalog::{Catalog, Entry, Model, Used};
use crate::cluster::Cluster;
use crate::error::PlanError;
use crate::quantity::PARAMETERS;

/// The most tokens that one GPU works on in a step.
pub const MAX_TOKENS: u64 = 1 << 32;
/// The largest degree of parallelism.
pub const MAX_DEGREE: u64 = 1 << 16;
/// A token id of a text data set.
pub const TOKEN_BYTES: f64 = 2.0;
/// bf16 gradients and weights.
pub const GRADIENT_BYTES: f64 = 2.0;
/// bf16 weights 2, fp32 master weights 4, two Adam moments 4 each.
pub const CHECKPOINT_BYTES: f64 = 14.0;
/// What a GPU works on in a step where nobody says.
pub const DEFAULT_TOKENS_PER_GPU: u64 = 16_384;
const BILLION: f64 = 1e9;

/// A model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelSpec {
    /// Its name, or `13B` where only its size was given.
    pub name: String,
    /// All parameters.
    pub params: f64,
    /// Those that one token uses.
    pub active_params: f64,
    /// Transformer layers, when known.
    pub layers: Option<u32>,
    /// Width, when known.
    pub hidden: Option<u32>,
    /// Tokens of a sequence, when known.
    pub sequence: Option<u32>,
    /// Tokens of the vocabulary, when known.
    pub vocabulary: Option<u32>,
    /// Layers with experts and how many of them a token visits, when there are any.
    pub experts: Option<Experts>,
    /// Entries of the catalogue that this rests on.
    pub used: Vec<Used>,
}

/// Experts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// Layers that have them.
    pub layers: u32,
    /// How many one token visits.
    pub per_token: u32,
}

impl ModelSpec {
    /// A model of the catalogue.
    ///
    /// # Errors
    /// The name is unknown, or its size is outside the range of [`PARAMETERS`].
    pub fn from_catalog(catalog: &Catalog, id: &str) -> Result<Self, PlanError> {
        let entry = catalog.models.get(id)?;
        PARAMETERS.between(entry.facts.params)?;
        Ok(Self::of(entry))
    }

    fn of(entry: &Entry<Model>) -> Self {
        let facts = &entry.facts;
        let experts = facts.moe_layers.zip(facts.experts_per_token);
        Self {
            name: entry.id.clone(),
            params: facts.params,
            active_params: facts.active_params.unwrap_or(facts.params),
            layers: facts.layers,
            hidden: facts.hidden,
            sequence: facts.sequence,
            vocabulary: facts.vocabulary,
            experts: experts.map(|(layers, per_token)| Experts { layers, per_token }),
            used: vec![entry.used()],
        }
    }

    /// A dense model of which only the size is known.
    ///
    /// # Errors
    /// The size is outside the range of [`PARAMETERS`].
    pub fn of_size(params: f64) -> Result<Self, PlanError> {
        PARAMETERS.between(params)?;
        Ok(Self {
            name: format!("{}B", params / BILLION),
            params,
            active_params: params,
            layers: None,
            hidden: None,
            sequence: None,
            vocabulary: None,
            experts: None,
            used: Vec::new(),
        })
    }

    /// bf16 gradients of all parameters, in bytes.
    pub fn gradient_bytes(&self) -> f64 {
        GRADIENT_BYTES * self.params
    }

    /// A checkpoint with optimizer state, in bytes.
    pub fn checkpoint_bytes(&self) -> f64 {
        CHECKPOINT_BYTES * self.params
    }
}

/// What is kept once per data-parallel group and not once per GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharding {
    /// Nothing: plain data parallelism, all-reduce of gradients.
    #[default]
    Ddp,
    /// Optimizer state: reduce-scatter of gradients, all-gather of weights.
    Zero1,
    /// Gradients as well: the same volume.
    Zero2,
    /// Weights as well (FSDP): gathered for the forward and again for the backward pass.
    Zero3,
}

impl Sharding {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ddp, Self::Zero1, Self::Zero2, Self::Zero3];

    /// The word used in options and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ddp => "ddp",
            Self::Zero1 => "zero1",
            Self::Zero2 => "zero2",
            Self::Zero3 => "zero3",
        }
    }

    /// How many times the gradients' volume passes each link: an all-reduce is a reduce-scatter
    /// and an all-gather, 2; ZeRO-3 gathers the weights twice and scatters gradients once, 3
    /// (Rajbhandari et al., ZeRO, section 7).
    pub const fn volumes(self) -> f64 {
        match self {
            Self::Ddp | Self::Zero1 | Self::Zero2 => 2.0,
            Self::Zero3 => 3.0,
        }
    }
}

/// A model on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// The model.
    pub model: ModelSpec,
    /// What is sharded over the data-parallel group.
    pub sharding: Sharding,
    /// Tensor parallel degree.
    pub tensor: u32,
    /// Pipeline parallel degree.
    pub pipeline: u32,
    /// Expert parallel degree.
    pub expert: u32,
    /// Tokens of a step over all GPUs.
    pub tokens_per_gpu: u64,
    /// Whether activations are worked out again in the backward pass.
    pub recompute: bool,
}

impl Workload {
    /// Plain data parallelism over all GPUs.
    pub fn data_parallel(model: ModelSpec) -> Self {
        Self {
            model,
            sharding: Sharding::Ddp,
            tensor: 1,
            pipeline: 1,
            expert: 1,
            tokens_per_gpu: DEFAULT_TOKENS_PER_GPU,
            recompute: false,
        }
    }

    /// Whether the degrees fit each other and the cluster.
    ///
    /// # Errors
    /// A degree or the tokens are out of range, or tensor times pipeline does not divide the GPUs.
    pub fn check(&self, cluster: &Cluster) -> Result<(), PlanError> {
        PlanError::count("tensor parallel degree", self.tensor.into(), MAX_DEGREE)?;
        PlanError::count("pipeline parallel degree", self.pipeline.into(), MAX_DEGREE)?;
        PlanError::count("expert parallel degree", self.expert.into(), cluster.gpus())?;
        PlanError::count("tokens per GPU", self.tokens_per_gpu, MAX_TOKENS)?;
        let product = u64::from(self.tensor) * u64::from(self.pipeline);
        if cluster.gpus().is_multiple_of(product) {
            return Ok(());
        }
        Err(PlanError::DoesNotDivide {
            tensor: self.tensor,
            pipeline: self.pipeline,
            product,
            gpus: cluster.gpus(),
        })
    }
}
