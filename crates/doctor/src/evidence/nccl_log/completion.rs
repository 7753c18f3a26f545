//! Work completions that failed.

use serde::Serialize;

/// A failed completion, as the network reported it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompletionError {
    /// InfiniBand or RoCE.
    Ib {
        /// Address of the peer, without the port.
        peer: Option<String>,
        /// `ibv_wc_status` (4: local protection, 12: retries exceeded).
        status: u32,
        /// Opcode as printed; undefined by the verbs specification after a failure.
        opcode: Option<u32>,
        /// The vendor's error number.
        vendor_error: Option<u32>,
        /// The request (`Send`, `Recv`), where printed.
        request: Option<String>,
        /// The local GID, where printed.
        local_gid: Option<String>,
        /// The remote GID, where printed.
        remote_gid: Option<String>,
        /// The NIC, where printed.
        hca: Option<String>,
    },
    /// libfabric.
    Ofi {
        /// Return code of the plugin.
        code: Option<u32>,
        /// The provider's error number.
        error: Option<u32>,
        /// Its words, as far as they do not differ between connections.
        text: String,
    },
}
