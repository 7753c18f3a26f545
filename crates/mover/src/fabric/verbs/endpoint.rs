//! Making a link: two ports tell each other their queue pairs and connect them.

use std::io;
use std::sync::Arc;

use crowfly_machine::verbs::{
    CompletionQueue, GidKind, Init, LinkLayer, PSN_MASK, PortGid, QueuePair, Route, Sizes,
    VerbsError, meeting,
};

use super::super::error::FabricError;
use super::super::identity::random;
use super::super::provider::{Endpoint, Joining, Link, Role};
use super::hello::{Hello, MAX_ADDRESSES};
use super::link::{Ends, Lane, VerbsLink};
use super::pump::Pump;
use super::{MAX_LANES, NicCore};

/// Pieces of memory in one request, where the device takes as many.
const PIECES: usize = 16;
/// Bytes that small writes carry inside of their request, where the device takes as many.
const INLINE: usize = 220;
/// Receives posted on each lane, for peers' immediate values.
const RECEIVES: usize = 256;

/// The local half of a link.
pub(super) struct VerbsEndpoint {
    nic: Arc<NicCore>,
    pump: Arc<Pump>,
    role: Role,
    queue: Arc<CompletionQueue>,
    lanes: Vec<(QueuePair<Init>, u32)>,
    /// Receives posted on each lane, where its queue takes as many.
    receives: usize,
    addresses: Vec<PortGid>,
    hello: Hello,
}

impl VerbsEndpoint {
    pub(super) fn new(
        nic: &Arc<NicCore>,
        pump: &Arc<Pump>,
        role: Role,
    ) -> Result<Self, VerbsError> {
        let limits = nic.context.limits()?;
        let count = nic.settings.lanes.clamp(1, MAX_LANES);
        let mut sizes = Sizes {
            requests: nic.settings.depth.clamp(1, limits.max_requests.max(1)),
            receives: RECEIVES.min(limits.max_requests.max(1)),
            pieces: PIECES.min(limits.max_pieces.max(1)),
            inline: INLINE,
        };
        let mut addresses = nic.addresses()?;
        addresses.truncate(MAX_ADDRESSES);
        // Room for everything that can be outstanding, so that the queue never overflows.
        let capacity = (sizes.requests + sizes.receives) * count;
        let queue = nic.context.completion_queue(capacity, true)?;
        let mut lanes = Vec::with_capacity(count);
        while lanes.len() < count {
            let made = nic.domain.queue_pair(&queue, &queue, sizes);
            let pair = match made {
                // What a device carries inline is not in its limits: it can only be tried.
                Err(error) if error.errno() == Some(libc::EINVAL) && sizes.inline > 0 => {
                    sizes.inline = 0;
                    continue;
                }
                made => made?,
            };
            let mut pair = pair.initialise(nic.port.number)?;
            for _ in 0..sizes.receives.min(pair.sizes().receives) {
                pair.receive(lanes.len() as u64, None)?;
            }
            let psn = random::<4>().map_or(0, u32::from_le_bytes) & PSN_MASK;
            lanes.push((pair, psn));
        }
        let hello = Hello {
            nic: nic.name.clone(),
            infiniband: nic.port.link_layer == LinkLayer::InfiniBand,
            lid: nic.port.lid,
            mtu: nic.port.mtu,
            reads_answered: limits.max_reads_answered,
            reads_asked: limits.max_reads_asked,
            lanes: lanes
                .iter()
                .map(|(pair, psn)| (pair.number(), *psn))
                .collect(),
            addresses: addresses.clone(),
        };
        Ok(Self {
            nic: Arc::clone(nic),
            pump: Arc::clone(pump),
            role,
            queue,
            lanes,
            receives: sizes.receives,
            addresses,
            hello,
        })
    }

    /// The way from each of our lanes to theirs, but for the numbers.
    fn route(&self, theirs: &Hello) -> Result<Route, &'static str> {
        if theirs.infiniband != self.hello.infiniband {
            return Err("one port is InfiniBand and the other is not");
        }
        let met = match self.role {
            Role::Dialer => meeting(&self.addresses, &theirs.addresses),
            Role::Acceptor => {
                meeting(&theirs.addresses, &self.addresses).map(|(theirs, ours)| (ours, theirs))
            }
        };
        let pair =
            met.and_then(|(ours, to)| Some((self.addresses.get(ours)?, theirs.addresses.get(to)?)));
        let (local, remote_gid) = match pair {
            // Within one subnet the local identifier is enough.
            Some((ours, to)) if ours.kind == GidKind::InfiniBand => {
                let same = ours.address[..8] == to.address[..8];
                (if same { None } else { Some(ours.clone()) }, to.address)
            }
            Some((ours, to)) => (Some(ours.clone()), to.address),
            None if theirs.infiniband => (None, [0; 16]),
            None => return Err("the two ports have no addresses of one kind and family"),
        };
        let reads = [
            self.hello.reads_answered,
            self.hello.reads_asked,
            theirs.reads_answered,
            theirs.reads_asked,
        ];
        Ok(Route {
            port: self.nic.port,
            local,
            remote_gid,
            remote_lid: theirs.lid,
            remote_qp: 0,
            remote_psn: 0,
            local_psn: 0,
            mtu: self.nic.port.mtu.min(theirs.mtu),
            reads: reads.into_iter().min().unwrap_or(1).max(1),
            patience: self.nic.settings.patience,
        })
    }
}

impl Endpoint for VerbsEndpoint {
    fn hello(&self) -> Vec<u8> {
        self.hello.to_bytes()
    }

    fn join(
        self: Box<Self>,
        theirs: &[u8],
        joining: Joining,
    ) -> Result<Arc<dyn Link>, FabricError> {
        let broke = |what| FabricError::Protocol {
            address: self.nic.name.clone(),
            what,
        };
        let theirs = Hello::from_bytes(theirs).map_err(broke)?;
        let failed = |error: VerbsError| {
            FabricError::setup("connecting RDMA queue pairs", io::Error::other(error))
        };
        let unreachable = |what: &str| {
            let source = io::Error::other(what.to_owned());
            FabricError::setup("connecting RDMA queue pairs", source)
        };
        let route = self.route(&theirs).map_err(unreachable)?;
        let mut lanes = Vec::with_capacity(self.lanes.len());
        for ((pair, local_psn), (remote_qp, remote_psn)) in self.lanes.into_iter().zip(theirs.lanes)
        {
            let route = Route {
                remote_qp,
                remote_psn,
                local_psn,
                ..route.clone()
            };
            let receives = self.receives.min(pair.sizes().receives);
            lanes.push(Lane::new(pair.connect(&route).map_err(failed)?, receives));
        }
        let pump = Arc::clone(&self.pump);
        let ends = Ends {
            nic: self.nic,
            pump: self.pump,
            peer_nic: theirs.nic,
            fabric: fabric_of(route.local.as_ref()),
            rail: joining.rail,
            events: joining.events,
        };
        let link = VerbsLink::new(ends, self.queue, lanes);
        pump.serve(&link);
        Ok(link)
    }
}

/// How well two ports go together, as the acceptor of a link asks: those of one subnet best.
///
/// # Errors
/// Why they cannot be joined: link layer, subnet, kind or family of address.
pub(super) fn joined_by(
    infiniband: bool,
    ours: &[PortGid],
    theirs: &Hello,
) -> Result<u8, &'static str> {
    /// The bits of an address that tell its subnet, for InfiniBand and by custom for RoCE over IPv6.
    const PREFIX: usize = 8;
    /// The bytes of an IPv4 address within a GID that a /24 subnet has in common.
    const MAPPED: usize = 15;
    if theirs.infiniband != infiniband {
        return Err("one port is InfiniBand and the other is not");
    }
    match meeting(&theirs.addresses, ours) {
        Some((to, own)) => {
            let same = theirs
                .addresses
                .get(to)
                .zip(ours.get(own))
                .is_some_and(|(a, b)| {
                    let len = if is_mapped(a) { MAPPED } else { PREFIX };
                    a.address.get(..len) == b.address.get(..len)
                });
            Ok(u8::from(same))
        }
        None if infiniband => Ok(0),
        None => Err("the two ports have no addresses of one kind and family"),
    }
}

/// Whether a GID holds an IPv4 address (RFC 4291, section 2.5.5.2).
fn is_mapped(gid: &PortGid) -> bool {
    std::net::Ipv6Addr::from(gid.address)
        .to_ipv4_mapped()
        .is_some()
}

/// What joins two ports, by the local address in use.
const fn fabric_of(local: Option<&PortGid>) -> &'static str {
    match local {
        Some(PortGid {
            kind: GidKind::RoceV2,
            ..
        }) => "RoCE v2",
        Some(PortGid {
            kind: GidKind::RoceV1,
            ..
        }) => "RoCE v1",
        _ => "InfiniBand",
    }
}
