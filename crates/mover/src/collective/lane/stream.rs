//! A lane by a TCP connection of its own, which the calling thread reads and writes itself: numbers go
//! from the buffer of one rank to that of another with the kernel's two copies and no other, and no
//! thread is woken for it.
//!
//! A chunk is a sealed head and its bytes. What did not fit the socket goes on at the next try, which
//! must be for the same chunk.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use super::Broken;
use crate::collective::arena::{HEAD, Head};
use crate::fabric::{STREAM_HEADER, Stream};

/// A head on the wire.
const SEALED: usize = STREAM_HEADER + HEAD;
/// What one call asks the kernel for beyond a head: a small chunk comes with its head at once.
const AHEAD: usize = 4096;

pub(crate) struct StreamLane {
    stream: Stream,
    /// The head of the chunk under way, and how much of head and bytes has been sent.
    sealed: Vec<u8>,
    sent: usize,
    /// Bytes that came and were not taken: `ahead[start..end]`.
    ahead: Box<[u8; SEALED + AHEAD]>,
    start: usize,
    end: usize,
    /// The chunk that is arriving, and how much of it was taken.
    head: Option<Head>,
    taken: u64,
    pub sent_bytes: u64,
}

fn broken(error: &io::Error) -> Broken {
    Broken(match error.kind() {
        io::ErrorKind::UnexpectedEof => "its connection ended".to_owned(),
        _ => error.to_string(),
    })
}

impl StreamLane {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            sealed: Vec::new(),
            sent: 0,
            ahead: Box::new([0; SEALED + AHEAD]),
            start: 0,
            end: 0,
            head: None,
            taken: 0,
            sent_bytes: 0,
        }
    }

    pub(super) fn try_send(&mut self, head: &[u8; HEAD], bytes: &[u8]) -> Result<bool, Broken> {
        if self.sealed.is_empty() {
            self.sealed = self.stream.seal(head);
            self.sent = 0;
        }
        let all = self.sealed.len() + bytes.len();
        while self.sent < all {
            let front = self.sealed.get(self.sent..).unwrap_or_default();
            let back = self.sent.saturating_sub(self.sealed.len());
            let parts = [front, bytes.get(back..).unwrap_or_default()];
            let sent = self.stream.send(&parts.map(IoSlice::new));
            match sent.map_err(|error| broken(&error))? {
                0 => return Ok(false),
                sent => self.sent += sent,
            }
        }
        self.sealed.clear();
        self.sent_bytes += bytes.len() as u64;
        Ok(true)
    }

    /// The head of the chunk that arrives; a chunk has arrived as far as it can be taken.
    pub(super) fn arrived(&mut self) -> Result<Option<Option<Head>>, Broken> {
        if self.head.is_some() {
            return Ok(Some(self.head));
        }
        if self.end - self.start < SEALED {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let room = self.ahead.get_mut(self.end..).unwrap_or_default();
            self.end += self.stream.receive(room).map_err(|e| broken(&e))?;
        }
        let here = self.ahead.get(self.start..self.end).unwrap_or_default();
        let Some((header, rest)) = here.split_first_chunk::<STREAM_HEADER>() else {
            return Ok(None);
        };
        let Some(body) = rest.first_chunk::<HEAD>() else {
            return Ok(None);
        };
        if !self.stream.opens(header, body) {
            return Ok(Some(None));
        }
        self.start += SEALED;
        self.head = Head::decode(body);
        self.taken = 0;
        Ok(Some(self.head))
    }

    /// Fills the front of `out` with the chunk's next bytes; how many there were.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<usize, Broken> {
        let left = self.head.map_or(0, |head| head.len - self.taken);
        let wanted = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let Some(out) = out.get_mut(..wanted).filter(|out| !out.is_empty()) else {
            return Ok(0);
        };
        let here = self.ahead.get(self.start..self.end).unwrap_or_default();
        let got = if here.is_empty() {
            self.stream.receive(out).map_err(|e| broken(&e))?
        } else {
            let len = here.len().min(out.len());
            for (to, from) in out.iter_mut().zip(here) {
                *to = *from;
            }
            self.start += len;
            len
        };
        self.taken += got as u64;
        Ok(got)
    }

    pub(super) fn release(&mut self) {
        self.head = None;
    }

    /// Whether a chunk waits for room.
    pub(super) fn is_behind(&self) -> bool {
        !self.sealed.is_empty()
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crowfly_route::collective::Collective;

    use super::*;
    use crate::collective::Element;
    use crate::collective::call::Call;
    use crate::fabric::{Fabric, Settings, SharedKey};

    /// For what must come on a busy machine.
    const SOON: Duration = Duration::from_secs(30);

    /// The two ends of a stream, with what they are of.
    fn pair() -> ([Fabric; 2], StreamLane, StreamLane) {
        let fabric = || {
            let key = SharedKey::derive("a test of streams");
            Fabric::new(Settings::new(key)).expect("a fabric")
        };
        let (here, there) = (fabric(), fabric());
        let awaited = here.await_stream().expect("room for one");
        let address = here.address().to_string();
        let until = Instant::now() + SOON;
        let opened = there.open_stream(&address, awaited.token(), until);
        let opened = StreamLane::new(opened.expect("opened"));
        let accepted = wait(|| awaited.take());
        ([here, there], StreamLane::new(accepted), opened)
    }

    /// Tries until there is something.
    fn wait<T>(mut try_it: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + SOON;
        loop {
            if let Some(found) = try_it() {
                return found;
            }
            assert!(Instant::now() < until, "it does not come");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn head(number: u64, len: usize) -> Head {
        Head {
            number,
            call: Call::new(Collective::AllReduce, Element::U8, len),
            len: len as u64,
        }
    }

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 13 + seed) % 251) as u8).collect()
    }

    /// Takes a whole chunk, `step` bytes at most at a time.
    fn take(lane: &mut StreamLane, len: usize, step: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let mut done = 0;
        while done < len {
            let end = len.min(done + step);
            done += wait(|| {
                let got = lane.fill(&mut out[done..end]).expect("it goes on");
                (got > 0).then_some(got)
            });
        }
        out
    }

    #[test]
    fn chunks_arrive_one_after_the_other_with_their_heads_and_whole() {
        let (_fabrics, mut here, mut there) = pair();
        let lens = [0, 1, 100, AHEAD, AHEAD + 1, 50_000];
        for (number, len) in lens.into_iter().enumerate() {
            let chunk = bytes(len, number);
            let head = head(number as u64, len);
            assert!(
                there.try_send(&head.encode(), &chunk).expect("sent"),
                "{len} fit"
            );
            assert!(!there.is_behind());
        }
        assert_eq!(there.sent_bytes, lens.iter().sum::<usize>() as u64);
        for (number, len) in lens.into_iter().enumerate() {
            let found = wait(|| here.arrived().expect("it goes on"));
            assert_eq!(found, Some(head(number as u64, len)));
            let again = here.arrived().expect("it goes on");
            assert_eq!(again, Some(found), "until it is released");
            assert_eq!(take(&mut here, len, 7_000), bytes(len, number));
            assert_eq!(
                here.fill(&mut [0; 9]).expect("it goes on"),
                0,
                "not of the next"
            );
            here.release();
        }
        assert_eq!(here.arrived().expect("it goes on"), None);
    }

    #[test]
    fn a_chunk_that_does_not_fit_the_socket_goes_on_where_it_stopped() {
        let (_fabrics, mut here, mut there) = pair();
        let len = 64 << 20;
        let (chunk, head) = (bytes(len, 3), head(9, len));
        assert!(!there.try_send(&head.encode(), &chunk).expect("begun"));
        assert!(there.is_behind());
        assert_eq!(there.sent_bytes, 0, "not all of it");
        let sender = std::thread::spawn(move || {
            wait(|| {
                there
                    .try_send(&head.encode(), &chunk)
                    .expect("it goes on")
                    .then_some(())
            });
            (there.is_behind(), there.sent_bytes)
        });
        let found = wait(|| here.arrived().expect("it goes on"));
        assert_eq!(found, Some(head));
        assert!(take(&mut here, len, 1 << 20) == bytes(len, 3), "every byte");
        assert_eq!(sender.join().expect("no panic"), (false, len as u64));
    }

    #[test]
    fn what_is_no_sealed_head_is_none_of_ours() {
        let (_fabrics, mut here, there) = pair();
        let junk = [7; SEALED];
        let sent = there.stream.send(&[IoSlice::new(&junk)]).expect("sent");
        assert_eq!(sent, SEALED);
        assert_eq!(wait(|| here.arrived().expect("it goes on")), None);
    }

    #[test]
    fn a_stream_whose_other_end_is_gone_says_so() {
        let (_fabrics, mut here, there) = pair();
        assert_eq!(here.arrived().expect("it is there"), None);
        drop(there);
        let broken = wait(|| here.arrived().err());
        assert_eq!(broken.0, "its connection ended");
    }
}
