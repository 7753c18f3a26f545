//! A lane by the fabric: a chunk is copied to registered memory, written into the receiver's arena
//! by whatever rails there are, and counted there by a value of its slot. The receiver gives the
//! slot back by another value.

use std::sync::Arc;
use std::time::Duration;

use crowfly_route::policy::Policy;

use super::{Broken, Moved, count};
use crate::collective::arena::{HEAD, Head, Layout, SLOTS, range};
use crate::collective::mesh::Mesh;
use crate::fabric::{
    Backing, Caches, FabricError, Imm, Options, Peer, Region, RegionDescriptor, RemoteSlice,
    Transfer,
};

/// Values that one pair of ranks uses in one direction: one for each slot, one to give slots back.
pub(crate) const IMMS: u32 = SLOTS as u32 + 1;

pub(crate) struct NetworkLane {
    layout: Layout,
    mesh: Arc<Mesh>,
    peer: Peer,
    policy: Policy,
    region: Arc<Region>,
    ours: Arc<Backing>,
    theirs: RemoteSlice,
    me: usize,
    other: usize,
    /// The first of the values that tell of chunks from the other rank, and of its slots.
    here: u32,
    /// The same at the other rank.
    there: u32,
    sent: u64,
    /// Chunks that the other rank has taken.
    credited: u64,
    taken: u64,
    /// Chunks that lie here and were not taken.
    landed: [bool; SLOTS],
    under_way: [Option<Transfer>; SLOTS],
    pub moved: Moved,
}

pub(crate) struct Ends {
    pub mesh: Arc<Mesh>,
    pub peer: Peer,
    pub policy: Policy,
    pub region: Arc<Region>,
    pub ours: Arc<Backing>,
    pub theirs: RegionDescriptor,
    /// This rank and the other one.
    pub ranks: (usize, usize),
    /// The first values of both ranks' cards.
    pub imms: (u32, u32),
}

impl NetworkLane {
    pub(crate) fn new(layout: Layout, ends: Ends) -> Self {
        let (me, other) = ends.ranks;
        Self {
            layout,
            mesh: ends.mesh,
            peer: ends.peer,
            policy: ends.policy,
            region: ends.region,
            ours: ends.ours,
            theirs: ends.theirs.whole(),
            me,
            other,
            here: ends.imms.0 + other as u32 * IMMS,
            there: ends.imms.1 + me as u32 * IMMS,
            sent: 0,
            credited: 0,
            taken: 0,
            landed: [false; SLOTS],
            under_way: Default::default(),
            moved: Vec::new(),
        }
    }

    /// Takes the account of a chunk that has arrived; `false` while it is under way.
    fn reap(&mut self, slot: usize) -> Result<bool, Broken> {
        let Some(place) = self.under_way.get_mut(slot) else {
            return Ok(true);
        };
        if place
            .as_ref()
            .is_some_and(|transfer| !transfer.is_finished())
        {
            return Ok(false);
        }
        if let Some(transfer) = place.take() {
            let delivery = transfer.wait().map_err(|error| Broken(error.to_string()))?;
            let mut head = HEAD as u64;
            for share in &delivery.receipt.shares {
                // The head is crowfly's own.
                let own = head.min(share.bytes.0);
                head -= own;
                count(&mut self.moved, share.path, share.bytes.0 - own);
            }
        }
        Ok(true)
    }

    pub(super) fn try_send(
        &mut self,
        head: &[u8; HEAD],
        bytes: &[u8],
        time: Duration,
    ) -> Result<bool, Broken> {
        self.credited += self.mesh.take(self.here + SLOTS as u32);
        let slot = (self.sent % SLOTS as u64) as usize;
        let full = self.sent.wrapping_sub(self.credited) >= SLOTS as u64;
        if full || bytes.len() > self.layout.chunk || !self.reap(slot)? {
            return Ok(false);
        }
        let from = self.layout.outbox(self.other, self.sent);
        self.ours.copy_in(from, head, Caches::Keep);
        self.ours.copy_in(from + HEAD, bytes, Caches::Keep);
        let broken = |error: FabricError| Broken(error.to_string());
        let local = self
            .region
            .slice(range(from, HEAD + bytes.len()))
            .map_err(broken)?;
        let to = range(self.layout.inbox(self.me, self.sent), HEAD + bytes.len());
        let remote = RemoteSlice {
            range: to.start as u64..to.end as u64,
            ..self.theirs.clone()
        };
        let options = Options::within(time).by(self.policy);
        let imm = Imm(self.there + slot as u32);
        if let Some(place) = self.under_way.get_mut(slot) {
            *place = Some(self.peer.write_imm(&local, &remote, imm, options));
        }
        self.sent += 1;
        Ok(true)
    }

    pub(super) fn arrived(&mut self) -> Option<Option<Head>> {
        let slot = (self.taken % SLOTS as u64) as usize;
        let landed = self.landed.get_mut(slot)?;
        *landed |= self.mesh.take(self.here + slot as u32) > 0;
        if !*landed {
            return None;
        }
        let mut head = [0; HEAD];
        let at = self.layout.inbox(self.other, self.taken);
        self.ours.copy_out(at, &mut head, Caches::Keep);
        Some(Head::decode(&head))
    }

    pub(super) fn read(&self, offset: usize, out: &mut [u8]) {
        let at = self.layout.inbox(self.other, self.taken) + HEAD;
        self.ours.copy_out(at + offset, out, Caches::Keep);
    }

    pub(super) fn release(&mut self) {
        let slot = (self.taken % SLOTS as u64) as usize;
        if let Some(landed) = self.landed.get_mut(slot) {
            *landed = false;
        }
        self.taken += 1;
        let back = Imm(self.there + SLOTS as u32);
        self.peer
            .notify(back, Options::default().by(self.policy))
            .detach();
    }

    pub(super) fn flushed(&mut self) -> Result<bool, Broken> {
        let mut all = true;
        for slot in 0..SLOTS {
            all &= self.reap(slot)?;
        }
        Ok(all)
    }
}
