//! Reading a header, and nothing but the header, from a file.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};

use super::{Header, HeaderError, LENGTH_BYTES, data_len};

/// Why a header could not be read from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderReadError {
    /// The bytes were read and are no valid header.
    #[error(transparent)]
    Invalid(#[from] HeaderError),
    /// The file became shorter than it was a moment before.
    #[error("the file was {file_len} bytes long and became shorter while its header was read")]
    Shrank {
        /// The length at first, in bytes.
        file_len: u64,
    },
    /// There is no memory for the header.
    #[error("no memory for a header of {header_len} bytes")]
    NoMemory {
        /// The header's length in bytes.
        header_len: u64,
    },
    /// The operating system refused.
    #[error("cannot read the header: {0}")]
    Io(#[from] io::Error),
}

impl HeaderReadError {
    /// The stable name of this failure.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Invalid(error) => error.code(),
            Self::Shrank { .. } => "file-shrank",
            Self::NoMemory { .. } => "no-memory",
            Self::Io(_) => "read-failed",
        }
    }

    /// What to do about it.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Invalid(error) => error.hint(),
            Self::Shrank { .. } => {
                Some("another program is writing the file; wait until it is done")
            }
            Self::NoMemory { .. } | Self::Io(_) => None,
        }
    }
}

impl Header {
    /// Reads the header at the beginning of `file`. Nothing is allocated before the header's length
    /// was compared with the limit and with the file's length, and no tensor data is read.
    ///
    /// # Errors
    /// [`HeaderReadError::Invalid`] for every fault of the format, the others for the file's.
    pub fn read_from<F: Read + Seek>(file: &mut F) -> Result<Self, HeaderReadError> {
        let file_len = file.seek(SeekFrom::End(0))?;
        if file_len < LENGTH_BYTES {
            return Err(HeaderError::TooShort { file_len }.into());
        }
        file.seek(SeekFrom::Start(0))?;
        let shrank = |error: io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => HeaderReadError::Shrank { file_len },
            _ => error.into(),
        };
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut length).map_err(shrank)?;
        let header_len = u64::from_le_bytes(length);
        data_len(header_len, file_len)?;

        let no_memory = || HeaderReadError::NoMemory { header_len };
        let wanted = usize::try_from(header_len).map_err(|_| no_memory())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(wanted).map_err(|_| no_memory())?;
        if file.by_ref().take(header_len).read_to_end(&mut bytes)? < wanted {
            return Err(HeaderReadError::Shrank { file_len });
        }
        Ok(Self::parse(&bytes, file_len)?)
    }
}
