//! Room for the descriptors that a group takes. A fabric that runs out of them leaves connections
//! unanswered and goes without ways that need one, so this is seen to before anything is begun.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crowfly_route::receipt::Path;
use rustix::event::{EventfdFlags, eventfd};

use super::error::CollectiveError;
use crate::fabric::Fabric;

/// What being joined to another rank takes at most, by sockets alone.
const BY_SOCKETS: usize = 4;
/// What it takes more where both can share memory: a socket to pass descriptors by, what wakes either end,
/// and what both have mapped.
const BY_MEMORY: usize = 4;
/// What it takes more for each TCP interface after the first.
const BY_INTERFACE: usize = 2;
/// What a group takes however small it is: its own memory, the file that a rank is found by, and
/// connections that turn out to be nobody's.
const ALWAYS: usize = 8;

/// How many descriptors joining so many ranks takes at most.
fn of_joining(ranks: usize, ways: &[Path]) -> usize {
    let interfaces = ways.iter().filter(|way| **way == Path::Tcp).count();
    let memory = if ways.contains(&Path::Shm) {
        BY_MEMORY
    } else {
        0
    };
    let each = BY_SOCKETS + memory + BY_INTERFACE * interfaces.saturating_sub(1);
    ALWAYS + each * ranks.saturating_sub(1)
}

/// Sees to it that this process may open what joining so many ranks takes.
///
/// # Errors
/// [`CollectiveError::Descriptors`].
pub(super) fn for_joining(fabric: &Fabric, ranks: usize) -> Result<(), CollectiveError> {
    let ways: Vec<Path> = fabric.nics().into_iter().map(|(way, _)| way).collect();
    room_for(of_joining(ranks, &ways), ranks)
}

/// Sees to it that this process may open what mapping a memory of each rank takes.
///
/// # Errors
/// [`CollectiveError::Descriptors`].
pub(super) fn for_mapping(ranks: usize) -> Result<(), CollectiveError> {
    room_for(ranks, ranks)
}

/// Opens so many and closes them again: only then is it known that neither the process nor the whole system
/// has too many.
fn room_for(needed: usize, ranks: usize) -> Result<(), CollectiveError> {
    let mut held: Vec<OwnedFd> = Vec::new();
    while held.len() < needed {
        let one = eventfd(0, EventfdFlags::CLOEXEC);
        let one = one.map_err(|error| CollectiveError::Descriptors {
            ranks,
            needed,
            room: held.len(),
            source: Arc::new(error.into()),
        })?;
        held.push(one);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_rank_takes_more_where_memory_is_shared_or_interfaces_are_several() {
        assert_eq!(of_joining(1, &[Path::Tcp]), 8);
        assert_eq!(of_joining(2, &[Path::Tcp]), 12);
        assert_eq!(of_joining(2, &[Path::Shm, Path::Cma, Path::Tcp]), 16);
        assert_eq!(of_joining(5, &[Path::Shm, Path::Tcp]), 40);
        assert_eq!(of_joining(3, &[Path::Tcp, Path::Tcp]), 20);
    }

    #[test]
    fn more_descriptors_than_any_process_may_open_are_refused_with_what_there_is_room_for() {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let Some(most) = limit.current.filter(|most| *most < 1 << 16) else {
            crowfly_waive::waived!("this process may open more than the test can ask for");
        };
        let needed = most as usize + 1;
        let refused = room_for(needed, 300).expect_err("refused");
        assert_eq!(refused.code(), "too-few-descriptors");
        let CollectiveError::Descriptors {
            ranks,
            room,
            source,
            ..
        } = refused
        else {
            unreachable!("its code says what it is");
        };
        assert_eq!(ranks, 300);
        assert!(room < needed);
        assert_eq!(
            source.raw_os_error(),
            Some(rustix::io::Errno::MFILE.raw_os_error())
        );
    }
}
