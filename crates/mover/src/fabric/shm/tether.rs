//! How a process hears that another one holds nothing of its memory any more, whatever way that came about.
//!
//! Who maps others' memory keeps one end of a pipe with every mapping, and hands the other end over before
//! it asks for any. The kernel closes what the process forgot to: the pipe is cut when the last mapping is
//! gone, at the link's orderly end, at the process's death, and after a fork only when the child has let
//! go as well.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// Kept by whatever holds a peer's memory.
pub(super) type Hold = Arc<OwnedFd>;

/// The end for whoever holds a peer's memory, and the one for the peer.
pub(super) fn tether() -> io::Result<(Hold, OwnedFd)> {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Arc::new(ours), theirs))
}

/// Whether nobody holds the other end any more.
pub(super) fn is_cut(end: &OwnedFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut ends = [PollFd::new(end, PollFlags::IN)];
    let looked = poll(&mut ends, Some(&now));
    looked.is_ok()
        && ends
            .iter()
            .any(|end| end.revents().contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_cut_when_the_last_of_those_that_hold_on_lets_go() {
        let (link, theirs) = tether().expect("a pipe");
        let mapping = Arc::clone(&link);
        assert!(!is_cut(&theirs));
        drop(link);
        assert!(!is_cut(&theirs), "a mapping is left");
        drop(mapping);
        assert!(is_cut(&theirs));
    }

    #[test]
    fn it_is_not_cut_while_a_process_that_was_forked_off_has_it() {
        let (link, theirs) = tether().expect("a pipe");
        // A child that runs another program has it only where it is handed over.
        let handed = rustix::io::dup(&*link).expect("a descriptor");
        let mut command = std::process::Command::new("cat");
        let mut child = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::from(handed))
            .spawn()
            .expect("started");
        drop((command, link));
        assert!(!is_cut(&theirs), "the child holds on");
        child.kill().expect("killed");
        // Before anybody asks how it ended.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !is_cut(&theirs) && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(is_cut(&theirs));
        child.wait().expect("it ended");
    }
}
