//! The kernel: its messages and its command line.

mod cmdline;
mod log;

use crowfly_route::units::PciAddress;
use serde::Serialize;

pub(crate) use self::cmdline::KernelCmdlineReader;
pub(crate) use self::log::KernelLogReader;
use super::cite::{Cite, Located};
use super::sighting::Sighting;

/// Kernel messages that bear on data paths; others are counted only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelLog {
    /// The messages, one for each wording; numbers do not tell them apart.
    pub messages: Vec<Sighting<KernelMessage>>,
    /// Lines of this log, of any content.
    pub lines: u64,
    /// Messages that said something new after the limit was reached.
    pub beyond_limit: u64,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct KernelMessage {
    /// What it is about.
    pub topic: Topic,
    /// The device that it names, where it names one.
    pub device: Option<PciAddress>,
    /// The words at the first sighting.
    pub text: String,
}

/// What a kernel message is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// An error that the NVIDIA driver reports, with its number.
    Xid(u32),
    /// An NVSwitch error, with its number.
    SXid(u32),
    /// `ACS redirect is set between the client and provider`.
    P2pdmaAcsRedirect,
    /// `cannot be used for peer-to-peer DMA`.
    P2pdmaRefused,
    /// Anything else that `p2pdma` says.
    P2pdma,
    /// The peer memory module.
    PeerMem,
    /// A module could not be loaded because a symbol is missing or differs.
    UnknownSymbol(String),
    /// A PCIe error report.
    Aer {
        /// `Correctable` or one of the uncorrectable kinds, as printed.
        severity: String,
    },
    /// A link came up below what both ends can do.
    LinkDegraded,
    /// A process was killed by a bad memory access, with the library it happened in.
    Segfault {
        /// The process.
        process: String,
        /// The library or program.
        library: Option<String>,
    },
    /// The GPU driver's own messages.
    NvidiaDriver,
    /// The GPUDirect Storage module.
    NvidiaFs,
    /// The RDMA driver's own messages.
    RdmaDriver,
    /// The IOMMU.
    Iommu,
    /// AMD's GPU driver.
    AmdGpu,
    /// A process was killed because memory ran out.
    OutOfMemory,
    /// A BAR could not be assigned.
    BarAssignment,
}

/// The kernel's command line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelCmdline {
    /// Where it was read from.
    pub origin: CmdlineOrigin,
    /// Its arguments in order.
    pub arguments: Vec<Located<Argument>>,
    /// The line.
    pub cite: Cite,
}

/// Where a command line was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CmdlineOrigin {
    /// `/proc/cmdline` or a kernel message: in force.
    Running,
    /// The boot loader's configuration: in force after the next boot, if it was applied.
    BootLoader,
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Argument {
    /// Its name (`iommu`).
    pub name: String,
    /// Its value (`pt`), where it has one.
    pub value: Option<String>,
}

impl KernelCmdline {
    /// All values of an argument, in order; the kernel takes the last one of most of them.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Located<&'a str>> {
        self.arguments
            .iter()
            .filter(move |a| a.value.name == name)
            .map(|a| a.cite.of(a.value.value.as_deref().unwrap_or_default()))
    }
}
