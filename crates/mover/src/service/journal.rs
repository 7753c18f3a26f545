//! What is known of a file that was begun: which source it is a copy of, and the checksum of each
//! piece that has been written. It lies beside the file, and is read as untrusted input.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use super::message::Tag;
use crate::digest::{self, GRID};

const MAGIC: [u8; 8] = *b"CFJRNL\x01\0";
/// Magic, tag, length of the file, checksum.
const HEADER: usize = 8 + 16 + 8 + 8;
/// Number of the piece, its checksum, checksum of both.
const RECORD: usize = 24;
/// The most bytes of a journal that are read: pieces of a file of 64 TiB.
const MAX_JOURNAL: u64 = (32 << 20) * RECORD as u64;

/// The pieces of a file, each with its checksum.
pub(crate) type Pieces = BTreeMap<u64, u64>;

/// An open journal.
pub(crate) struct Journal {
    file: File,
    seed: [u8; 16],
}

/// What a journal says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It is empty, or no journal.
    Nothing,
    /// It is that of a copy of something else.
    Another,
    /// The pieces that were written.
    Pieces(Pieces),
}

impl Journal {
    /// Reads what it says of a copy of `tag` with `length` bytes.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(file: &mut File, tag: &Tag, length: u64) -> io::Result<Known> {
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = Vec::new();
        Read::by_ref(file)
            .take(MAX_JOURNAL)
            .read_to_end(&mut bytes)?;
        let Some((front, records)) = bytes.split_first_chunk::<HEADER>() else {
            return Ok(Known::Nothing);
        };
        let (said, sum) = front.split_at(HEADER - 8);
        if said.get(..8) != Some(&MAGIC[..]) || check(said, &[]) != *sum {
            return Ok(Known::Nothing);
        }
        if *front != header(tag, length) {
            return Ok(Known::Another);
        }
        let last = length.div_ceil(GRID);
        let mut pieces = Pieces::new();
        for record in records.as_chunks::<RECORD>().0 {
            let (said, sum) = record.split_at(16);
            let (Some(number), Some(hash)) = (word(said, 0), word(said, 8)) else {
                break;
            };
            // The last record may be torn; what follows a torn one was written by nobody.
            if check(&tag.0, said) != *sum || number >= last {
                break;
            }
            pieces.insert(number, hash);
        }
        Ok(Known::Pieces(pieces))
    }

    /// Begins it anew with the pieces that are there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn begin(mut file: File, tag: &Tag, length: u64, have: &Pieces) -> io::Result<Self> {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = header(tag, length).to_vec();
        for (number, hash) in have {
            bytes.extend_from_slice(&record(&tag.0, *number, *hash));
        }
        file.write_all(&bytes)?;
        Ok(Self { file, seed: tag.0 })
    }

    /// Adds a piece that has been written.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn add(&mut self, number: u64, hash: u64) -> io::Result<()> {
        self.file.write_all(&record(&self.seed, number, hash))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn check(front: &[u8], rest: &[u8]) -> [u8; 8] {
    digest::piece(&[front, rest].concat()).to_le_bytes()
}

fn header(tag: &Tag, length: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&tag.0);
    bytes[24..32].copy_from_slice(&length.to_le_bytes());
    let sum = check(&bytes[..32], &[]);
    bytes[32..].copy_from_slice(&sum);
    bytes
}

fn record(seed: &[u8; 16], number: u64, hash: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&hash.to_le_bytes());
    let sum = check(seed, &bytes[..16]);
    bytes[16..].copy_from_slice(&sum);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TAG: Tag = Tag([5; 16]);
    const LENGTH: u64 = 10 * GRID;

    fn written(pieces: &[(u64, u64)]) -> File {
        let file = tempfile::tempfile().expect("a file");
        let copy = file.try_clone().expect("a handle");
        let mut journal = Journal::begin(copy, &TAG, LENGTH, &Pieces::new()).expect("begun");
        for (number, hash) in pieces {
            journal.add(*number, *hash).expect("added");
        }
        file
    }

    #[test]
    fn what_was_added_is_known_again() {
        let mut file = written(&[(3, 33), (0, 1)]);
        let known = Journal::read(&mut file, &TAG, LENGTH).expect("read");
        assert_eq!(known, Known::Pieces([(0, 1), (3, 33)].into()));
    }

    #[test]
    fn a_copy_of_something_else_is_told_from_no_journal_at_all() {
        let mut file = written(&[(0, 1)]);
        let read = |file: &mut File, tag, length| Journal::read(file, &tag, length).expect("read");
        assert_eq!(read(&mut file, Tag([6; 16]), LENGTH), Known::Another);
        assert_eq!(read(&mut file, TAG, LENGTH + 1), Known::Another);
        let mut empty = tempfile::tempfile().expect("a file");
        assert_eq!(read(&mut empty, TAG, LENGTH), Known::Nothing);
        empty.write_all(&[7; 200]).expect("written");
        assert_eq!(read(&mut empty, TAG, LENGTH), Known::Nothing);
    }

    #[test]
    fn a_torn_record_and_one_beyond_the_end_are_not_believed() {
        let mut file = written(&[(1, 11), (2, 22)]);
        let end = file.metadata().expect("there").len();
        file.set_len(end - 1).expect("torn");
        let known = Journal::read(&mut file, &TAG, LENGTH).expect("read");
        assert_eq!(known, Known::Pieces([(1, 11)].into()));
        let mut file = written(&[(10, 5)]);
        let known = Journal::read(&mut file, &TAG, LENGTH).expect("read");
        assert_eq!(known, Known::Pieces(Pieces::new()));
    }

    proptest! {
        #[test]
        fn any_damage_makes_pieces_unknown_and_never_wrong(at in 0usize..112, bit in 0u8..8) {
            let pieces = [(0, 1), (1, 2), (2, 3)];
            let mut file = written(&pieces);
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(0)).expect("sought");
            file.read_to_end(&mut bytes).expect("read");
            bytes[at] ^= 1 << bit;
            file.seek(SeekFrom::Start(0)).expect("sought");
            file.write_all(&bytes).expect("written");
            if let Known::Pieces(known) = Journal::read(&mut file, &TAG, LENGTH).expect("read") {
                prop_assert!(known.len() < 3);
                prop_assert!(known.iter().all(|(number, hash)| *hash == number + 1));
            }
        }
    }
}
