//! The three paths, added up from receipts.

use std::collections::BTreeMap;

use crowfly_mover::step::Moved;
use crowfly_route::hop::Class;
use crowfly_route::receipt::Share;
use crowfly_route::units::{Bytes, BytesPerSecond};
use serde::Serialize;

use super::Log;

/// One of the three paths, over all ranks and steps.
#[derive(Clone, Debug, Serialize)]
pub struct Lane {
    /// What went which way.
    pub name: &'static str,
    /// Transfers, or exchanges, of all ranks.
    pub transfers: u64,
    /// Bytes asked for; of gradients, what each rank handed in.
    pub asked: Bytes,
    /// Bytes that the receipts tell; of gradients, what ranks sent or took.
    pub moved: Bytes,
    /// What they must come to: what was asked for; of gradients, the least that an all-reduce moves.
    pub due: Bytes,
    /// Seconds in which ranks waited for it, over all of them.
    pub seconds: f64,
    /// Seconds of the transfers themselves, where they go on while ranks compute.
    pub transfer_seconds: f64,
    /// Bytes over the seconds of the transfers of one rank.
    pub rate: Option<BytesPerSecond>,
    /// CPU seconds, where receipts tell them.
    pub cpu_seconds: Option<f64>,
    /// Bytes by the way they went.
    pub shares: Vec<Share>,
    /// Bytes that passed an intermediate buffer in host RAM.
    pub bounced: Bytes,
}

impl Lane {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            transfers: 0,
            asked: Bytes(0),
            moved: Bytes(0),
            due: Bytes(0),
            seconds: 0.0,
            transfer_seconds: 0.0,
            rate: None,
            cpu_seconds: None,
            shares: Vec::new(),
            bounced: Bytes(0),
        }
    }

    fn share(&mut self, share: &Share) {
        self.moved += share.bytes;
        let same = |known: &&mut Share| {
            (known.path, known.class, &known.because) == (share.path, share.class, &share.because)
        };
        match self.shares.iter_mut().find(same) {
            Some(known) => known.bytes += share.bytes,
            None => self.shares.push(share.clone()),
        }
    }

    pub(super) fn transfer(&mut self, moved: &Moved) {
        self.transfers += 1;
        self.asked += moved.asked;
        self.due += moved.asked;
        self.bounced += moved.bounced;
        self.transfer_seconds += moved.seconds;
        *self.cpu_seconds.get_or_insert(0.0) += moved.cpu.total();
        moved.shares.iter().for_each(|share| self.share(share));
    }

    pub(super) fn settle(mut self) -> Self {
        self.rate = self.asked.per(self.transfer_seconds);
        self.shares
            .sort_by_key(|share| std::cmp::Reverse(share.bytes));
        self
    }

    /// Bytes of a class.
    pub fn of_class(&self, class: Class) -> Bytes {
        let shares = self.shares.iter().filter(|share| share.class == class);
        shares.map(|share| share.bytes).sum()
    }

    /// Whether the receipts come to what they must.
    pub const fn is_whole(&self) -> bool {
        self.moved.0 == self.due.0
    }
}

pub(super) fn storage(log: &Log) -> Lane {
    let mut lane = Lane::new("storage to memory");
    for (_, stepped) in log.steps() {
        lane.transfer(&stepped.read);
        lane.seconds += stepped.times.read;
    }
    lane
}

pub(super) fn gradients(log: &Log) -> Lane {
    let mut lane = Lane::new("gradients");
    // By the size of the group: 2 (n - 1) buffers over n ranks is the least that an all-reduce moves.
    let mut least: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, stepped) in log.steps() {
        let exchanged = &stepped.exchanged;
        lane.transfers += 1;
        lane.asked += exchanged.size;
        let ranks = exchanged.ranks.max(1) as u64;
        *least.entry(ranks).or_default() += 2 * (ranks - 1) * exchanged.size.0;
        lane.seconds += exchanged.seconds;
        lane.transfer_seconds += exchanged.seconds;
        exchanged.shares.iter().for_each(|share| lane.share(share));
    }
    lane.due = least.iter().map(|(ranks, sum)| Bytes(sum / ranks)).sum();
    lane
}

pub(super) fn checkpoints(log: &Log) -> Lane {
    let mut lane = Lane::new("checkpoints");
    for (_, saved) in log.saves() {
        lane.transfer(&saved.written);
    }
    lane.seconds = log.steps().map(|(_, stepped)| stepped.times.stall).sum();
    lane
}

pub(super) fn restored(log: &Log) -> Option<Lane> {
    let mut lane = Lane::new("checkpoints read back");
    for (_, restored) in log.restores() {
        if let Some(read) = &restored.read {
            lane.transfer(read);
            lane.seconds += restored.read_seconds;
        }
    }
    (lane.transfers > 0).then(|| lane.settle())
}
