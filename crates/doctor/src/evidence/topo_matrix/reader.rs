//! The reader of `nvidia-smi topo`, in both its forms.
//!
//! Cells are told apart by white space, because pastes lose and gain tabs; only the affinity columns
//! behind them can be blank, and for those the tabs are counted where they are as the tool wrote them.

use std::sync::LazyLock;

use crowfly_route::units::NumaNode;
use memchr::memmem::Finder;

use super::{P2pMatrix, P2pStatus, TopoDevice, TopoLink, TopoMatrix, TopoName, TopoRow};
use crate::evidence::cite::{Cite, Located};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most columns and most rows read; the largest systems have some dozens.
const MAX_SIDE: usize = 1_024;

/// The command whose argument says what a `-p2p` matrix is about.
static P2P_COMMAND: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new("nvidia-smi topo -p2p"));

#[derive(Default)]
pub(crate) struct MatrixReader {
    columns: Vec<TopoDevice>,
    header: Option<Cite>,
    /// Labels behind the device columns (`CPU Affinity`, …).
    affinity_columns: usize,
    rows: Vec<TopoRow>,
    names: Vec<Located<TopoName>>,
    capability: Option<char>,
    p2p: Vec<Located<(u32, Vec<Option<P2pStatus>>)>>,
}

impl Reader for MatrixReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        match markdown_cells(line.trimmed()) {
            Some(cells) => self.read(&Line {
                text: &cells,
                full: &cells,
                ..*line
            }),
            None => self.read(line),
        }
    }

    fn finish(mut self: Box<Self>) -> Option<(Format, Artefact)> {
        if !self.p2p.is_empty() {
            let columns = self.columns.iter().filter_map(|c| match c {
                TopoDevice::Gpu(n) => Some(*n),
                _ => None,
            });
            let matrix = P2pMatrix {
                capability: self.capability,
                columns: columns.collect(),
                rows: self.p2p,
            };
            return Some((Format::P2pMatrix, Artefact::P2pMatrix(matrix)));
        }
        if self.rows.is_empty() {
            return None;
        }
        let headless = self.columns.is_empty();
        if headless {
            self.columns = columns_from_diagonal(&self.rows);
        }
        let clipped = headless
            || self.rows.len() != self.columns.len()
            || self
                .rows
                .iter()
                .any(|r| r.cells.len() != self.columns.len());
        let matrix = TopoMatrix {
            columns: self.columns,
            header: self.header,
            rows: self.rows,
            names: self.names,
            clipped,
        };
        Some((Format::TopoMatrix, Artefact::TopoMatrix(matrix)))
    }
}

impl MatrixReader {
    fn read(&mut self, line: &Line<'_>) -> Verdict {
        if let Some(capability) = p2p_command(line.text) {
            if self.begun() {
                return Verdict::Restart;
            }
            self.capability = capability;
            return Verdict::Taken;
        }
        if let Some((columns, affinity_columns)) = header(line.text) {
            if self.begun() {
                return Verdict::Restart;
            }
            self.columns = columns;
            self.affinity_columns = affinity_columns;
            self.header = Some(line.cite());
            return Verdict::Taken;
        }
        if self.row(line) || (self.begun() && (self.name(line) || is_legend(line.trimmed()))) {
            return Verdict::Taken;
        }
        Verdict::Refused
    }

    fn begun(&self) -> bool {
        self.header.is_some() || !self.rows.is_empty() || !self.p2p.is_empty()
    }

    fn row(&mut self, line: &Line<'_>) -> bool {
        let mut words = Words(line.text);
        let Some(device) = words.next().and_then(|w| device(w.0)) else {
            return false;
        };
        let Some((first, after_first)) = words.next() else {
            return false;
        };
        if self.rows.len().max(self.p2p.len()) >= MAX_SIDE {
            return true;
        }
        if let TopoDevice::Gpu(gpu) = device
            && self.rows.is_empty()
            && let Some(cells) = self.p2p_cells(line.text)
        {
            self.p2p.push(line.cite().of((gpu, cells)));
            return true;
        }
        let Some(link) = TopoLink::parse(first) else {
            return false;
        };
        let mut cells = vec![Some(link)];
        let mut rest = after_first;
        let limit = if self.columns.is_empty() {
            MAX_SIDE
        } else {
            self.columns.len()
        };
        while cells.len() < limit
            && let Some((word, after)) = words.next()
        {
            let link = TopoLink::parse(word);
            // Without a header, the first word that is no link begins the affinity.
            if link.is_none() && (self.columns.is_empty() || is_affinity(word)) {
                break;
            }
            cells.push(link);
            rest = after;
        }
        // A lone row without a header is too little to go by.
        if self.columns.is_empty() && cells.len() < 2 {
            return false;
        }
        let (cpus, numa) = affinity(rest, self.affinity_columns);
        self.rows.push(TopoRow {
            device,
            cells,
            cpus,
            numa,
            cite: line.cite(),
        });
        true
    }

    /// The cells of a `-p2p` row. `X` alone belongs to either form.
    fn p2p_cells(&self, text: &str) -> Option<Vec<Option<P2pStatus>>> {
        let cells: Vec<_> = Words(text)
            .skip(1)
            .map(|(word, _)| p2p_status(word))
            .collect();
        let decided = self.capability.is_some() || !self.p2p.is_empty();
        let says =
            |cell: &Option<P2pStatus>| matches!(cell, Some(status) if *status != P2pStatus::Same);
        let all_known = !cells.is_empty() && cells.iter().all(Option::is_some);
        ((decided && cells.first().is_some_and(Option::is_some))
            || (all_known && cells.iter().any(says)))
        .then_some(cells)
    }

    /// `NIC0: mlx5_0`, `DD0: mlx5_0 data-direct function`.
    fn name(&mut self, line: &Line<'_>) -> bool {
        let Some((label, name)) = line.trimmed().split_once(':') else {
            return false;
        };
        let Some(device) = device(label.trim()) else {
            return false;
        };
        let Some((name, _)) = Words(name).next() else {
            return false;
        };
        if matches!(device, TopoDevice::Gpu(_) | TopoDevice::Named(_))
            || self.names.len() >= MAX_SIDE
        {
            return false;
        }
        self.names.push(line.cite().of(TopoName {
            device,
            name: name.to_owned(),
        }));
        true
    }
}

/// Words of a text, each with what follows it.
struct Words<'a>(&'a str);

impl<'a> Iterator for Words<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let text = self.0.trim_start();
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some((word, rest))
    }
}

fn device(word: &str) -> Option<TopoDevice> {
    let number = |prefix: &str| word.strip_prefix(prefix)?.parse().ok();
    if let Some(n) = number("GPU") {
        return Some(TopoDevice::Gpu(n));
    }
    if let Some(n) = number("NIC") {
        return Some(TopoDevice::Nic(n));
    }
    if let Some(n) = number("DD") {
        return Some(TopoDevice::DataDirect(n));
    }
    let named = word.len() >= 3
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.ends_with(|c: char| c.is_ascii_digit())
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    named.then(|| TopoDevice::Named(word.to_owned()))
}

/// The device columns of a header and the number of labels behind them.
fn header(text: &str) -> Option<(Vec<TopoDevice>, usize)> {
    let mut columns = Vec::new();
    let mut words = Words(text).map(|(word, _)| word);
    let mut affinity_columns = 0;
    for word in words.by_ref() {
        match device(word) {
            Some(device) if columns.len() < MAX_SIDE => columns.push(device),
            None if word == "CPU" => {
                affinity_columns = 1;
                break;
            }
            _ => return None,
        }
    }
    affinity_columns += words.filter(|w| *w == "NUMA").count();
    let begins_with_gpu = matches!(columns.first(), Some(TopoDevice::Gpu(_)));
    (begins_with_gpu && (columns.len() > 1 || affinity_columns > 0))
        .then_some((columns, affinity_columns))
}

fn is_affinity(word: &str) -> bool {
    word == "N/A" || word.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

/// CPUs and NUMA node behind the cells.
fn affinity(rest: &str, labels: usize) -> (Option<String>, Option<NumaNode>) {
    let node = |text: &str| text.trim().parse().ok().map(NumaNode);
    let cpus = |text: &str| {
        Some(text.trim())
            .filter(|t| !t.is_empty() && *t != "N/A")
            .map(str::to_owned)
    };
    let fields: Vec<&str> = rest.split('\t').skip(1).collect();
    // The tool writes one tab before each label, and two before `GPU NUMA ID`.
    let as_written = if labels == 3 { 4 } else { labels };
    if labels > 0
        && fields.len() == as_written
        && let [first, second, ..] = fields.as_slice()
    {
        return (cpus(first), node(second));
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    match words.as_slice() {
        [first, second, ..] if words.len() >= labels.min(2) && *first != "N/A" => {
            (cpus(first), node(second))
        }
        [first, ..] if first.contains(['-', ',']) => (cpus(first), None),
        _ => (None, None),
    }
}

/// Without a header, `X` shows which column belongs to which row.
fn columns_from_diagonal(rows: &[TopoRow]) -> Vec<TopoDevice> {
    let own = |row: &TopoRow| row.cells.iter().position(|c| *c == Some(TopoLink::Same));
    let mut placed: Vec<(usize, &TopoDevice)> = rows
        .iter()
        .filter_map(|row| Some((own(row)?, &row.device)))
        .collect();
    placed.sort_by_key(|(at, _)| *at);
    placed.dedup_by_key(|(at, _)| *at);
    let contiguous = placed.iter().enumerate().all(|(n, (at, _))| n == *at);
    if contiguous {
        placed
            .into_iter()
            .map(|(_, device)| device.clone())
            .collect()
    } else {
        Vec::new()
    }
}

fn p2p_status(word: &str) -> Option<P2pStatus> {
    Some(match word {
        "X" => P2pStatus::Same,
        "OK" => P2pStatus::Ok,
        "CNS" => P2pStatus::ChipsetNotSupported,
        "GNS" => P2pStatus::GpuNotSupported,
        "TNS" => P2pStatus::TopologyNotSupported,
        "NS" => P2pStatus::NotSupported,
        "DR" => P2pStatus::DisabledByDriver,
        "U" => P2pStatus::Unknown,
        _ => return None,
    })
}

/// The capability that a command line asks for: `nvidia-smi topo -p2p r`.
fn p2p_command(text: &str) -> Option<Option<char>> {
    let at = P2P_COMMAND.find(text.as_bytes())?;
    let arguments = text.get(at + P2P_COMMAND.needle().len()..)?;
    Some(
        arguments
            .trim_start()
            .chars()
            .next()
            .filter(char::is_ascii_lowercase),
    )
}

/// The cells of a row of a markdown table, parted by tabs.
fn markdown_cells(text: &str) -> Option<String> {
    let inside = text.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    let cells: Vec<&str> = inside.split('|').map(str::trim).collect();
    Some(cells.join("\t"))
}

fn is_legend(text: &str) -> bool {
    if text.starts_with("Legend:") || text.starts_with("NIC Legend:") {
        return true;
    }
    let Some((word, rest)) = text.split_once(' ') else {
        return false;
    };
    let known = TopoLink::parse(word).is_some() || p2p_status(word).is_some() || word == "NV#";
    known && rest.trim_start().starts_with('=')
}
