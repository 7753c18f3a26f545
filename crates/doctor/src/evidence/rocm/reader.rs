//! The reader of `rocm-smi --showtopo` and of `amd-smi topology`.

use crowfly_route::units::PciAddress;

use super::{RocmLink, RocmRow, RocmTopology};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most GPUs read.
const MAX_GPUS: usize = 1_024;

#[derive(Clone, Copy, Default)]
enum Table {
    #[default]
    None,
    Weight,
    Hops,
    Link,
    /// One of those that say nothing of the way data goes.
    Other,
}

#[derive(Default)]
pub(crate) struct RocmReader {
    found: RocmTopology,
    /// The functions that `amd-smi` names GPUs by, in its order.
    functions: Vec<PciAddress>,
    table: Table,
    begun: bool,
}

impl Reader for RocmReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let title = line.trimmed().trim_matches(['=', ' ']);
        match title {
            "ROCm System Management Interface" if self.begun => return Verdict::Restart,
            "ROCm System Management Interface" => self.table = Table::None,
            "Weight between two GPUs" | "WEIGHT TABLE:" => self.table = Table::Weight,
            "Hops between two GPUs" | "HOPS TABLE:" => self.table = Table::Hops,
            "Link Type between two GPUs" | "LINK TYPE TABLE:" => self.table = Table::Link,
            "ACCESS TABLE:" if self.begun => return Verdict::Restart,
            "ACCESS TABLE:" | "NUMA BW TABLE:" => self.table = Table::Other,
            _ if self.begun && title.ends_with(" TABLE:") => self.table = Table::Other,
            "Numa Nodes" if self.begun => self.table = Table::None,
            "End of ROCm SMI Log" if self.begun => return Verdict::Last,
            _ if self.numa(line) || self.row(line) => {}
            _ => return Verdict::Refused,
        }
        self.begun = true;
        Verdict::Taken
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let found = self.found;
        let says_something = !(found.weights.is_empty()
            && found.hops.is_empty()
            && found.links.is_empty()
            && found.numa.is_empty());
        says_something.then_some((Format::RocmTopology, Artefact::RocmTopology(found)))
    }
}

impl RocmReader {
    /// `GPU[0]  : (Topology) Numa Node: 0`.
    fn numa(&mut self, line: &Line<'_>) -> bool {
        let read = || {
            let (gpu, rest) = line.trimmed().strip_prefix("GPU[")?.split_once(']')?;
            let (_, rest) = rest.split_once("(Topology) Numa ")?;
            let (what, node) = rest.split_once(':')?;
            Some((gpu.parse().ok()?, what, node.trim().parse().ok()?))
        };
        let Some((gpu, what, node)) = read() else {
            return false;
        };
        let list = match what {
            "Node" => &mut self.found.numa,
            "Affinity" => &mut self.found.affinity,
            _ => return false,
        };
        if list.len() < MAX_GPUS {
            list.push(line.cite().of((gpu, node)));
        }
        true
    }

    /// The place of a function among those of the heading.
    fn counted(&self, function: &str) -> Option<u32> {
        let function: PciAddress = function.parse().ok()?;
        let at = self.functions.iter().position(|f| *f == function)?;
        u32::try_from(at).ok()
    }

    fn row(&mut self, line: &Line<'_>) -> bool {
        let mut words = line.trimmed().split_whitespace();
        let Some(first) = words.next() else {
            return false;
        };
        let cells: Vec<&str> = words.take(MAX_GPUS).collect();
        if cells.iter().all(|cell| self::gpu(cell).is_some()) && self::gpu(first).is_some() {
            // The heading of a table.
            return self.begun;
        }
        let heading: Option<Vec<PciAddress>> = std::iter::once(&first)
            .chain(&cells)
            .map(|cell| cell.parse().ok())
            .collect();
        if let (Some(functions), true) = (heading, self.begun) {
            self.functions = functions;
            return true;
        }
        let Some(gpu) = self::gpu(first).or_else(|| self.counted(first)) else {
            return false;
        };
        let number = |at: usize, cell: &str| cell.parse().ok().filter(|_| at != gpu as usize);
        match self.table {
            Table::None => return false,
            Table::Other => {}
            Table::Weight => push(&mut self.found.weights, gpu, &cells, line, number),
            Table::Hops => push(&mut self.found.hops, gpu, &cells, line, number),
            Table::Link => push(
                &mut self.found.links,
                gpu,
                &cells,
                line,
                |_, cell| match cell {
                    "XGMI" => Some(RocmLink::Xgmi),
                    "PCIE" => Some(RocmLink::Pcie),
                    _ => None,
                },
            ),
        }
        true
    }
}

fn push<T>(
    rows: &mut Vec<RocmRow<T>>,
    gpu: u32,
    cells: &[&str],
    line: &Line<'_>,
    read: impl Fn(usize, &str) -> Option<T>,
) {
    if rows.len() < MAX_GPUS {
        rows.push(RocmRow {
            gpu,
            cells: cells
                .iter()
                .enumerate()
                .map(|(at, cell)| read(at, cell))
                .collect(),
            cite: line.cite(),
        });
    }
}

fn gpu(word: &str) -> Option<u32> {
    word.strip_prefix("GPU")?.parse().ok()
}
