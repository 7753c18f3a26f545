//! What is said over the control channel: requests with numbers that only grow, and an answer to each.
//! Everything received is untrusted, every length bounded.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use crowfly_route::policy::Policy;

use super::attributes::{Attributes, Wanted};
use super::limits::{MAX_ACCOUNT, MAX_CODE, MAX_FRAME, MAX_TEXT, PART};
use super::name::{Name, RelativePath};
use crate::digest::GRID;
use crate::fabric::RegionDescriptor;
use crate::fabric::fields::{Reader, Writer};

mod fields;

use fields::{
    Fields as _, attributes, component, created, cut, entries, flag, name, part, path,
    policy_number, policy_of, region, sums, wanted,
};

/// The version of these messages that this build speaks.
pub(crate) const VERSION: u16 = 3;
/// The most checksums of one part.
const MAX_SUMS: usize = (PART / GRID) as usize;
/// The most entries of one page of a listing.
const MAX_ENTRIES: usize = 4096;

/// Why bytes are no message of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadMessage {
    /// More bytes than a message may have.
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// A kind of message that there is none of.
    #[error("there is no message of kind {0}")]
    Kind(u8),
    /// A field is missing, out of range or too long, or something is left over.
    #[error("a field is missing or out of range")]
    Field,
}

/// What identifies one state of a file: another one has another tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub [u8; 16]);

/// A part of an open file and of the client's registered memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The open file.
    pub file: u32,
    /// Its first byte, on the grid of parts.
    pub offset: u64,
    /// Its length in bytes, one part at most.
    pub len: u32,
    /// Where it lies in the client's memory.
    pub at: u64,
    /// How long it may take, in milliseconds.
    pub within_ms: u32,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// First of all: which version it speaks, and its memory.
    Begin {
        /// The version of these messages.
        version: u16,
        /// The memory that parts are written into and fetched from.
        memory: Box<RegionDescriptor>,
    },
    /// To open what is exposed, for reading.
    Open {
        /// The export.
        name: Name,
        /// The path below it.
        path: RelativePath,
        /// How far its bytes may stray.
        policy: Policy,
    },
    /// The entries of a folder after the one named, in the order of their names.
    List {
        /// The export.
        name: Name,
        /// The path below it.
        path: RelativePath,
        /// The last entry already known; empty at first.
        after: OsString,
        /// Whether a link counts as what it leads to.
        follow: bool,
    },
    /// To write a part of an open file into the client's memory.
    Read {
        /// The part.
        part: Part,
        /// Whether the checksums of its pieces are wanted.
        sums: bool,
    },
    /// To begin a file.
    Create {
        /// The export.
        name: Name,
        /// The path below it.
        path: RelativePath,
        /// How long it will be, in bytes.
        size: u64,
        /// What is copied.
        tag: Tag,
        /// Whether to go on with what an earlier copy left.
        resume: bool,
        /// Whether it is remembered when it is whole, until [`Request::Forget`].
        remember: bool,
        /// How far its bytes may stray.
        policy: Policy,
        /// What it is to have besides its bytes.
        wanted: Wanted,
    },
    /// To make a folder where there is none, or to finish one that is filled.
    Folder {
        /// The export.
        name: Name,
        /// The path below it.
        path: RelativePath,
        /// What it is to have in the end.
        wanted: Wanted,
        /// Whether it is filled, and gets that now.
        filled: bool,
    },
    /// To remember the whole files in a folder no longer: all that was copied with them is there.
    Forget {
        /// The export.
        name: Name,
        /// The path below it.
        path: RelativePath,
    },
    /// To fetch a part from the client's memory and write it into a file that was begun.
    Write {
        /// The part.
        part: Part,
        /// The checksums of its pieces where they left; none when they are not to be compared.
        sums: Vec<u64>,
    },
    /// To give a file that was begun its name.
    Commit {
        /// The file.
        file: u32,
    },
    /// To let go of a file; one that was begun and is not to be resumed is removed.
    Close {
        /// The file.
        file: u32,
    },
    /// The checksums of a part of exposed memory.
    Sums {
        /// The export.
        name: Name,
        /// Its first byte, on the grid of parts.
        offset: u64,
        /// Its length in bytes, one part at most.
        len: u32,
    },
}

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: OsString,
    /// What it is.
    pub kind: Kind,
    /// The length of a file, in bytes.
    pub size: u64,
    /// What it has besides.
    pub attributes: Attributes,
    /// The same for the same file or folder under another name, and most likely another otherwise.
    pub id: u64,
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It could not, or would not.
    Failed {
        /// A stable code.
        code: String,
        /// A sentence.
        message: String,
    },
    /// To [`Request::Begin`]: how many requests may be under way.
    Begun {
        /// The version of the messages.
        version: u16,
        /// Requests under way.
        requests: u16,
    },
    /// To [`Request::Open`]: a file.
    File {
        /// Its number.
        file: u32,
        /// Its length in bytes.
        size: u64,
        /// Its state.
        tag: Tag,
        /// What it has besides its bytes; a device has nothing that could be copied.
        attributes: Option<Attributes>,
    },
    /// To [`Request::Open`]: a folder, and what it has.
    Folder(Attributes),
    /// To [`Request::Folder`]: whether it was not there before. To [`Request::Forget`]: no.
    Made(bool),
    /// To [`Request::Open`]: memory, to be reached without asking.
    Memory(Box<RegionDescriptor>),
    /// To [`Request::List`].
    Entries {
        /// Some of them, in order.
        entries: Vec<Entry>,
        /// Whether there are more.
        more: bool,
        /// How many were left out because they are no files or folders, or have no proper name.
        skipped: u32,
    },
    /// To [`Request::Create`]: which bytes are already there and verified.
    Created {
        /// The number of the file.
        file: u32,
        /// Ranges of bytes, in order.
        have: Vec<Range<u64>>,
    },
    /// To [`Request::Read`], [`Request::Write`] and [`Request::Sums`]: checksums of the pieces.
    Sums(Vec<u64>),
    /// To [`Request::Commit`] and [`Request::Close`]: what the server did for the file, and the checksum
    /// of all of it where that is known.
    Account {
        /// The checksum.
        digest: Option<u64>,
        /// Legs, as JSON.
        legs: String,
    },
}

impl Request {
    /// The bytes to send.
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(number);
        match self {
            Self::Begin { version, memory } => out.u8(1).u16(*version).region(memory),
            Self::Open { name, path, policy } => out
                .u8(2)
                .text(name.as_str())
                .bytes(path.as_bytes())
                .u8(policy_number(*policy)),
            Self::List {
                name,
                path,
                after,
                follow,
            } => out
                .u8(3)
                .text(name.as_str())
                .bytes(path.as_bytes())
                .bytes(after.as_bytes())
                .u8(u8::from(*follow)),
            Self::Read { part, sums } => out.u8(4).part(part).u8(u8::from(*sums)),
            Self::Create {
                name,
                path,
                size,
                tag,
                resume,
                remember,
                policy,
                wanted,
            } => out
                .u8(5)
                .text(name.as_str())
                .bytes(path.as_bytes())
                .u64(*size)
                .raw(&tag.0)
                .u8(u8::from(*resume))
                .u8(u8::from(*remember))
                .u8(policy_number(*policy))
                .wanted(wanted),
            Self::Write { part, sums } => out.u8(6).part(part).sums(sums),
            Self::Commit { file } => out.u8(7).u32(*file),
            Self::Close { file } => out.u8(8).u32(*file),
            Self::Sums { name, offset, len } => {
                out.u8(9).text(name.as_str()).u64(*offset).u32(*len)
            }
            Self::Folder {
                name,
                path,
                wanted,
                filled,
            } => out
                .u8(10)
                .text(name.as_str())
                .bytes(path.as_bytes())
                .wanted(wanted)
                .u8(u8::from(*filled)),
            Self::Forget { name, path } => out.u8(11).text(name.as_str()).bytes(path.as_bytes()),
        };
        out.finish()
    }

    /// Reads received bytes; they may come from anyone.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), BadMessage> {
        decode(bytes, |number, kind, fields| {
            Ok((number, Self::fields(kind, fields)?))
        })
    }

    fn fields(kind: u8, fields: &mut Reader<'_>) -> Result<Self, BadMessage> {
        let mut read = || match kind {
            1 => Some(Self::Begin {
                version: fields.u16()?,
                memory: region(fields)?,
            }),
            2 => Some(Self::Open {
                name: name(fields)?,
                path: path(fields)?,
                policy: policy_of(fields.u8()?)?,
            }),
            3 => Some(Self::List {
                name: name(fields)?,
                path: path(fields)?,
                after: component(fields)?,
                follow: flag(fields)?,
            }),
            4 => Some(Self::Read {
                part: part(fields)?,
                sums: flag(fields)?,
            }),
            5 => Some(Self::Create {
                name: name(fields)?,
                path: path(fields)?,
                size: fields.u64()?,
                tag: Tag(fields.array()?),
                resume: flag(fields)?,
                remember: flag(fields)?,
                policy: policy_of(fields.u8()?)?,
                wanted: wanted(fields)?,
            }),
            6 => Some(Self::Write {
                part: part(fields)?,
                sums: sums(fields)?,
            }),
            7 => Some(Self::Commit {
                file: fields.u32()?,
            }),
            8 => Some(Self::Close {
                file: fields.u32()?,
            }),
            9 => Some(Self::Sums {
                name: name(fields)?,
                offset: fields.u64()?,
                len: fields.u32()?,
            }),
            10 => Some(Self::Folder {
                name: name(fields)?,
                path: path(fields)?,
                wanted: wanted(fields)?,
                filled: flag(fields)?,
            }),
            11 => Some(Self::Forget {
                name: name(fields)?,
                path: path(fields)?,
            }),
            _ => None,
        };
        match kind {
            1..=11 => read().ok_or(BadMessage::Field),
            other => Err(BadMessage::Kind(other)),
        }
    }

    /// The word for it in metrics.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Begin { .. } => "begin",
            Self::Open { .. } => "open",
            Self::List { .. } => "list",
            Self::Read { .. } => "read",
            Self::Create { .. } => "create",
            Self::Write { .. } => "write",
            Self::Commit { .. } => "commit",
            Self::Close { .. } => "close",
            Self::Sums { .. } => "sums",
            Self::Folder { .. } => "folder",
            Self::Forget { .. } => "forget",
        }
    }
}

impl Answer {
    /// The bytes to send.
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(number);
        match self {
            Self::Failed { code, message } => out
                .u8(1)
                .text(cut(code, MAX_CODE))
                .text(cut(message, MAX_TEXT)),
            Self::Begun { version, requests } => out.u8(2).u16(*version).u16(*requests),
            Self::File {
                file,
                size,
                tag,
                attributes,
            } => out
                .u8(3)
                .u32(*file)
                .u64(*size)
                .raw(&tag.0)
                .attributes(attributes.as_ref()),
            Self::Folder(attributes) => out.u8(4).attributes(Some(attributes)),
            Self::Made(made) => out.u8(10).u8(u8::from(*made)),
            Self::Memory(descriptor) => out.u8(5).region(descriptor),
            Self::Entries {
                entries,
                more,
                skipped,
            } => {
                out.u8(6).u8(u8::from(*more)).u32(*skipped);
                out.u16(u16::try_from(entries.len()).unwrap_or(u16::MAX));
                for entry in entries {
                    let kind = u8::from(entry.kind == Kind::Folder);
                    out.u8(kind).u64(entry.size);
                    out.attributes(Some(&entry.attributes)).u64(entry.id);
                    out.bytes(entry.name.as_bytes());
                }
                &mut out
            }
            Self::Created { file, have } => {
                out.u8(7).u32(*file);
                out.u16(u16::try_from(have.len()).unwrap_or(u16::MAX));
                for range in have {
                    out.u64(range.start).u64(range.end);
                }
                &mut out
            }
            Self::Sums(sums) => out.u8(8).sums(sums),
            Self::Account { digest, legs } => {
                out.u8(9).u8(u8::from(digest.is_some()));
                out.u64(digest.unwrap_or_default()).text(legs)
            }
        };
        out.finish()
    }

    /// Reads received bytes; they may come from anyone.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), BadMessage> {
        decode(bytes, |number, kind, fields| {
            Ok((number, Self::fields(kind, fields)?))
        })
    }

    fn fields(kind: u8, fields: &mut Reader<'_>) -> Result<Self, BadMessage> {
        let mut read = || match kind {
            1 => Some(Self::Failed {
                code: fields.text(MAX_CODE)?.to_owned(),
                message: fields.text(MAX_TEXT)?.to_owned(),
            }),
            2 => Some(Self::Begun {
                version: fields.u16()?,
                requests: fields.u16()?,
            }),
            3 => Some(Self::File {
                file: fields.u32()?,
                size: fields.u64()?,
                tag: Tag(fields.array()?),
                attributes: attributes(fields)?,
            }),
            4 => Some(Self::Folder(attributes(fields)??)),
            5 => Some(Self::Memory(region(fields)?)),
            6 => entries(fields),
            7 => created(fields),
            8 => Some(Self::Sums(sums(fields)?)),
            9 => {
                let known = flag(fields)?;
                let digest = fields.u64()?;
                Some(Self::Account {
                    digest: known.then_some(digest),
                    legs: fields.text(MAX_ACCOUNT)?.to_owned(),
                })
            }
            10 => Some(Self::Made(flag(fields)?)),
            _ => None,
        };
        match kind {
            1..=10 => read().ok_or(BadMessage::Field),
            other => Err(BadMessage::Kind(other)),
        }
    }
}

fn decode<T>(
    bytes: &[u8],
    body: impl FnOnce(u64, u8, &mut Reader<'_>) -> Result<T, BadMessage>,
) -> Result<T, BadMessage> {
    if bytes.len() > MAX_FRAME {
        return Err(BadMessage::TooLong(bytes.len()));
    }
    let mut fields = Reader::new(bytes);
    let number = fields.u64().ok_or(BadMessage::Field)?;
    let kind = fields.u8().ok_or(BadMessage::Field)?;
    let message = body(number, kind, &mut fields)?;
    match fields.is_done() {
        true => Ok(message),
        false => Err(BadMessage::Field),
    }
}

#[cfg(test)]
mod tests;
