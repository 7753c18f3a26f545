//! From an op to the requests that carry it out: one for each run of the peer's memory.

use std::ops::Range;

use crowfly_machine::verbs::Remote;

use super::super::super::provider::Op;

/// One request: local pieces, one after the other, to or from one run of the peer's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub remote: Remote,
    pub pieces: Vec<Range<usize>>,
}

/// The requests of an op, at least one. Segments that follow each other in the peer's memory share
/// a request, up to `pieces` of them.
pub(super) fn of(op: &Op, remote: Remote, pieces: usize) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    let mut end = None;
    for segment in &op.segments {
        let (start, len) = (segment.local as usize, segment.len as usize);
        let piece = start..start + len;
        match requests.last_mut() {
            Some(request) if end == Some(segment.remote) && request.pieces.len() < pieces => {
                match request.pieces.last_mut() {
                    // Together at both ends.
                    Some(last) if last.end == piece.start => last.end = piece.end,
                    _ => request.pieces.push(piece),
                }
            }
            _ => requests.push(Request {
                remote: Remote {
                    address: remote.address.wrapping_add(segment.remote),
                    ..remote
                },
                pieces: vec![piece],
            }),
        }
        end = Some(segment.remote + u64::from(segment.len));
    }
    if requests.is_empty() {
        requests.push(Request {
            remote,
            pieces: Vec::new(),
        });
    }
    requests
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]
mod tests {
    use super::super::super::super::provider::{OpId, Segment, Verb};
    use super::*;

    fn op(segments: &[(u64, u64, u32)]) -> Op {
        let segments = segments.iter().map(|(local, remote, len)| Segment {
            local: *local,
            remote: *remote,
            len: *len,
        });
        Op {
            id: OpId(1),
            verb: Verb::Write,
            local: None,
            remote: None,
            segments: segments.collect(),
            imm: None,
            straight: false,
        }
    }

    const REMOTE: Remote = Remote {
        address: 1000,
        key: 9,
    };

    fn to(address: u64, pieces: &[Range<usize>]) -> Request {
        Request {
            remote: Remote { address, key: 9 },
            pieces: pieces.to_vec(),
        }
    }

    #[test]
    fn segments_that_lie_together_at_the_peer_are_gathered_into_one_request() {
        let paged = op(&[(0, 0, 10), (50, 10, 10), (60, 20, 5), (7, 100, 3)]);
        let expected = [to(1000, &[0..10, 50..65]), to(1100, &[7..10])];
        assert_eq!(of(&paged, REMOTE, 16), expected);
        let expected = [
            to(1000, &[0..10]),
            to(1010, &[50..60]),
            to(1020, &[60..65]),
            to(1100, &[7..10]),
        ];
        assert_eq!(of(&paged, REMOTE, 1), expected);
    }

    #[test]
    fn an_op_without_bytes_is_one_empty_request() {
        assert_eq!(of(&op(&[]), REMOTE, 16), [to(1000, &[])]);
    }
}
