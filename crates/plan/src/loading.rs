//! What training reads: bytes per second that the data loader must bring, against what the store
//! serves and what the CPUs decode.

use serde::Serialize;

use crate::checkpoint::Storage;
use crate::cluster::{Cluster, given};
use crate::error::PlanError;
use crate::figure::{Figure, Unit};
use crate::quantity::{SAMPLE_BYTES, SAMPLES};
use crate::step::{Path, Step};
use crate::workload::{TOKEN_BYTES, Workload};
use crowfly_route::hop::Provenance;

/// What the samples are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// Token ids of 2 B.
    Text,
    /// JPEG files.
    Image,
    /// Clips.
    Video,
}

impl Data {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Text, Self::Image, Self::Video];

    /// The word used in options and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Image => "image",
            Self::Video => "video",
        }
    }

    /// Samples per second and GPU, bytes of one, and how many of them one core decodes in a second,
    /// where nobody says; assumed. Text needs no decoding.
    const fn assumed(self) -> Option<(f64, f64, f64)> {
        match self {
            Self::Text => None,
            // A ResNet-50 class model on files as in ImageNet.
            Self::Image => Some((2_500.0, 115e3, 250.0)),
            // Clips of some seconds at 720p, about 30 frames decoded of each.
            Self::Video => Some((20.0, 2.5e6, 4.0)),
        }
    }
}

/// What the question gives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Samples {
    /// Per second and GPU.
    pub per_gpu: Option<f64>,
    /// Bytes of one.
    pub bytes: Option<f64>,
}

/// What training reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loading {
    /// What the samples are.
    pub data: Data,
    /// All servers together.
    pub total: Figure,
    /// One server.
    pub per_server: Figure,
    /// As a share of what the store serves, where one was named.
    pub share_of_store: Option<Figure>,
    /// Cores of each server that decoding takes, where the data needs it.
    pub cores_per_server: Option<Figure>,
}

impl Loading {
    /// For a workload on a cluster.
    ///
    /// # Errors
    /// A given number is outside its range, or text was asked about and the GPU's rate is not known.
    pub fn of(
        cluster: &Cluster,
        workload: &Workload,
        data: Data,
        samples: Samples,
        store: Option<&Storage>,
    ) -> Result<Self, PlanError> {
        for (quantity, value) in [(SAMPLES, samples.per_gpu), (SAMPLE_BYTES, samples.bytes)] {
            if let Some(value) = value {
                quantity.between(value)?;
            }
        }
        let gpus = cluster.gpus() as f64;
        let (per_gpu, bytes, decoded, provenance) = match data.assumed() {
            Some((per_gpu, bytes, decoded)) => {
                let provenance = match (samples.per_gpu, samples.bytes) {
                    (Some(_), Some(_)) => given(),
                    _ => Provenance::Assumed(format!(
                        "{per_gpu} samples of {bytes} B per second and GPU, where not given"
                    )),
                };
                (per_gpu, bytes, Some(decoded), provenance)
            }
            None => {
                let step = Step::of(cluster, workload, Path::Direct).total;
                let step = step.ok_or_else(|| PlanError::Unknown {
                    of: cluster.server.gpu.clone(),
                    what: "its rate of arithmetic, and so the length of a step,",
                    give: "give --samples-per-gpu",
                });
                let per_gpu = match samples.per_gpu {
                    Some(given) => given,
                    None => workload.tokens_per_gpu as f64 / step?,
                };
                let by = Provenance::Computed("tokens per step / step, calibrated".into());
                (per_gpu, TOKEN_BYTES, None, by)
            }
        };
        let per_gpu = samples.per_gpu.unwrap_or(per_gpu);
        let total = per_gpu * samples.bytes.unwrap_or(bytes) * gpus;
        let rate = |value| Figure::new(value, Unit::BytesPerSecond, provenance.clone());
        let per_server_gpus = f64::from(cluster.server.gpus);
        Ok(Self {
            data,
            total: rate(total),
            per_server: rate(total / f64::from(cluster.servers)),
            share_of_store: store.map(|store| {
                let whole = match store.class {
                    crate::catalog::StorageClass::Local => {
                        store.read.rate.0 * f64::from(cluster.servers)
                    }
                    _ => store.read.rate.0,
                };
                Figure::computed(
                    total / whole,
                    Unit::Fraction,
                    "need / what the store serves",
                )
            }),
            cores_per_server: decoded.map(|decoded| {
                Figure::new(
                    per_gpu * per_server_gpus / decoded,
                    Unit::Count,
                    Provenance::Assumed(format!("one core decodes {decoded} samples a second")),
                )
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::cluster::{Overrides, ServerSpec};
    use crate::workload::ModelSpec;

    fn loading(data: Data, samples: Samples) -> Result<Loading, PlanError> {
        let catalog = Catalog::built_in();
        let server = ServerSpec::from_catalog(&catalog, "dgx-h100", &Overrides::default())?;
        let cluster = Cluster::new(server, 8, 1.0)?;
        let workload = Workload::data_parallel(ModelSpec::from_catalog(&catalog, "70b")?);
        let store = Storage::of_rate(100.0)?;
        Loading::of(&cluster, &workload, data, samples, Some(&store))
    }

    #[test]
    fn text_is_a_trickle_and_images_are_not() {
        let text = loading(Data::Text, Samples::default()).expect("sound");
        assert!(text.total.value < 1e6, "{}", text.total.value);
        assert!(text.share_of_store.expect("named").value < 1e-4);
        assert!(text.cores_per_server.is_none());
        let images = loading(Data::Image, Samples::default()).expect("sound");
        assert_eq!(images.total.value, 64.0 * 2_500.0 * 115e3);
        assert_eq!(images.cores_per_server.expect("decoded").value, 80.0);
    }

    #[test]
    fn what_is_given_takes_the_place_of_what_is_assumed() {
        let given = Samples {
            per_gpu: Some(10.0),
            bytes: Some(1e6),
        };
        let video = loading(Data::Video, given).expect("sound");
        assert_eq!(video.total.value, 640e6);
        assert_eq!(video.per_server.value, 80e6);
        let negative = Samples {
            per_gpu: Some(-1.0),
            bytes: None,
        };
        let refused = loading(Data::Text, negative).expect_err("refused");
        assert_eq!(refused.code(), "plan-not-between");
    }
}
