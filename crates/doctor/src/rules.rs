//! The rules, one module for each family.

mod nccl;

use crate::rule::Rule;

/// Every family's rules.
pub(crate) const FAMILIES: &[&[Rule]] = &[nccl::RULES];
