//! Pairs as NCCL's channels and UCX's lanes show them.

use super::pair;
use crate::case::Case;
use crate::evidence::nccl_log::NcclLog;
use crate::evidence::ucx::UcxLog;
use crate::facts::flows::{NetUse, Span, is_socket, net_uses, peer_uses, span};
use crate::facts::ucx::gpu_protocols;
use crate::finding::Quote;
use crate::verdict::{Basis, PairKind, PairVerdict, Verdict};

pub(super) fn pairs(case: &Case) -> Vec<PairVerdict> {
    let mut pairs: Vec<PairVerdict> = case.nccl_logs().flat_map(of_log).collect();
    pairs.extend(case.ucx_logs().flat_map(of_ucx));
    pairs
}

/// UCX says which way large messages of GPU memory go.
fn of_ucx(log: &UcxLog) -> Vec<PairVerdict> {
    gpu_protocols(log)
        .into_iter()
        .map(|protocol| {
            let row = &protocol.row.value;
            let kind = if protocol.between_nodes {
                PairKind::GpuNic
            } else {
                PairKind::GpuGpu
            };
            pair(
                kind,
                Some(protocol.row.cite.source.to_string()),
                ("GPU memory".to_owned(), row.over.clone()),
                protocol.verdict,
                Basis::Observed,
                format!("large messages: {} over {}", row.protocol, row.over),
                [
                    Quote::from(&protocol.table.title.cite),
                    Quote::from(&protocol.row.cite),
                ],
            )
        })
        .collect()
}

fn of_log(log: &NcclLog) -> Vec<PairVerdict> {
    let mut pairs: Vec<PairVerdict> = peer_uses(log).into_iter().map(of_peers).collect();
    pairs.extend(net_uses(log).iter().map(of_net));
    let net_shown =
        !log.totals.net.is_empty() || log.totals.collnet_gdr + log.totals.collnet_plain > 0;
    if !net_shown
        && span(log) != Span::OneNode
        && let Some(open) = open_network(log)
    {
        pairs.push(open);
    }
    pairs
}

/// A network was chosen, and no channel shows what became of it.
fn open_network(log: &NcclLog) -> Option<PairVerdict> {
    let chosen = log.networks.first()?;
    let network = &chosen.what;
    let quote = [Quote::from(&chosen.first)];
    let ends = ("every rank".to_owned(), network.clone());
    if is_socket(network) {
        return Some(pair(
            PairKind::GpuNic,
            None,
            ends,
            Verdict::Socket,
            Basis::Observed,
            format!("NCCL chose {network}: the kernel's network stack, from host memory"),
            quote,
        ));
    }
    Some(pair(
        PairKind::GpuNic,
        None,
        ends,
        Verdict::InsufficientEvidence,
        Basis::Observed,
        format!("NCCL chose {network}, but no channel line says whether with /GDRDMA"),
        quote,
    ))
}

fn of_peers(peers: crate::facts::flows::PeerUse) -> PairVerdict {
    let (verdict, why, quote) = match (&peers.first_p2p, &peers.first_shm) {
        (Some(cite), None) => (
            Verdict::Direct,
            format!("{}, all peer to peer", channels(peers.p2p)),
            Some(cite),
        ),
        (_, shm) => (
            Verdict::Staged,
            format!(
                "{} of {} channels go through host memory (SHM)",
                peers.shm,
                peers.shm + peers.p2p
            ),
            shm.as_ref(),
        ),
    };
    let quote = quote.map(Quote::from);
    pair(
        PairKind::GpuGpu,
        peers.host,
        (format!("rank {}", peers.from), format!("rank {}", peers.to)),
        verdict,
        Basis::Observed,
        why,
        quote,
    )
}

fn channels(count: u64) -> String {
    match count {
        1 => "1 channel".to_owned(),
        _ => format!("{count} channels"),
    }
}

fn of_net(net: &NetUse) -> PairVerdict {
    let (direct, plain) = (net.direct(), net.plain());
    let total = direct + plain;
    let only_receives = net.receive.plain == 0
        && net.receive.direct > 0
        && net.send.direct == 0
        && net.send.plain > 0;
    let (verdict, why) = if is_socket(&net.network) && direct == 0 {
        (
            Verdict::Socket,
            format!("{} over {}", channels(total), net.network),
        )
    } else if plain == 0 {
        (
            Verdict::Direct,
            format!("{}, all with /GDRDMA", channels(total)),
        )
    } else if only_receives {
        (
            Verdict::DirectButSlow,
            format!(
                "{direct} channels receive with /GDRDMA; {plain} send from host memory, as NCCL does on GPUs before Ampere without NVLink"
            ),
        )
    } else {
        (
            Verdict::Staged,
            format!("{plain} of {total} channels without /GDRDMA: through host memory"),
        )
    };
    let other = net
        .nic
        .clone()
        .unwrap_or_else(|| format!("{}/{}", net.network, net.device));
    pair(
        PairKind::GpuNic,
        net.host.clone(),
        (format!("rank {}", net.rank), other),
        verdict,
        Basis::Observed,
        why,
        net.cite(verdict == Verdict::Direct).map(Quote::from),
    )
}
