//! What went wrong, as ranks tell each other until all say the same. Verdicts only grow, and
//! growing is the same in whatever order they are heard.

use std::collections::BTreeMap;

use super::call::Call;
use super::error::{Called, CollectiveError, Lost};
use crate::fabric::{Reader, Writer};

/// The longest reason that is passed on, in bytes.
const MAX_WHY: usize = 256;
/// The most lost ranks that are passed on.
const MAX_LOST: usize = super::MAX_RANKS;

/// Ranks that called different things.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mismatch {
    pub number: u64,
    pub one: Called,
    pub other: Called,
}

/// A call that was not done in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Overdue {
    pub number: u64,
    pub by: usize,
    pub millis: u64,
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub lost: BTreeMap<usize, (usize, String)>,
    pub mismatch: Option<Mismatch>,
    pub overdue: Option<Overdue>,
}

/// The lesser of two that may be there.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Verdict {
    /// What both say together.
    pub(crate) fn merge(&mut self, other: Self) {
        for (rank, reason) in other.lost {
            let known = self.lost.entry(rank).or_insert_with(|| reason.clone());
            if reason < *known {
                *known = reason;
            }
        }
        self.mismatch = least(self.mismatch.take(), other.mismatch);
        self.overdue = least(self.overdue, other.overdue);
    }

    pub(crate) fn lose(&mut self, rank: usize, noticed_by: usize, why: &str) {
        let mut end = why.len().min(MAX_WHY);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let mut other = Self::default();
        let why = why.get(..end).unwrap_or_default().to_owned();
        other.lost.insert(rank, (noticed_by, why));
        self.merge(other);
    }
}

/// What a rank says of itself together with its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub verdict: Verdict,
    /// The number of the call that it has come to.
    pub entered: u64,
    /// What it called there.
    pub call: Option<Call>,
}

impl Report {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.entered);
        match &self.call {
            Some(call) => out.u8(1).raw(&call.encode()),
            None => out.u8(0),
        };
        let lost = self.verdict.lost.iter().take(MAX_LOST);
        out.u16(lost.len() as u16);
        for (rank, (by, why)) in lost {
            out.u32(*rank as u32).u32(*by as u32).bytes(why.as_bytes());
        }
        out.u8(u8::from(self.verdict.mismatch.is_some()));
        if let Some(mismatch) = &self.verdict.mismatch {
            out.u64(mismatch.number);
            for called in [&mismatch.one, &mismatch.other] {
                out.u32(called.rank as u32).bytes(called.what.as_bytes());
            }
        }
        match self.verdict.overdue {
            None => out.u8(0),
            Some(late) => out
                .u8(1)
                .u64(late.number)
                .u32(late.by as u32)
                .u64(late.millis),
        };
    }

    /// Reads what a peer sent about a group of `ranks`.
    pub(crate) fn decode(fields: &mut Reader<'_>, ranks: usize) -> Option<Self> {
        let rank = |fields: &mut Reader<'_>| {
            let rank = usize::try_from(fields.u32()?).ok()?;
            (rank < ranks).then_some(rank)
        };
        let entered = fields.u64()?;
        let call = match fields.u8()? {
            0 => None,
            _ => Some(Call::decode(
                &fields.array::<{ super::call::CALL_BYTES }>()?,
            )?),
        };
        let mut verdict = Verdict::default();
        for _ in 0..usize::from(fields.u16()?).min(MAX_LOST) {
            let (lost, by) = (rank(fields)?, rank(fields)?);
            let why = fields.text(MAX_WHY)?.to_owned();
            verdict.lost.insert(lost, (by, why));
        }
        if fields.u8()? != 0 {
            let number = fields.u64()?;
            let mut called = || {
                let rank = rank(fields)?;
                let what = fields.text(MAX_WHY)?.to_owned();
                Some(Called { rank, what })
            };
            let (one, other) = (called()?, called()?);
            verdict.mismatch = Some(Mismatch { number, one, other });
        }
        if fields.u8()? != 0 {
            let (number, by, millis) = (fields.u64()?, rank(fields)?, fields.u64()?);
            verdict.overdue = Some(Overdue { number, by, millis });
        }
        fields.is_done().then_some(Self {
            verdict,
            entered,
            call,
        })
    }
}

/// The error that all make of the same verdict and the same reports, by rank.
pub(crate) fn judge(verdict: &Verdict, reports: &BTreeMap<usize, Report>) -> CollectiveError {
    let error = |mismatch: Mismatch| CollectiveError::Mismatch {
        number: mismatch.number,
        one: mismatch.one,
        other: mismatch.other,
    };
    // Who called something else may have left since: that is not why it failed.
    if let Some(mismatch) = &verdict.mismatch {
        return error(mismatch.clone());
    }
    if !verdict.lost.is_empty() {
        let lost = verdict.lost.iter().map(|(rank, (by, why))| Lost {
            rank: *rank,
            noticed_by: *by,
            why: why.clone(),
        });
        return CollectiveError::RanksLost(lost.collect());
    }
    let Some(overdue) = verdict.overdue else {
        return CollectiveError::Abandoned;
    };
    // Waiting for each other in different calls is what a mismatch often comes to.
    let there = reports
        .iter()
        .filter(|(_, report)| report.entered == overdue.number);
    let mut calls = there.filter_map(|(rank, report)| Some((*rank, report.call?)));
    if let Some((one, call)) = calls.next()
        && let Some((other, differs)) = calls.find(|(_, other)| *other != call)
    {
        return error(Mismatch {
            number: overdue.number,
            one: Called::of(one, &call),
            other: Called::of(other, &differs),
        });
    }
    let absent = reports
        .iter()
        .filter(|(_, report)| report.entered < overdue.number);
    CollectiveError::Late {
        number: overdue.number,
        after: std::time::Duration::from_millis(overdue.millis),
        absent: absent.map(|(rank, _)| *rank).collect(),
    }
}

impl Called {
    pub(crate) fn of(rank: usize, call: &Call) -> Self {
        Self {
            rank,
            what: format!("called {call}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crowfly_route::collective::Collective;
    use proptest::prelude::*;

    use super::*;
    use crate::collective::Element;

    fn verdicts() -> impl Strategy<Value = Verdict> {
        let lost = proptest::collection::btree_map(0..5usize, (0..5usize, "[a-c]{0,3}"), 0..4);
        let called = || (0..5usize, "[a-c]{0,3}").prop_map(|(rank, what)| Called { rank, what });
        let mismatch = (0..3u64, called(), called()).prop_map(|(number, one, other)| Mismatch {
            number,
            one,
            other,
        });
        let overdue = (0..3u64, 0..5usize, 0..9u64).prop_map(|(number, by, millis)| Overdue {
            number,
            by,
            millis,
        });
        let both = (
            proptest::option::of(mismatch),
            proptest::option::of(overdue),
        );
        (lost, both).prop_map(|(lost, (mismatch, overdue))| Verdict {
            lost,
            mismatch,
            overdue,
        })
    }

    proptest! {
        #[test]
        fn verdicts_come_to_the_same_in_any_order(a in verdicts(), b in verdicts(), c in verdicts()) {
            let merged = |order: [&Verdict; 4]| {
                let mut all = Verdict::default();
                order.into_iter().for_each(|next| all.merge(next.clone()));
                all
            };
            prop_assert_eq!(merged([&a, &b, &c, &a]), merged([&c, &a, &b, &b]));
        }

        #[test]
        fn a_report_reads_back_and_a_cut_one_does_not(verdict in verdicts(), cut in 0..40usize) {
            let call = Some(Call::new(Collective::Broadcast, Element::I8, 3));
            let report = Report { verdict, entered: 9, call };
            let mut out = Writer::default();
            report.encode(&mut out);
            let bytes = out.finish();
            prop_assert_eq!(Report::decode(&mut Reader::new(&bytes), 5), Some(report));
            let shorter = &bytes[..bytes.len() - 1 - cut.min(bytes.len() - 1)];
            prop_assert_eq!(Report::decode(&mut Reader::new(shorter), 5), None);
        }
    }

    #[test]
    fn ranks_that_wait_in_different_calls_are_named_and_so_are_those_that_did_not_come() {
        let overdue = Some(Overdue {
            number: 2,
            by: 0,
            millis: 500,
        });
        let verdict = Verdict {
            overdue,
            ..Verdict::default()
        };
        let report = |entered, collective| Report {
            verdict: verdict.clone(),
            entered,
            call: Some(Call::new(collective, Element::F32, 1)),
        };
        let mut reports = BTreeMap::from([
            (0, report(2, Collective::AllReduce)),
            (1, report(1, Collective::AllReduce)),
        ]);
        let late = judge(&verdict, &reports);
        assert!(matches!(late, CollectiveError::Late { absent, .. } if absent == [1]));
        reports.insert(1, report(2, Collective::Barrier));
        assert_eq!(judge(&verdict, &reports).code(), "collective-mismatch");
    }
}
