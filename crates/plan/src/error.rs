//! Why a plan cannot be made.

use crate::catalog::Kind;
use crate::quantity::{Quantity, Short};

/// Names suggested for one that does not exist.
const MAX_SUGGESTIONS: usize = 3;
/// Names less alike than this are not suggested.
const LEAST_LIKENESS: f64 = 0.6;

/// Why a plan cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The catalogue has no such entry.
    #[error("the catalogue has no {kind} `{name}`")]
    UnknownName {
        /// Of which kind.
        kind: Kind,
        /// The name asked for.
        name: String,
        /// The names nearest to it.
        nearest: Vec<String>,
    },
    /// A count is zero or beyond its limit.
    #[error("{what} = {value}: must be from 1 to {most}")]
    OutOfRange {
        /// Which count.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The most.
        most: u64,
    },
    /// More of a thing fail, or are slow, than there are.
    #[error("{what} = {value}: must be from 0 to {most}")]
    TooMany {
        /// Which things.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The most.
        most: u64,
    },
    /// A quantity is zero, negative or not a number.
    #[error(
        "{quantity} = {}: must be above zero, from {} to {}",
        Short(*.value), Short(.quantity.least), Short(.quantity.most)
    )]
    NotPositive {
        /// Which quantity.
        quantity: Quantity,
        /// What was given.
        value: f64,
    },
    /// A quantity is outside its range.
    #[error(
        "{quantity} = {}: must be from {} to {}",
        Short(*.value), Short(.quantity.least), Short(.quantity.most)
    )]
    NotBetween {
        /// Which quantity.
        quantity: Quantity,
        /// What was given.
        value: f64,
    },
    /// A NIC cannot run at its line rate in its slot.
    #[error(
        "a NIC of {nic_gbs} GB/s is faster than its slot, PCIe Gen{generation} x{lanes} with {slot_gbs} GB/s"
    )]
    NicFasterThanSlot {
        /// Line rate of the NIC, 1e9 B/s.
        nic_gbs: f64,
        /// Generation of the slot.
        generation: u8,
        /// Its lanes.
        lanes: u8,
        /// What it carries, 1e9 B/s in one direction after line coding.
        slot_gbs: f64,
    },
    /// Parallel groups do not fit the cluster.
    #[error("tensor {tensor} x pipeline {pipeline} = {product} does not divide {gpus} GPUs")]
    DoesNotDivide {
        /// Tensor parallel degree.
        tensor: u32,
        /// Pipeline parallel degree.
        pipeline: u32,
        /// Both.
        product: u64,
        /// GPUs of the cluster.
        gpus: u64,
    },
    /// A fact that the question needs is not known.
    #[error("{of}: {what} is not known")]
    Unknown {
        /// Of what.
        of: String,
        /// Which fact.
        what: &'static str,
        /// How to give it.
        give: &'static str,
    },
    /// A switch cannot be cut as asked, or the fabric would need more than three tiers.
    #[error("{what}")]
    Impossible {
        /// What is impossible, with its values.
        what: String,
        /// What would be possible.
        hint: String,
    },
}

impl PlanError {
    /// The stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownName { .. } => "plan-unknown-name",
            Self::OutOfRange { .. } | Self::TooMany { .. } => "plan-out-of-range",
            Self::NotPositive { .. } => "plan-not-positive",
            Self::NotBetween { .. } => "plan-not-between",
            Self::NicFasterThanSlot { .. } => "plan-nic-faster-than-slot",
            Self::DoesNotDivide { .. } => "plan-does-not-divide",
            Self::Unknown { .. } => "plan-unknown-fact",
            Self::Impossible { .. } => "plan-impossible",
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::UnknownName { kind, nearest, .. } if nearest.is_empty() => {
                format!("`crowfly plan catalog --kind {kind}` lists them")
            }
            Self::UnknownName { nearest, .. } => format!("nearest: {}", nearest.join(", ")),
            Self::NicFasterThanSlot { .. } => {
                "give the slot that it is in (--pcie-gen), or a slower NIC (--nic-gbps)".into()
            }
            Self::DoesNotDivide { .. } => {
                "choose degrees whose product divides the number of GPUs".into()
            }
            Self::Unknown { give, .. } => (*give).to_owned(),
            Self::Impossible { hint, .. } => hint.clone(),
            _ => return None,
        })
    }

    /// The count, where it is from 1 to `most`.
    pub(crate) fn count(what: &'static str, value: u64, most: u64) -> Result<u64, Self> {
        if (1..=most).contains(&value) {
            Ok(value)
        } else {
            Err(Self::OutOfRange { what, value, most })
        }
    }
}

/// The names nearest to one that does not exist, nearest first.
pub(crate) fn suggestions<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut rated: Vec<(f64, &str)> = all
        .map(|other| {
            let alike = strsim::jaro_winkler(name, other);
            // `h100` means `dgx-h100`, however short it is.
            let part = name.len() >= 3 && other.contains(name);
            (if part { alike.max(0.9) } else { alike }, other)
        })
        .filter(|(alike, _)| *alike >= LEAST_LIKENESS)
        .collect();
    rated.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    rated.truncate(MAX_SUGGESTIONS);
    rated.into_iter().map(|(_, name)| name.to_owned()).collect()
}
