//! Where the key comes from that both ends share. It is in no argument and no variable, where other
//! users could see it.

use std::fs::OpenOptions;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crowfly_mover::fabric::SharedKey;

use crate::failure::{Exit, Failure};
use crate::input::read_bounded;
use crate::output::Output;
use crate::path::shown;

/// Room for the digits and white space around them.
const MAX_FILE: usize = 256;

/// Permissions of others than the owner.
const OTHERS: u32 = 0o077;

/// The key in a text that came `from` somewhere.
pub fn parse(text: &str, from: &str) -> Result<SharedKey, Failure> {
    text.parse().map_err(|error| {
        Failure::new("bad-key", Exit::BadData, format!("{from}: {error}")).hint(
            "`crowfly serve` and `crowfly bench net --listen` make a key file where there is none",
        )
    })
}

/// Refuses a file of secrets that others than its owner may read.
pub fn refuse_exposed(file: &Path) -> Result<(), Failure> {
    let metadata = std::fs::metadata(file).map_err(|error| Failure::reading(file, &error))?;
    if metadata.is_file() && metadata.mode() & OTHERS != 0 {
        let (mode, file) = (metadata.mode() & 0o777, shown(file));
        let what = format!("{file} may be read by others (mode {mode:03o})");
        let hint = format!("`chmod 600 {file}`, and make a new key if others had time to read it");
        return Err(Failure::new("key-exposed", Exit::NoInput, what).hint(hint));
    }
    Ok(())
}

/// The key in a file that nobody else may read.
pub fn from_file(file: &Path) -> Result<SharedKey, Failure> {
    refuse_exposed(file)?;
    let bytes = read_bounded(file, MAX_FILE)?;
    parse(&String::from_utf8_lossy(&bytes), &shown(file))
}

/// The key in a file, which is made with a fresh one where there is none.
pub fn from_file_or_new(file: &Path, out: &mut Output) -> Result<SharedKey, Failure> {
    let mut options = OpenOptions::new();
    // Readable by its owner from the first moment on.
    match options.write(true).create_new(true).mode(0o600).open(file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => from_file(file),
        Err(error) => Err(Failure::creating(file, &error)),
        Ok(mut made) => {
            let key = SharedKey::generate()?;
            let written = made.write_all(format!("{}\n", key.to_hex()).as_bytes());
            written.map_err(|error| Failure::creating(file, &error))?;
            out.note(&format!("Put a new key into {}.", shown(file)));
            Ok(key)
        }
    }
}

/// The key that the process which started this one says first.
pub fn from_stdin() -> Result<SharedKey, Failure> {
    let mut line = String::new();
    let stdin = io::stdin().lock();
    stdin
        .take(MAX_FILE as u64)
        .read_line(&mut line)
        .map_err(|error| Failure::reading(Path::new("standard input"), &error))?;
    parse(&line, "standard input")
}
