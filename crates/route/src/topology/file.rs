//! Topologies from files, whatever wrote them.

use super::{Topology, hwloc, nccl, xml};
use crate::snapshot::{Snapshot, SnapshotError};

/// Why a file could not be read as a topology.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// It begins like a snapshot, but is none that can be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Neither JSON nor XML.
    #[error(
        "neither a snapshot (JSON) nor an XML file: it begins with `{begins}`; crowfly reads its own snapshots, `lstopo --of xml` and NCCL's topology files"
    )]
    Unrecognised {
        /// The first characters.
        begins: String,
    },
    /// XML, but of something else.
    #[error(
        "the XML file describes `<{root}>`; crowfly reads `<topology>` (lstopo --of xml) and `<system>` (NCCL_TOPO_DUMP_FILE)"
    )]
    OtherXml {
        /// The name of the outermost element.
        root: String,
    },
    /// Not well-formed, or with more nodes than are read.
    #[error("the XML file cannot be read: {0}")]
    XmlMalformed(#[from] roxmltree::Error),
    /// Larger than is read.
    #[error("the XML file has {bytes} bytes; at most {most} are read", most = xml::MAX_XML_BYTES)]
    XmlTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Nested deeper than is read.
    #[error("the XML file nests elements more than {most} deep", most = xml::MAX_XML_DEPTH)]
    XmlTooDeep,
    /// From a version of hwloc that wrote another format.
    #[error(
        "the hwloc file has format version `{found}`; crowfly reads versions 2 and 3. Write it again with `lstopo --of xml` of hwloc 2 or later"
    )]
    HwlocVersion {
        /// The version found.
        found: String,
    },
}

impl TopologyError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Snapshot(error) => error.code(),
            Self::Unrecognised { .. } => "topology-unrecognised",
            Self::OtherXml { .. } => "topology-other-xml",
            Self::XmlMalformed(_) => "topology-xml-malformed",
            Self::XmlTooLarge { .. } => "topology-xml-too-large",
            Self::XmlTooDeep => "topology-xml-too-deep",
            Self::HwlocVersion { .. } => "topology-hwloc-version",
        }
    }
}

impl Topology {
    /// Reads a snapshot, a file of `lstopo --of xml`, or a topology file of NCCL or RCCL, told
    /// apart by their content.
    ///
    /// # Errors
    /// When the bytes are none of these, malformed, or larger than is read.
    pub fn from_any(bytes: &[u8]) -> Result<Self, TopologyError> {
        let content = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        match content.trim_ascii_start().first() {
            Some(b'{') => Ok(Self::from_snapshot(&Snapshot::from_json(content)?)),
            Some(b'<') => Self::from_xml(content),
            _ => Err(TopologyError::Unrecognised {
                begins: begins(content),
            }),
        }
    }

    fn from_xml(bytes: &[u8]) -> Result<Self, TopologyError> {
        let text = xml::text(bytes)?;
        let document = xml::parse(text)?;
        let root = document.root_element();
        match root.tag_name().name() {
            "topology" => hwloc::read(root),
            "system" => Ok(nccl::read(root)),
            other => Err(TopologyError::OtherXml {
                root: shortened(other),
            }),
        }
    }
}

fn begins(bytes: &[u8]) -> String {
    let start = bytes.trim_ascii_start();
    let start = start.get(..start.len().min(64)).unwrap_or_default();
    shortened(&String::from_utf8_lossy(start))
}

/// As much of a text as belongs into an error's message.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(24).collect()
}
