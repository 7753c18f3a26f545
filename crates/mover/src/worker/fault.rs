//! What an error number means for the transfer: why it failed, or what stands in the way.

use std::fs::File;
use std::io;
use std::ops::Range;

use crowfly_route::obstacle::{Code, Fix, Obstacle};

use crate::error::TransferError;
use crate::io::Direction;
use crate::job::Lane;

/// Why a request for `span`, of which the bytes from `offset` on are missing, failed.
pub(super) fn failed(
    lane: &Lane,
    direction: Direction,
    offset: u64,
    span: &Range<u64>,
    error: i32,
) -> TransferError {
    let source = io::Error::from_raw_os_error(error);
    let path = lane.name.clone();
    let bytes = span.end - span.start;
    match (direction, error) {
        (_, libc::EFAULT) if !lane.landing.is_plain() => TransferError::MemoryGone { path, offset },
        (Direction::Write, libc::EFAULT) => TransferError::MemoryGone { path, offset },
        (Direction::Write, libc::ENOSPC | libc::EDQUOT) => TransferError::NoSpace {
            path,
            bytes,
            source,
        },
        (Direction::Write, _) => TransferError::Write {
            path,
            offset,
            source,
        },
        (Direction::Read, libc::EFAULT) => faulted(lane, offset, span),
        (Direction::Read, _) => TransferError::Read {
            path,
            offset,
            bytes,
            source,
        },
    }
}

/// Why the pages of a mapped file could not be had: it was cut, or its drive does not answer.
fn faulted(lane: &Lane, offset: u64, span: &Range<u64>) -> TransferError {
    let path = lane.name.clone();
    match size(&lane.buffered) {
        Some(size) if size < span.end => TransferError::Shrank {
            path,
            offset: size.max(span.start),
        },
        _ => TransferError::Read {
            path,
            offset,
            bytes: span.end - span.start,
            source: io::Error::from_raw_os_error(libc::EIO),
        },
    }
}

/// A regular file's size now.
fn size(file: &File) -> Option<u64> {
    let facts = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(facts.len())
}

/// The obstacle behind a refused direct request.
pub(super) fn refusal(lane: &Lane, direction: Direction, error: i32) -> Obstacle {
    let call = match direction {
        Direction::Read => "read(O_DIRECT)",
        Direction::Write => "write(O_DIRECT)",
    };
    let answer = io::Error::from_raw_os_error(error).to_string();
    if lane.landing.is_plain() {
        return Obstacle::blocks(
            Code::NoDirectIo,
            format!("{} refused a direct request", lane.name),
        )
        .seen(call, answer)
        .fixed_by(Fix::by_hand(
            "Keep the file on a file system that supports O_DIRECT.",
        ));
    }
    Obstacle::blocks(
        Code::PeerDmaRefused,
        format!(
            "the kernel refused DMA between the drive of {} and the peer memory",
            lane.name
        ),
    )
    .seen(call, answer)
    .fixed_by(Fix::run(
        "See which bridge, IOMMU or host bridge stands between the two devices.",
        "crowfly route FILE peer:ADDRESS",
    ))
}
