//! Files that the user names to be read whole: opened without ever waiting, and never without end.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::failure::{Exit, Failure};
use crate::path::shown;

/// Where a shell's `<(command)` and `< file` are found: what somebody has opened already.
const DESCRIPTORS: [&str; 3] = ["/dev/fd/", "/proc/self/fd/", "/dev/stdin"];

/// Reads a file to its end, refusing to read more than `limit` bytes.
pub fn read_bounded(path: &Path, limit: usize) -> Result<Vec<u8>, Failure> {
    let reading = |error: io::Error| Failure::reading(path, &error);
    let mut bytes = Vec::new();
    // One byte more than allowed lets the decoder see, and say, that there is too much.
    let mut file = open(path)?.take(limit as u64 + 1);
    file.read_to_end(&mut bytes).map_err(reading)?;
    Ok(bytes)
}

/// Opens a regular file, or a pipe that came with the process. Any other pipe would be waited for
/// without a word, and opening a device can have effects.
///
/// Nothing that is read from it can be waited for either: what has nothing to say yet, as the log of
/// the kernel in /proc, answers with an error.
pub fn open(path: &Path) -> Result<File, Failure> {
    let reading = |error: io::Error| Failure::reading(path, &error);
    let kind = fs::metadata(path).map_err(reading)?.file_type();
    if kind.is_dir() {
        return Err(reading(io::ErrorKind::IsADirectory.into()));
    }
    if kind.is_fifo() && is_descriptor(path) {
        return File::open(path).map_err(reading);
    }
    refuse(path, kind)?;
    // Should the path be exchanged in between, this keeps the call from waiting and the second look
    // finds it out.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let flags = flags.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(reading)?;
    refuse(path, file.metadata().map_err(reading)?.file_type())?;
    Ok(file)
}

/// Whether a path is a descriptor of this process under another name.
pub fn is_descriptor(path: &Path) -> bool {
    let text = path.to_str();
    text.is_some_and(|path| DESCRIPTORS.iter().any(|start| path.starts_with(start)))
}

/// Refuses what is no regular file.
pub fn refuse(path: &Path, kind: FileType) -> Result<(), Failure> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() => "a character device",
        kind if kind.is_block_device() => "a block device",
        _ => "no file",
    };
    let sentence = format!("could not read {}: it is {what}", shown(path));
    let failure = Failure::new("input-not-a-file", Exit::NoInput, sentence);
    Err(match kind.is_fifo() {
        true => failure.hint("if something writes to it, let the shell open it: `<(cat PIPE)`"),
        false => failure,
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn given_what_is_no_file_it_is_refused_at_once_and_said_what_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let (fifo, socket) = (folder.path().join("fifo"), folder.path().join("socket"));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).expect("made");
        let _listener = UnixListener::bind(&socket).expect("made");
        let refusal = |path: &Path| {
            let failure = read_bounded(path, 10).expect_err("refused");
            assert_eq!(failure.exit(), Exit::NoInput);
            (failure.code(), failure.message().to_owned())
        };
        let said = |path: &Path, what: &str| {
            let sentence = format!("could not read {}: it is {what}", path.display());
            ("input-not-a-file", sentence)
        };
        assert_eq!(refusal(&fifo), said(&fifo, "a named pipe"));
        assert_eq!(refusal(&socket), said(&socket, "a socket"));
        let null = Path::new("/dev/null");
        assert_eq!(refusal(null), said(null, "a character device"));
        assert_eq!(refusal(folder.path()).0, "input-is-directory");
        assert_eq!(refusal(&folder.path().join("absent")).0, "input-not-found");
    }

    #[test]
    fn given_a_pipe_that_came_with_the_process_it_is_read_to_its_end_or_to_the_limit() {
        use std::io::Write;
        for (limit, read) in [(10, &b"snapshot"[..]), (4, b"snaps")] {
            let (reader, mut writer) = io::pipe().expect("a pipe");
            writer.write_all(b"snapshot").expect("written");
            drop(writer);
            let path = format!("/dev/fd/{}", reader.as_raw_fd());
            let bytes = read_bounded(Path::new(&path), limit).expect("read");
            assert_eq!(bytes, read);
        }
    }
}
