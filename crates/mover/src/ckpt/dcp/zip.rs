//! The directory of an archive of `torch.save`: a zip file whose entries are stored, not compressed.
//!
//! The layout is that of PKWARE's APPNOTE 6.3, with its 64-bit extensions.

use std::fs::File;

use super::read_at;

/// Bytes of the record at the end of an archive.
const END_BYTES: u64 = 22;
const END_MARK: u32 = 0x0605_4b50;
/// Bytes of what points to the 64-bit record, in front of it.
const LOCATOR_BYTES: u64 = 20;
const LOCATOR_MARK: u32 = 0x0706_4b50;
const END64_BYTES: u64 = 56;
const END64_MARK: u32 = 0x0606_4b50;
const CENTRAL_BYTES: usize = 46;
const CENTRAL_MARK: u32 = 0x0201_4b50;
const LOCAL_BYTES: u64 = 30;
const LOCAL_MARK: u32 = 0x0403_4b50;
/// The kind of the extra field that holds 64-bit sizes.
const EXTRA64: u16 = 1;
/// The longest directory that is read; an item of a checkpoint has ten entries.
const MAX_DIRECTORY_BYTES: u64 = 1 << 20;

/// The directory of an archive that lies somewhere in a file.
pub(super) struct Archive<'a> {
    file: &'a File,
    start: u64,
    length: u64,
    entries: Vec<Entry>,
}

/// An entry that is stored as it is.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    name: String,
    pub bytes: u64,
    header: u64,
}

/// A view of bytes from which little-endian numbers are taken.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn number(&self, at: usize, bytes: usize) -> Option<u64> {
        let taken = self.0.get(at..at.checked_add(bytes)?)?;
        Some(
            taken
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }

    fn starts_with(&self, mark: u32) -> bool {
        self.number(0, 4) == Some(mark.into())
    }
}

impl<'a> Archive<'a> {
    /// Reads the directory of the archive that lies at `start` in a file.
    pub(super) fn read(file: &'a File, start: u64, length: u64) -> Result<Self, String> {
        let cut = || "its archive is cut short".to_owned();
        let read = |at: u64, bytes: u64| {
            let end = at.checked_add(bytes).filter(|end| *end <= length);
            end.ok_or_else(cut)?;
            read_at(file, start + at, bytes).map_err(|error| error.to_string())
        };
        let at = length.checked_sub(END_BYTES).ok_or_else(cut)?;
        let end = read(at, END_BYTES)?;
        let end = Fields(&end);
        if !end.starts_with(END_MARK) {
            return Err("it does not end as an archive of torch.save does".into());
        }
        let mut bytes = end.number(12, 4).unwrap_or(0);
        let mut offset = end.number(16, 4).unwrap_or(0);
        if let Some(locator) = at.checked_sub(LOCATOR_BYTES) {
            let locator = read(locator, LOCATOR_BYTES)?;
            let locator = Fields(&locator);
            if locator.starts_with(LOCATOR_MARK) {
                let record = read(locator.number(8, 8).unwrap_or(u64::MAX), END64_BYTES)?;
                let record = Fields(&record);
                if !record.starts_with(END64_MARK) {
                    return Err("its archive has no 64-bit record where it says so".into());
                }
                bytes = record.number(40, 8).unwrap_or(u64::MAX);
                offset = record.number(48, 8).unwrap_or(u64::MAX);
            }
        }
        if bytes > MAX_DIRECTORY_BYTES {
            return Err(format!("the directory of its archive takes {bytes} bytes"));
        }
        let directory = read(offset, bytes)?;
        Ok(Self {
            file,
            start,
            length,
            entries: entries(&directory)?,
        })
    }

    /// The entry with this name, whatever folder the archive puts its entries in.
    pub(super) fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| {
            let inside = entry.name.split_once('/').map(|(_, inside)| inside);
            inside == Some(name)
        })
    }

    /// Where in the file an entry's bytes begin.
    pub(super) fn begin(&self, entry: &Entry) -> Result<u64, String> {
        let cut = || format!("the entry {:?} of its archive is cut short", entry.name);
        let end = entry.header.checked_add(LOCAL_BYTES);
        if end.is_none_or(|end| end > self.length) {
            return Err(cut());
        }
        let header = read_at(self.file, self.start + entry.header, LOCAL_BYTES)
            .map_err(|error| error.to_string())?;
        let header = Fields(&header);
        if !header.starts_with(LOCAL_MARK) {
            return Err(format!(
                "there is no entry {:?} where its archive says so",
                entry.name
            ));
        }
        let name = header.number(26, 2).unwrap_or(0);
        let extra = header.number(28, 2).unwrap_or(0);
        let begin = entry.header + LOCAL_BYTES + name + extra;
        let end = begin.checked_add(entry.bytes);
        if end.is_none_or(|end| end > self.length) {
            return Err(cut());
        }
        Ok(self.start + begin)
    }

    /// All bytes of a small entry.
    pub(super) fn contents(&self, entry: &Entry, most: u64) -> Result<Vec<u8>, String> {
        if entry.bytes > most {
            return Err(format!(
                "the entry {:?} of its archive takes {} bytes",
                entry.name, entry.bytes
            ));
        }
        let begin = self.begin(entry)?;
        read_at(self.file, begin, entry.bytes).map_err(|error| error.to_string())
    }
}

fn entries(directory: &[u8]) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let mut rest = directory;
    while !rest.is_empty() {
        let malformed = || "the directory of its archive is malformed".to_owned();
        let fields = Fields(rest);
        if !fields.starts_with(CENTRAL_MARK) {
            return Err(malformed());
        }
        let field = |at, bytes| fields.number(at, bytes).ok_or_else(malformed);
        let method = field(10, 2)?;
        let (stored, mut bytes) = (field(20, 4)?, field(24, 4)?);
        let (name, extra, comment) = (field(28, 2)?, field(30, 2)?, field(32, 2)?);
        let mut header = field(42, 4)?;
        let name_end = CENTRAL_BYTES + name as usize;
        let extra_end = name_end + extra as usize;
        let end = extra_end + comment as usize;
        let text = rest.get(CENTRAL_BYTES..name_end).ok_or_else(malformed)?;
        let text = std::str::from_utf8(text).map_err(|_| malformed())?;
        if method != 0 {
            return Err(format!("the entry {text:?} of its archive is compressed"));
        }
        // Fields that are all ones are in the extra field, in this order.
        const ONES: u64 = u32::MAX as u64;
        let extra = rest.get(name_end..extra_end).ok_or_else(malformed)?;
        let wide = wide(extra);
        let mut wide = wide.0.chunks_exact(8).map(|number| {
            let mut eight = [0; 8];
            eight.copy_from_slice(number);
            u64::from_le_bytes(eight)
        });
        if bytes == ONES {
            bytes = wide.next().ok_or_else(malformed)?;
        }
        if stored == ONES {
            wide.next().ok_or_else(malformed)?;
        }
        if header == ONES {
            header = wide.next().ok_or_else(malformed)?;
        }
        entries.push(Entry {
            name: text.to_owned(),
            bytes,
            header,
        });
        rest = rest.get(end..).ok_or_else(malformed)?;
    }
    Ok(entries)
}

/// The 64-bit numbers among the extra fields.
fn wide(extra: &[u8]) -> Fields<'_> {
    let mut rest = extra;
    while let (Some(kind), Some(length)) = (Fields(rest).number(0, 2), Fields(rest).number(2, 2)) {
        let Some(body) = rest.get(4..4 + length as usize) else {
            break;
        };
        if kind == u64::from(EXTRA64) {
            return Fields(body);
        }
        rest = rest.get(4 + length as usize..).unwrap_or_default();
    }
    Fields(&[])
}
