//! What one rank sends another, apart from collectives: the others take no part in it, and no call
//! of the group waits for it.
//!
//! Few bytes go in one message and wait at the receiver. Of many, the receiver is told where they
//! are, and reads them from there once it wants them, by whatever rails the fabric has; the sender
//! waits until it has. So what waits at a rank is bounded, however much others send.

mod post_office;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;
use crowfly_route::units::Bytes;
use serde::Serialize;

use super::error::{CollectiveError, Lost};
use super::group::CallOptions;
use super::mesh::Mesh;
use super::receipt::PathBytes;
use crate::fabric::{Access, Buffer, Caches, FabricError, Options};
pub(super) use post_office::PostOffice;
use post_office::{Content, Parcel};

/// The version of the receipt's JSON form.
pub const PARCEL_SCHEMA: &str = "crowfly.parcel/1";
/// Up to this many bytes go with the message that tells of them.
const INLINE: usize = 8 << 10;

/// What one rank sent another, as either of them saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParcelReceipt {
    /// [`PARCEL_SCHEMA`].
    pub schema: &'static str,
    /// The rank that sent it.
    pub from: usize,
    /// The rank that received it.
    pub to: usize,
    /// What it is called by.
    pub tag: u64,
    /// Bytes of it.
    pub size: Bytes,
    /// The way they went, as the receiver, who moves them, counted it; empty at the sender.
    pub moved: Vec<PathBytes>,
    /// From the call to its end, in seconds.
    pub seconds: f64,
}

/// Sends to and receives from the ranks of a group, from any thread, and beside the group's calls.
#[derive(Clone)]
pub struct Courier {
    pub(super) mesh: Arc<Mesh>,
    /// The group's number.
    pub(super) group: u64,
    /// The mesh's numbers of the ranks.
    pub(super) members: Arc<[usize]>,
    pub(super) me: usize,
    pub(super) policy: Policy,
}

impl fmt::Debug for Courier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Courier(rank {} of {})", self.me, self.members.len())
    }
}

impl Courier {
    /// Sends bytes to a rank, which must receive as many by the same tag. What is sent by one tag
    /// arrives in the order in which it was sent.
    ///
    /// # Errors
    /// [`CollectiveError::RanksLost`] where the rank is gone, and [`CollectiveError::PeerLate`] where
    /// it did not receive them in time. Few bytes may be on their way without anyone receiving them.
    pub fn send(
        &self,
        to: usize,
        tag: u64,
        bytes: &[u8],
        options: CallOptions,
    ) -> Result<ParcelReceipt, CollectiveError> {
        let (began, allowed) = (Instant::now(), options.allowed());
        let member = self.member(to, "send")?;
        let peer = self
            .mesh
            .peer(member)
            .ok_or_else(|| self.gone(to, member))?;
        let number = self.mesh.post_office.number();
        let len = bytes.len() as u64;
        let message = |content: &Content| Parcel::offer(self.group, tag, number, len, content);
        let left = || allowed.saturating_sub(began.elapsed());
        if bytes.len() <= INLINE {
            let message = message(&Content::Inline(bytes.to_vec()))?;
            let sent = peer.send(&message, Options::within(left())).wait();
            sent.map_err(|error| self.failed(to, member, error))?;
        } else {
            let memory = Buffer::copy_of(bytes).map_err(FabricError::from)?;
            let region = self.mesh.fabric.register(memory, Access::READ)?;
            let message = message(&Content::Lent(region.descriptor().clone()))?;
            let sent = peer.send(&message, Options::within(left())).wait();
            sent.map_err(|error| self.failed(to, member, error))?;
            let (office, until) = (&self.mesh.post_office, began + allowed);
            let gone = || self.mesh.councils.why(member).is_some();
            match office.await_taken(member, number, until, gone) {
                Some(true) => {}
                Some(false) => return Err(self.refused(to)),
                None if gone() => return Err(self.gone(to, member)),
                None => return Err(late(to, "receive", allowed)),
            }
        }
        Ok(self.receipt((self.me, to), (tag, len), Vec::new(), began))
    }

    /// Receives what a rank sends by a tag, exactly as many bytes as `out` has; answers from whom.
    /// From any rank, where none is given: whichever was first.
    ///
    /// # Errors
    /// As for [`Courier::send`], and [`CollectiveError::BadCall`] where it sent another number of
    /// bytes.
    pub fn receive(
        &self,
        from: Option<usize>,
        tag: u64,
        out: &mut [u8],
        options: CallOptions,
    ) -> Result<ParcelReceipt, CollectiveError> {
        let (began, allowed) = (Instant::now(), options.allowed());
        let wanted: Vec<usize> = match from {
            Some(rank) => vec![self.member(rank, "receive")?],
            None => self.members.to_vec(),
        };
        let (office, until) = (&self.mesh.post_office, began + allowed);
        // Of any rank, each that is left may be the one.
        let gone = || {
            wanted
                .iter()
                .all(|member| self.mesh.councils.why(*member).is_some() || *member == self.mesh.me)
        };
        let found = office.await_parcel(self.group, &wanted, tag, until, gone);
        let Some((member, parcel)) = found else {
            let rank = from.unwrap_or(self.me);
            return Err(match (gone(), wanted.first()) {
                (true, Some(member)) => self.gone(rank, *member),
                _ => late(rank, "send", allowed),
            });
        };
        let rank = self.members.iter().position(|known| *known == member);
        let rank = rank.unwrap_or_default();
        let fits = parcel.len == out.len() as u64;
        let took = if fits {
            self.take(member, rank, parcel.content, out, until)
        } else {
            let what = format!(
                "rank {rank} sent {} bytes by tag {tag}, and {} were expected",
                parcel.len,
                out.len()
            );
            Err(CollectiveError::BadCall {
                collective: "receive",
                what,
            })
        };
        if let Some(peer) = self.mesh.peer(member) {
            let message = Parcel::taken(parcel.number, took.is_ok());
            peer.send(&message, Options::default()).detach();
        }
        Ok(self.receipt((rank, self.me), (tag, parcel.len), took?, began))
    }

    /// Brings a parcel's bytes here; answers the way they went.
    fn take(
        &self,
        member: usize,
        rank: usize,
        content: Content,
        out: &mut [u8],
        until: Instant,
    ) -> Result<Vec<PathBytes>, CollectiveError> {
        let descriptor = match content {
            Content::Inline(bytes) => {
                out.copy_from_slice(&bytes);
                let bytes = Bytes(bytes.len() as u64);
                // Messages go by the connection that all rails come after.
                let path = Path::Tcp;
                return Ok(vec![PathBytes { path, bytes }]);
            }
            Content::Lent(descriptor) => descriptor,
        };
        let peer = self
            .mesh
            .peer(member)
            .ok_or_else(|| self.gone(rank, member))?;
        let memory = Buffer::zeroed(out.len(), None).map_err(FabricError::from)?;
        let region = self.mesh.fabric.register(memory, Access::LOCAL)?;
        let local = region.slice(0..out.len())?;
        let left = until.saturating_duration_since(Instant::now());
        let options = Options::within(left).by(self.policy);
        let read = peer.read(&local, &descriptor.whole(), options).wait();
        let delivery = read.map_err(|error| self.failed(rank, member, error))?;
        region.backing().copy_out(0, out, Caches::Keep);
        let shares = delivery.receipt.shares.iter();
        let moved = shares.map(|share| PathBytes {
            path: share.path,
            bytes: share.bytes,
        });
        Ok(moved.collect())
    }

    fn receipt(
        &self,
        (from, to): (usize, usize),
        (tag, len): (u64, u64),
        moved: Vec<PathBytes>,
        began: Instant,
    ) -> ParcelReceipt {
        ParcelReceipt {
            schema: PARCEL_SCHEMA,
            from,
            to,
            tag,
            size: Bytes(len),
            moved,
            seconds: began.elapsed().as_secs_f64(),
        }
    }

    /// The mesh's number of another rank.
    fn member(&self, rank: usize, call: &'static str) -> Result<usize, CollectiveError> {
        let member = self.members.get(rank).filter(|_| rank != self.me);
        member.copied().ok_or_else(|| {
            let ranks = self.members.len();
            let what = format!("rank {rank} is no other one of {ranks}");
            CollectiveError::BadCall {
                collective: call,
                what,
            }
        })
    }

    fn gone(&self, rank: usize, member: usize) -> CollectiveError {
        let why = self.mesh.councils.why(member);
        CollectiveError::RanksLost(vec![Lost {
            rank,
            noticed_by: self.me,
            why: why.unwrap_or_else(|| "it is gone".to_owned()),
        }])
    }

    fn failed(&self, rank: usize, member: usize, error: FabricError) -> CollectiveError {
        match error {
            FabricError::PeerLost { .. } => self.gone(rank, member),
            error => error.into(),
        }
    }

    fn refused(&self, rank: usize) -> CollectiveError {
        CollectiveError::BadCall {
            collective: "send",
            what: format!("rank {rank} did not take what rank {} sent", self.me),
        }
    }
}

fn late(rank: usize, what: &'static str, after: Duration) -> CollectiveError {
    CollectiveError::PeerLate { rank, what, after }
}
