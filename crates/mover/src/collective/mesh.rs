//! The connections of all ranks with each other, which a group and all groups made of it share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crowfly_route::receipt::Path;

use super::choose::{Basis, LinkCost};
use super::council::Councils;
use super::courier::PostOffice;
use super::error::CollectiveError;
use super::verdict::Report;
use super::{FIRST_IMM, MAX_RANKS};
use crate::fabric::rendezvous::{Directory, World, announce, meet, still_expected};
use crate::fabric::{
    Fabric, FabricError, Imm, Incarnation, Mailbox, Options, Peer, Reader, RegionDescriptor, Token,
    Writer,
};

/// What ranks greet each other with.
const HELLO: &[u8] = b"crowfly collective 3";
const CARD: u8 = 1;
const REPORT: u8 = 2;
pub(crate) const OFFER: u8 = 3;
pub(crate) const TAKEN: u8 = 4;
/// The longest label of a host.
const MAX_LABEL: usize = 128;
/// The most processors of a machine that ranks tell of.
pub(crate) const MAX_PROCESSORS: usize = 1024;
/// How often it is looked whether ranks that have not come still may.
const GLANCE: Duration = Duration::from_millis(200);
/// How long this process may be without descriptors for those who connect until the group is given up; longer than
/// an end of it goes unnoticed.
const SHORTAGE: Duration = Duration::from_secs(4);
/// Cards kept for groups that are not formed here yet.
const MAX_CARDS: usize = 16 * MAX_RANKS;

/// What a rank of a group gives the others.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    /// The same for ranks that can share memory.
    pub host: String,
    /// Memory that others write into.
    pub arena: RegionDescriptor,
    /// The first of the values that come with what others write into it.
    pub imm: u32,
    /// The same for ranks that share cores.
    pub machine: String,
    /// The processors that this rank may run on, a bit for each; empty where the system does not say.
    pub processors: Vec<u8>,
    /// What a step and a byte cost by the network, as far as this rank knows.
    pub network: LinkCost,
    /// What each rank that may open a stream to this one opens it with.
    pub tokens: Vec<(usize, Token)>,
}

/// The connections of all ranks with each other.
pub(crate) struct Mesh {
    pub fabric: Arc<Fabric>,
    pub me: usize,
    peers: Vec<Option<Peer>>,
    ranks: BTreeMap<Incarnation, usize>,
    pub councils: Councils,
    pub post_office: PostOffice,
    cards: Mutex<BTreeMap<(u64, usize), Card>>,
    came: Condvar,
    next_imm: AtomicU32,
}

impl Mesh {
    /// Connects every rank with every other one.
    pub(crate) fn form(
        fabric: Arc<Fabric>,
        directory: &dyn Directory,
        job: &str,
        me: usize,
        size: usize,
        time: Duration,
    ) -> Result<Arc<Self>, CollectiveError> {
        if me >= size || size > MAX_RANKS {
            let what = format!("rank {me} of {size}; there can be {MAX_RANKS} ranks at most");
            return Err(CollectiveError::Forming(what));
        }
        let began = Instant::now();
        let until = began + time;
        let left = || until.saturating_duration_since(Instant::now());
        let name = |rank: usize| World::name_of(job, u32::try_from(rank).unwrap_or(u32::MAX));
        announce(&fabric, directory, &name(me))?;
        let mut peers: Vec<Option<Peer>> = (0..size).map(|_| None).collect();
        let hello = |rank: usize| {
            let mut out = Writer::default();
            out.raw(HELLO)
                .bytes(job.as_bytes())
                .u32(rank as u32)
                .u32(size as u32);
            out.finish()
        };
        for (rank, slot) in peers.iter_mut().enumerate().take(me) {
            let peer = meet(&fabric, directory, &name(rank), left())?;
            peer.send(&hello(me), Options::within(left())).wait()?;
            *slot = Some(peer);
        }
        let mut short_since: Option<Instant> = None;
        loop {
            let missing = peers.iter().enumerate().skip(me + 1);
            let missing = missing.filter(|(_, peer)| peer.is_none());
            let missing: Vec<usize> = missing.map(|(rank, _)| rank).collect();
            let Some(first) = missing.first() else {
                break;
            };
            let peer = match fabric.accept(left().min(GLANCE)) {
                Err(FabricError::Deadline { .. }) if left().is_zero() => {
                    let mut what = not_joined(*first);
                    if let Some(address) = fabric.unproven_since(began) {
                        what += &format!(
                            "; a process at {address} connected that does not have the same key"
                        );
                    }
                    return Err(CollectiveError::Forming(what));
                }
                Err(FabricError::Deadline { .. }) => {
                    let mut missing = missing.iter();
                    missing.try_for_each(|rank| still_expected(directory, &name(*rank)))?;
                    continue;
                }
                Err(error @ FabricError::CannotAccept { .. }) => {
                    let since = *short_since.get_or_insert_with(Instant::now);
                    match since.elapsed() >= SHORTAGE || left().is_zero() {
                        true => return Err(error.into()),
                        false => continue,
                    }
                }
                accepted => accepted?,
            };
            short_since = None;
            // One that is lost before it says who it is was a try that its own end gave up.
            let message = match peer.recv(Options::within(left())).wait() {
                Ok(message) => message,
                Err(FabricError::PeerLost { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let rank = greeted(&message, job, size)?;
            match peers.get_mut(rank).filter(|_| rank > me) {
                Some(slot) => *slot = Some(peer),
                None => {
                    let what = format!("two processes say that they are rank {rank}");
                    return Err(CollectiveError::Forming(what));
                }
            }
        }
        let known = peers.iter().enumerate();
        let ranks = known.filter_map(|(rank, peer)| Some((peer.as_ref()?.incarnation(), rank)));
        let mesh = Arc::new(Self {
            fabric,
            me,
            ranks: ranks.collect(),
            peers,
            councils: Councils::default(),
            post_office: PostOffice::default(),
            cards: Mutex::default(),
            came: Condvar::new(),
            next_imm: AtomicU32::new(FIRST_IMM),
        });
        let mailbox: Arc<dyn Mailbox> = mesh.clone();
        let mailbox: Weak<dyn Mailbox> = Arc::downgrade(&mailbox);
        for peer in mesh.peers.iter().flatten() {
            peer.deliver_to(Weak::clone(&mailbox));
        }
        Ok(mesh)
    }

    pub(crate) fn peer(&self, rank: usize) -> Option<&Peer> {
        self.peers.get(rank)?.as_ref()
    }

    pub(crate) fn size(&self) -> usize {
        self.peers.len()
    }

    /// Whether this process can share memory with others of its host.
    pub(crate) fn shares_memory(&self) -> bool {
        self.fabric
            .nics()
            .iter()
            .any(|(path, _)| *path == Path::Shm)
    }

    /// The first of `count` values that nobody else of this mesh uses.
    pub(crate) fn imms(&self, count: u32) -> u32 {
        self.next_imm.fetch_add(count, Ordering::Relaxed)
    }

    /// How often a value came since it was last asked; they are taken off.
    pub(crate) fn take(&self, imm: u32) -> u64 {
        let counter = self.fabric.counter(Imm(imm));
        let count = counter.get();
        if counter.take(count) { count } else { 0 }
    }

    fn cards(&self) -> MutexGuard<'_, BTreeMap<(u64, usize), Card>> {
        self.cards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives this rank's card to the members of a group and waits for theirs, in their order.
    pub(crate) fn exchange(
        &self,
        group: u64,
        members: &[usize],
        card: Card,
        until: Instant,
    ) -> Result<Vec<Card>, CollectiveError> {
        let left = || until.saturating_duration_since(Instant::now());
        let mut out = Writer::default();
        let arena = card.arena.to_bytes().map_err(FabricError::from)?;
        out.u8(CARD)
            .u64(group)
            .u32(card.imm)
            .bytes(card.host.as_bytes())
            .bytes(&arena)
            .bytes(card.machine.as_bytes())
            .bytes(&card.processors)
            .u64(card.network.latency.to_bits())
            .u64(card.network.rate.to_bits())
            .u8(u8::from(card.network.basis == Basis::LinkRate))
            .u16(u16::try_from(card.tokens.len()).unwrap_or(u16::MAX));
        for (rank, token) in &card.tokens {
            out.u32(u32::try_from(*rank).unwrap_or(u32::MAX)).raw(token);
        }
        let message = out.finish();
        let others = members.iter().filter(|rank| **rank != self.me);
        for peer in others.filter_map(|rank| self.peer(*rank)) {
            peer.send(&message, Options::within(left())).detach();
        }
        let mut cards = self.cards();
        cards.insert((group, self.me), card);
        loop {
            let missing = members
                .iter()
                .find(|rank| !cards.contains_key(&(group, **rank)));
            let Some(missing) = missing else {
                let all = members
                    .iter()
                    .filter_map(|rank| cards.remove(&(group, *rank)));
                return Ok(all.collect());
            };
            if let Some(why) = self.councils.why(*missing) {
                let what = format!("rank {missing} was lost: {why}");
                return Err(CollectiveError::Forming(what));
            }
            if left().is_zero() {
                return Err(CollectiveError::Forming(not_joined(*missing)));
            }
            // Whoever is lost meanwhile wakes nobody: look again now and then.
            let nap = left().min(Duration::from_millis(20));
            let waited = self.came.wait_timeout(cards, nap);
            cards = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Tells the ranks of a group what went wrong.
    pub(crate) fn report(&self, group: u64, report: &Report, ranks: &[usize]) {
        let mut out = Writer::default();
        out.u8(REPORT).u64(group);
        report.encode(&mut out);
        let message = out.finish();
        for peer in ranks.iter().filter_map(|rank| self.peer(*rank)) {
            peer.send(&message, Options::default()).detach();
        }
    }

    fn card(&self, from: usize, fields: &mut Reader<'_>) -> Option<()> {
        let (group, imm) = (fields.u64()?, fields.u32()?);
        let host = fields.text(MAX_LABEL)?.to_owned();
        let arena = RegionDescriptor::from_bytes(fields.bytes(usize::from(u16::MAX))?).ok()?;
        let machine = fields.text(MAX_LABEL)?.to_owned();
        let processors = fields.bytes(MAX_PROCESSORS / 8)?.to_vec();
        let mut number = || {
            let number = f64::from_bits(fields.u64()?);
            (number.is_finite() && number > 0.0).then_some(number)
        };
        let network = LinkCost {
            latency: number()?,
            rate: number()?,
            basis: match fields.u8()? {
                0 => Basis::Assumed,
                _ => Basis::LinkRate,
            },
        };
        let count = usize::from(fields.u16()?);
        let mut tokens = Vec::new();
        for _ in 0..count.min(MAX_RANKS) {
            tokens.push((usize::try_from(fields.u32()?).ok()?, fields.array()?));
        }
        let card = Card {
            host,
            arena,
            imm,
            machine,
            processors,
            network,
            tokens,
        };
        let mut cards = self.cards();
        if cards.len() < MAX_CARDS {
            cards.insert((group, from), card);
        }
        drop(cards);
        self.came.notify_all();
        Some(())
    }
}

pub(crate) fn not_joined(rank: usize) -> String {
    format!("rank {rank} did not join in time")
}

/// Which rank a greeting says that it comes from.
fn greeted(message: &[u8], job: &str, size: usize) -> Result<usize, CollectiveError> {
    let mut fields = Reader::new(message);
    let mut parts = || {
        let hello: [u8; HELLO.len()] = fields.array()?;
        (hello == HELLO).then_some(())?;
        Some((fields.text(MAX_LABEL)?, fields.u32()?, fields.u32()?))
    };
    let Some((theirs, rank, of)) = parts() else {
        let what = "a process that connected is no rank of a group".to_owned();
        return Err(CollectiveError::Forming(what));
    };
    if theirs != job || of as usize != size {
        let what = format!("rank {rank} is of job {theirs} with {of} ranks, not {job} with {size}");
        return Err(CollectiveError::Forming(what));
    }
    Ok(rank as usize)
}

impl Mailbox for Mesh {
    fn message(&self, from: Incarnation, bytes: &[u8]) {
        let Some(from) = self.ranks.get(&from).copied() else {
            return;
        };
        let mut fields = Reader::new(bytes);
        match fields.u8() {
            Some(CARD) => {
                let _ = self.card(from, &mut fields);
            }
            Some(REPORT) => {
                let head = 1 + size_of::<u64>();
                if let (Some(group), Some(body)) = (fields.u64(), bytes.get(head..)) {
                    self.councils.heard(from, group, body);
                }
            }
            Some(OFFER) => {
                let refused = self.post_office.offered(from, &mut fields);
                if let (Some(refused), Some(peer)) = (refused, self.peer(from)) {
                    peer.send(&refused, Options::default()).detach();
                }
            }
            Some(TAKEN) => self.post_office.answered(from, &mut fields),
            _ => {}
        }
    }

    fn lost(&self, from: Incarnation, why: &str, orderly: bool) {
        if let Some(rank) = self.ranks.get(&from).copied() {
            self.councils.gone(rank, why, orderly);
            self.came.notify_all();
            self.post_office.look_again();
        }
    }
}
