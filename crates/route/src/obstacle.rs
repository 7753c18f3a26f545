//! Why a better route was not taken.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::BytesPerSecond;

/// A looked-up fact that proves something, quoted as it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Evidence {
    /// Where it was seen: a snapshot key, `file:line`, or the name of a system call.
    pub at: String,
    /// What was seen there, short enough to quote.
    pub shows: String,
}

impl Evidence {
    /// Evidence seen at a key of the snapshot, or in a call's answer.
    pub fn new(at: impl Into<String>, shows: impl Into<String>) -> Self {
        Self {
            at: at.into(),
            shows: shows.into(),
        }
    }
}

/// What an obstacle does to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// The route cannot be taken.
    Blocks,
    /// The route can be taken, below what the devices could do.
    Slows,
    /// Whether the route can be taken could not be found out.
    Unproven,
}

/// How sure we are that the obstacle is what stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// The evidence proves it.
    Certain,
    /// The evidence points to it; the text says what could be otherwise.
    Likely,
    /// One of several explanations.
    Possible,
}

/// One step of a fix.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fix {
    /// What to do, for a person.
    pub what: String,
    /// The command that does it, where there is one.
    pub command: Option<String>,
    /// The command that shows it worked, where there is one.
    pub check: Option<String>,
}

impl Fix {
    /// A step that a person has to take.
    pub fn by_hand(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            command: None,
            check: None,
        }
    }

    /// A step with its command.
    pub fn run(what: impl Into<String>, command: impl Into<String>) -> Self {
        Self {
            command: Some(command.into()),
            ..Self::by_hand(what)
        }
    }

    /// The same step with the command that shows it worked.
    pub fn checked_by(mut self, check: impl Into<String>) -> Self {
        self.check = Some(check.into());
        self
    }
}

/// What an obstacle costs: the ceiling with it and without it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Ceiling of the route that is left.
    pub now: BytesPerSecond,
    /// Ceiling of the route without the obstacle.
    pub without: BytesPerSecond,
}

/// Why a better route was not taken, with the proof, the price and the way out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Which obstacle; stable across versions.
    pub code: Code,
    /// What it does to the route.
    pub effect: Effect,
    /// One sentence that names the objects involved.
    pub summary: String,
    /// What proves it; never empty for a certain one.
    pub evidence: Vec<Evidence>,
    /// What it costs, when both ceilings are known.
    pub cost: Option<Cost>,
    /// How to remove it, step by step; empty when it cannot be removed.
    pub fix: Vec<Fix>,
    /// How sure we are.
    pub confidence: Confidence,
}

impl Obstacle {
    /// A certain obstacle that blocks; refine it with the other builders.
    pub fn blocks(code: Code, summary: impl Into<String>) -> Self {
        Self {
            code,
            effect: Effect::Blocks,
            summary: summary.into(),
            evidence: Vec::new(),
            cost: None,
            fix: Vec::new(),
            confidence: Confidence::Certain,
        }
    }

    /// A certain obstacle that slows.
    pub fn slows(code: Code, summary: impl Into<String>) -> Self {
        Self {
            effect: Effect::Slows,
            ..Self::blocks(code, summary)
        }
    }

    /// Something that matters could not be looked at.
    pub fn unproven(code: Code, summary: impl Into<String>) -> Self {
        Self {
            effect: Effect::Unproven,
            confidence: Confidence::Possible,
            ..Self::blocks(code, summary)
        }
    }

    /// Adds what was seen and where.
    pub fn seen(mut self, at: impl Into<String>, shows: impl Into<String>) -> Self {
        self.evidence.push(Evidence::new(at, shows));
        self
    }

    /// Adds a step of the fix.
    pub fn fixed_by(mut self, fix: Fix) -> Self {
        self.fix.push(fix);
        self
    }

    /// Sets how sure we are.
    pub fn with_confidence(mut self, confidence: Confidence) -> Self {
        self.confidence = confidence;
        self
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// The stable codes of obstacles.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[doc = $doc])+ #[serde(rename = $text)] $name,)+
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The code as printed in JSON, receipts and reports.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What the code means, in general.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

codes! {
    // --- what exists
    /// The machine has no GPU.
    NoGpu = "no-gpu",
    /// The machine has no RDMA device.
    NoRdmaDevice = "no-rdma-device",
    /// The named device does not exist on the machine.
    NoSuchDevice = "no-such-device",
    /// No device publishes memory for peer-to-peer DMA.
    NoPeerMemory = "no-peer-memory",
    /// The peer memory is used up.
    PeerMemoryExhausted = "peer-memory-exhausted",
    /// The kernel refused DMA between the two devices when it was asked to.
    PeerDmaRefused = "peer-dma-refused",
    /// The network port is not active.
    PortDown = "port-down",
    // --- RDMA memory registration
    /// libibverbs is not installed, or too old to have the function that is needed.
    NoVerbsLibrary = "no-verbs-library",
    /// The RDMA device, its driver or the kernel cannot register dma-bufs.
    NicWithoutDmaBuf = "nic-without-dma-buf",
    /// The GPU's driver did not export the memory as a dma-buf.
    DmaBufExportRefused = "dma-buf-export-refused",
    /// The RDMA device refused to register the memory when it was asked to.
    RegistrationRefused = "registration-refused",
    /// The RDMA device refused to make or to connect a queue pair.
    QueuePairRefused = "queue-pair-refused",
    /// The RDMA device is played by the kernel in software: its bytes pass the CPU.
    SoftwareNic = "software-nic",
    /// The process may not register memory with the RDMA device.
    RegistrationDenied = "registration-denied",
    /// The RDMA device or the kernel has no room for another registration of this size.
    RegistrationExhausted = "registration-exhausted",
    /// The GPU's memory is exported without the PCIe mapping that data-direct NICs are fastest with.
    NoPcieMapping = "no-pcie-mapping",
    // --- the kernel and PCIe
    /// The kernel was built without PCI_P2PDMA.
    KernelWithoutP2pdma = "kernel-without-p2pdma",
    /// Access Control Services redirect peer-to-peer traffic to the root complex.
    AcsRedirect = "acs-redirect",
    /// The two devices share no PCIe switch and the CPU is not known to route between root ports.
    NoCommonSwitch = "no-common-switch",
    /// An IOMMU translates device addresses on the way.
    IommuTranslates = "iommu-translates",
    /// The PCIe ports that are seen are a hypervisor's, not the real ones.
    BehindHypervisor = "behind-hypervisor",
    /// Something about the PCIe path could not be read.
    PathUnreadable = "path-unreadable",
    /// The traffic leaves the PCIe switch and passes the CPU's host bridge.
    ThroughHostBridge = "through-host-bridge",
    /// The two devices hang off different CPU sockets.
    AcrossSockets = "across-sockets",
    /// A PCIe link on the way runs below its maximum speed or width.
    LinkDegraded = "link-degraded",
    /// A device reads memory in requests too small to fill its link.
    SmallReadRequests = "small-read-requests",
    /// A device may not let its writes overtake each other.
    RelaxedOrderingOff = "relaxed-ordering-off",
    /// A CPU core reads the memory of a device across PCIe.
    CpuReadsDevice = "cpu-reads-device",
    // --- GPU memory
    /// No runtime for the GPU could be loaded.
    NoGpuRuntime = "no-gpu-runtime",
    /// The GPU's runtime does not answer, or failed.
    GpuRuntimeFailed = "gpu-runtime-failed",
    /// The host buffers of copies to or from a GPU could not be pinned.
    HostMemoryNotPinned = "host-memory-not-pinned",
    /// The driver offers neither dma-buf export nor a peer-memory client to the RDMA stack.
    NoPeerMemoryClient = "no-peer-memory-client",
    /// The GPU model or its driver does not support peer-to-peer DMA.
    GpuWithoutPeerAccess = "gpu-without-peer-access",
    /// Other devices reach only part of the GPU's memory at a time: its BAR is smaller.
    SmallBar = "small-bar",
    /// The path moves bytes of host memory only: those of a GPU pass a buffer there.
    GpuThroughHost = "gpu-through-host",
    /// A GPU's memory could not be shared with a process of the same host.
    GpuMemoryNotShared = "gpu-memory-not-shared",
    /// The two GPUs share no NVLink or xGMI.
    NoGpuLink = "no-gpu-link",
    // --- storage
    /// Neither nvidia-fs nor the kernel's P2PDMA mode is ready for GPUDirect Storage.
    NoStorageDriver = "no-storage-driver",
    /// The storage library of the GPU's maker (cuFile, hipFile) is not installed, or too old to have
    /// the function that is needed.
    NoStorageLibrary = "no-storage-library",
    /// Opening the storage library of the GPU's maker did not end within its time limit.
    StorageDriverHangs = "storage-driver-hangs",
    /// The storage library of the GPU's maker could not be opened, or ended the process that did.
    StorageDriverRefused = "storage-driver-refused",
    /// Opening the storage library of the GPU's maker closed descriptor 0.
    StorageDriverClosedInput = "storage-driver-closed-input",
    /// The storage library of the GPU's maker refused the file.
    FileNotRegistered = "file-not-registered",
    /// udev has no record of the drive, from which the storage library of the GPU's maker learns
    /// what it is.
    NoUdevRecord = "no-udev-record",
    /// The storage library of the GPU's maker went through host memory and called it success.
    CompatMode = "compat-mode",
    /// Which way the storage library of the GPU's maker went could not be told.
    StorageUnproven = "storage-unproven",
    /// The GPU's memory could not be pinned for the storage library of its maker.
    GpuMemoryNotPinned = "gpu-memory-not-pinned",
    /// The file system cannot place file data in device memory.
    FileSystemUnsupported = "file-system-unsupported",
    /// The file system refuses O_DIRECT.
    NoDirectIo = "no-direct-io",
    /// A block layer between the file and the drive (md, dm, LVM, loop, multipath) breaks the direct path.
    LayeredBlockDevice = "layered-block-device",
    /// The drive is not a PCIe device that can address its peers.
    DriveNotOnPcie = "drive-not-on-pcie",
    /// The file lies on a network file system or drive whose client works through the kernel's
    /// network stack.
    NetworkFileSystem = "network-file-system",
    /// Objects come over HTTP and TLS, which need the CPU.
    ObjectStore = "object-store",
    /// Where the file lies could not be found out.
    FileUnresolved = "file-unresolved",
    // --- the transfer itself
    /// The data already lies in the page cache; reading the drive again would be the detour.
    AlreadyCached = "already-cached",
    /// io_uring is forbidden or missing.
    NoIoUring = "no-io-uring",
    /// The locked-memory limit is too small to register buffers.
    MemlockTooSmall = "memlock-too-small",
    /// No huge pages back the buffers.
    NoHugePages = "no-huge-pages",
    /// Getting fresh memory from the kernel is slower than copying.
    SlowFreshMemory = "slow-fresh-memory",
    /// Part of the range is not aligned as O_DIRECT needs it.
    Unaligned = "unaligned",
    /// A rail to the peer failed while it was in use.
    RailFailed = "rail-failed",
    /// The peer is on another host, or shares no memory with this process.
    NoSharedMemory = "no-shared-memory",
    /// The port is far slower than the machine's others: it is there for something else.
    OddRate = "odd-rate",
    /// The adapter is a virtual function, made for a guest of the machine.
    VirtualFunction = "virtual-function",
    /// The network interface is made by software, or does not leave the host.
    VirtualInterface = "virtual-interface",
    /// The ports of the two ends have no link layer, subnet or kind of address in common.
    PortsDoNotMeet = "ports-do-not-meet",
    /// The caller asked for this detour by policy.
    AskedFor = "asked-for",
    /// This build has no engine for the route.
    NotBuilt = "not-built",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_kebab_case_and_explained() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL {
            let text = code.as_str();
            assert!(seen.insert(text), "{text} twice");
            assert!(
                text.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            );
            assert!(code.meaning().ends_with('.'), "{text}: {}", code.meaning());
        }
    }
}
