//! Which answer of the operating system ends with which exit status.
//!
//! The statuses are those of `sysexits(3)`: what the user named and cannot be had is the user's to
//! change (66, 73), what is short on this machine is the machine's (69), and what fails under way is
//! an input or output error (74).

use std::io;

use rustix::io::Errno;

use super::Exit;

/// What was being done. One answer means different things at different times: a file system without
/// write permission is no place for an output, and no obstacle to reading.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Finding and opening what the user named.
    Reading,
    /// Making what the user wants to have.
    Creating,
    /// Neither alone.
    Either,
}

/// Every answer that is not an input or output error.
const TABLE: &[(Errno, &str, Doing, Exit)] = {
    use Doing::{Creating, Either, Reading};
    use Exit::{CannotCreate, NoInput, Unavailable};
    &[
        (Errno::NOENT, "ENOENT", Reading, NoInput),
        (Errno::ACCESS, "EACCES", Reading, NoInput),
        (Errno::PERM, "EPERM", Reading, NoInput),
        (Errno::ISDIR, "EISDIR", Reading, NoInput),
        (Errno::NOTDIR, "ENOTDIR", Reading, NoInput),
        (Errno::LOOP, "ELOOP", Reading, NoInput),
        (Errno::NAMETOOLONG, "ENAMETOOLONG", Reading, NoInput),
        (Errno::NXIO, "ENXIO", Reading, NoInput),
        (Errno::NODEV, "ENODEV", Reading, NoInput),
        (Errno::AGAIN, "EAGAIN", Reading, NoInput),
        (Errno::MFILE, "EMFILE", Either, Unavailable),
        (Errno::NFILE, "ENFILE", Either, Unavailable),
        (Errno::NOMEM, "ENOMEM", Either, Unavailable),
        (Errno::NOENT, "ENOENT", Creating, CannotCreate),
        (Errno::ACCESS, "EACCES", Creating, CannotCreate),
        (Errno::PERM, "EPERM", Creating, CannotCreate),
        (Errno::ROFS, "EROFS", Creating, CannotCreate),
        (Errno::EXIST, "EEXIST", Creating, CannotCreate),
        (Errno::NOTEMPTY, "ENOTEMPTY", Creating, CannotCreate),
        (Errno::ISDIR, "EISDIR", Creating, CannotCreate),
        (Errno::NOTDIR, "ENOTDIR", Creating, CannotCreate),
        (Errno::LOOP, "ELOOP", Creating, CannotCreate),
        (Errno::NAMETOOLONG, "ENAMETOOLONG", Creating, CannotCreate),
        (Errno::XDEV, "EXDEV", Creating, CannotCreate),
        (Errno::TXTBSY, "ETXTBSY", Creating, CannotCreate),
        (Errno::NOSPC, "ENOSPC", Creating, CannotCreate),
        (Errno::DQUOT, "EDQUOT", Creating, CannotCreate),
        (Errno::FBIG, "EFBIG", Creating, CannotCreate),
    ]
};

/// The status when something that the user named could not be opened or read.
pub fn reading(error: &io::Error) -> Exit {
    of(error, Doing::Reading)
}

/// The status when a file that the user wants could not be made.
pub fn creating(error: &io::Error) -> Exit {
    of(error, Doing::Creating)
}

/// The status when bytes could not be moved between what was already open.
pub fn moving(error: &io::Error) -> Exit {
    of(error, Doing::Either)
}

fn of(error: &io::Error, doing: Doing) -> Exit {
    let found = TABLE.iter().find(|(errno, _, when, _)| {
        let same = match error.raw_os_error() {
            Some(number) => number == errno.raw_os_error(),
            None => error.kind() == io::Error::from(*errno).kind(),
        };
        same && [doing, Doing::Either].contains(when)
    });
    found.map_or(Exit::Io, |(_, _, _, exit)| *exit)
}

/// What helps whatever was being done: the limits that a shell sets for what it starts.
pub fn hint(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            Some("this process may open too few files at once: raise the limit with `ulimit -n`")
        }
        Errno::NFILE => Some("the whole system has too many files open: see fs.file-max"),
        Errno::FBIG => Some("`ulimit -f` limits how large a file this process may write"),
        Errno::NOMEM => Some(
            "this process is given no more memory: see `ulimit -v` and the limit of its control group",
        ),
        _ => None,
    }
}

/// What helps where no thread could be started, which the system says as it says that there is nothing yet.
pub fn no_thread(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::AGAIN => Some(
            "no more threads are to be had: see `ulimit -u`, `ulimit -v` and pids.max of the control group",
        ),
        _ => hint(error),
    }
}

/// The names of the answers that end with a status.
pub fn names(exit: Exit) -> Vec<&'static str> {
    let rows = TABLE.iter().filter(|(_, _, _, status)| *status == exit);
    rows.map(|(_, name, _, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_answer_is_a_missing_input_or_an_impossible_output_by_what_was_done() {
        let denied = io::Error::from(Errno::ACCESS);
        assert_eq!(reading(&denied), Exit::NoInput);
        assert_eq!(creating(&denied), Exit::CannotCreate);
        assert_eq!(moving(&denied), Exit::Io);
    }

    #[test]
    fn statuses_follow_sysexits() {
        let reads = |errno: Errno| reading(&errno.into()).status();
        let makes = |errno: Errno| creating(&errno.into()).status();
        assert_eq!(
            [Errno::LOOP, Errno::NAMETOOLONG, Errno::NXIO].map(reads),
            [66; 3]
        );
        assert_eq!(
            [Errno::IO, Errno::STALE, Errno::TIMEDOUT].map(reads),
            [74; 3]
        );
        assert_eq!([Errno::MFILE, Errno::NOMEM].map(reads), [69; 2]);
        assert_eq!([Errno::ROFS, Errno::LOOP, Errno::NOSPC].map(makes), [73; 3]);
        assert_eq!([Errno::IO, Errno::STALE].map(makes), [74; 2]);
        assert_eq!(moving(&Errno::NOSPC.into()).status(), 74);
    }

    #[test]
    fn given_a_limit_of_the_shell_the_hint_names_the_command_that_raises_it() {
        let hinted = |errno: Errno| hint(&errno.into()).unwrap_or_default();
        assert!(hinted(Errno::MFILE).contains("`ulimit -n`"));
        assert!(hinted(Errno::FBIG).contains("`ulimit -f`"));
        assert!(hinted(Errno::NFILE).contains("fs.file-max"));
        assert!(hinted(Errno::NOMEM).contains("`ulimit -v`"));
        let threads = no_thread(&Errno::AGAIN.into()).unwrap_or_default();
        assert!(threads.contains("`ulimit -u`"));
        assert_eq!(no_thread(&Errno::MFILE.into()), hint(&Errno::MFILE.into()));
        assert_eq!(hint(&Errno::IO.into()), None);
        assert_eq!(hint(&io::Error::other("torn")), None);
    }

    #[test]
    fn given_an_error_without_a_number_its_kind_decides() {
        assert_eq!(reading(&io::ErrorKind::IsADirectory.into()), Exit::NoInput);
        assert_eq!(reading(&io::Error::other("torn")), Exit::Io);
    }
}
