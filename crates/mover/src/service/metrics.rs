//! What a server did, in the text form that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crowfly_route::receipt::Share;

use super::limits::MAX_LABELLED;

pub(crate) mod http;

/// Upper ends of the buckets of the time that a request takes, in seconds.
const BUCKETS: [f64; 12] = [
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0,
];
/// The label of those beyond [`MAX_LABELLED`].
const OTHERS: &str = "others";

#[derive(Default)]
struct Histogram {
    counts: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

#[derive(Default)]
struct Tables {
    /// By peer, path and direction.
    bytes: BTreeMap<(String, &'static str, &'static str), u64>,
    /// By direction and outcome.
    transfers: BTreeMap<(&'static str, &'static str), u64>,
    errors: BTreeMap<&'static str, u64>,
    seconds: BTreeMap<&'static str, Histogram>,
}

/// Counters of one server.
#[derive(Default)]
pub(crate) struct Metrics {
    tables: Mutex<Tables>,
    pub connections: AtomicU64,
    pub connected: AtomicU64,
    pub refused: AtomicU64,
    pub files: AtomicU64,
    pub buffers: AtomicU64,
}

impl Metrics {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes crossed the fabric for a peer.
    pub(crate) fn moved(&self, peer: &str, shares: &[Share], direction: &'static str) {
        let mut tables = self.tables();
        for share in shares {
            let path = share.path.as_str();
            let key = (peer.to_owned(), path, direction);
            let known = tables.bytes.contains_key(&key);
            let key = match known || tables.bytes.len() < MAX_LABELLED {
                true => key,
                false => (OTHERS.to_owned(), path, direction),
            };
            *tables.bytes.entry(key).or_default() += share.bytes.0;
        }
    }

    /// A file was copied, or was not.
    pub(crate) fn ended(&self, direction: &'static str, outcome: &'static str) {
        *self
            .tables()
            .transfers
            .entry((direction, outcome))
            .or_default() += 1;
    }

    /// A request was answered with an error.
    pub(crate) fn failed(&self, code: &'static str) {
        *self.tables().errors.entry(code).or_default() += 1;
    }

    /// A request took this long.
    pub(crate) fn took(&self, verb: &'static str, time: Duration) {
        let seconds = time.as_secs_f64();
        let mut tables = self.tables();
        let histogram = tables.seconds.entry(verb).or_default();
        for (count, end) in histogram.counts.iter_mut().zip(BUCKETS) {
            *count += u64::from(seconds <= end);
        }
        histogram.count += 1;
        histogram.sum += seconds;
    }

    /// Errors by code, and files by direction and outcome.
    pub(crate) fn totals(&self) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        let tables = self.tables();
        let errors = tables.errors.iter();
        let transfers = tables.transfers.iter();
        (
            errors
                .map(|(code, count)| ((*code).to_owned(), *count))
                .collect(),
            transfers
                .map(|((direction, outcome), count)| (format!("{direction}-{outcome}"), *count))
                .collect(),
        )
    }

    /// All of it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut family = |name: &str, kind: &str, help: &str, rows: &[(String, f64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let one = |value: u64| vec![(String::new(), value as f64)];
        let tables = self.tables();
        family(
            "crowfly_serve_connections",
            "gauge",
            "Peers that are connected.",
            &one(of(&self.connected)),
        );
        family(
            "crowfly_serve_connections_total",
            "counter",
            "Peers that connected.",
            &one(of(&self.connections)),
        );
        family(
            "crowfly_serve_connections_refused_total",
            "counter",
            "Peers that were sent away: too many, or not introduced in time.",
            &one(of(&self.refused)),
        );
        family(
            "crowfly_serve_open_files",
            "gauge",
            "Files that peers have open.",
            &one(of(&self.files)),
        );
        family(
            "crowfly_serve_buffer_bytes",
            "gauge",
            "Memory for bytes between storage and the fabric.",
            &one(of(&self.buffers)),
        );
        let rows: Vec<_> = tables
            .bytes
            .iter()
            .map(|((peer, path, direction), bytes)| {
                let peer = escaped(peer);
                let labels =
                    format!("{{peer=\"{peer}\",path=\"{path}\",direction=\"{direction}\"}}");
                (labels, *bytes as f64)
            })
            .collect();
        family(
            "crowfly_serve_bytes_total",
            "counter",
            "Bytes that this server moved across the fabric, by peer, engine path and direction.",
            &rows,
        );
        let rows: Vec<_> = tables
            .transfers
            .iter()
            .map(|((direction, outcome), count)| {
                let labels = format!("{{direction=\"{direction}\",outcome=\"{outcome}\"}}");
                (labels, *count as f64)
            })
            .collect();
        family(
            "crowfly_serve_files_total",
            "counter",
            "Files that peers were done with, by direction and outcome.",
            &rows,
        );
        let rows: Vec<_> = tables
            .errors
            .iter()
            .map(|(code, count)| (format!("{{code=\"{code}\"}}"), *count as f64))
            .collect();
        family(
            "crowfly_serve_errors_total",
            "counter",
            "Requests that were answered with an error, by its code.",
            &rows,
        );
        let mut rows = Vec::new();
        for (verb, histogram) in &tables.seconds {
            for (count, end) in histogram.counts.iter().zip(BUCKETS) {
                rows.push((
                    format!("_bucket{{verb=\"{verb}\",le=\"{end}\"}}"),
                    *count as f64,
                ));
            }
            let all = histogram.count as f64;
            rows.push((format!("_bucket{{verb=\"{verb}\",le=\"+Inf\"}}"), all));
            rows.push((format!("_sum{{verb=\"{verb}\"}}"), histogram.sum));
            rows.push((format!("_count{{verb=\"{verb}\"}}"), all));
        }
        family(
            "crowfly_serve_request_seconds",
            "histogram",
            "How long requests took, by what was asked.",
            &rows,
        );
        text
    }
}

/// The value of a label.
fn escaped(value: &str) -> String {
    value
        .chars()
        .flat_map(|c| match c {
            '\\' => vec!['\\', '\\'],
            '"' => vec!['\\', '"'],
            '\n' => vec!['\\', 'n'],
            other => vec![other],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_each_request_in_every_bucket_that_it_fits() {
        let metrics = Metrics::default();
        metrics.took("read", Duration::from_millis(2));
        metrics.took("read", Duration::from_secs(60));
        let text = metrics.text();
        for line in [
            "# TYPE crowfly_serve_request_seconds histogram",
            "crowfly_serve_request_seconds_bucket{verb=\"read\",le=\"0.001\"} 0",
            "crowfly_serve_request_seconds_bucket{verb=\"read\",le=\"0.003\"} 1",
            "crowfly_serve_request_seconds_bucket{verb=\"read\",le=\"30\"} 1",
            "crowfly_serve_request_seconds_bucket{verb=\"read\",le=\"+Inf\"} 2",
            "crowfly_serve_request_seconds_count{verb=\"read\"} 2",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_label_cannot_end_its_own_quotes() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
