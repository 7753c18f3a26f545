//! Restoring: the bytes that the wanted parts of tensors need, checked, each put where it belongs.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crowfly_machine::limits;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Receipt;
use crowfly_route::units::{Bytes, NumaNode};

use super::archive::{Archive, ArchiveError, ArchivedPart, ArchivedTensor};
use super::extent::{Extent, Runs};
use crate::checkpoint::dtype::Dtype;
use crate::engine::Engine;
use crate::gpu::{Gpu, To};
use crate::memory::{Memory, MemoryError, Region};
use crate::transfer::Transfer;

mod delivery;
mod device;
mod gather;
mod plan;

use delivery::Delivery;
use device::{Assembly, Composed, Needed};
use plan::Plan;

/// Tensors smaller than this share a mapping: the kernel allows a process only so many.
const OWN_MAPPING: u64 = 64 << 10;
/// Where each tensor begins in a shared mapping: enough for any vector instruction.
const ALIGNMENT: u64 = 64;

/// A tensor that is wanted, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The tensor's name.
    pub tensor: String,
    /// The box of it; all of it when `None`.
    pub extent: Option<Extent>,
    /// The type that it must have, if it matters.
    pub dtype: Option<Dtype>,
    /// The shape that the whole tensor must have, if it matters.
    pub shape: Option<Vec<u64>>,
}

impl Want {
    /// All of a tensor.
    pub fn whole(tensor: impl Into<String>) -> Self {
        Self {
            tensor: tensor.into(),
            extent: None,
            dtype: None,
            shape: None,
        }
    }

    /// A box of a tensor.
    pub fn part(tensor: impl Into<String>, extent: Extent) -> Self {
        Self {
            extent: Some(extent),
            ..Self::whole(tensor)
        }
    }
}

/// How a checkpoint is restored.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// Whether the bytes are held against the checksums that were saved. Blocks of
    /// [`GRID`](crate::digest::GRID) bytes are then read whole, which is more than a slice across rows needs.
    pub check: bool,
    /// How far the bytes may stray.
    pub policy: Policy,
    /// Where the tensors go. In a GPU's memory, checksums are held against what that memory holds, which
    /// is read back from it; and tensors that lie in several places of the files, or share what was read
    /// with much that nobody wants, are copied there once more, for which both must have room.
    pub to: To,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self {
            check: true,
            policy: Policy::Prefer,
            to: To::Host(None),
        }
    }
}

/// A restored tensor, or the part of it that was wanted.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The shape of the whole tensor.
    pub global_shape: Vec<u64>,
    /// The box of it that this is.
    pub extent: Extent,
    /// Its bytes, row-major, in plain host memory or a GPU's; small tensors share one mapping.
    pub bytes: Region,
}

/// What a restore came to.
#[derive(Debug)]
pub struct Restoration {
    /// In the order of the wants.
    pub tensors: Vec<Restored>,
    /// Which way the bytes came. Its `requested` counts what was read, which the wanted bytes are
    /// part of.
    pub receipt: Option<Receipt>,
    /// Bytes that match the checksums that were saved.
    pub checked: Bytes,
    /// Bytes for which there was no checksum, or that nobody asked to check.
    pub unchecked: Bytes,
}

/// What a verification found.
#[derive(Debug)]
pub struct Verified {
    /// Everything that is damaged, in the order of files.
    pub faults: Vec<ArchiveError>,
    /// Bytes that match the checksums that were saved.
    pub checked: Bytes,
    /// Bytes that could be read but have no checksum to hold them against.
    pub unchecked: Bytes,
    /// Which way the bytes came.
    pub receipt: Option<Receipt>,
}

/// A restore that is under way.
pub struct Reading {
    transfer: Option<Transfer>,
    delivery: Arc<Delivery>,
    tensors: Vec<Restored>,
    reorders: Vec<gather::Reorder>,
    assembly: Option<Assembly>,
}

/// A tensor that is wanted, what the archive has of it, the box, and how many bytes that is.
struct Picked<'a> {
    want: &'a Want,
    tensor: &'a ArchivedTensor,
    extent: Extent,
    bytes: u64,
}

impl Picked<'_> {
    fn inside_byte(&self, archive: &Archive) -> ArchiveError {
        ArchiveError::InsideByte {
            path: archive.path().to_owned(),
            tensor: self.want.tensor.as_str().into(),
            dtype: self.tensor.dtype,
            wanted: self.extent.clone(),
        }
    }

    /// The parts that hold some of it.
    fn parts(&self) -> impl Iterator<Item = &ArchivedPart> {
        let parts = self.tensor.parts.iter();
        parts.filter(|part| part.extent.intersect(&self.extent).is_some())
    }

    /// The runs that a part shares with it.
    fn runs(&self, part: &ArchivedPart, archive: &Archive) -> Result<Runs, ArchiveError> {
        Runs::between(&part.extent, &self.extent, self.tensor.dtype)
            .ok_or_else(|| self.inside_byte(archive))
    }

    fn restored(self, bytes: Region) -> Restored {
        Restored {
            name: self.want.tensor.clone(),
            dtype: self.tensor.dtype,
            global_shape: self.tensor.shape.clone(),
            extent: self.extent,
            bytes,
        }
    }
}

/// Where the bytes of one want go.
struct Slot {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl Archive {
    /// All tensors, whole.
    pub fn everything(&self) -> Vec<Want> {
        self.tensors().map(|(name, _)| Want::whole(name)).collect()
    }

    /// One rank's part of a tensor that is cut along `dim`; see [`Extent::chunk`].
    ///
    /// # Errors
    /// When there is no such tensor, dimension or rank.
    pub fn chunk(
        &self,
        tensor: &str,
        dim: usize,
        rank: u64,
        ranks: u64,
    ) -> Result<Want, ArchiveError> {
        let found = self.named(tensor)?;
        let part = Extent::chunk(&found.shape, dim, rank, ranks);
        let part = part.ok_or_else(|| ArchiveError::OutsideTensor {
            path: self.path().to_owned(),
            tensor: tensor.into(),
            shape: found.shape.clone(),
            wanted: Extent {
                offset: vec![rank; dim + 1],
                shape: vec![ranks; dim + 1],
            },
        })?;
        Ok(Want::part(tensor, part))
    }

    fn named(&self, tensor: &str) -> Result<&ArchivedTensor, ArchiveError> {
        self.get(tensor).ok_or_else(|| {
            /// Names longer than this, or of so many tensors, are not compared with each other.
            const MOST_COMPARED: (usize, usize) = (256, 20_000);
            let comparable =
                tensor.len() <= MOST_COMPARED.0 && self.tensors.len() <= MOST_COMPARED.1;
            let names = self.tensors.keys().filter(|_| comparable);
            let near = names
                .map(|name| (strsim::jaro_winkler(name, tensor), name))
                .filter(|(likeness, _)| *likeness > 0.8)
                .max_by(|a, b| a.0.total_cmp(&b.0));
            ArchiveError::NoSuchTensor {
                path: self.path().to_owned(),
                tensor: tensor.into(),
                nearest: near.map(|(_, name)| name.as_str().into()),
            }
        })
    }

    /// The box that is wanted of a tensor that is what is expected.
    fn wanted(&self, want: &Want) -> Result<(&ArchivedTensor, Extent), ArchiveError> {
        let tensor = self.named(&want.tensor)?;
        let differs = want.dtype.is_some_and(|dtype| dtype != tensor.dtype)
            || want
                .shape
                .as_ref()
                .is_some_and(|shape| *shape != tensor.shape);
        if differs {
            let dtype = want
                .dtype
                .map_or_else(|| "any type".into(), |d| d.to_string());
            let shape = want
                .shape
                .as_ref()
                .map_or_else(|| "of any shape".into(), |shape| format!("{shape:?}"));
            return Err(ArchiveError::Mismatch {
                path: self.path().to_owned(),
                tensor: want.tensor.as_str().into(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                expected: format!("{dtype} {shape}"),
            });
        }
        let extent = match &want.extent {
            Some(extent) => extent.clone(),
            None => Extent::whole(&tensor.shape),
        };
        if !extent.fits(&tensor.shape) {
            return Err(ArchiveError::OutsideTensor {
                path: self.path().to_owned(),
                tensor: want.tensor.as_str().into(),
                shape: tensor.shape.clone(),
                wanted: extent,
            });
        }
        Ok((tensor, extent))
    }

    /// Starts restoring. Only bytes that the wants need are read, besides what the drive's blocks
    /// and the checksums' add; the receipt says how many.
    ///
    /// # Errors
    /// Before the first byte moves: a tensor that is not there or not what was expected, or memory
    /// that does not suffice. What is damaged comes out of [`Reading::wait`].
    pub fn restore(
        &self,
        engine: &Engine,
        wants: &[Want],
        options: RestoreOptions,
    ) -> Result<Reading, ArchiveError> {
        let picked: Vec<Picked<'_>> = wants
            .iter()
            .map(|want| {
                let (tensor, extent) = self.wanted(want)?;
                let mut picked = Picked {
                    want,
                    tensor,
                    extent,
                    bytes: 0,
                };
                let bytes = tensor.dtype.bytes_of(&picked.extent.shape);
                picked.bytes = bytes.map_err(|_| picked.inside_byte(self))?;
                Ok(picked)
            })
            .collect::<Result<_, ArchiveError>>()?;
        match &options.to {
            To::Host(node) => self.restore_to_host(engine, picked, &options, *node),
            To::Gpu(gpu) => self.restore_to_gpu(engine, picked, &options, gpu),
        }
    }

    fn restore_to_host(
        &self,
        engine: &Engine,
        picked: Vec<Picked<'_>>,
        options: &RestoreOptions,
        node: Option<NumaNode>,
    ) -> Result<Reading, ArchiveError> {
        let sizes: Vec<u64> = picked.iter().map(|picked| picked.bytes).collect();
        let slots = slots(&sizes, node)?;
        let mut plan = Plan::new(self, options.check);
        let mut reorders = Vec::new();
        for (number, (picked, slot)) in picked.iter().zip(&slots).enumerate() {
            for part in picked.parts() {
                if let Some(strides) = &part.strides {
                    let raw = (part.range.end - part.range.start) as usize;
                    let memory = Memory::host(raw, None)?;
                    let (landing, runs) = (plan.land(&memory, 0..raw), Runs::flat(raw as u64));
                    plan.need(&picked.want.tensor, part, Some(landing), runs);
                    reorders.push(gather::Reorder {
                        raw: Region::new(memory, 0..raw),
                        part: part.extent.clone(),
                        strides: strides.clone(),
                        dtype: picked.tensor.dtype,
                        into: number,
                    });
                } else {
                    let runs = picked.runs(part, self)?;
                    let landing = plan.land(&slot.memory, slot.range.clone());
                    plan.need(&picked.want.tensor, part, Some(landing), runs);
                }
            }
        }
        let placed = picked.into_iter().zip(slots);
        let tensors = placed
            .map(|(picked, slot)| picked.restored(Region::new(slot.memory, slot.range)))
            .collect();
        let (transfer, delivery, _) = plan.start(engine, options.policy, None)?;
        Ok(Reading {
            transfer,
            delivery,
            tensors,
            reorders,
            assembly: None,
        })
    }

    fn restore_to_gpu(
        &self,
        engine: &Engine,
        picked: Vec<Picked<'_>>,
        options: &RestoreOptions,
        gpu: &Arc<Gpu>,
    ) -> Result<Reading, ArchiveError> {
        let mut plan = Plan::new(self, options.check);
        let mut composed = Vec::with_capacity(picked.len());
        for picked in &picked {
            let mut sources = Vec::new();
            for part in picked.parts() {
                let (all, runs) = match part.strides {
                    Some(_) => (Runs::flat(part.range.end - part.range.start), None),
                    None => {
                        let runs = picked.runs(part, self)?;
                        (runs.clone(), Some(runs))
                    }
                };
                plan.need(&picked.want.tensor, part, None, all);
                let part = part.clone();
                sources.push(Needed { part, runs });
            }
            composed.push(Composed {
                bytes: picked.bytes as usize,
                sources,
            });
        }
        let nothing = Region::zeroed(0, None)?;
        let tensors = picked
            .into_iter()
            .map(|picked| picked.restored(nothing.clone()))
            .collect();
        let (transfer, delivery, stretches) = plan.start(engine, options.policy, Some(gpu))?;
        Ok(Reading {
            transfer,
            delivery,
            tensors,
            reorders: Vec::new(),
            assembly: Some(Assembly {
                gpu: Arc::clone(gpu),
                composed,
                stretches,
            }),
        })
    }

    /// Starts reading everything, to hold it against the checksums that were saved. Where there are
    /// none, it is only seen whether the bytes can be read.
    ///
    /// # Errors
    /// When the files cannot be opened. What is damaged comes out of [`Reading::verdict`].
    pub fn verify(&self, engine: &Engine, policy: Policy) -> Result<Reading, ArchiveError> {
        let mut plan = Plan::new(self, true);
        for (name, tensor) in &self.tensors {
            for part in tensor.parts.iter().filter(|part| !part.range.is_empty()) {
                plan.look(name, part);
            }
        }
        let (transfer, delivery, _) = plan.start(engine, policy, None)?;
        Ok(Reading {
            transfer,
            delivery,
            tensors: Vec::new(),
            reorders: Vec::new(),
            assembly: None,
        })
    }
}

impl Reading {
    /// Bytes that will be read.
    pub fn total(&self) -> Bytes {
        self.transfer.as_ref().map_or(Bytes(0), Transfer::total)
    }

    /// Bytes that have been read so far.
    pub fn moved(&self) -> Bytes {
        self.transfer.as_ref().map_or(Bytes(0), Transfer::moved)
    }

    /// Whether [`Reading::wait`] returns at once.
    pub fn is_finished(&self) -> bool {
        self.transfer.as_ref().is_none_or(Transfer::is_finished)
    }

    /// Gives up.
    pub fn cancel(&self) {
        if let Some(transfer) = &self.transfer {
            transfer.cancel();
        }
    }

    /// Waits for the tensors.
    ///
    /// # Errors
    /// When anything is damaged or cannot be read; no tensor is given out then.
    pub fn wait(mut self) -> Result<Restoration, ArchiveError> {
        let (regions, mut receipt) = self.finish()?;
        if let Some(fault) = self.delivery.faults().into_iter().next() {
            return Err(fault);
        }
        if let Some(assembly) = self.assembly.take() {
            let staged = assembly.run(&regions, &mut self.tensors)?;
            if let Some(receipt) = &mut receipt {
                receipt.bounced += staged;
            }
        }
        for reorder in std::mem::take(&mut self.reorders) {
            let Some(tensor) = self.tensors.get(reorder.into) else {
                continue;
            };
            reorder.run(&tensor.extent, &tensor.bytes)?;
        }
        Ok(Restoration {
            tensors: std::mem::take(&mut self.tensors),
            receipt,
            checked: self.delivery.checked(),
            unchecked: self.delivery.unchecked(),
        })
    }

    /// Waits for the end of a verification.
    ///
    /// # Errors
    /// When something cannot be read at all.
    pub fn verdict(mut self) -> Result<Verified, ArchiveError> {
        let (_, receipt) = self.finish()?;
        Ok(Verified {
            faults: self.delivery.faults(),
            checked: self.delivery.checked(),
            unchecked: self.delivery.unchecked(),
            receipt,
        })
    }

    fn finish(&mut self) -> Result<(Vec<Region>, Option<Receipt>), ArchiveError> {
        match self.transfer.take() {
            Some(transfer) => {
                let loaded = transfer.wait()?;
                Ok((loaded.regions, Some(loaded.receipt)))
            }
            None => Ok((Vec::new(), None)),
        }
    }
}

/// Memory for tensors of these sizes.
fn slots(sizes: &[u64], node: Option<NumaNode>) -> Result<Vec<Slot>, ArchiveError> {
    let all = sizes
        .iter()
        .fold(0u64, |all, size| all.saturating_add(*size));
    if let Some(room) = limits::memory_room().filter(|room| *room < all) {
        return Err(MemoryError::NoRoom { bytes: all, room }.into());
    }
    let small = |size: &&u64| **size < OWN_MAPPING;
    let shared: u64 = sizes
        .iter()
        .filter(small)
        .map(|size| size.next_multiple_of(ALIGNMENT))
        .sum();
    let shared = Memory::host(shared as usize, node)?;
    let mut at = 0;
    let slot = |size: &u64| {
        let length = *size as usize;
        if small(&size) {
            let range = at..at + length;
            at += size.next_multiple_of(ALIGNMENT) as usize;
            return Ok(Slot {
                memory: Arc::clone(&shared),
                range,
            });
        }
        Ok(Slot {
            memory: Memory::host(length, node)?,
            range: 0..length,
        })
    };
    sizes.iter().map(slot).collect()
}

/// What a lock guards survives a panic elsewhere: it is only ever added to.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
