//! Evidence that the user gives: files and streams, read piece by piece into a case.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crowfly_doctor::Case;
use crowfly_doctor::evidence::{Document, Intake};

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::shown;
use crate::render::progress::Progress;

/// Bytes read at a time.
const PIECE: usize = 256 << 10;
/// Sources smaller than this are read before a progress bar could be looked at.
const WORTH_A_BAR: u64 = 64 << 20;
/// What standard input is called, on the command line and in what is quoted from it.
const DASH: &str = "-";
const STDIN: &str = "stdin";
/// Where a shell's `<(command)` is found: pipes that have a writer already.
const DESCRIPTORS: [&str; 3] = ["/dev/fd/", "/proc/self/fd/", "/dev/stdin"];

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
        case.add_document(source.read(&progress)?);
    }
    Ok(())
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
    let descriptor = path
        .to_str()
        .is_some_and(|path| DESCRIPTORS.iter().any(|start| path.starts_with(start)));
    if kind.is_dir() {
        return Err(reading(io::ErrorKind::IsADirectory.into())
            .hint("name the files in it, or a snapshot that `crowfly capture` wrote"));
    }
    let readable = kind.is_file() || (descriptor && kind.is_fifo());
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
    let file = File::open(path).map_err(reading)?;
    let source = Source::File {
        path: path.to_owned(),
        file,
        size: kind.is_file().then_some(found.len()),
    };
    Ok((source, (found.dev(), found.ino())))
}

impl Source {
    fn read(self, progress: &Progress) -> Result<Document, Failure> {
        match self {
            Self::Stdin => {
                let stdin = io::stdin();
                stream(STDIN, &mut stdin.lock(), |_| {})
                    .map_err(|error| Failure::reading(Path::new(STDIN), &error))
                    .and_then(as_text)
            }
            Self::File {
                path,
                mut file,
                size,
            } => {
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
                stream(&name, &mut file, tell)
                    .map_err(|error| Failure::reading(&path, &error))
                    .and_then(as_text)
            }
        }
    }
}

/// Reads a source to its end, a piece at a time; `tell` hears how many bytes were read.
fn stream(name: &str, source: &mut impl Read, tell: impl Fn(u64)) -> io::Result<Document> {
    let mut intake = Intake::new(name);
    let mut piece = vec![0; PIECE];
    let mut done = 0;
    loop {
        match source.read(&mut piece) {
            Ok(0) => return Ok(intake.finish()),
            Ok(read) => {
                intake.feed(piece.get(..read).unwrap_or_default());
                done += read as u64;
                tell(done);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Refuses what is no text.
fn as_text(document: Document) -> Result<Document, Failure> {
    let Some(kind) = document.unread.binary else {
        return Ok(document);
    };
    let name = document.source.as_str();
    let unpack = match kind {
        "gzip archive" => Some("zcat"),
        "bzip2 archive" => Some("bzcat"),
        "xz archive" => Some("xzcat"),
        "zstd archive" => Some("zstdcat"),
        "UTF-16 text" => Some("iconv -f UTF-16 -t UTF-8"),
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
