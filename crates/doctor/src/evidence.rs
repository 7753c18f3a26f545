//! Reading what people paste: text in, typed and quotable facts out.
//!
//! [`read`] takes the bytes of one source and returns a [`Document`]: the artefacts found in it,
//! each a [`Section`] with its typed [`Artefact`], and what was left unread. Formats are recognised
//! by content. Every reader is total (it never fails, whatever the bytes) and linear in their
//! number; [`Intake`] is the same for bytes that arrive piece by piece, in bounded memory.
//!
//! Read in this order:
//!
//! 1. [`cite`]: every fact keeps its source, its line and the line's own words;
//! 2. [`format`](mod@format): the formats, and the command that gets each of them;
//! 3. [`intake`]: how a paste is taken apart;
//! 4. one module for each format: its types, then its reader.

pub mod blocks;
pub mod cite;
pub mod cufile;
pub mod environment;
pub mod format;
pub mod gdscheck;
pub mod intake;
pub mod kept;
pub mod kernel;
mod line;
pub mod lspci;
pub mod nccl_log;
pub mod nccl_tests;
pub mod nccl_xml;
pub mod rdma;
mod reader;
mod recognise;
pub mod rocm;
pub mod sighting;
pub mod topo_matrix;
pub mod transfer;
pub mod ucx;
mod wording;
mod xml_tags;

use serde::Serialize;

pub use self::cite::{Cite, LineNumber, Located, SourceName};
pub use self::format::Format;
pub use self::intake::{Intake, read};
pub use self::sighting::{ProcessId, Sighting};

/// What one source turned out to hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Document {
    /// The source.
    pub source: SourceName,
    /// The artefacts in it, in the order in which they begin. Interleaved ones overlap.
    pub sections: Vec<Section>,
    /// What no reader took.
    pub unread: Unread,
    /// Lines in the source.
    pub lines: u64,
}

/// One artefact in a source.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    /// What it is.
    pub format: Format,
    /// Its first line.
    pub first: LineNumber,
    /// Its last line.
    pub last: LineNumber,
    /// What it says.
    pub artefact: Artefact,
}

/// Lines that no reader took.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Unread {
    /// How many, blank ones not counted.
    pub lines: u64,
    /// The first few, to show what the text looked like.
    pub first: Vec<Cite>,
    /// The bytes are not text, but this (`bzip2 archive`).
    pub binary: Option<&'static str>,
}

/// The typed content of a section, by format.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Artefact {
    /// [`Format::NcclLog`]
    NcclLog(Box<nccl_log::NcclLog>),
    /// [`Format::TopoMatrix`]
    TopoMatrix(topo_matrix::TopoMatrix),
    /// [`Format::P2pMatrix`]
    P2pMatrix(topo_matrix::P2pMatrix),
    /// [`Format::RocmTopology`]
    RocmTopology(rocm::RocmTopology),
    /// [`Format::NcclTopology`]
    NcclTopology(nccl_xml::NcclTopology),
    /// [`Format::NcclGraph`]
    NcclGraph(nccl_xml::NcclGraph),
    /// [`Format::NcclTests`]
    NcclTests(nccl_tests::NcclTests),
    /// [`Format::GdsCheck`]
    GdsCheck(Box<gdscheck::GdsCheck>),
    /// [`Format::CufileLog`]
    CufileLog(cufile::CufileLog),
    /// [`Format::CufileConfig`]
    CufileConfig(cufile::CufileConfig),
    /// [`Format::NvidiaFsStats`]
    NvidiaFsStats(cufile::NvidiaFsStats),
    /// [`Format::IbvDevinfo`], [`Format::Ibstat`], [`Format::Ibstatus`], [`Format::ShowGids`],
    /// [`Format::RdmaLink`]
    RdmaDevices(rdma::RdmaDevices),
    /// [`Format::Lspci`]
    Lspci(lspci::Lspci),
    /// [`Format::LspciTree`]
    LspciTree(lspci::LspciTree),
    /// [`Format::Lsblk`]
    BlockDevices(blocks::BlockDevices),
    /// [`Format::KernelLog`]
    KernelLog(kernel::KernelLog),
    /// [`Format::KernelCmdline`]
    KernelCmdline(kernel::KernelCmdline),
    /// [`Format::UcxLog`]
    UcxLog(ucx::UcxLog),
    /// [`Format::NixlLog`], [`Format::MooncakeLog`]
    TransferLog(transfer::TransferLog),
    /// [`Format::Environment`]
    Environment(environment::Environment),
    /// [`Format::Lstopo`], [`Format::Snapshot`]: read elsewhere.
    Kept(kept::KeptText),
}
