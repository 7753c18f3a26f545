//! Evidence that the user gives: files and streams, read piece by piece into a case.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crowfly_doctor::Case;
use crowfly_doctor::evidence::kept::MAX_KEPT_BYTES;
use crowfly_doctor::evidence::{Document, Intake};
use flate2::bufread::MultiGzDecoder;

use crate::failure::{Exit, Failure};
use crate::input;
use crate::machine;
use crate::output::Output;
use crate::path::shown;
use crate::render::progress::Progress;

/// Bytes read at a time.
const PIECE: usize = 256 << 10;
/// Sources smaller than this are read before a progress bar could be looked at.
const WORTH_A_BAR: u64 = 64 << 20;
/// How a snapshot begins, whatever white space its JSON has.
const SNAPSHOT: &[u8] = b"\"crowfly.snapshot/";
/// Bytes in which that is looked for.
const SNAPSHOT_HEAD: u64 = 512;
/// How gzip's format begins.
const GZIP: &[u8] = b"\x1f\x8b";
/// What standard input is called, on the command line and in what is quoted from it.
const DASH: &str = "-";
const STDIN: &str = "stdin";

/// A source that was opened and not read yet.
enum Source {
    Stdin,
    File {
        path: PathBuf,
        file: File,
        size: Option<u64>,
    },
}

/// Reads what the user named into the case. Without a name, standard input is read, unless that is a
/// terminal: there would be nothing to see but a program that waits.
///
/// All are opened before the first is read, so that a wrong name is told at once.
pub fn read_named(names: &[PathBuf], case: &mut Case, out: &mut Output) -> Result<(), Failure> {
    let from_stdin = |name: &PathBuf| name.as_os_str() == DASH;
    if names.iter().filter(|name| from_stdin(name)).count() > 1 {
        return Err(Failure::usage("standard input (`-`) can be read only once"));
    }
    let mut seen = BTreeSet::new();
    let mut sources = Vec::new();
    for name in names {
        if from_stdin(name) {
            sources.push(Source::Stdin);
            continue;
        }
        let (source, identity) = open(name)?;
        if seen.insert(identity) {
            sources.push(source);
        } else {
            out.note(&format!(
                "{} was given before and is read once",
                shown(name)
            ));
        }
    }
    if names.is_empty() {
        sources.push(Source::Stdin);
    }
    let progress = out.progress();
    for source in sources {
        match source.large_snapshot() {
            Some(path) => {
                let snapshot = machine::read_snapshot(path)?;
                case.add_snapshot(path.to_string_lossy().as_ref(), snapshot);
            }
            None => case.add_document(source.read(&progress)?),
        }
    }
    Ok(())
}

/// Reads a source that is in memory into the case, as if it were a file of this name.
pub fn add(name: &str, content: &[u8], case: &mut Case) -> Result<(), Failure> {
    if content.len() > MAX_KEPT_BYTES && is_snapshot(content) {
        case.add_snapshot(name, machine::snapshot(name, content)?);
        return Ok(());
    }
    case.add_document(stream(name, Path::new(name), content, |_| {})?);
    Ok(())
}

/// Whether a content begins like a snapshot.
fn is_snapshot(content: &[u8]) -> bool {
    let head = content.get(..SNAPSHOT_HEAD as usize).unwrap_or(content);
    let begins = head.trim_ascii_start().starts_with(b"{");
    begins && head.windows(SNAPSHOT.len()).any(|w| w == SNAPSHOT)
}

/// Whether standard input is where a person types.
pub fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Opens a file, and says which one it is.
fn open(path: &Path) -> Result<(Source, (u64, u64)), Failure> {
    let reading = |error| Failure::reading(path, &error);
    let found = fs::metadata(path).map_err(reading)?;
    let kind = found.file_type();
    if kind.is_dir() {
        return Err(reading(io::ErrorKind::IsADirectory.into())
            .hint("name the files in it, or a snapshot that `crowfly capture` wrote"));
    }
    let readable = kind.is_file() || (kind.is_fifo() && input::is_descriptor(path));
    if !readable {
        let what = match kind {
            k if k.is_fifo() => "a named pipe",
            k if k.is_socket() => "a socket",
            _ => "a device",
        };
        let failure = Failure::new(
            "input-not-a-file",
            Exit::NoInput,
            format!("could not read {}: it is {what}", path.display()),
        );
        // A pipe that nobody writes to would be waited for without a word.
        return Err(match kind.is_fifo() {
            true => failure.hint(format!(
                "if something writes to it: `crowfly explain - < {}`",
                path.display()
            )),
            false => failure,
        });
    }
    let file = input::open(path)?;
    let source = Source::File {
        path: path.to_owned(),
        file,
        size: kind.is_file().then_some(found.len()),
    };
    Ok((source, (found.dev(), found.ino())))
}

impl Source {
    /// The file, where it is a snapshot that is too long to be kept as a part of a paste.
    fn large_snapshot(&self) -> Option<&Path> {
        let Self::File {
            path,
            size: Some(size),
            ..
        } = self
        else {
            return None;
        };
        (*size > MAX_KEPT_BYTES as u64).then_some(())?;
        let mut head = Vec::new();
        let opened = input::open(path).ok()?;
        opened.take(SNAPSHOT_HEAD).read_to_end(&mut head).ok()?;
        is_snapshot(&head).then_some(path)
    }

    fn read(self, progress: &Progress) -> Result<Document, Failure> {
        match self {
            Self::Stdin => stream(STDIN, Path::new(STDIN), io::stdin().lock(), |_| {}),
            Self::File { path, file, size } => {
                let name = path.to_string_lossy();
                let bar = size.is_some_and(|size| size >= WORTH_A_BAR);
                if bar {
                    progress.start(&name, size.unwrap_or_default());
                }
                let tell = |done| {
                    if bar {
                        progress.at(done);
                    }
                };
                stream(&name, &path, file, tell)
            }
        }
    }
}

/// A source that tells how many bytes were read from it.
struct Counted<'a, R> {
    source: R,
    done: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        self.done.set(self.done.get() + read as u64);
        Ok(read)
    }
}

/// Reads a source to its end, unpacked if it is packed with gzip; `tell` hears how many bytes of it
/// were read.
fn stream(
    name: &str,
    path: &Path,
    source: impl Read,
    tell: impl Fn(u64),
) -> Result<Document, Failure> {
    let done = Cell::new(0);
    let counted = Counted {
        source,
        done: &done,
    };
    let mut source = BufReader::with_capacity(PIECE, counted);
    let packed = begins_packed(&mut source).map_err(|error| Failure::reading(path, &error))?;
    let tell = || tell(done.get());
    if !packed {
        let document = take_in(name, &mut source, tell);
        return as_text(document.map_err(|error| Failure::reading(path, &error))?);
    }
    let document = take_in(name, &mut MultiGzDecoder::new(source), tell);
    let unpacked = document.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            let what = format!("could not unpack {name}: {error}");
            Failure::new("input-damaged", Exit::BadData, what)
                .hint("it is packed with gzip, and cut off or damaged: get it again")
        }
        _ => Failure::reading(path, &error),
    })?;
    as_text(unpacked)
}

fn begins_packed(source: &mut impl BufRead) -> io::Result<bool> {
    loop {
        match source.fill_buf() {
            Ok(head) => return Ok(head.starts_with(GZIP)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Takes in all of a text, or as much of something else as shows what it is.
fn take_in(name: &str, source: &mut impl Read, tell: impl Fn()) -> io::Result<Document> {
    let mut intake = Intake::new(name);
    let mut piece = vec![0; PIECE];
    while !intake.is_binary() {
        match source.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                intake.feed(piece.get(..read).unwrap_or_default());
                tell();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(intake.finish())
}

/// Refuses what is no text.
fn as_text(document: Document) -> Result<Document, Failure> {
    let Some(kind) = document.unread.binary else {
        return Ok(document);
    };
    let name = document.source.as_str();
    let unpack = match kind {
        "gzip archive" => Some("zcat"),
        "zip archive" => Some("unzip -p"),
        "tar archive" => Some("tar -xO --wildcards '*log*' -f"),
        "bzip2 archive" => Some("bzcat"),
        "xz archive" => Some("xzcat"),
        "zstd archive" => Some("zstdcat"),
        _ => None,
    };
    let hint = match unpack {
        Some(_) if name == STDIN => "unpack it first".to_owned(),
        Some(command) => format!("`{command} {name} | crowfly explain -` reads what is in it"),
        None => "give the text that a program printed, or a snapshot".to_owned(),
    };
    Err(Failure::new(
        "input-not-text",
        Exit::BadData,
        format!("could not read {name}: it is no text, but looks like: {kind}"),
    )
    .hint(hint))
}
