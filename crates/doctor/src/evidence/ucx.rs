//! UCX debug output.

mod reader;

use serde::Serialize;

pub(crate) use self::reader::UcxReader;
use super::cite::Located;
use super::sighting::Sighting;

/// The log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UcxLog {
    /// UCX's version, where printed.
    pub version: Option<Located<String>>,
    /// Transports that endpoints were given (`ep_cfg`, `cfg#`), as printed.
    pub endpoints: Vec<Sighting<UcxEndpoint>>,
    /// Protocol tables of `UCX_PROTO_INFO`.
    pub protocols: Vec<UcxProtocol>,
    /// Warnings and errors, one for each wording.
    pub problems: Vec<Sighting<UcxProblem>>,
    /// Entries after a limit, not kept.
    pub beyond_limits: u64,
}

/// The lanes of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct UcxEndpoint {
    /// What the endpoint is for (`inter-node cfg#2`, `ep_cfg[1]`), as printed.
    pub config: String,
    /// Uses and their transports over devices, such as `rma`, `rc_mlx5/mlx5_0:1`.
    pub lanes: Vec<(String, String)>,
}

/// One table of protocols.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UcxProtocol {
    /// The title: configuration, operation and memory types.
    pub title: Located<String>,
    /// Its rows.
    pub rows: Vec<Located<UcxProtocolRow>>,
}

/// One row of such a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UcxProtocolRow {
    /// Sizes, as printed (`8k..inf`).
    pub sizes: String,
    /// The protocol in words (`zero-copy`, `rendezvous cuda copy …`).
    pub protocol: String,
    /// Transports and devices.
    pub over: String,
}

/// A warning or an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct UcxProblem {
    /// `WARN`, `ERROR`, `FATAL` or `DIAG`.
    pub level: String,
    /// Source file and line.
    pub site: String,
    /// Its words at the first sighting.
    pub text: String,
}
