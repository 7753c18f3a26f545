//! One receipt of a file that was moved in several transfers.

use crowfly_route::receipt::{CpuSeconds, Receipt, Share};
use crowfly_route::units::Bytes;

/// One receipt from those of the transfers that a file was written or read in.
///
/// `staged` bytes were copied by the CPU through staging on top of what the transfers did, which
/// took the CPU time `own`.
pub(crate) fn joined(
    receipts: Vec<Receipt>,
    wall_seconds: f64,
    own: CpuSeconds,
    staged: Bytes,
) -> Option<Receipt> {
    let mut all = receipts.into_iter();
    let mut joined = all.next()?;
    for receipt in all {
        joined.requested += receipt.requested;
        joined.bounced += receipt.bounced;
        joined.overread += receipt.overread;
        joined.retries += receipt.retries;
        joined.cpu += receipt.cpu;
        for share in receipt.shares {
            let same = |known: &&mut Share| {
                (known.path, known.class, &known.because)
                    == (share.path, share.class, &share.because)
            };
            match joined.shares.iter_mut().find(same) {
                Some(known) => known.bytes += share.bytes,
                None => joined.shares.push(share),
            }
        }
        for obstacle in receipt.obstacles {
            if !joined.obstacles.iter().any(|o| o.code == obstacle.code) {
                joined.obstacles.push(obstacle);
            }
        }
    }
    joined
        .shares
        .sort_by_key(|share| std::cmp::Reverse(share.bytes));
    joined.wall_seconds = wall_seconds;
    joined.cpu += own;
    joined.bounced += staged;
    Some(joined)
}
