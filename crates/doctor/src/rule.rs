//! Rules: each looks for one condition and explains itself in a page.

mod report;

use std::fmt;

use serde::Serialize;

use crate::case::Case;
use crate::finding::Finding;

/// One rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Stable id: the family's letter and a number, `N1`.
    pub id: &'static str,
    /// Stable name in kebab case, `gpu-nic-too-far`.
    pub name: &'static str,
    /// The family.
    pub family: Family,
    /// One line for lists.
    pub summary: &'static str,
    /// What `--rule` prints.
    pub page: Page,
    /// Looks for the condition.
    pub(crate) check: fn(&Rule, &Case) -> Vec<Finding>,
}

/// The explanation of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Page {
    /// What is wrong, or what is easily misread.
    pub condition: &'static str,
    /// What is looked at, and the threshold.
    pub detection: &'static str,
    /// What it does to the data path.
    pub consequence: &'static str,
    /// What to do.
    pub fix: &'static str,
    /// Where the rule comes from; *practice* marks what rests on experience, not on a document.
    pub source: &'static str,
    /// When it is not a fault although it looks like one.
    pub false_alarms: &'static str,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// NCCL and RCCL.
    Nccl,
    /// The kernel and PCI Express.
    Kernel,
    /// GPUDirect Storage.
    Gds,
    /// RDMA, InfiniBand and RoCE.
    Rdma,
    /// Containers and limits.
    Container,
    /// Clouds.
    Cloud,
    /// AMD GPUs.
    Amd,
    /// GPUs and their drivers.
    Gpu,
    /// Measured results.
    Tests,
    /// Differences between ranks, nodes and documents.
    Join,
}

impl Family {
    /// The words for it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL and RCCL",
            Self::Kernel => "kernel and PCIe",
            Self::Gds => "GPUDirect Storage",
            Self::Rdma => "RDMA and RoCE",
            Self::Container => "containers and limits",
            Self::Cloud => "clouds",
            Self::Amd => "AMD GPUs",
            Self::Gpu => "GPUs and drivers",
            Self::Tests => "measured results",
            Self::Join => "differences between ranks and nodes",
        }
    }
}

impl Rule {
    /// Every rule, by family and number.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        crate::rules::FAMILIES
            .iter()
            .flat_map(|family| family.iter())
    }

    /// The rule with this id or name, case set aside.
    pub fn find(code: &str) -> Option<&'static Self> {
        Self::all()
            .find(|rule| rule.id.eq_ignore_ascii_case(code) || rule.name.eq_ignore_ascii_case(code))
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.name)
    }
}
