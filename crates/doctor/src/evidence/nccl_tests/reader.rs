//! The reader of nccl-tests and rccl-tests output.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use crowfly_route::units::Bytes;

use super::{Check, NcclTests, TestDevice, TestRow, Timing};
use crate::evidence::line::Line;
use crate::evidence::nccl_log::LibraryVersion;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most result rows kept.
const MAX_ROWS: usize = 16_384;
/// Most devices kept.
const MAX_DEVICES: usize = 32_768;
/// Most parameters and failures kept.
const MAX_REMARKS: usize = 256;

/// Words of which every remark has one; most lines of other programs have none of them.
static REMARKS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::new([
        "algbw",
        "out-of-place",
        "(B)",
        "Using devices",
        "failure",
        "Collective test",
        "CCL version ",
        "_perf",
    ])
    .ok()
});

#[derive(Default)]
pub(crate) struct NcclTestsReader {
    found: NcclTests,
    begun: bool,
}

impl Reader for NcclTestsReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let text = line.trimmed().trim_start_matches('#').trim_start();
        let verdict = self.read(text, line);
        self.begun |= verdict != Verdict::Refused;
        verdict
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let found = self.found;
        let says_something = !found.rows.is_empty()
            || !found.devices.is_empty()
            || !found.failures.is_empty()
            || found.average_bus.is_some();
        says_something.then_some((Format::NcclTests, Artefact::NcclTests(found)))
    }
}

impl NcclTestsReader {
    fn read(&mut self, text: &str, line: &Line<'_>) -> Verdict {
        if let Some(row) = row(text) {
            if self.found.rows.len() < MAX_ROWS {
                self.found.rows.push(line.cite().of(row));
            } else {
                self.found.rows_beyond_limit += 1;
            }
            return Verdict::Taken;
        }
        if text.starts_with("nThread") {
            if !self.found.rows.is_empty() {
                return Verdict::Restart;
            }
            let cite = line.cite();
            let parameters = parameters(text).into_iter().take(MAX_REMARKS);
            self.found.parameters = parameters.map(|p| cite.of(p)).collect();
            return Verdict::Taken;
        }
        if let Some(device) = device(text) {
            if !self.found.rows.is_empty() {
                return Verdict::Restart;
            }
            if self.found.devices.len() < MAX_DEVICES {
                self.found.devices.push(line.cite().of(device));
            }
            return Verdict::Taken;
        }
        if let Some(rest) = text.strip_prefix("Out of bounds values") {
            let mut words = rest.trim_start_matches([' ', ':']).split_whitespace();
            let count = words.next().and_then(|n| n.parse().ok());
            self.found.out_of_bounds =
                count.map(|n| line.cite().of((n, words.next() == Some("OK"))));
            return Verdict::Taken;
        }
        if let Some(rest) = text.strip_prefix("Avg bus bandwidth") {
            let average = rest.trim_start_matches([' ', ':']).parse().ok();
            self.found.average_bus = average.map(|gb| line.cite().of(gb));
            return Verdict::Taken;
        }
        match REMARKS.as_ref().is_none_or(|words| words.is_match(text)) {
            true => self.remark(text, line),
            false => Verdict::Refused,
        }
    }

    fn remark(&mut self, text: &str, line: &Line<'_>) -> Verdict {
        let is_head = (text.contains("algbw") && text.contains("busbw"))
            || text.starts_with("out-of-place")
            || text.starts_with("(B)")
            || text == "Using devices";
        if is_head {
            return Verdict::Taken;
        }
        if text.contains("Test NCCL failure")
            || text.contains("Test CUDA failure")
            || text.contains("Test failure")
        {
            if self.found.failures.len() < MAX_REMARKS {
                self.found.failures.push(line.cite().of(text.to_owned()));
            }
            return Verdict::Taken;
        }
        if let Some(name) = text.strip_prefix("Collective test starting:") {
            if !self.found.rows.is_empty() {
                return Verdict::Restart;
            }
            self.found.program = Some(line.cite().of(name.trim().to_owned()));
            return Verdict::Taken;
        }
        if self.begun && (text.starts_with("NCCL version ") || text.starts_with("RCCL version ")) {
            self.found.library = LibraryVersion::parse(text).map(|version| line.cite().of(version));
            return Verdict::Shared;
        }
        if let Some(program) = program(text) {
            if !self.found.rows.is_empty() {
                return Verdict::Restart;
            }
            self.found.program = Some(line.cite().of(program.to_owned()));
            return Verdict::Shared;
        }
        Verdict::Refused
    }
}

/// The test that a command line runs.
fn program(text: &str) -> Option<&str> {
    text.split_whitespace()
        .map(|word| word.rsplit('/').next().unwrap_or(word))
        .find(|word| {
            let name = word.strip_suffix("_mpi").unwrap_or(word);
            name.strip_suffix("_perf").is_some_and(|op| {
                !op.is_empty() && op.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
            })
        })
}

/// `nThread 1 nGpus 8 step: 2(factor) warmup iters: 5` as pairs.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut name = String::new();
    for word in text.split_whitespace() {
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            pairs.push((std::mem::take(&mut name), word.to_owned()));
            continue;
        }
        if !name.is_empty() {
            name.push(' ');
        }
        name.push_str(word.trim_end_matches(':'));
    }
    pairs
}

/// `Rank  0 Group  0 Pid 1 on host device  0 [0x1a] NVIDIA H100`.
fn device(text: &str) -> Option<TestDevice> {
    let mut words = text.split_whitespace();
    (words.next()? == "Rank").then_some(())?;
    let rank = words.next()?.parse().ok()?;
    while words.next()? != "on" {}
    let host = words.next()?;
    (words.next()? == "device").then_some(())?;
    let device = words.next()?.parse().ok()?;
    let mut bus = None;
    let mut gpu = String::new();
    for word in words {
        match word.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
            Some(inside) if gpu.is_empty() && bus.is_none() => bus = Some(inside.to_owned()),
            _ => {
                if !gpu.is_empty() {
                    gpu.push(' ');
                }
                gpu.push_str(word);
            }
        }
    }
    Some(TestDevice {
        rank,
        host: host.to_owned(),
        device,
        bus,
        gpu,
    })
}

const ELEMENTS: [&str; 15] = [
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16",
    "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "char",
];

/// A result: size, count, type, reduction and root where there are any, then one or two measurements.
fn row(text: &str) -> Option<TestRow> {
    // Refused early: nearly every other line fails here.
    text.starts_with(|c: char| c.is_ascii_digit())
        .then_some(())?;
    let mut words = text.split_whitespace();
    let size = words.next()?.parse().ok()?;
    let count = words.next()?.parse().ok()?;
    let element = words.next().filter(|w| ELEMENTS.contains(w))?;
    let rest: Vec<&str> = words.collect();
    // A root of -1 shows the layout of a row that was clipped behind it.
    let named = match rest.len() {
        10 => 2,
        6..10 if rest[1] == "-1" => 2,
        9 => 1,
        8 => 0,
        _ => return None,
    };
    let (out_of_place, in_place) = rest[named..].split_at(4);
    let row = TestRow {
        size: Bytes(size),
        count,
        element: element.to_owned(),
        reduction: (named > 0).then(|| rest[0].to_owned()),
        root: if named > 1 {
            Some(rest[1].parse().ok()?)
        } else {
            None
        },
        out_of_place: timing(out_of_place),
        in_place: timing(in_place),
    };
    (row.out_of_place.is_some() || row.in_place.is_some()).then_some(row)
}

fn timing(words: &[&str]) -> Option<Timing> {
    let [time, algorithm, bus, check] = words else {
        return None;
    };
    Some(Timing {
        time_us: finite(time)?,
        algorithm_gb: finite(algorithm)?,
        bus_gb: finite(bus)?,
        check: match check.parse() {
            Ok(wrong) => Check::Wrong(wrong),
            Err(_) if *check == "N/A" => Check::NotChecked,
            Err(_) => Check::Deviation(finite(check)?),
        },
    })
}

fn finite(word: &str) -> Option<f64> {
    word.parse().ok().filter(|n: &f64| n.is_finite())
}
