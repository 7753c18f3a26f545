//! Transfers with several peers that belong together: one source scattered over many, or many
//! gathered into one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::descriptor::RemoteSlice;
use super::peer::{Page, Peer};
use super::provider::Imm;
use super::region::LocalSlice;
use super::settings::Options;
use super::transfer::{Outcome, Transfer};

/// The part of a group that is between this process and one peer.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The peer.
    pub peer: &'a Peer,
    /// The bytes here.
    pub local: LocalSlice,
    /// The bytes there.
    pub remote: RemoteSlice,
    /// Bytes of a page and where the pages lie, when not all bytes of the two slices are meant.
    pub pages: Option<(u64, &'a [Page])>,
    /// What the peer counts when its part of a write is there.
    pub imm: Option<Imm>,
}

/// Transfers with several peers that belong together. It is a future, and can be waited for; each
/// part ends by itself, within the deadline, and one that fails leaves the others alone.
///
/// Dropping it cancels what is left of it.
#[derive(Debug)]
#[must_use = "dropping a group cancels its transfers"]
pub struct Group {
    running: Vec<Transfer>,
    ended: Vec<Option<Outcome>>,
}

impl Group {
    /// Writes each part's local bytes to its peer.
    pub fn write(parts: &[Part<'_>], options: Options) -> Self {
        Self::of(parts, |part| match part.pages {
            None => match part.imm {
                None => part.peer.write(&part.local, &part.remote, options),
                Some(imm) => part.peer.write_imm(&part.local, &part.remote, imm, options),
            },
            Some((len, pages)) => {
                let (local, remote) = (&part.local, &part.remote);
                part.peer
                    .write_paged(local, remote, len, pages, part.imm, options)
            }
        })
    }

    /// Reads each part's bytes from its peer. Reads carry no values.
    pub fn read(parts: &[Part<'_>], options: Options) -> Self {
        Self::of(parts, |part| match part.pages {
            None => part.peer.read(&part.local, &part.remote, options),
            Some((len, pages)) => {
                let (local, remote) = (&part.local, &part.remote);
                part.peer.read_paged(local, remote, len, pages, options)
            }
        })
    }

    /// Has each of the peers count a value.
    pub fn notify(peers: &[Peer], imm: Imm, options: Options) -> Self {
        Self::of(peers, |peer| peer.notify(imm, options))
    }

    fn of<T>(parts: &[T], start: impl Fn(&T) -> Transfer) -> Self {
        Self {
            running: parts.iter().map(start).collect(),
            ended: parts.iter().map(|_| None).collect(),
        }
    }

    /// Waits for the ends of all parts, which come in the order of the parts.
    pub fn wait(self) -> Vec<Outcome> {
        self.running.into_iter().map(Transfer::wait).collect()
    }

    /// Ends early what is left of it.
    pub fn cancel(&self) {
        self.running.iter().for_each(Transfer::cancel);
    }
}

impl Future for Group {
    type Output = Vec<Outcome>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let this = self.get_mut();
        for (transfer, ended) in this.running.iter_mut().zip(&mut this.ended) {
            if ended.is_none()
                && let Poll::Ready(outcome) = Pin::new(transfer).poll(context)
            {
                *ended = Some(outcome);
            }
        }
        if this.ended.iter().all(Option::is_some) {
            return Poll::Ready(this.ended.iter_mut().filter_map(Option::take).collect());
        }
        Poll::Pending
    }
}
