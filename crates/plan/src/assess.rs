//! Does the straight way matter for this cluster and this model, by how much, from how many servers
//! on, and what caps it.

use crowfly_route::hop::Capacity;
use serde::Serialize;

use crate::article::Article;
use crate::calibrated::{Algorithm, Bound, Estimate, StagedRange};
use crate::catalog::Used;
use crate::cluster::Cluster;
use crate::error::PlanError;
use crate::figure::{Figure, Unit};
use crate::step::{Path, Step};
use crate::workload::{Sharding, Workload};

/// A step that grows by less than this is not felt.
pub const FELT_SHARE: f64 = 0.05;
/// An exchange that grows by less than this is as fast.
const NOTICED_SHARE: f64 = 0.01;
/// The largest cluster of which it is asked from how many servers on staging is felt.
const LARGEST_ASKED_GPUS: u64 = 131_072;

/// Whether the straight way matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Matters {
    /// Staging lengthens the step by more than [`FELT_SHARE`] even at its best.
    Yes,
    /// Staging slows the exchange or another traffic of the step, but by how much depends on what
    /// processor caches take, or the backward pass hides it.
    Somewhat,
    /// All GPUs share one scale-up domain: the NICs have nothing to do.
    WithinOneDomain,
    /// Staging is as fast: host memory keeps up, or the links within domains are slower anyway.
    No,
    /// These servers have no direct path between GPU memory and network.
    NoDirectPath,
    /// Host memory is not known, and what is known does not cap staging, so nobody can say.
    Unknown,
}

/// The exchange of gradients by the calibrated model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exchange {
    /// Direct.
    pub direct: Figure,
    /// How it is done.
    pub estimate: Option<Estimate>,
    /// The same by the flat ring alone.
    pub flat_ring: Figure,
    /// The same by rings of shards between domains, as the article does it.
    pub hierarchical: Figure,
    /// Staged, with what caps it; `None` where that is not known.
    pub staged: Option<StagedExchange>,
}

/// The exchange of gradients through host RAM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagedExchange {
    /// At worst.
    pub slow: Figure,
    /// At best.
    pub fast: Figure,
    /// What caps a NIC.
    pub range: StagedRange,
}

/// A step with either path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// Direct.
    pub direct: Step,
    /// Staged at worst.
    pub staged_slow: Option<Step>,
    /// Staged at best.
    pub staged_fast: Option<Step>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assessment {
    /// Of which cluster.
    pub cluster: Cluster,
    /// Of which workload.
    pub workload: Workload,
    /// Scale-up domains that the servers make.
    pub domains: u32,
    /// Whether it matters.
    pub matters: Matters,
    /// The fewest servers between which anything crosses the network.
    pub crosses_from_servers: u32,
    /// The fewest servers, in doublings, from which the step is longer by more than [`FELT_SHARE`]
    /// even when staging is at its best; `None` where that is so at no size or not known.
    pub felt_from_servers: Option<u32>,
    /// The traffic to which staging, at its worst, adds the most seconds of the step; `None` where it
    /// adds none or that is not known.
    pub most_slowed: Option<Traffic>,
    /// What caps the direct exchange.
    pub direct_cap: Option<Bound>,
    /// The source article's arithmetic.
    pub article: Article,
    /// The calibrated model.
    pub calibrated: Exchange,
    /// The step around it, by the calibrated model.
    pub step: Steps,
    /// Entries of the catalogue that this rests on.
    pub used: Vec<Used>,
}

impl Assessment {
    /// The answer for a workload on a cluster. `staged` is a measured rate of one NIC's staged
    /// transfers, where there is one.
    ///
    /// # Errors
    /// [`Workload::check`] refuses.
    pub fn of(
        cluster: &Cluster,
        workload: &Workload,
        staged: Option<&Capacity>,
    ) -> Result<Self, PlanError> {
        workload.check(cluster)?;
        let range = StagedRange::of(cluster, staged);
        let step = Steps::of(cluster, workload, range.as_ref());
        let calibrated = Exchange::of(cluster, workload, &step, range);
        let mut used = cluster.server.used.clone();
        used.extend(workload.model.used.iter().cloned());
        Ok(Self {
            matters: matters(cluster, &step, &calibrated),
            crosses_from_servers: cluster.server.servers_per_domain() + 1,
            felt_from_servers: felt_from(cluster, workload, staged),
            most_slowed: step.most_slowed(),
            direct_cap: crate::step::cap(&step.direct),
            article: Article::of(cluster, &workload.model),
            domains: cluster.domains(),
            calibrated,
            step,
            used,
            cluster: cluster.clone(),
            workload: workload.clone(),
        })
    }
}

impl Steps {
    fn of(cluster: &Cluster, workload: &Workload, range: Option<&StagedRange>) -> Self {
        let staged = |rate| Step::of(cluster, workload, Path::Staged(rate));
        Self {
            direct: Step::of(cluster, workload, Path::Direct),
            staged_slow: range.map(|range| staged(&range.slow)),
            staged_fast: range.map(|range| staged(&range.fast)),
        }
    }

    /// By how much staging lengthens the step at its best, as a share of it.
    fn least_growth(&self) -> Option<f64> {
        self.growth(self.staged_fast.as_ref())
    }

    /// The same at its worst.
    fn most_growth(&self) -> Option<f64> {
        self.growth(self.staged_slow.as_ref())
    }

    fn growth(&self, staged: Option<&Step>) -> Option<f64> {
        let direct = self.direct.total?;
        let staged = staged?.total?;
        (direct > 0.0).then_some(staged / direct - 1.0)
    }

    /// The traffic to which staging, at its worst, adds the most seconds of the step; `None` where it
    /// adds none.
    pub fn most_slowed(&self) -> Option<Traffic> {
        let staged = self.staged_slow.as_ref()?;
        let direct = &self.direct;
        let added = [
            (Traffic::Gradients, staged.exposed - direct.exposed),
            (Traffic::Tensor, staged.tensor - direct.tensor),
            (Traffic::Pipeline, staged.pipeline - direct.pipeline),
            (Traffic::Expert, staged.expert - direct.expert),
        ];
        let most = added.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (most.1 > 0.0).then_some(most.0)
    }
}

/// What GPUs of different servers tell each other in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Gradients, and weights where those are sharded.
    Gradients,
    /// Activations within tensor-parallel groups.
    Tensor,
    /// Activations from stage to stage.
    Pipeline,
    /// Tokens to experts and back.
    Expert,
}

impl Traffic {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gradients => "gradients",
            Self::Tensor => "tensor parallel traffic",
            Self::Pipeline => "pipeline parallel traffic",
            Self::Expert => "expert parallel traffic",
        }
    }
}

impl Exchange {
    fn of(
        cluster: &Cluster,
        workload: &Workload,
        step: &Steps,
        range: Option<StagedRange>,
    ) -> Self {
        let extrapolated = step
            .direct
            .exchange
            .as_ref()
            .is_some_and(|e| e.extrapolated);
        let figure = |seconds, how: &str| {
            let by = format!("calibrated: {how}");
            Figure::computed(seconds, Unit::Seconds, by).beyond(extrapolated)
        };
        let how = step
            .direct
            .exchange
            .as_ref()
            .map_or("nothing to exchange", |exchange| {
                exchange.algorithm.as_str()
            });
        let only =
            |algorithm, how| figure(crate::step::exchange_by(cluster, workload, algorithm), how);
        let staged = range.and_then(|range| {
            let seconds = |step: &Option<Step>| step.as_ref().map(|step| step.gradients);
            Some(StagedExchange {
                slow: figure(seconds(&step.staged_slow)?, how),
                fast: figure(seconds(&step.staged_fast)?, how),
                range,
            })
        });
        Self {
            direct: figure(step.direct.gradients, how),
            estimate: step.direct.exchange.clone(),
            flat_ring: only(Algorithm::Ring, "ring of all who exchange"),
            hierarchical: only(Algorithm::Hierarchical, "hierarchical"),
            staged,
        }
    }
}

fn matters(cluster: &Cluster, step: &Steps, exchange: &Exchange) -> Matters {
    if cluster.domains() <= 1 {
        return Matters::WithinOneDomain;
    }
    if cluster.server.transport.direct_path().is_none() {
        return Matters::NoDirectPath;
    }
    let Some(staged) = &exchange.staged else {
        return Matters::Unknown;
    };
    let line = cluster.server.nic_rate.rate;
    if staged.range.slow.per_nic >= line {
        // As far as is known nothing is slower than the line; host memory may be.
        return match cluster.server.memory {
            Some(_) => Matters::No,
            None => Matters::Unknown,
        };
    }
    if step
        .least_growth()
        .is_some_and(|growth| growth > FELT_SHARE)
    {
        return Matters::Yes;
    }
    // Where the links within domains are the limit, slower adapters change nothing.
    let noticed = staged.slow.value > exchange.direct.value * (1.0 + NOTICED_SHARE);
    let longer = step
        .most_growth()
        .is_some_and(|growth| growth > NOTICED_SHARE);
    if noticed || longer {
        Matters::Somewhat
    } else {
        Matters::No
    }
}

fn felt_from(cluster: &Cluster, workload: &Workload, staged: Option<&Capacity>) -> Option<u32> {
    cluster.server.transport.direct_path()?;
    let per_domain = cluster.server.servers_per_domain();
    let doublings = (1..=17).map(|doubling| per_domain << doubling);
    let mut within = doublings.take_while(|servers| {
        u64::from(*servers) * u64::from(cluster.server.gpus) <= LARGEST_ASKED_GPUS
    });
    within.find(|servers| {
        let Ok(larger) = cluster.with_servers(*servers) else {
            return false;
        };
        let range = StagedRange::of(&larger, staged);
        let steps = Steps::of(&larger, workload, range.as_ref());
        steps
            .least_growth()
            .is_some_and(|growth| growth > FELT_SHARE)
    })
}

/// One size of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepPoint {
    /// Servers.
    pub servers: u32,
    /// GPUs.
    pub gpus: u64,
    /// Seconds by the article, direct.
    pub article_direct: f64,
    /// Seconds by the article, staged.
    pub article_staged: Option<f64>,
    /// Seconds by the calibrated model, direct.
    pub direct: f64,
    /// Seconds by the calibrated model, staged at best.
    pub staged_fast: Option<f64>,
    /// Seconds by the calibrated model, staged at worst.
    pub staged_slow: Option<f64>,
    /// How the direct exchange is done; `None` where there is nothing to exchange.
    pub algorithm: Option<Algorithm>,
    /// Whether the calibrated numbers lie beyond what the model was calibrated on.
    pub extrapolated: bool,
}

/// The most sizes of a sweep.
pub const MAX_SWEEP_POINTS: usize = 512;

/// The sizes of a sweep from `from` to `to`: both ends and the powers of two between, or each
/// number where there are no more than sixteen.
///
/// # Errors
/// An end is zero or too large, or the range runs backwards.
pub fn sizes(from: u32, to: u32) -> Result<Vec<u32>, PlanError> {
    const EACH: u32 = 16;
    PlanError::count("servers", from.into(), crate::cluster::MAX_SERVERS)?;
    PlanError::count("servers", to.into(), crate::cluster::MAX_SERVERS)?;
    if from > to {
        return Err(PlanError::Impossible {
            what: format!("a sweep from {from} to {to} servers runs backwards"),
            hint: format!("servers={to}..{from}"),
        });
    }
    if to - from < EACH {
        return Ok((from..=to).collect());
    }
    let powers = (0..u32::BITS - 1).map(|bit| 1u32 << bit);
    let mut sizes = vec![from];
    sizes.extend(powers.filter(|size| *size > from && *size < to));
    sizes.push(to);
    Ok(sizes)
}

/// The workload on growing numbers of servers.
///
/// # Errors
/// [`Cluster::with_servers`] refuses a size, or there are more than [`MAX_SWEEP_POINTS`].
pub fn sweep(
    cluster: &Cluster,
    workload: &Workload,
    staged: Option<&Capacity>,
    sizes: &[u32],
) -> Result<Vec<SweepPoint>, PlanError> {
    PlanError::count(
        "sizes of a sweep",
        sizes.len() as u64,
        MAX_SWEEP_POINTS as u64,
    )?;
    let point = |servers: &u32| {
        let cluster = cluster.with_servers(*servers)?;
        let range = StagedRange::of(&cluster, staged);
        let steps = Steps::of(&cluster, workload, range.as_ref());
        let article = Article::of(&cluster, &workload.model);
        let exchange = steps.direct.exchange.as_ref();
        Ok(SweepPoint {
            servers: *servers,
            gpus: cluster.gpus(),
            article_direct: article.direct.value,
            article_staged: article.staged.map(|staged| staged.value),
            direct: steps.direct.gradients,
            staged_fast: steps.staged_fast.map(|step| step.gradients),
            staged_slow: steps.staged_slow.map(|step| step.gradients),
            algorithm: exchange.map(|exchange| exchange.algorithm),
            extrapolated: exchange.is_some_and(|exchange| exchange.extrapolated),
        })
    };
    sizes.iter().map(point).collect()
}

/// Whether a workload's exchange is the one that the article reckons with: an all-reduce among all
/// GPUs.
pub fn is_article_exchange(workload: &Workload) -> bool {
    workload.sharding == Sharding::Ddp && workload.tensor == 1 && workload.pipeline == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::cluster::{Overrides, ServerSpec};
    use crate::workload::ModelSpec;

    fn given(server: &str, servers: u32) -> (Cluster, Workload) {
        let catalog = Catalog::built_in();
        let server = ServerSpec::from_catalog(&catalog, server, &Overrides::default());
        let cluster = Cluster::new(server.expect("sound"), servers, 1.0).expect("sound");
        let model = ModelSpec::from_catalog(&catalog, "70b").expect("there");
        (cluster, Workload::data_parallel(model))
    }

    fn assessed(server: &str, servers: u32) -> Assessment {
        let (cluster, workload) = given(server, servers);
        Assessment::of(&cluster, &workload, None).expect("sound")
    }

    #[test]
    fn given_servers_that_share_nvlink_it_does_not_matter_and_beyond_it_does() {
        assert_eq!(assessed("dgx-h100", 1).matters, Matters::WithinOneDomain);
        assert_eq!(assessed("gcp-a4x", 18).matters, Matters::WithinOneDomain);
        let rack = assessed("gcp-a4x", 18);
        assert_eq!(rack.crosses_from_servers, 19);
        let eight = assessed("dgx-h100", 8);
        assert!(
            matches!(eight.matters, Matters::Yes | Matters::Somewhat),
            "{:?}",
            eight.matters
        );
        assert_eq!(eight.crosses_from_servers, 2);
        assert_eq!(assessed("gcp-a2-ultra", 8).matters, Matters::NoDirectPath);
    }

    #[test]
    fn given_links_within_domains_that_are_slower_than_staging_it_does_not_matter() {
        let racks = assessed("gb200-nvl72", 2);
        assert_eq!(racks.direct_cap, Some(Bound::ScaleUp));
        assert_eq!(racks.matters, Matters::No);
    }

    #[test]
    fn given_tensor_groups_over_servers_that_exchange_no_gradients_the_step_decides() {
        let (cluster, mut workload) = given("dgx-h100", 8);
        workload.tensor = 64;
        let answer = Assessment::of(&cluster, &workload, None).expect("sound");
        assert_eq!(answer.calibrated.direct.value, 0.0);
        assert_eq!(answer.matters, Matters::Yes);
        assert_eq!(answer.most_slowed, Some(Traffic::Tensor));
        (workload.tensor, workload.pipeline) = (1, 64);
        let answer = Assessment::of(&cluster, &workload, None).expect("sound");
        assert_eq!(answer.matters, Matters::Somewhat);
        assert_eq!(answer.most_slowed, Some(Traffic::Pipeline));
    }

    #[test]
    fn rows_of_single_algorithms_are_of_the_same_exchange_as_the_answer() {
        let (cluster, mut workload) = given("dgx-h100", 256);
        (workload.tensor, workload.pipeline) = (8, 16);
        let answer = Assessment::of(&cluster, &workload, None).expect("sound");
        let by = answer.calibrated.estimate.as_ref().map(|way| way.algorithm);
        assert_eq!(by, Some(Algorithm::Ring));
        assert_eq!(
            answer.calibrated.flat_ring.value,
            answer.calibrated.direct.value
        );
        let whole = given("dgx-h100", 256).1;
        let whole = Assessment::of(&cluster, &whole, None).expect("sound");
        assert!(answer.calibrated.hierarchical.value < whole.calibrated.hierarchical.value / 10.0);
    }

    #[test]
    fn given_little_work_per_step_nothing_hides_the_exchange_and_staging_is_felt_at_once() {
        let (cluster, mut workload) = given("dgx-h100", 8);
        workload.tokens_per_gpu = 512;
        let felt = Assessment::of(&cluster, &workload, None).expect("sound");
        assert_eq!(felt.matters, Matters::Yes);
        assert_eq!(felt.felt_from_servers, Some(2));
        workload.tokens_per_gpu = 1 << 20;
        let hidden = Assessment::of(&cluster, &workload, None).expect("sound");
        assert_eq!(hidden.matters, Matters::Somewhat);
        assert_eq!(hidden.felt_from_servers, None);
    }

    #[test]
    fn the_direct_exchange_is_never_slower_than_the_staged_one() {
        for server in [
            "dgx-h100",
            "dgx-b200",
            "aws-p5en",
            "meta-grand-teton-h100",
            "gb200-nvl72",
        ] {
            for point in [2, 16, 1024] {
                let exchange = assessed(server, point).calibrated;
                let staged = exchange.staged.expect("known");
                assert!(
                    exchange.direct.value <= staged.fast.value,
                    "{server} {point}"
                );
                assert!(staged.fast.value <= staged.slow.value, "{server} {point}");
            }
        }
    }

    #[test]
    fn fsdp_moves_three_volumes_where_plain_data_parallelism_moves_two() {
        let (cluster, mut workload) = given("dgx-h100", 8);
        let plain = Step::of(&cluster, &workload, Path::Direct).gradient_bytes_per_nic;
        workload.sharding = Sharding::Zero3;
        let sharded = Step::of(&cluster, &workload, Path::Direct).gradient_bytes_per_nic;
        assert!((plain - 30.625e9).abs() < 1.0, "{plain}");
        assert!((sharded / plain - 1.5).abs() < 1e-12);
        workload.sharding = Sharding::Ddp;
        workload.tensor = 8;
        let tensor = Step::of(&cluster, &workload, Path::Direct);
        assert!((tensor.gradient_bytes_per_nic / plain - 1.0).abs() < 1e-12);
        assert!(tensor.tensor > 0.0);
    }

    #[test]
    fn degrees_that_do_not_divide_the_gpus_are_refused() {
        let (cluster, mut workload) = given("dgx-h100", 8);
        workload.tensor = 3;
        let refused = Assessment::of(&cluster, &workload, None).expect_err("refused");
        assert_eq!(
            refused.to_string(),
            "tensor 3 x pipeline 1 = 3 does not divide 64 GPUs"
        );
        workload.tensor = 0;
        let refused = Assessment::of(&cluster, &workload, None).expect_err("refused");
        assert_eq!(refused.code(), "plan-out-of-range");
    }

    #[test]
    fn a_sweep_takes_both_ends_and_the_powers_of_two_between() {
        assert_eq!(sizes(1, 4), Ok(vec![1, 2, 3, 4]));
        assert_eq!(sizes(3, 100), Ok(vec![3, 4, 8, 16, 32, 64, 100]));
        assert_eq!(
            sizes(0, 4).expect_err("refused").code(),
            "plan-out-of-range"
        );
        assert_eq!(sizes(5, 4).expect_err("refused").code(), "plan-impossible");
        let (cluster, workload) = given("dgx-h100", 1);
        let points = sweep(&cluster, &workload, None, &[1, 2, 512]).expect("sound");
        assert_eq!(points[0].article_direct, 0.0);
        assert_eq!(points[1].article_direct, 0.35);
        assert!((points[2].article_staged.expect("known") - 1.984_752_3).abs() < 1e-6);
        assert!(points[2].extrapolated && !points[1].extrapolated);
    }
}
