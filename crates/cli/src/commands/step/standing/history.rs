//! What happened when: steps, checkpoints, losses and what followed.

use std::collections::{BTreeMap, BTreeSet};

use crowfly_mover::step::{Moment, Stepped, Times};
use crowfly_route::units::Bytes;
use serde::Serialize;

use super::Log;

/// A step, over the ranks that did it together.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which, counted from 1.
    pub step: u64,
    /// How often it was done before, in vain.
    pub again: u32,
    /// Ranks.
    pub ranks: usize,
    /// Where the time went: the mean over ranks.
    pub times: Times,
    /// All of the step at the slowest rank.
    pub slowest: f64,
}

/// A checkpoint, over the ranks that saved it.
#[derive(Clone, Debug, Serialize)]
pub struct Save {
    /// After which step.
    pub step: u64,
    /// Ranks that told of it.
    pub ranks: usize,
    /// How long training stood still for it at the rank that did so longest.
    pub stall: f64,
    /// From the call until it was published.
    pub background: f64,
    /// Bytes of all files.
    pub bytes: Bytes,
}

/// A checkpoint that was not published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unsaved {
    /// After which step.
    pub step: u64,
    /// Who told of it.
    pub rank: usize,
    /// The code of the error.
    pub code: String,
    /// The error in words.
    pub what: String,
}

/// A rank that was lost, and what followed.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// In which step.
    pub step: u64,
    /// The ranks, by the numbers that they had in their group.
    pub ranks: Vec<usize>,
    /// The signals that ended them, where somebody saw.
    pub signals: Vec<i32>,
    /// The code of the error that the others got.
    pub code: String,
    /// The error in words.
    pub what: String,
    /// How many got it.
    pub survivors: usize,
    /// Whether all of them got the same.
    pub same: bool,
    /// The longest that one waited for it, from its call on.
    pub heard_after: f64,
    /// Ranks that went on.
    pub ranks_after: usize,
    /// The step whose checkpoint was restored; 0 for the state that the run began with.
    pub restored: Option<u64>,
    /// Steps that were done again.
    pub redone: u64,
    /// From the error until the last rank had its state.
    pub seconds: f64,
    /// Of these, reading the checkpoint, at the slowest rank.
    pub read_seconds: f64,
    /// Bytes that all ranks read for it.
    pub bytes: Bytes,
}

pub(super) fn rows(log: &Log) -> Vec<Row> {
    // A rank that does a step again belongs to the next time that it is done.
    let mut done: BTreeMap<(u64, u32), Vec<&Stepped>> = BTreeMap::new();
    let mut order: Vec<(u64, u32)> = Vec::new();
    let mut restores = 0;
    let mut groups_restored: BTreeSet<usize> = BTreeSet::new();
    for (rank, moment) in &log.entries {
        match moment {
            Moment::Restored(_) => {
                // Each rank tells of each restore once; the first one begins the next attempt.
                if groups_restored.is_empty() || !groups_restored.insert(*rank) {
                    groups_restored.clear();
                    restores += 1;
                }
                groups_restored.insert(*rank);
            }
            Moment::Stepped(stepped) => {
                let at = (stepped.step, restores);
                if !order.contains(&at) {
                    order.push(at);
                }
                done.entry(at).or_default().push(stepped);
            }
            _ => {}
        }
    }
    let row = |at: &(u64, u32)| {
        let together = done.get(at)?;
        let again = order
            .iter()
            .filter(|(step, time)| *step == at.0 && *time < at.1);
        Some(Row {
            step: at.0,
            again: u32::try_from(again.count()).unwrap_or(u32::MAX),
            ranks: together.len(),
            times: mean(together),
            slowest: together.iter().map(|s| s.times.total).fold(0.0, f64::max),
        })
    };
    order.iter().filter_map(row).collect()
}

fn mean(steps: &[&Stepped]) -> Times {
    let of = |time: fn(&Times) -> f64| {
        let sum: f64 = steps.iter().map(|stepped| time(&stepped.times)).sum();
        sum / steps.len().max(1) as f64
    };
    Times {
        read: of(|t| t.read),
        fetch: of(|t| t.fetch),
        compute: of(|t| t.compute),
        exchange: of(|t| t.exchange),
        update: of(|t| t.update),
        stall: of(|t| t.stall),
        total: of(|t| t.total),
    }
}

pub(super) fn saves(log: &Log) -> Vec<Save> {
    let mut saves: Vec<Save> = Vec::new();
    let mut by: Vec<BTreeSet<usize>> = Vec::new();
    for (rank, saved) in log.saves() {
        // The same step may be saved again after a loss, by the same ranks.
        let known = saves
            .iter()
            .zip(&by)
            .position(|(save, by)| save.step == saved.step && !by.contains(&rank));
        let at = known.unwrap_or_else(|| {
            saves.push(Save {
                step: saved.step,
                ranks: 0,
                stall: 0.0,
                background: 0.0,
                bytes: Bytes(0),
            });
            by.push(BTreeSet::new());
            saves.len() - 1
        });
        if let (Some(save), Some(by)) = (saves.get_mut(at), by.get_mut(at)) {
            by.insert(rank);
            save.ranks += 1;
            save.stall = save.stall.max(saved.stall);
            save.background = save.background.max(saved.background);
            save.bytes += saved.written.asked;
        }
    }
    saves
}

pub(super) fn unsaved(log: &Log) -> Vec<Unsaved> {
    let entries = log.entries.iter();
    let told = entries.filter_map(|(rank, moment)| match moment {
        Moment::NotSaved { step, code, what } => Some(Unsaved {
            step: *step,
            rank: *rank,
            code: code.clone(),
            what: what.clone(),
        }),
        _ => None,
    });
    told.collect()
}

/// The losses, each with the errors that survivors got and the restores that followed.
pub(super) fn losses(log: &Log, steps: &[Row]) -> Vec<Loss> {
    let mut losses: Vec<Loss> = Vec::new();
    let mut heard: BTreeSet<usize> = BTreeSet::new();
    let mut signals = log.killed.iter();
    for (rank, lost) in log.losses() {
        if losses.is_empty() || !heard.insert(rank) {
            heard = BTreeSet::from([rank]);
            losses.push(Loss {
                step: lost.step,
                ranks: lost.ranks.clone(),
                signals: Vec::new(),
                code: lost.code.clone(),
                what: lost.what.clone(),
                survivors: 0,
                same: true,
                heard_after: 0.0,
                ranks_after: 0,
                restored: None,
                redone: 0,
                seconds: 0.0,
                read_seconds: 0.0,
                bytes: Bytes(0),
            });
        }
        if let Some(loss) = losses.last_mut() {
            loss.survivors += 1;
            loss.same &= (&loss.code, &loss.what) == (&lost.code, &lost.what);
            loss.heard_after = loss.heard_after.max(lost.heard_after);
        }
    }
    for loss in &mut losses {
        let ended = signals.by_ref().take(loss.ranks.len().max(1));
        loss.signals = ended.map(|(_, signal)| *signal).collect();
    }
    // The only rank of a run has nobody who hears of its loss.
    losses.extend(signals.map(|(rank, signal)| Loss {
        step: 0,
        ranks: vec![*rank],
        signals: vec![*signal],
        code: String::new(),
        what: "nobody was left to hear of it".into(),
        survivors: 0,
        same: true,
        heard_after: 0.0,
        ranks_after: 0,
        restored: None,
        redone: 0,
        seconds: 0.0,
        read_seconds: 0.0,
        bytes: Bytes(0),
    }));
    let mut at = 0;
    let mut told: BTreeSet<usize> = BTreeSet::new();
    for (rank, restored) in log.restores() {
        if told.contains(&rank) {
            told.clear();
            at += 1;
        }
        told.insert(rank);
        let Some(loss) = losses.get_mut(at) else {
            break;
        };
        loss.restored = Some(restored.step);
        loss.ranks_after = restored.ranks;
        loss.seconds = loss.seconds.max(restored.seconds);
        loss.read_seconds = loss.read_seconds.max(restored.read_seconds);
        loss.bytes += restored.read.as_ref().map_or(Bytes(0), |read| read.asked);
    }
    let repeated = steps.iter().filter(|row| row.again > 0).count() as u64;
    if let [only] = losses.as_mut_slice() {
        only.redone = repeated;
    } else {
        for loss in &mut losses {
            let restored = loss.restored.unwrap_or_default();
            loss.redone = loss.step.saturating_sub(1).saturating_sub(restored);
        }
    }
    losses
}
