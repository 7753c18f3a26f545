//! The shape of results: T2 to T4.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_tests::TestRow;
use crate::evidence::{Cite, Located};
use crate::facts::measured::{bus, timings, wrong};
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};

pub(super) const LATENCY: Rule = Rule {
    id: "T2",
    name: "small-message-latency",
    family: Family::Tests,
    summary: "small operations take long",
    page: Page {
        condition: "Operations of a few bytes take much longer than links and launch overhead explain.",
        detection: "The median time of sizes up to 4 KiB, the better of in and out of place: above 100 µs a note, above 500 µs a warning.",
        consequence: "Jobs with many small collectives are slow whatever the bandwidth.",
        fix: "CPU binding and power states, a busy CPU under the proxy threads, sockets instead of RDMA, many nodes.",
        source: "practice",
        false_alarms: "Many nodes, EFA (about 70 µs) and old GPUs take long by nature.",
    },
    check: latency,
};

/// Sizes that cost nothing but latency.
const SMALL: u64 = 4 << 10;
const LONG_US: f64 = 100.0;
const VERY_LONG_US: f64 = 500.0;

fn best_time(row: &TestRow) -> Option<f64> {
    timings(row).map(|t| t.time_us).reduce(f64::min)
}

fn latency(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.tests()
        .filter_map(|run| {
            let mut times: Vec<(f64, &Cite)> = run
                .rows
                .iter()
                .filter(|row| (1..=SMALL).contains(&row.value.size.0))
                .filter_map(|row| Some((best_time(&row.value)?, &row.cite)))
                .filter(|(time, _)| time.is_finite())
                .collect();
            times.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (median, cite) = times.get(times.len() / 2).copied()?;
            if median < LONG_US {
                return None;
            }
            let title = format!("Operations of a few bytes take {median:.0} µs");
            let finding = if median >= VERY_LONG_US {
                rule.warning(title)
            } else {
                rule.note(title)
            };
            Some(
                finding
                    .quoting(cite)
                    .fixed_by(
                        Fix::by_hand("Look at CPU binding, power states and load of the CPUs that NCCL's proxy threads run on.")
                            .checked_by("all_reduce_perf -b 8 -e 4K -f 2"),
                    )
                    .doubting("Many nodes and virtual networks take long by nature."),
            )
        })
        .collect()
}

pub(super) const SLOW_SIZE: Rule = Rule {
    id: "T3",
    name: "one-slow-size",
    family: Family::Tests,
    summary: "one size is much slower than those around it",
    page: Page {
        condition: "Bandwidth dips at one size and recovers.",
        detection: "A size of 64 KiB or more whose better bus bandwidth is below half of that of both neighbours.",
        consequence: "NCCL chose an algorithm or protocol badly at this size, or something disturbed the run.",
        fix: "Run again; if it stays, compare NCCL_ALGO and NCCL_PROTO at that size, or use a tuner plugin.",
        source: "practice",
        false_alarms: "A disturbance shows once: repeat the run.",
    },
    check: slow_size,
};

const LATENCY_BOUND: u64 = 64 << 10;

fn slow_size(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.tests()
        .filter_map(|run| {
            let rows: Vec<(&Located<TestRow>, f64)> = run
                .rows
                .iter()
                .filter(|row| row.value.size.0 >= LATENCY_BOUND)
                .filter_map(|row| Some((row, bus(&row.value)?)))
                .collect();
            let dip = rows.windows(3).find_map(|w| match w {
                [before, at, after] => {
                    let rising = before.0.value.size < at.0.value.size && at.0.value.size < after.0.value.size;
                    (rising && at.1 * 2.0 < before.1 && at.1 * 2.0 < after.1).then_some((before, at, after))
                }
                _ => None,
            })?;
            let (before, at, after) = dip;
            Some(
                rule.warning(format!(
                    "{} reaches {:.2} GB/s; the sizes around it reach {:.2} and {:.2}",
                    at.0.value.size, at.1, before.1, after.1
                ))
                .quoting(&at.0.cite)
                .quoting(&before.0.cite)
                .quoting(&after.0.cite)
                .fixed_by(
                    Fix::run("Run this size again, with each protocol.", "for p in LL LL128 Simple; do NCCL_PROTO=$p all_reduce_perf -b <size> -e <size>; done"),
                )
                .doubting("A disturbance of the machine shows once: repeat the run."),
            )
        })
        .collect()
}

pub(super) const WRONG_RESULTS: Rule = Rule {
    id: "T4",
    name: "wrong-results",
    family: Family::Tests,
    summary: "results are wrong",
    page: Page {
        condition: "The check of results found wrong elements.",
        detection: "`#wrong` above 0, `Out of bounds values` other than 0 OK, lines that say a test failed. Old versions print the largest deviation instead, which is no count.",
        consequence: "Data arrives damaged: training goes wrong in silence.",
        fix: "Find the pair of GPUs; switch peer-to-peer and GPUDirect RDMA off one after the other; look at ACS, IOMMU, Xid messages and memory errors.",
        source: "nccl-tests src/common.cu",
        false_alarms: "N/A means that nothing was checked.",
    },
    check: wrong_results,
};

fn wrong_results(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.tests()
        .filter_map(|run| {
            let bad: Vec<_> = run.rows.iter().filter(|row| wrong(&row.value) > 0).collect();
            let outside = run.out_of_bounds.as_ref().filter(|o| o.value.0 > 0 || !o.value.1);
            let title = match (bad.first(), outside, run.failures.first()) {
                (Some(row), _, _) => format!("{} elements are wrong at {}", wrong(&row.value), row.value.size),
                (None, Some(outside), _) => format!("{} values are out of bounds", outside.value.0),
                (None, None, Some(failure)) => format!("The test failed: {}", failure.value),
                (None, None, None) => return None,
            };
            Some(
                rule.broken(title)
                    .quoting_all(bad.iter().map(|row| &row.cite).take(3))
                    .quoting_all(outside.map(|o| &o.cite))
                    .quoting_all(run.failures.iter().map(|f| &f.cite))
                    .fixed_by(
                        Fix::run("See which path damages the data: switch one off at a time.", "NCCL_P2P_DISABLE=1 all_reduce_perf …; NCCL_NET_GDR_LEVEL=LOC all_reduce_perf …")
                            .checked_by("all_reduce_perf -b 8 -e 1G -f 2 -c 1 | grep 'Out of bounds'"),
                    ),
            )
        })
        .collect()
}
