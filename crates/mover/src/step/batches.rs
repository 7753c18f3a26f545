//! Where the batches are: files of storage, read as one long row of batches.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crowfly_route::units::Bytes;

use super::error::RunError;
use super::order::BadOrder;
use crate::checkpoint::seeded;
use crate::memory::zeros;
use crate::request::Piece;
use crate::source::Source;

/// The largest file of data that is made, in bytes.
pub const SHARD: u64 = 256 << 20;
/// How much is made up at once.
const BLOCK: usize = 4 << 20;
/// The most files that data may lie in.
const MAX_FILES: usize = 10_000;

/// Files of data that are made up from a seed.
#[derive(Clone, Debug)]
pub struct Shards {
    folder: PathBuf,
    seed: u64,
    /// Bytes of each.
    sizes: Vec<u64>,
}

impl Shards {
    /// So many batches in files of this folder, each file of whole batches.
    pub fn plan(folder: &Path, seed: u64, batch: Bytes, batches: u64) -> Self {
        let per_file = (SHARD / batch.0.max(1)).max(1);
        let files = batches.div_ceil(per_file);
        let size = |file: u64| per_file.min(batches - file * per_file) * batch.0;
        Self {
            folder: folder.to_owned(),
            seed,
            sizes: (0..files).map(size).collect(),
        }
    }

    /// All of their bytes.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.sizes.iter().sum())
    }

    /// The files, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        let name = |number| self.folder.join(format!("shard-{number:05}.bin"));
        (0..self.sizes.len()).map(name).collect()
    }

    /// Makes them, durable and out of the page cache, so that they are read from storage.
    ///
    /// # Errors
    /// [`RunError::Data`], and [`RunError::Memory`].
    pub fn make(&self, mut made: impl FnMut(u64)) -> Result<(), RunError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| RunError::Data {
                action,
                path,
                source,
            }
        };
        fs::create_dir_all(&self.folder).map_err(failed("make", &self.folder))?;
        let mut block = zeros(BLOCK)?;
        let mut total = 0;
        for (path, size) in self.files().iter().zip(&self.sizes) {
            let mut file = File::create_new(path).map_err(failed("make", path))?;
            let mut at = 0;
            while at < *size {
                let len = BLOCK.min((*size - at) as usize);
                let part = block.get_mut(..len).unwrap_or_default();
                seeded::fill(self.seed, total, part);
                file.write_all(part).map_err(failed("write", path))?;
                at += len as u64;
                total += len as u64;
                made(total);
            }
            file.sync_all().map_err(failed("write", path))?;
            // Advice: where it is not taken, the receipts say that the page cache served.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
        Ok(())
    }
}

/// Files of data, open.
#[derive(Debug)]
pub struct Batches {
    /// Each with where it begins in the row.
    files: Vec<(u64, Arc<Source>)>,
    batch: u64,
    count: u64,
}

impl Batches {
    /// The files below a path of the user's: itself, or all regular files of a folder and the folders
    /// in it, in the order of their names; hidden ones are left out.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn found(path: &Path) -> Result<Vec<PathBuf>, RunError> {
        let failed = |at: &Path| {
            let path = at.to_owned();
            move |source| RunError::Data {
                action: "list",
                path,
                source,
            }
        };
        if !fs::metadata(path).map_err(failed(path))?.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        let mut files = Vec::new();
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
                let entry = entry.map_err(failed(&folder))?;
                let kind = entry.file_type().map_err(failed(&folder))?;
                let hidden = entry.file_name().to_string_lossy().starts_with('.');
                match () {
                    () if hidden => {}
                    () if kind.is_dir() => folders.push(entry.path()),
                    () if kind.is_file() => files.push(entry.path()),
                    () => {}
                }
            }
            if files.len() + folders.len() > MAX_FILES {
                let what = format!("more than {MAX_FILES} files and folders");
                return Err(failed(path)(std::io::Error::other(what)));
            }
        }
        files.sort();
        Ok(files)
    }

    /// Opens the files.
    ///
    /// # Errors
    /// When one cannot be opened, or they hold no whole batch.
    pub fn open(files: &[PathBuf], batch: Bytes) -> Result<Self, RunError> {
        let mut opened = Vec::new();
        let mut end = 0;
        for path in files {
            let source = Arc::new(Source::open(path)?);
            let begin = end;
            end += source.size();
            opened.push((begin, source));
        }
        let count = end.checked_div(batch.0).unwrap_or(0);
        if count == 0 {
            let batch = batch.0;
            return Err(BadOrder::DataTooSmall { found: end, batch }.into());
        }
        Ok(Self {
            files: opened,
            batch: batch.0,
            count,
        })
    }

    /// Whole batches in the files; what is left over at the end is never read.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The pieces of the files that a batch is made of. After the last batch comes the first again.
    pub fn pieces(&self, number: u64) -> Vec<Piece> {
        let begin = number % self.count * self.batch;
        let end = begin + self.batch;
        let pieces = self.files.iter().filter_map(|(first, source)| {
            let from = begin.max(*first) - first;
            let to = end.min(first + source.size()).checked_sub(*first)?;
            (from < to).then(|| Piece {
                source: Arc::clone(source),
                range: from..to,
            })
        });
        pieces.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Bytes = Bytes(8192);

    fn bytes_of(batches: &Batches, number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in batches.pieces(number) {
            let file = fs::read(piece.source.path()).expect("a file");
            bytes.extend_from_slice(&file[piece.range.start as usize..piece.range.end as usize]);
        }
        bytes
    }

    #[test]
    fn made_up_data_is_the_same_each_time_and_its_row_of_batches_begins_anew_at_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let shards = Shards::plan(folder.path(), 7, BATCH, 3);
        let mut made = 0;
        shards.make(|now| made = now).expect("made");
        assert_eq!((shards.bytes(), made), (Bytes(3 * BATCH.0), 3 * BATCH.0));
        let batches = Batches::open(&shards.files(), BATCH).expect("opened");
        assert_eq!(batches.count(), 3);
        let mut expected = vec![0; BATCH.0 as usize];
        seeded::fill(7, BATCH.0, &mut expected);
        assert_eq!(bytes_of(&batches, 1), expected);
        assert_eq!(bytes_of(&batches, 4), expected);
    }

    #[test]
    fn given_files_of_any_size_a_batch_spans_them_and_none_of_its_bytes_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let sizes = [5000usize, 0, 3000, 20_000];
        let mut row = vec![0; sizes.iter().sum()];
        seeded::fill(3, 0, &mut row);
        let mut at = 0;
        for (number, size) in sizes.into_iter().enumerate() {
            let name = folder.path().join(format!("{number}.bin"));
            fs::write(name, &row[at..at + size]).expect("written");
            at += size;
        }
        fs::write(folder.path().join(".hidden"), "not data").expect("written");
        let files = Batches::found(folder.path()).expect("listed");
        let batches = Batches::open(&files, BATCH).expect("opened");
        assert_eq!((files.len(), batches.count()), (4, 3));
        for number in 0..3u64 {
            let begin = (number * BATCH.0) as usize;
            let expected = &row[begin..begin + BATCH.0 as usize];
            assert_eq!(bytes_of(&batches, number), expected, "{number}");
        }
        let error = Batches::open(&files[..2], BATCH).expect_err("too small");
        assert_eq!(error.code(), "step-data-too-small");
    }
}
