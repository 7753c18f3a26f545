//! How groups come to be: of all ranks of a job, of a part of a group, of those that are left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;

use super::{CallOptions, Group, GroupSettings};
use crate::collective::Element;
use crate::collective::arena::Layout;
use crate::collective::choose::{Costs, LastChoice, LinkCost};
use crate::collective::council::Council;
use crate::collective::descriptors;
use crate::collective::error::CollectiveError;
use crate::collective::flat::Flat;
use crate::collective::hosts::Hosts;
use crate::collective::lane::{Ends, IMMS, Lane, NetworkLane, SharedLane, StreamLane};
use crate::collective::mesh::{Card, MAX_PROCESSORS, Mesh, not_joined};
use crate::collective::neighbours::Neighbours;
use crate::collective::patience::grace;
use crate::collective::shared::{Memory, SharedBuffer};
use crate::fabric::rendezvous::Directory;
use crate::fabric::{
    Access, Awaited, Backing, Buffer, Fabric, FabricError, NotMapped, Peer, RegionDescriptor,
    Stream,
};

/// The number of the group of all ranks.
const WORLD: u64 = 0;
/// In the place of a child's ordinal, which counts from 1: what the ranks say when they have joined.
const JOINED: u64 = 0;
/// How often it is looked whether a stream has come.
const GLANCE: Duration = Duration::from_millis(1);

/// What the ranks of one host have in common, and others do not: the boot of the kernel, the network
/// namespace in which they find each other's socket, and the user.
fn host_label() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net");
    let network = network
        .map(|link| link.display().to_string())
        .unwrap_or_default();
    let user = rustix::process::geteuid().as_raw();
    format!("{} {network} {user}", boot.trim())
}

/// Memory of a rank of this host, mapped.
fn mapped(
    mesh: &Mesh,
    (rank, member): (usize, usize),
    theirs: &RegionDescriptor,
    len: usize,
    until: Instant,
) -> Result<Arc<Backing>, CollectiveError> {
    let peer = mesh.peer(member);
    let found = peer.map_or(Err(NotMapped::Apart), |peer| peer.attach(theirs, until));
    match found {
        Ok(memory) if memory.len() == len && memory.writable() => Ok(memory),
        Ok(_) => Err(NotMapped::Refused),
        Err(why) => Err(why),
    }
    .map_err(|why| match why {
        // That rank has a reason of its own, or none: it is not this one's.
        NotMapped::Parted => CollectiveError::Forming(format!("rank {rank} was lost: {why}")),
        // It has taken it back, and ends.
        NotMapped::Refused => {
            CollectiveError::Forming(format!("the memory of rank {rank} is not to be had: {why}"))
        }
        NotMapped::Late => CollectiveError::Forming(not_joined(rank)),
        NotMapped::Apart => {
            let told = peer.and_then(|peer| peer.unshared().cloned());
            let source = told.unwrap_or(NotMapped::Apart);
            CollectiveError::NotMapped { rank, source }
        }
        source => CollectiveError::NotMapped { rank, source },
    })
}

/// Whether numbers for a peer had best go by a stream that the calling thread writes itself: where
/// the fabric would send them by one socket rail, and by nothing else.
fn wants_stream(peer: &Peer, policy: Policy) -> bool {
    let rails = peer.rails();
    let mut rails = rails
        .iter()
        .filter(|rail| policy != Policy::Socket || rail.path == Path::Tcp);
    let only = rails.next().is_some_and(|rail| rail.path == Path::Tcp);
    only && rails.next().is_none() && policy != Policy::Require
}

/// The stream that a peer was given leave to open, once it has.
fn accepted(
    mesh: &Mesh,
    (awaited, since): (&Awaited, Instant),
    (rank, member): (usize, usize),
    until: Instant,
) -> Result<Stream, CollectiveError> {
    loop {
        if let Some(stream) = awaited.take() {
            return Ok(stream);
        }
        mesh.fabric.all_greeted_since(since)?;
        if let Some(why) = mesh.councils.why(member) {
            let what = format!("rank {rank} was lost: {why}");
            return Err(CollectiveError::Forming(what));
        }
        if Instant::now() >= until {
            let what = format!("rank {rank} did not open its stream in time");
            return Err(CollectiveError::Forming(what));
        }
        std::thread::sleep(GLANCE);
    }
}

/// What a step and a byte cost between this rank and those that it may reach by the network.
fn network(mesh: &Mesh, members: &[usize], policy: Policy) -> LinkCost {
    let peers = members.iter().filter_map(|member| mesh.peer(*member));
    // Ranks of one host that turn out to share memory have rails to each other that say nothing of others.
    let apart = peers
        .filter_map(|peer| peer.line(policy))
        .filter(|(path, _)| matches!(path, Path::Verbs | Path::Tcp));
    apart
        .map(|(path, line_rate)| LinkCost::of(path, line_rate))
        .reduce(LinkCost::worse)
        .unwrap_or(Costs::default().network)
}

/// Whether each rank has a stream to each other one; all ranks find the same. The earlier of two gives the
/// later leave to open it, unless they share memory.
fn all_streams(cards: &[Card], hosts: &Hosts) -> bool {
    let later = |rank: usize| cards.len() - 1 - rank;
    let given = |(rank, card): (usize, &Card)| card.tokens.len() == later(rank);
    hosts.len() == cards.len() && cards.iter().enumerate().all(given)
}

/// The processors that this thread may run on, a bit for each.
fn processors() -> Vec<u8> {
    let mut bits = vec![0u8; MAX_PROCESSORS / 8];
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    for (at, byte) in bits.iter_mut().enumerate() {
        for bit in 0..8 {
            *byte |= u8::from(allowed.is_set(at * 8 + bit)) << bit;
        }
    }
    bits
}

/// Whether the ranks of a machine have a processor each: launchers bind each to its own, or let all
/// run on all.
fn is_roomy(ranks: &[&[u8]]) -> bool {
    let mut all = [0u8; MAX_PROCESSORS / 8];
    for own in ranks {
        for (all, own) in all.iter_mut().zip(*own) {
            *all |= own;
        }
    }
    let processors: u32 = all.iter().map(|byte| byte.count_ones()).sum();
    ranks.len() <= processors as usize
}

/// A number for a group that all its members work out alike.
fn number_of(parent: u64, ordinal: u64, members: &[usize]) -> u64 {
    let mut all = vec![parent, ordinal];
    all.extend(members.iter().map(|member| *member as u64));
    let bytes: Vec<u8> = all.into_iter().flat_map(u64::to_le_bytes).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes).max(WORLD + 1)
}

impl Group {
    /// Forms the group of all ranks of a job. They find each other in the directory, under the job's
    /// name; the fabric's connections are used for nothing else meanwhile.
    ///
    /// # Errors
    /// When not all ranks come in time, two say that they are the same, or this process may open too few
    /// descriptors.
    pub fn form(
        fabric: Arc<Fabric>,
        directory: &dyn Directory,
        job: &str,
        rank: usize,
        size: usize,
        settings: GroupSettings,
    ) -> Result<Self, CollectiveError> {
        let until = Instant::now() + settings.time;
        descriptors::for_joining(&fabric, size)?;
        let mesh = Mesh::form(fabric, directory, job, rank, size, settings.time)?;
        let members = (0..mesh.size()).collect();
        Self::build(mesh, settings, WORLD, members, until)
    }

    /// Forms a group of the ranks that give the same `color`, in the order of their ranks; all ranks
    /// of this group call it.
    ///
    /// # Errors
    /// As for a collective.
    pub fn split(&mut self, color: u32, options: CallOptions) -> Result<Self, CollectiveError> {
        let mut colors = vec![0; self.size() * size_of::<u32>()];
        let mine = color.to_le_bytes();
        self.all_gather(&mine, &mut colors, Element::I32, options)?;
        let colors = colors.as_chunks::<4>().0;
        let same = self
            .members
            .iter()
            .zip(colors)
            .filter(|(_, theirs)| **theirs == mine);
        let members: Vec<usize> = same.map(|(member, _)| *member).collect();
        self.children += 1;
        let id = number_of(self.id, self.children, &members);
        let until = Instant::now() + options.allowed();
        Self::build(
            Arc::clone(&self.mesh),
            self.settings.clone(),
            id,
            members,
            until,
        )
    }

    /// Forms a group of the ranks that are left after a failure; all of them call it. It agrees on
    /// who that is first, and may be called again when others were lost meanwhile.
    ///
    /// # Errors
    /// When not all of those come in time.
    pub fn shrink(&mut self, options: CallOptions) -> Result<Self, CollectiveError> {
        let allowed = options.allowed();
        let until = Instant::now() + allowed;
        // Adds nothing to what is known, and sees to it that this rank has said it.
        self.council.convene(|_| {});
        let agreed = self
            .council
            .settle(grace(allowed).max(Duration::from_millis(100)));
        self.failure.get_or_insert(agreed);
        let members = self.council.left();
        self.children += 1;
        let id = number_of(self.id, self.children, &members);
        Self::build(
            Arc::clone(&self.mesh),
            self.settings.clone(),
            id,
            members,
            until,
        )
    }

    /// Makes a buffer of so many bytes for each rank, zeroed, which those of one host map: all-reduces
    /// of it need no copies ([`Group::all_reduce_in`]). All ranks call it, with the same length.
    ///
    /// # Errors
    /// When the system gives no memory, or not all ranks come in time.
    pub fn buffer(
        &mut self,
        len: usize,
        options: CallOptions,
    ) -> Result<SharedBuffer, CollectiveError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.buffers += 1;
        let number = self.buffers;
        let memory = Buffer::zeroed(len, None).map_err(FabricError::from)?;
        if self.flat.is_none() {
            return Ok(SharedBuffer::new(self.id, number, len, Memory::Own(memory)));
        }
        descriptors::for_mapping(self.members.len())?;
        let until = Instant::now() + options.allowed();
        let region = Arc::new(self.mesh.fabric.register(memory, Access::READ_WRITE)?);
        let own = Arc::clone(region.backing());
        let card = Card {
            host: String::new(),
            arena: region.descriptor().clone(),
            imm: 0,
            machine: String::new(),
            processors: Vec::new(),
            network: Costs::default().network,
            tokens: Vec::new(),
        };
        let members = &self.members;
        self.children += 1;
        let id = number_of(self.id, self.children, members);
        let cards = self.mesh.exchange(id, members, card.clone(), until)?;
        // All look at this first, so that all find the same.
        let lens = cards.iter().map(|card| card.arena.len());
        if let Some((rank, theirs)) = lens.enumerate().find(|(_, theirs)| *theirs != len as u64) {
            let what = format!("rank {rank} made a buffer of {theirs} bytes");
            return Err(CollectiveError::BadCall {
                collective: "shared buffer",
                what: format!("{what}, rank {} one of {len}", self.me),
            });
        }
        let mut all = Vec::with_capacity(members.len());
        for (rank, (member, theirs)) in members.iter().zip(&cards).enumerate() {
            if rank == self.me {
                all.push(Arc::clone(&own));
                continue;
            }
            let who = (rank, *member);
            all.push(mapped(&self.mesh, who, &theirs.arena, len, until)?);
        }
        // Nobody may let go of its buffer before everybody has mapped it.
        let joined = number_of(id, JOINED, members);
        self.mesh.exchange(joined, members, card, until)?;
        let memory = Memory::Shared { region, own, all };
        Ok(SharedBuffer::new(self.id, number, len, memory))
    }

    /// Makes the memory that ranks exchange numbers in, and what joins them.
    fn build(
        mesh: Arc<Mesh>,
        settings: GroupSettings,
        id: u64,
        members: Vec<usize>,
        until: Instant,
    ) -> Result<Self, CollectiveError> {
        let began = Instant::now();
        let ranks = members.len();
        let me = members.iter().position(|member| *member == mesh.me);
        let me = me.ok_or_else(|| {
            let what = "the others think that this rank is lost".to_owned();
            CollectiveError::Forming(what)
        })?;
        let council = Arc::new(Council::new(id, members.clone(), me, Arc::downgrade(&mesh)));
        descriptors::for_mapping(ranks)?;
        let layout = Layout::new(ranks);
        let memory = Buffer::zeroed(layout.len(), None).map_err(FabricError::from)?;
        let arena = Arc::new(mesh.fabric.register(memory, Access::READ_WRITE)?);
        let host = match (&settings.host, mesh.shares_memory()) {
            (_, false) => format!("rank {} alone", mesh.me),
            (Some(label), true) => label.clone(),
            (None, true) => host_label(),
        };
        // The later of two ranks opens the stream to the earlier, which it has dialled before.
        let awaited: Vec<Option<Awaited>> = members
            .iter()
            .enumerate()
            .map(|(rank, member)| {
                let peer = mesh.peer(*member).filter(|_| rank > me)?;
                wants_stream(peer, settings.policy).then(|| mesh.fabric.await_stream().ok())?
            })
            .collect();
        let tokens = awaited.iter().enumerate();
        let card = Card {
            host,
            arena: arena.descriptor().clone(),
            imm: mesh.imms(IMMS * u32::try_from(ranks).unwrap_or(u32::MAX)),
            machine: host_label(),
            processors: processors(),
            network: network(&mesh, &members, settings.policy),
            tokens: tokens
                .filter_map(|(rank, awaited)| Some((rank, awaited.as_ref()?.token())))
                .collect(),
        };
        let our_imm = card.imm;
        let cards = mesh.exchange(id, &members, card.clone(), until)?;
        let keys: Vec<&str> = cards.iter().map(|card| card.host.as_str()).collect();
        let hosts = Hosts::of(&keys);
        let links = cards.iter().map(|card| card.network);
        let costs = settings.costs.unwrap_or(Costs {
            network: links.reduce(LinkCost::worse).unwrap_or(card.network),
            ..Costs::default()
        });
        let ours = Arc::clone(arena.backing());
        let mut near: Vec<Option<Arc<Backing>>> = vec![None; ranks];
        let mut lanes: Vec<Option<Lane>> = Vec::with_capacity(ranks);
        for (rank, (member, card)) in members.iter().zip(&cards).enumerate() {
            if rank == me {
                if let Some(place) = near.get_mut(me) {
                    *place = Some(Arc::clone(&ours));
                }
                lanes.push(None);
                continue;
            }
            let apart = !hosts.together(me, rank);
            let Some(peer) = mesh.peer(*member).filter(|_| apart) else {
                let theirs = mapped(&mesh, (rank, *member), &card.arena, layout.len(), until)?;
                if let Some(place) = near.get_mut(rank) {
                    *place = Some(Arc::clone(&theirs));
                }
                let lane = SharedLane::new(layout, Arc::clone(&ours), theirs, me, rank);
                lanes.push(Some(Lane::Shared(lane)));
                continue;
            };
            let stream = match awaited.get(rank).and_then(Option::as_ref) {
                Some(awaited) => {
                    let who = (rank, *member);
                    Some(accepted(&mesh, (awaited, began), who, until)?)
                }
                None => {
                    let token = card.tokens.iter().find(|(of, _)| *of == me);
                    token
                        .map(|(_, token)| mesh.fabric.open_stream(peer.address(), *token, until))
                        .transpose()?
                }
            };
            if let Some(stream) = stream {
                lanes.push(Some(Lane::Stream(Box::new(StreamLane::new(stream)))));
                continue;
            }
            lanes.push(Some(Lane::Network(Box::new(NetworkLane::new(
                layout,
                Ends {
                    mesh: Arc::clone(&mesh),
                    peer: peer.clone(),
                    policy: settings.policy,
                    region: Arc::clone(&arena),
                    ours: Arc::clone(&ours),
                    theirs: card.arena.clone(),
                    ranks: (me, rank),
                    imms: (our_imm, card.imm),
                },
            )))));
        }
        let boards: Vec<Arc<Backing>> = near.iter().flatten().cloned().collect();
        let flat = (boards.len() == ranks).then(|| Flat::new(layout, me, boards));
        let here = cards.iter().filter(|other| other.machine == card.machine);
        let here: Vec<&[u8]> = here.map(|other| other.processors.as_slice()).collect();
        let (roomy, one_machine) = (is_roomy(&here), here.len() == ranks);
        let streams = all_streams(&cards, &hosts);
        mesh.councils.insert(&council);
        // Nobody may leave before everybody has mapped its memory.
        mesh.exchange(number_of(id, JOINED, &members), &members, card, until)?;
        Ok(Self {
            mesh,
            settings,
            costs,
            council,
            id,
            members,
            me,
            hosts,
            layout,
            arena,
            near,
            lanes,
            flat,
            roomy,
            neighbours: Neighbours::default(),
            one_machine,
            streams,
            number: 0,
            children: 0,
            buffers: 0,
            failure: None,
            scratch: Vec::new(),
            chosen: LastChoice::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_room_where_their_processors_together_are_as_many() {
        let (both, first, second) = ([0b11], [0b01], [0b10]);
        assert!(is_roomy(&[&both, &both]), "bound to none");
        assert!(is_roomy(&[&first, &second]), "bound to one each");
        assert!(!is_roomy(&[&first, &first]), "bound to the same");
        assert!(!is_roomy(&[&both, &both, &both]));
        assert!(!is_roomy(&[&[]]), "unknown");
        assert!(is_roomy(&[&processors()]), "this thread runs somewhere");
    }
}
