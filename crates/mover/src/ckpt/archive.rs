//! What a checkpoint holds, whichever format it is in: tensors, and the bytes of files they are made
//! of.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crowfly_route::units::Bytes;
use serde_json::Value;

use super::dcp::{self, METADATA_NAME};
use super::extent::Extent;
use super::lock::{Lock, Share};
use super::manifest::{MANIFEST_NAME, Manifest, Sums};
use super::store::{STEP_LOCK, StepError, latest, read_manifest, step_folder, steps};
use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::{Checkpoint, Kind, Note, Stamp};
use crate::error::TransferError;
use crate::source::Source;

mod error;
mod headers;

pub use error::ArchiveError;

/// How often a step that was pruned or replaced while it was opened is looked for again.
const ATTEMPTS: u32 = 8;

/// Which format a checkpoint is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// A step that crowfly saved.
    Step {
        /// The step.
        step: u64,
        /// How many ranks saved it.
        world: u32,
        /// When, in seconds since 1970.
        created: u64,
    },
    /// A safetensors file.
    SafetensorsFile,
    /// Safetensors files, with an index or without.
    SafetensorsFolder,
    /// A distributed checkpoint of PyTorch.
    Distributed,
}

impl Format {
    /// One word for tables and JSON.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Step { .. } => "crowfly",
            Self::SafetensorsFile | Self::SafetensorsFolder => "safetensors",
            Self::Distributed => "dcp",
        }
    }
}

/// A checkpoint whose description has been read and does not contradict itself. No tensor data was
/// read. While it lives, no pruning takes the files of a step away.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    format: Format,
    pub(super) files: Vec<ArchiveFile>,
    pub(super) tensors: BTreeMap<String, ArchivedTensor>,
    objects: BTreeMap<String, Value>,
    objects_of_ranks: BTreeMap<u32, BTreeMap<String, Value>>,
    paths: BTreeMap<String, Vec<Value>>,
    notes: Vec<String>,
    _reading: Option<Lock>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug)]
pub struct ArchiveFile {
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: Bytes,
    /// What it was when its description was read; `None` when the description is another file.
    stamp: Option<Stamp>,
}

impl ArchiveFile {
    pub(super) fn source(&self) -> Result<Arc<Source>, TransferError> {
        let source = Source::open(&self.path)?;
        if let Some(stamp) = self.stamp {
            source.is_still(stamp)?;
        }
        Ok(Arc::new(source))
    }
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub struct ArchivedTensor {
    /// The type of its elements.
    pub dtype: Dtype,
    /// Elements along each dimension.
    pub shape: Vec<u64>,
    /// The parts it was saved in; they cover it exactly once.
    pub parts: Vec<ArchivedPart>,
}

/// A part of a tensor of a checkpoint.
#[derive(Clone, Debug)]
pub struct ArchivedPart {
    /// The file, by its place among [`Archive::files`].
    pub file: usize,
    /// Its name in the file, where the file has names.
    pub key: String,
    /// The box of the tensor that it is.
    pub extent: Extent,
    /// Its bytes in the file.
    pub range: Range<u64>,
    pub(super) sums: Option<Sums>,
    /// Distances between neighbours along each dimension, in elements, where they are not those of a
    /// row-major tensor.
    pub(super) strides: Option<Vec<u64>>,
}

impl ArchivedPart {
    /// Whether there is a checksum that its bytes can be held against.
    pub const fn has_checksum(&self) -> bool {
        self.sums.is_some()
    }
}

impl ArchivedTensor {
    /// Its size.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.dtype.bytes_of(&self.shape).unwrap_or(0))
    }
}

impl Archive {
    /// Opens what `path` names: a step that crowfly saved, a folder of steps (the latest complete
    /// one), a safetensors file, a model folder or its index, or a distributed checkpoint of PyTorch.
    ///
    /// # Errors
    /// See [`ArchiveError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArchiveError> {
        let path = path.as_ref();
        if !path.is_dir() {
            return Self::safetensors(path);
        }
        if path.join(MANIFEST_NAME).exists() {
            return Self::step(path)?.ok_or_else(|| {
                StepError::NoManifest {
                    folder: path.to_owned(),
                }
                .into()
            });
        }
        if path.join(METADATA_NAME).exists() {
            return Self::distributed(path);
        }
        let steps = steps(path).map_err(|source| StepError::io("list", path, source))?;
        if steps.is_empty() {
            return Self::safetensors(path);
        }
        for _ in 0..ATTEMPTS {
            let Some(step) = latest(path)? else { break };
            // It may have been pruned or replaced between the two looks.
            if let Some(archive) = Self::step(&step_folder(path, step))? {
                return Ok(archive);
            }
        }
        Err(StepError::NoSteps {
            folder: path.to_owned(),
        }
        .into())
    }

    /// Opens one step of a folder of steps.
    ///
    /// # Errors
    /// When it is not there or damaged.
    pub fn open_step(root: impl AsRef<Path>, step: u64) -> Result<Self, ArchiveError> {
        let root = root.as_ref();
        let folder = step_folder(root, step);
        for _ in 0..ATTEMPTS {
            if !folder.exists() {
                break;
            }
            if let Some(archive) = Self::step(&folder)? {
                return Ok(archive);
            }
        }
        let steps = steps(root).map_err(|source| StepError::io("list", root, source))?;
        Err(StepError::NoSuchStep {
            step,
            folder: root.to_owned(),
            steps,
        }
        .into())
    }

    /// A step by its folder; `None` when it went away meanwhile.
    fn step(folder: &Path) -> Result<Option<Self>, ArchiveError> {
        let path = folder.join(STEP_LOCK);
        let reading = match Lock::try_on(&path, Share::Shared) {
            // It is being pruned, or only just published.
            Ok(None) => {
                std::thread::sleep(super::lock::FIRST_LOOK);
                return Ok(None);
            }
            Ok(lock) => lock,
            // A copy has no lock, and some file systems have none: then nobody prunes it either, or
            // the files are found to be missing.
            Err(_) => None,
        };
        let same = |a: &fs::Metadata, b: &fs::Metadata| {
            use std::os::unix::fs::MetadataExt;
            (a.dev(), a.ino()) == (b.dev(), b.ino())
        };
        let before = fs::metadata(folder);
        let manifest = match read_manifest(folder) {
            Err(StepError::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        match (before, fs::metadata(folder)) {
            (Ok(before), Ok(after)) if same(&before, &after) => {}
            _ => return Ok(None),
        }
        // Whoever holds the lock of a step keeps it from being removed, but not from being replaced.
        if reading.as_ref().is_some_and(|lock| !lock.is_at(&path)) {
            return Ok(None);
        }
        Self::of_manifest(folder, manifest, reading).map(Some)
    }

    fn of_manifest(
        folder: &Path,
        manifest: Manifest,
        reading: Option<Lock>,
    ) -> Result<Self, ArchiveError> {
        let files = manifest
            .files
            .iter()
            .map(|file| ArchiveFile {
                path: folder.join(&file.name),
                bytes: Bytes(file.bytes),
                stamp: None,
            })
            .collect();
        let mut tensors = BTreeMap::new();
        for (name, entry) in manifest.tensors {
            // The manifest was checked: what it names exists.
            let Some(dtype) = Dtype::from_name(&entry.dtype) else {
                continue;
            };
            let parts = entry.parts.iter().map(|part| ArchivedPart {
                file: part.file as usize,
                key: part.key.clone(),
                extent: part.extent(),
                range: part.begin..part.end,
                sums: Sums::decode(&part.sums),
                strides: None,
            });
            let tensor = ArchivedTensor {
                dtype,
                parts: parts.collect(),
                shape: entry.shape,
            };
            tensors.insert(name, tensor);
        }
        let archive = Self {
            path: folder.to_owned(),
            format: Format::Step {
                step: manifest.step,
                world: manifest.world,
                created: manifest.created,
            },
            files,
            tensors,
            objects: manifest.objects,
            objects_of_ranks: manifest.objects_of_ranks,
            paths: BTreeMap::new(),
            notes: Vec::new(),
            _reading: reading,
        };
        archive.disjoint()?;
        Ok(archive)
    }

    fn distributed(path: &Path) -> Result<Self, ArchiveError> {
        let contents = dcp::open(path)?;
        let files = contents.files.into_iter();
        let archive = Self {
            path: path.to_owned(),
            format: Format::Distributed,
            files: files
                .map(|(path, bytes)| ArchiveFile {
                    path,
                    bytes: Bytes(bytes),
                    stamp: None,
                })
                .collect(),
            tensors: contents.tensors,
            objects: contents.objects,
            objects_of_ranks: BTreeMap::new(),
            paths: contents.paths,
            notes: contents.notes,
            _reading: None,
        };
        archive.disjoint()?;
        Ok(archive)
    }

    fn safetensors(path: &Path) -> Result<Self, ArchiveError> {
        let checkpoint = Checkpoint::open(path)?;
        let format = match checkpoint.kind() {
            Kind::Raw => {
                return Err(ArchiveError::NotACheckpoint {
                    path: path.to_owned(),
                });
            }
            Kind::SingleFile => Format::SafetensorsFile,
            Kind::Indexed { .. } | Kind::Folder => Format::SafetensorsFolder,
        };
        let files = checkpoint
            .files()
            .iter()
            .map(|file| ArchiveFile {
                path: file.path().to_owned(),
                bytes: Bytes(file.stamp().len),
                stamp: Some(file.stamp()),
            })
            .collect();
        let tensors = checkpoint
            .tensors()
            .map(|(id, tensor)| {
                let part = ArchivedPart {
                    file: id.file.0 as usize,
                    key: tensor.name.to_owned(),
                    extent: Extent::whole(tensor.shape),
                    range: tensor.range.clone(),
                    sums: None,
                    strides: None,
                };
                let archived = ArchivedTensor {
                    dtype: tensor.dtype,
                    shape: tensor.shape.to_vec(),
                    parts: vec![part],
                };
                (tensor.name.to_owned(), archived)
            })
            .collect();
        let metadata = checkpoint
            .files()
            .iter()
            .filter_map(crate::checkpoint::CheckpointFile::header)
            .flat_map(|header| header.metadata());
        let objects = metadata
            .map(|(key, value)| (key.to_owned(), Value::from(value)))
            .collect();
        Ok(Self {
            path: path.to_owned(),
            format,
            files,
            tensors,
            objects,
            objects_of_ranks: BTreeMap::new(),
            paths: BTreeMap::new(),
            notes: checkpoint.notes().iter().map(Note::to_string).collect(),
            _reading: None,
        })
    }

    /// Refuses parts that share bytes of a file.
    fn disjoint(&self) -> Result<(), ArchiveError> {
        let mut ranges: Vec<(usize, &Range<u64>, &str)> = self
            .tensors
            .iter()
            .flat_map(|(name, tensor)| {
                let parts = tensor.parts.iter().filter(|part| !part.range.is_empty());
                parts.map(|part| (part.file, &part.range, name.as_str()))
            })
            .collect();
        ranges.sort_by_key(|(file, range, _)| (*file, range.start));
        for pair in ranges.windows(2) {
            if let [(file, first, one), (other, second, two)] = pair
                && file == other
                && second.start < first.end
            {
                return Err(ArchiveError::SharedBytes {
                    file: self.file_path(*file),
                    first: (*one).into(),
                    second: (*two).into(),
                });
            }
        }
        Ok(())
    }

    pub(super) fn file_path(&self, file: usize) -> PathBuf {
        self.files
            .get(file)
            .map_or_else(PathBuf::new, |file| file.path.clone())
    }

    /// The folder or file that was opened; of a folder of steps, the step's own.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which format it is in.
    pub const fn format(&self) -> &Format {
        &self.format
    }

    /// Its files.
    pub fn files(&self) -> &[ArchiveFile] {
        &self.files
    }

    /// Its tensors by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &ArchivedTensor)> {
        self.tensors
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The tensor with this name.
    pub fn get(&self, name: &str) -> Option<&ArchivedTensor> {
        self.tensors.get(name)
    }

    /// The bytes of all tensors.
    pub fn bytes(&self) -> Bytes {
        self.tensors.values().map(ArchivedTensor::bytes).sum()
    }

    /// The values beside the tensors, as rank 0 saved them; of safetensors files, their metadata.
    pub const fn objects(&self) -> &BTreeMap<String, Value> {
        &self.objects
    }

    /// The values beside the tensors as this rank saved them; of a rank that did not save, rank 0's.
    pub fn objects_of(&self, rank: u32) -> &BTreeMap<String, Value> {
        self.objects_of_ranks.get(&rank).unwrap_or(&self.objects)
    }

    /// Where in the nested state of a distributed checkpoint its tensors and values stood, by name: keys of
    /// dictionaries (text) and places in lists (numbers). Others' names are all there is.
    pub const fn paths(&self) -> &BTreeMap<String, Vec<Value>> {
        &self.paths
    }

    /// What was odd, though no reason to refuse.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
