//! Which way UCX moves GPU memory, by its own protocol tables.

use crate::evidence::Located;
use crate::evidence::ucx::{UcxLog, UcxProtocol, UcxProtocolRow};
use crate::verdict::Verdict;

/// What UCX does with large messages of GPU memory in one configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuProtocol<'a> {
    pub(crate) table: &'a UcxProtocol,
    /// The row of the largest messages.
    pub(crate) row: &'a Located<UcxProtocolRow>,
    pub(crate) verdict: Verdict,
    /// The configuration is one for other nodes.
    pub(crate) between_nodes: bool,
}

/// Each configuration whose title names GPU memory.
pub(crate) fn gpu_protocols(log: &UcxLog) -> Vec<GpuProtocol<'_>> {
    log.protocols
        .iter()
        .filter(|table| {
            ["cuda", "rocm", "ze-device"]
                .iter()
                .any(|kind| table.title.value.contains(kind))
        })
        .filter_map(|table| {
            let row = table
                .rows
                .iter()
                .rfind(|row| row.value.sizes.contains("inf"))?;
            Some(GpuProtocol {
                table,
                row,
                verdict: verdict(&row.value),
                between_nodes: !table.title.value.contains("intra-node")
                    && !table.title.value.contains("self"),
            })
        })
        .collect()
}

fn verdict(row: &UcxProtocolRow) -> Verdict {
    let protocol = row.protocol.to_ascii_lowercase();
    let over = row.over.to_ascii_lowercase();
    let copies = protocol.contains("copy")
        && !protocol.contains("zero-copy")
        && !protocol.contains("zero copy");
    if over.contains("tcp") {
        Verdict::Socket
    } else if copies || protocol.contains("pipeline") || protocol.contains("host") {
        Verdict::Staged
    } else if ["rc", "dc", "srd", "gga", "cuda_ipc", "rocm_ipc"]
        .iter()
        .any(|t| over.starts_with(t))
    {
        Verdict::Direct
    } else {
        Verdict::InsufficientEvidence
    }
}
