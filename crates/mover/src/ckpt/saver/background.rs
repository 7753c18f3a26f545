//! The part of a save that nobody waits for: write, make durable, publish.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};
use std::time::Instant;

use crowfly_machine::usage;
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Receipt};
use crowfly_route::units::Bytes;
use serde_json::Value;

use super::{SaverSettings, Slab};
use crate::ckpt::attempt::{Attempt, Terms};
use crate::ckpt::disk::{Act, Disk};
use crate::ckpt::error::SaveError;
use crate::ckpt::image::{Contents, Summing};
use crate::ckpt::manifest::{FileEntry, RANK_PART_SCHEMA, RankPart, TensorEntry, file_name};
use crate::ckpt::receipt::{SAVE_SCHEMA, SaveReceipt, restore_cost};
use crate::ckpt::store::pruned;
use crate::memory::Region;
use crate::receipt::joined;
use crate::save::{Flights, IN_FLIGHT, WriteTerms, Writing};

/// Everything that the background needs, none of it borrowed.
pub(super) struct Background {
    pub terms: Terms,
    pub settings: SaverSettings,
    pub disk: Disk,
    pub contents: Contents,
    /// All tensors that this rank knows, those that other ranks write included.
    pub known: BTreeMap<String, TensorEntry>,
    pub objects: BTreeMap<String, Value>,
    pub tensor_bytes: Bytes,
    pub began: Instant,
}

/// What is left of a save in the background.
pub(super) struct Finished {
    pub result: Result<SaveReceipt, SaveError>,
    /// Buffers for the next one.
    pub pool: Vec<Region>,
}

/// What writing the file came to.
struct Written {
    receipt: Receipt,
    write_seconds: f64,
    sync_seconds: f64,
    file_bytes: Bytes,
}

impl Background {
    pub(super) fn run(self, slabs: &Receiver<Slab>, free: &SyncSender<Region>) -> Finished {
        let mut pool = Vec::new();
        let result = self.save(slabs, free, &mut pool);
        // Whoever still copies finds nobody to send to, or sends what can be used again.
        pool.extend(slabs.try_iter().map(|slab| slab.memory));
        Finished { result, pool }
    }

    fn save(
        self,
        slabs: &Receiver<Slab>,
        free: &SyncSender<Region>,
        pool: &mut Vec<Region>,
    ) -> Result<SaveReceipt, SaveError> {
        let terms = self.terms.clone();
        let (settings, disk) = (self.settings.clone(), self.disk.clone());
        let (began, tensor_bytes) = (self.began, self.tensor_bytes);
        let mut attempt = Attempt::begin(terms.clone(), disk.clone())?;
        let done = self
            .write(&attempt, slabs, free, pool)
            .map_err(|error| attempt.lost(error))
            .and_then(|(written, part)| {
                let waiting = Instant::now();
                let path = attempt.finish(part)?;
                Ok((written, path, waiting.elapsed().as_secs_f64()))
            });
        let (written, path, publish_seconds) = match done {
            Ok(done) => done,
            Err(error) => {
                attempt.fail(&error);
                return Err(error);
            }
        };
        drop(attempt);
        let background_seconds = began.elapsed().as_secs_f64();
        let mut pruned_steps = Vec::new();
        if let (0, Some(retention)) = (terms.rank, settings.retention) {
            let done = pruned(&disk, &terms.root, retention, false, terms.patience)?;
            pruned_steps = done.removed;
        }
        Ok(SaveReceipt {
            schema: SAVE_SCHEMA.into(),
            step: terms.step,
            rank: terms.rank,
            world: terms.world,
            restore: restore_cost(
                written.file_bytes,
                settings.read_ceiling,
                written.write_seconds + written.sync_seconds,
            ),
            path,
            tensor_bytes,
            file_bytes: written.file_bytes,
            stall_seconds: 0.0,
            fresh_bytes: Bytes(0),
            waited_seconds: 0.0,
            background_seconds,
            write_seconds: written.write_seconds,
            sync_seconds: written.sync_seconds,
            publish_seconds,
            pruned: pruned_steps,
            receipt: written.receipt,
        })
    }

    /// Writes this rank's file and makes it durable.
    fn write(
        self,
        attempt: &Attempt,
        slabs: &Receiver<Slab>,
        free: &SyncSender<Region>,
        pool: &mut Vec<Region>,
    ) -> Result<(Written, RankPart), SaveError> {
        let cpu = usage::this_thread();
        let path = attempt.file();
        let io = |action| {
            let path = path.clone();
            move |source| SaveError::io(action, &path, source)
        };
        self.disk.before(Act::MakeFile, &path).map_err(io("make"))?;
        let terms = WriteTerms {
            policy: self.settings.policy,
            path_asked: None,
            past: 0,
            on_gpu: false,
        };
        let file_bytes = self.contents.length;
        let writing = Writing::begin(&path, file_bytes, terms, &Place::Host(None))?;
        let mut summing = Summing::new(&self.contents);
        let mut flights = Flights::default();
        let mut copying = CpuSeconds::default();
        let mut staged = 0;
        let writing_since = Instant::now();
        let mut give_back = |memory| {
            if let Err(TrySendError::Full(memory) | TrySendError::Disconnected(memory)) =
                free.try_send(memory)
            {
                pool.push(memory);
            }
        };
        loop {
            let slab = match slabs.try_recv() {
                Ok(slab) => slab,
                // Whoever copies may be waiting for the very memory that is in flight.
                Err(TryRecvError::Empty) if !flights.is_empty() => {
                    let most = flights.len() - 1;
                    flights.land(most, &mut give_back)?;
                    continue;
                }
                Err(TryRecvError::Empty) => match slabs.recv() {
                    Ok(slab) => slab,
                    Err(_) => break,
                },
                Err(TryRecvError::Disconnected) => break,
            };
            self.disk
                .before(Act::WriteTensors, &path)
                .map_err(io("write"))?;
            let Slab {
                memory,
                at,
                length,
                copying: used,
            } = slab;
            // Hashing goes on while the bytes are on their way, by a share of the memory of its own.
            let bytes = memory.clone();
            flights.launch(&self.settings.engine, &writing, memory, length, at)?;
            if let Some(bytes) = bytes.as_slice().and_then(|bytes| bytes.get(..length)) {
                summing.take(&self.contents, at, bytes);
            }
            drop(bytes);
            staged += length as u64;
            copying += used;
            flights.land(IN_FLIGHT - 1, &mut give_back)?;
        }
        flights.land(0, &mut give_back)?;
        if staged != file_bytes {
            return Err(SaveError::BadState {
                what: format!("the copy ended after {staged} of {file_bytes} bytes"),
            });
        }
        let write_seconds = writing_since.elapsed().as_secs_f64();
        let syncing_since = Instant::now();
        self.disk
            .before(Act::FinishTensors, &path)
            .map_err(io("finish"))?;
        writing.publish()?;
        let sync_seconds = syncing_since.elapsed().as_secs_f64();

        let used = crate::engine::since(cpu);
        let own = used + copying;
        let receipts = flights.into_receipts();
        let receipt = joined(
            receipts,
            write_seconds + sync_seconds,
            own,
            Bytes(file_bytes),
        )
        .ok_or(SaveError::ThreadDied {
            step: self.terms.step,
        })?;
        let rank = self.terms.rank;
        let mut tensors = self.known;
        for (name, entry) in summing.finish(self.contents, rank) {
            match tensors.get_mut(&name) {
                Some(known) => known.parts = entry.parts,
                None => {
                    tensors.insert(name, entry);
                }
            }
        }
        let part = RankPart {
            schema: RANK_PART_SCHEMA.into(),
            step: self.terms.step,
            rank,
            world: self.terms.world,
            attempt: attempt.mark().to_owned(),
            file: FileEntry {
                name: file_name(rank, self.terms.world),
                bytes: file_bytes,
            },
            tensors,
            objects: self.objects,
        };
        let written = Written {
            receipt,
            write_seconds,
            sync_seconds,
            file_bytes: Bytes(file_bytes),
        };
        Ok((written, part))
    }
}
