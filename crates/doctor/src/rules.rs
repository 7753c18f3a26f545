//! The rules, one module for each family.

use crate::rule::Rule;

/// Every family's rules.
pub(crate) const FAMILIES: &[&[Rule]] = &[];
