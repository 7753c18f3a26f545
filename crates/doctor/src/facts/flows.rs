//! What a log shows of each connection: the primary evidence of which way bytes go.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::Cite;
use crate::evidence::nccl_log::{Direction, NcclLog, Transport};

/// What one rank does through one NIC.
#[derive(Clone, Debug)]
pub(crate) struct NetUse {
    pub(crate) rank: u32,
    pub(crate) host: Option<String>,
    pub(crate) network: String,
    pub(crate) device: u32,
    /// Name of the NIC, where the log lists them.
    pub(crate) nic: Option<String>,
    pub(crate) send: Channels,
    pub(crate) receive: Channels,
}

/// Channels with and without `/GDRDMA`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    pub(crate) direct: u64,
    pub(crate) plain: u64,
    pub(crate) first_direct: Option<Cite>,
    pub(crate) first_plain: Option<Cite>,
}

impl NetUse {
    pub(crate) fn direct(&self) -> u64 {
        self.send.direct + self.receive.direct
    }

    pub(crate) fn plain(&self) -> u64 {
        self.send.plain + self.receive.plain
    }

    /// A line that shows a channel with (`true`) or without `/GDRDMA`.
    pub(crate) fn cite(&self, direct: bool) -> Option<&Cite> {
        let of = |channels: &'_ Channels| {
            if direct {
                channels.first_direct.clone()
            } else {
                channels.first_plain.clone()
            }
        };
        let pick = if of(&self.send).is_some() {
            &self.send
        } else {
            &self.receive
        };
        if direct {
            pick.first_direct.as_ref()
        } else {
            pick.first_plain.as_ref()
        }
    }
}

/// Whether a network of this name is the kernel's own.
pub(crate) fn is_socket(network: &str) -> bool {
    network.to_ascii_lowercase().contains("socket")
}

/// What each rank does through each NIC.
pub(crate) fn net_uses(log: &NcclLog) -> Vec<NetUse> {
    let mut uses: BTreeMap<(u32, String, u32, Option<String>), NetUse> = BTreeMap::new();
    for sighting in &log.connections {
        let connection = &sighting.what;
        let (network, device, gdr) = match &connection.transport {
            Transport::Net {
                network,
                device,
                gdr,
                ..
            }
            | Transport::CollNet {
                network,
                device,
                gdr,
            } => (network, *device, *gdr),
            _ => continue,
        };
        let receives = connection.direction == Some(Direction::Receive);
        let rank = match (receives, connection.to) {
            (true, Some(to)) => to,
            _ => connection.from,
        };
        let host = log.process(connection.by).and_then(|p| p.host.clone());
        let key = (rank, network.clone(), device, host.clone());
        let entry = uses.entry(key).or_insert_with(|| NetUse {
            rank,
            nic: nic_name(log, connection.by, device),
            host,
            network: network.clone(),
            device,
            send: Channels::default(),
            receive: Channels::default(),
        });
        let side = if receives {
            &mut entry.receive
        } else {
            &mut entry.send
        };
        let (count, first) = if gdr {
            (&mut side.direct, &mut side.first_direct)
        } else {
            (&mut side.plain, &mut side.first_plain)
        };
        *count = count.saturating_add(sighting.count);
        first.get_or_insert_with(|| sighting.first.clone());
    }
    uses.into_values().collect()
}

/// The name of a NIC by its number, as the process itself or else any process listed it.
fn nic_name(
    log: &NcclLog,
    by: crate::evidence::nccl_log::ProcessId,
    device: u32,
) -> Option<String> {
    let own = log.ib.iter().find(|list| list.by.contains(&by));
    let all_agree = || match log.ib.as_slice() {
        [only] => Some(only),
        _ => None,
    };
    let list = own.or_else(all_agree)?;
    let found = list.what.devices.iter().find(|d| d.index == device)?;
    let names: Vec<&str> = found.ports.iter().map(|p| p.name.as_str()).collect();
    (!names.is_empty()).then(|| names.join("+"))
}

/// What passes between two ranks of one machine or NVLink domain.
#[derive(Clone, Debug)]
pub(crate) struct PeerUse {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) host: Option<String>,
    pub(crate) p2p: u64,
    pub(crate) shm: u64,
    pub(crate) first_p2p: Option<Cite>,
    pub(crate) first_shm: Option<Cite>,
}

/// What passes between each two ranks of one machine.
pub(crate) fn peer_uses(log: &NcclLog) -> Vec<PeerUse> {
    let mut uses: BTreeMap<(u32, u32, Option<String>), PeerUse> = BTreeMap::new();
    for sighting in &log.connections {
        let connection = &sighting.what;
        let direct = match connection.transport {
            Transport::P2p { .. } => true,
            Transport::Shm { .. } => false,
            _ => continue,
        };
        let Some(to) = connection.to else { continue };
        let (low, high) = (connection.from.min(to), connection.from.max(to));
        let host = log.process(connection.by).and_then(|p| p.host.clone());
        let entry = uses
            .entry((low, high, host.clone()))
            .or_insert_with(|| PeerUse {
                from: low,
                to: high,
                host,
                p2p: 0,
                shm: 0,
                first_p2p: None,
                first_shm: None,
            });
        let (count, first) = if direct {
            (&mut entry.p2p, &mut entry.first_p2p)
        } else {
            (&mut entry.shm, &mut entry.first_shm)
        };
        *count = count.saturating_add(sighting.count);
        first.get_or_insert_with(|| sighting.first.clone());
    }
    uses.into_values().collect()
}

/// Whether the job of a log goes beyond one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    OneNode,
    ManyNodes,
    Unknown,
}

pub(crate) fn span(log: &NcclLog) -> Span {
    let hosts: BTreeSet<&str> = log
        .processes
        .iter()
        .filter_map(|p| p.host.as_deref())
        .collect();
    let told = log.members.iter().filter_map(|m| m.nodes).max();
    if hosts.len() > 1 || told.is_some_and(|nodes| nodes > 1) {
        return Span::ManyNodes;
    }
    if told == Some(1) {
        return Span::OneNode;
    }
    let largest = log.members.iter().map(|m| m.ranks).max();
    let in_largest: BTreeSet<u32> = log
        .members
        .iter()
        .filter(|m| Some(m.ranks) == largest)
        .map(|m| m.rank)
        .collect();
    let all_here = largest.is_some_and(|ranks| in_largest.len() as u64 == u64::from(ranks));
    if all_here && hosts.len() == 1 {
        return Span::OneNode;
    }
    let net = !log.totals.net.is_empty();
    if net && !all_here {
        return Span::ManyNodes;
    }
    // Rings that are connected without a single network channel stay on one node.
    let connected: u64 = log.rings.iter().map(|ring| ring.count).sum();
    let peers = log.totals.p2p + log.totals.shm;
    if !net && hosts.len() == 1 && connected > 1 && peers > 0 {
        return Span::OneNode;
    }
    Span::Unknown
}

/// The hosts of ranks, in the largest communicator.
pub(crate) fn host_of_ranks(log: &NcclLog) -> BTreeMap<u32, &str> {
    log.processes
        .iter()
        .filter_map(|p| Some((p.rank?, p.host.as_deref()?)))
        .collect()
}
