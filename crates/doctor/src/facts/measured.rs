//! What an nccl-tests run measured, and what the hardware in it could do.

use std::collections::BTreeSet;

use crate::evidence::Cite;
use crate::evidence::nccl_tests::{Check, NcclTests, TestRow, Timing};

/// The figures of one run.
#[derive(Clone, Debug)]
pub(crate) struct Measured<'a> {
    pub(crate) run: &'a NcclTests,
    /// The best bus bandwidth of any size, GB/s.
    pub(crate) peak: f64,
    /// The row of that.
    pub(crate) peak_cite: &'a Cite,
    /// Hosts named in the header; empty when it was not pasted.
    pub(crate) hosts: BTreeSet<&'a str>,
    /// How many ranks took part: as the header lists them, else as the bus bandwidth counts them.
    pub(crate) ranks: Option<u64>,
    /// The model of the GPUs, where all are alike.
    pub(crate) model: Option<Model>,
}

impl Measured<'_> {
    /// Whether the ranks are on several nodes: two hosts are named, or more ranks take part than
    /// the usual board has GPUs.
    pub(crate) fn is_over_network(&self) -> bool {
        const MOST_ON_A_BOARD: u64 = 8;
        match self.hosts.len() {
            0 => self.ranks.is_some_and(|ranks| ranks > MOST_ON_A_BOARD),
            hosts => hosts > 1,
        }
    }

    /// GPUs of a node that take part, where the header lists them.
    pub(crate) fn gpus_of_a_node(&self) -> Option<u32> {
        self.run.devices.iter().map(|d| d.value.device + 1).max()
    }

    /// The bus bandwidth at which growing sizes bring no more, GB/s: something is full. `None` when
    /// it still grows, or the run ends too early to tell.
    pub(crate) fn steady(&self) -> Option<f64> {
        const LARGE: u64 = 64 << 20;
        const SIZES: usize = 3;
        const WITHIN: f64 = 0.95;
        let mut large: Vec<(u64, f64)> = self
            .run
            .rows
            .iter()
            .filter(|row| row.value.size.0 >= LARGE)
            .filter_map(|row| Some((row.value.size.0, bus(&row.value)?)))
            .collect();
        large.sort_by_key(|(size, _)| *size);
        let last = large.get(large.len().checked_sub(SIZES)?..)?;
        let mut rates: Vec<f64> = last.iter().map(|(_, bus)| *bus).collect();
        rates.sort_by(f64::total_cmp);
        let level = *rates.first()? >= self.peak * WITHIN;
        rates.get(SIZES / 2).copied().filter(|_| level)
    }

    /// The wire that a steady rate over a network fills, alone or one for each of a board's GPUs.
    pub(crate) fn filled_wire(&self) -> Option<Wire> {
        let steady = self.steady().filter(|_| self.is_over_network())?;
        /// Gb/s of NICs that serve GPUs. Slower ones are filled by sockets as well.
        const WIRES: [u32; 4] = [100, 200, 400, 800];
        const BOARD: u32 = 8;
        // Headers and flow control take up to a tenth; rounding and clocks give a little.
        const FILLED: std::ops::RangeInclusive<f64> = 0.9..=1.02;
        let nics = [1, self.gpus_of_a_node().unwrap_or(BOARD)];
        let wires = nics
            .iter()
            .flat_map(|nics| WIRES.map(|gbps| Wire { nics: *nics, gbps }));
        wires
            .into_iter()
            .find(|wire| FILLED.contains(&(steady / wire.gb())))
    }
}

/// NICs of one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wire {
    pub(crate) nics: u32,
    pub(crate) gbps: u32,
}

impl Wire {
    /// GB/s of all together.
    pub(crate) fn gb(self) -> f64 {
        f64::from(self.nics) * f64::from(self.gbps) / 8.0
    }
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.nics {
            1 => write!(f, "a {} Gb/s NIC", self.gbps),
            nics => write!(f, "{nics} NICs of {} Gb/s", self.gbps),
        }
    }
}

/// How many ranks a bus bandwidth was worked out for: nccl-tests multiplies the algorithm's
/// bandwidth by 2(n-1)/n for all-reduce and by (n-1)/n for the operations that share out
/// (doc/PERFORMANCE.md). `None` where the digits printed do not settle n.
fn counted_ranks(run: &NcclTests) -> Option<u64> {
    let best = run
        .rows
        .iter()
        .flat_map(|row| timings(&row.value))
        .filter(|t| t.algorithm_gb > 0.0)
        .max_by(|a, b| a.algorithm_gb.total_cmp(&b.algorithm_gb))?;
    // Both are printed with two decimals.
    const ROUNDING: f64 = 0.005;
    let ranks = |bus: f64, algorithm: f64| {
        let factor = bus / algorithm;
        let whole = if factor > 1.0 { 2.0 } else { 1.0 };
        (factor > 0.4 && factor < whole).then(|| whole / (whole - factor))
    };
    let low = ranks(best.bus_gb - ROUNDING, best.algorithm_gb + ROUNDING)?;
    let high = ranks(best.bus_gb + ROUNDING, best.algorithm_gb - ROUNDING)?;
    let nearest = ((low + high) / 2.0).round();
    let settled = high - low < 1.0 && low <= nearest && nearest <= high;
    (settled && nearest >= 2.0).then_some(nearest as u64)
}

/// What a GPU model can do at best, GB/s in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Model {
    /// Its PCIe link, after line encoding.
    pub(crate) pcie: f64,
    /// All its NVLinks or xGMI links; `None` when it has none.
    pub(crate) links: Option<f64>,
}

const GEN3: f64 = 15.75;
const GEN4: f64 = 31.5;
const GEN5: f64 = 63.0;
const GEN6: f64 = 121.0;

/// By the names that drivers print: NVIDIA's and AMD's data sheets. Order matters: the first match
/// counts.
const MODELS: &[(&str, Model)] = &[
    ("GB300", model(GEN6, Some(900.0))),
    ("GB200", model(GEN5, Some(900.0))),
    ("B300", model(GEN6, Some(900.0))),
    ("B200", model(GEN5, Some(900.0))),
    ("GH200", model(GEN5, Some(450.0))),
    ("H200 NVL", model(GEN5, Some(450.0))),
    ("H200", model(GEN5, Some(450.0))),
    ("H20", model(GEN5, Some(450.0))),
    ("H800 PCIe", model(GEN5, None)),
    ("H800", model(GEN5, Some(200.0))),
    ("H100 80GB HBM3", model(GEN5, Some(450.0))),
    ("H100 SXM", model(GEN5, Some(450.0))),
    ("H100 PCIe", model(GEN5, None)),
    ("A800-SXM", model(GEN4, Some(200.0))),
    ("A100-SXM", model(GEN4, Some(300.0))),
    ("A100-PCI", model(GEN4, None)),
    ("V100-SXM", model(GEN3, Some(150.0))),
    ("V100-PCI", model(GEN3, None)),
    ("P100-SXM", model(GEN3, Some(80.0))),
    ("RTX PRO 6000", model(GEN5, None)),
    ("RTX 5090", model(GEN5, None)),
    ("RTX 4090", model(GEN4, None)),
    ("RTX 6000 Ada", model(GEN4, None)),
    ("RTX A6000", model(GEN4, Some(56.25))),
    ("RTX 3090", model(GEN4, Some(56.25))),
    ("A40", model(GEN4, Some(56.25))),
    ("L40", model(GEN4, None)),
    ("L4", model(GEN4, None)),
    ("A10", model(GEN4, None)),
    ("T4", model(GEN3, None)),
    ("MI355X", model(GEN5, Some(537.6))),
    ("MI350X", model(GEN5, Some(537.6))),
    ("MI325X", model(GEN5, Some(448.0))),
    ("MI300X", model(GEN5, Some(448.0))),
    ("MI250", model(GEN4, Some(200.0))),
];

const fn model(pcie: f64, links: Option<f64>) -> Model {
    Model { pcie, links }
}

/// Reduction in a switch halves what each link carries, so bus bandwidth can be twice a link's rate.
const SWITCH_REDUCTION: f64 = 2.0;

/// What a run measured; `None` when it has no rows.
pub(crate) fn measured(run: &NcclTests) -> Option<Measured<'_>> {
    let best = run
        .rows
        .iter()
        .filter_map(|row| Some((bus(&row.value)?, &row.cite)))
        .filter(|(bus, _)| bus.is_finite() && *bus > 0.0)
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Measured {
        run,
        peak: best.0,
        peak_cite: best.1,
        hosts: run.devices.iter().map(|d| d.value.host.as_str()).collect(),
        ranks: match run.devices.len() {
            0 => counted_ranks(run),
            listed => Some(listed as u64),
        },
        model: common_model(run),
    })
}

/// The better of a row's two bus bandwidths.
pub(crate) fn bus(row: &TestRow) -> Option<f64> {
    timings(row).map(|t| t.bus_gb).reduce(f64::max)
}

pub(crate) fn timings(row: &TestRow) -> impl Iterator<Item = Timing> {
    [row.out_of_place, row.in_place].into_iter().flatten()
}

/// Elements of a row that came out wrong.
pub(crate) fn wrong(row: &TestRow) -> u64 {
    timings(row)
        .map(|t| match t.check {
            Check::Wrong(count) => count,
            _ => 0,
        })
        .max()
        .unwrap_or(0)
}

fn common_model(run: &NcclTests) -> Option<Model> {
    let mut found = run.devices.iter().map(|d| of_name(&d.value.gpu));
    let first = found.next()??;
    found.all(|other| other == Some(first)).then_some(first)
}

pub(crate) fn of_name(name: &str) -> Option<Model> {
    MODELS
        .iter()
        .find(|(start, _)| name.contains(start))
        .map(|(_, model)| *model)
}

/// The most that PCIe could explain, when the run measured more.
pub(crate) fn beyond_pcie(run: &Measured<'_>) -> Option<f64> {
    let single = run.model.map_or(GEN5, |model| model.pcie);
    // Of an unnamed GPU nothing says the generation, and Gen6 without reduction comes to less.
    let limit = single * SWITCH_REDUCTION;
    (run.peak > limit).then_some(limit)
}
