//! The points, and how each is predicted.

use super::{Group as Class, Row, Use};
use crate::article::{hours_between, ring_bytes};
use crate::calibrated::{Algorithm, Collective, Group, StagedRange};
use crate::catalog::Catalog;
use crate::checkpoint::{failures, throughput_seconds};
use crate::cluster::{Cluster, Overrides, ServerSpec, usable};
use crate::error::PlanError;
use crate::fabric::{Switches, Wiring};
use crate::sim::{Routing, Simulation};
use crate::step::{Path, Step, flops};
use crate::workload::{ModelSpec, Workload};

mod runs;

use runs::{bus, runs};

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;
const TIB: f64 = 1_099_511_627_776.0;

/// A point without its prediction.
struct Point {
    id: &'static str,
    setup: &'static str,
    measured: f64,
    unit: &'static str,
    usage: Use,
    class: Class,
    source: &'static str,
}

impl Point {
    fn row(self, predicted: f64) -> Row {
        Row {
            id: self.id,
            setup: self.setup,
            measured: self.measured,
            unit: self.unit,
            predicted,
            error: predicted / self.measured - 1.0,
            usage: self.usage,
            group: self.class,
            source: self.source,
        }
    }
}

/// All points with their predictions.
pub(super) fn all(catalog: &Catalog) -> Result<Vec<Row>, PlanError> {
    let mut rows = Vec::new();
    for run in runs() {
        let group = Group::of(&cluster(catalog, run.server, run.servers)?);
        rows.push(
            run.point
                .row(bus_bandwidth(&group, run.collective, run.bytes, run.only)),
        );
    }
    rates(catalog, &mut rows)?;
    steps(catalog, &mut rows)?;
    arithmetic(catalog, &mut rows)?;
    Ok(rows)
}

fn cluster(catalog: &Catalog, server: &str, servers: u32) -> Result<Cluster, PlanError> {
    let server = ServerSpec::from_catalog(catalog, server, &Overrides::default())?;
    Cluster::new(server, servers, 1.0)
}

fn bus_bandwidth(
    group: &Group,
    collective: Collective,
    bytes: f64,
    only: Option<Algorithm>,
) -> f64 {
    let estimate = group.estimate(collective, bytes, only);
    let rate = estimate.and_then(|e| e.bus_bandwidth(collective, group.ranks(), bytes));
    rate.unwrap_or(0.0) / 1e9
}

fn rates(catalog: &Catalog, rows: &mut Vec<Row>) -> Result<(), PlanError> {
    let p5 = Group::of(&cluster(catalog, "aws-p5", 2)?);
    let floor = Point {
        id: "p5-2n-8b",
        setup: "16 H100 on EFA, all-reduce of 8 B",
        measured: 69.1,
        unit: "µs",
        usage: Use::Calibrate,
        class: Class::Small,
        source: "aws_adt",
    };
    rows.push(floor.row(p5.fastest(Collective::AllReduce, 8.0).seconds * 1e6));
    let pair = Point {
        id: "ndr-per-nic",
        setup: "what NCCL gets of one NDR adapter, middle of 46 to 48",
        measured: 47.0,
        unit: "GB/s",
        usage: Use::Calibrate,
        class: Class::Large,
        source: "nccl_issues",
    };
    rows.push(pair.row(50.0 * crate::calibrated::constants::PAIRWISE_SHARE));

    let efa = cluster(catalog, "aws-p5en", 1)?.server.nic_rate.rate;
    let plain = Point {
        id: "efa200-ib-write",
        setup: "ib_write_bw through one EFA adapter of 200 Gb/s",
        measured: 193.72,
        unit: "Gb/s",
        usage: Use::Calibrate,
        class: Class::Large,
        source: "stas_net",
    };
    rows.push(plain.row(efa.0 * 8.0 * crate::calibrated::constants::RING_SHARE / 1e9));
    let bus5 = usable(catalog.pcie.get("gen5")?, 1.0).rate.as_gb();
    for (id, setup, measured) in [
        ("pcie5-h2d", "H200 on PCIe 5 x16, host to device", 55.43),
        ("pcie5-d2h", "the same, device to host", 55.06),
    ] {
        let copy = Point {
            id,
            setup,
            measured,
            unit: "GB/s",
            usage: Use::Calibrate,
            class: Class::Large,
            source: "stas_net",
        };
        rows.push(copy.row(bus5));
    }

    // One GH200 a server: the four ports serve one GPU, and NVLink reaches no other.
    let mut pair = Group::of(&cluster(catalog, "gcp-a4x", 18)?);
    (pair.domains, pair.per_domain) = (2, 1);
    pair.network = crowfly_route::units::BytesPerSecond::gb(100.0);
    let on = bus(
        "gh200-gdr-on",
        "2 servers of one GH200 with 4 x 200 Gb/s, 2 GiB, direct",
        96.07,
        Use::Check,
        Class::Large,
        "nccl_issues",
    );
    rows.push(on.row(bus_bandwidth(&pair, Collective::AllReduce, 2.0 * GIB, None)));

    // Four servers whose one 100 Gb/s adapter and GPUs share a Gen3 uplink.
    let overrides = Overrides {
        nics: Some(1),
        nic_gbps: Some(100.0),
        pcie_gen: Some(3),
        ..Overrides::default()
    };
    let mut server = ServerSpec::from_catalog(catalog, "dgx-a100", &overrides)?;
    server.gpus = 1;
    let range = StagedRange::of(&Cluster::new(server, 4, 1.0)?, None);
    let off = Point {
        id: "ib100-gdr-off",
        setup: "4 servers, 100 Gb/s InfiniBand on Gen3, staged",
        measured: 6.0,
        unit: "GB/s",
        usage: Use::Check,
        class: Class::Large,
        source: "nccl_issues",
    };
    rows.push(off.row(range.map_or(0.0, |range| range.fast.per_nic.as_gb())));

    // Rate at which a GPU's tokens leave it, those for its own server included.
    let experts = Group::of(&cluster(catalog, "az-nd-h100-v5", 4)?);
    let bytes = GIB;
    let exchange = experts.fastest(Collective::AllToAll, bytes);
    let moved = Point {
        id: "deepep-8x4",
        setup: "32 H100, dispatch to experts, per GPU",
        measured: 61.0,
        unit: "GB/s",
        usage: Use::Check,
        class: Class::Large,
        source: "deepep",
    };
    rows.push(moved.row(bytes / exchange.seconds / 1e9));

    for (id, setup, measured, wiring) in [
        (
            "rail-sim",
            "256 GPUs on rails, 512 MiB, simulated packets, per NIC",
            45.65,
            Wiring::Rails,
        ),
        (
            "no-rail-sim",
            "the same with whole servers on a leaf, flows hashed",
            36.24,
            Wiring::Servers,
        ),
    ] {
        let point = Point {
            id,
            setup,
            measured,
            unit: "GB/s",
            usage: Use::Check,
            class: Class::Large,
            source: "simai",
        };
        rows.push(point.row(ring_rate(catalog, wiring)?));
    }
    Ok(())
}

/// Mean rate of a rail's ring over 32 servers, 64 ports down and 64 up a leaf, each to a spine of its
/// own, in 1e9 B/s. Which flows
/// meet is chance, so it is the mean of as many seeds as there are links.
fn ring_rate(catalog: &Catalog, wiring: Wiring) -> Result<f64, PlanError> {
    const SEEDS: u32 = 64;
    let bytes = 512.0 * MIB;
    let mut simulation = Simulation::of(cluster(catalog, "dgx-h100", 32)?, 128, bytes);
    (simulation.routing, simulation.wiring) = (Routing::Static, wiring);
    simulation.spines = (wiring == Wiring::Servers).then_some(64);
    let mut seconds = 0.0;
    for seed in 0..SEEDS {
        simulation.seed = seed.into();
        let found = simulation.run()?;
        seconds += found.jobs.first().map_or(0.0, |job| job.mean_seconds);
    }
    let nics = f64::from(simulation.cluster.domain_nics());
    Ok(ring_bytes(32.0, bytes / nics) * f64::from(SEEDS) / seconds / 1e9)
}

fn steps(catalog: &Catalog, rows: &mut Vec<Row>) -> Result<(), PlanError> {
    let point = |id, setup, measured, source| Point {
        id,
        setup,
        measured,
        unit: "s",
        usage: Use::Check,
        class: Class::Step,
        source,
    };
    let table = [
        (
            "gpt3-175b",
            8,
            8,
            64.0,
            [("iter-175b-full", 18.13), ("iter-175b-selective", 13.75)],
        ),
        (
            "megatron-1t",
            64,
            64,
            512.0,
            [("iter-1t-full", 94.42), ("iter-1t-selective", 71.49)],
        ),
    ];
    for (model, servers, pipeline, sequences, measured) in table {
        let cluster = cluster(catalog, "dgx-a100", servers)?;
        let model = ModelSpec::from_catalog(catalog, model)?;
        let tokens = sequences * f64::from(model.sequence.unwrap_or(1));
        let mut workload = Workload::data_parallel(model);
        workload.tensor = 8;
        workload.pipeline = pipeline;
        workload.tokens_per_gpu = (tokens / cluster.gpus() as f64) as u64;
        for ((id, seconds), recompute) in measured.into_iter().zip([true, false]) {
            workload.recompute = recompute;
            let step = Step::of(&cluster, &workload, Path::Direct);
            let setup = if recompute {
                "A100, tensor 8, pipeline, all activations worked out again"
            } else {
                "the same, attention alone worked out again"
            };
            rows.push(point(id, setup, seconds, "megatron").row(step.total.unwrap_or(0.0)));
        }
    }
    // The step that the reported rate of a chip makes of the planner's count of operations.
    let large = ModelSpec::from_catalog(catalog, "llama3-405b")?;
    let tokens = 1536.0 * f64::from(large.sequence.unwrap_or(1));
    // Tokens attend to those before them alone: half of the positions.
    let mut causal = Workload::data_parallel(large);
    causal.model.sequence = causal.model.sequence.map(|sequence| sequence / 2);
    let seconds = flops(&causal, tokens) / 256.0 / 1261.4e12;
    let setup = "Llama 3.1 405B on 256 TPU7x at the reported 1261.4 TFLOPS";
    rows.push(point("tpu7x-405b", setup, 98.34, "tpu_rec").row(seconds));
    Ok(())
}

fn arithmetic(catalog: &Catalog, rows: &mut Vec<Row>) -> Result<(), PlanError> {
    let point = |id, setup, measured, unit, source| Point {
        id,
        setup,
        measured,
        unit,
        usage: Use::Check,
        class: Class::Arithmetic,
        source,
    };
    for (id, tib_per_s, minutes) in [
        ("amlfs-40", 19.2, 2.20),
        ("amlfs-125", 64.0, 0.66),
        ("amlfs-250", 128.0, 0.33),
        ("amlfs-500", 256.0, 0.16),
    ] {
        let seconds = throughput_seconds(2.3 * TIB, tib_per_s * 1e9);
        // Printed with two decimals.
        let printed = (seconds / 60.0 * 100.0).round() / 100.0;
        let setup = "write 2.3 TiB at the file system's rate";
        rows.push(point(id, setup, minutes, "min", "az_ai").row(printed));
    }
    for (id, model, gib) in [
        ("mlperf-8b", "llama3-8b", 105.0),
        ("mlperf-70b", "70b", 912.0),
        ("mlperf-405b", "llama3-405b", 5290.0),
    ] {
        let bytes = ModelSpec::from_catalog(catalog, model)?.checkpoint_bytes();
        rows.push(point(id, "size of a checkpoint", gib, "GiB", "mlps").row(bytes / GIB));
    }
    let rule = &catalog.reliability.get("mlcommons-rule")?.facts;
    let mttf = rule.accelerator_mttf_h.unwrap_or(0.0);
    for (id, accelerators, hours) in [("mlc-100k", 1e5, 0.5), ("mlc-1m", 1e6, 0.05)] {
        let setup = "time between failures at 50,000 h an accelerator";
        rows.push(point(id, setup, hours, "h", "mlc_release").row(mttf / accelerators));
    }
    let llama = catalog.reliability.get("llama3-405b")?;
    let between = hours_between(
        llama.facts.days.unwrap_or(0.0),
        f64::from(llama.facts.unexpected.unwrap_or(0)),
    );
    let rate = failures(catalog, "llama3-405b")?;
    let setup = "time between interruptions of 16,384 H100";
    rows.push(
        point("llama3-interrupts", setup, between, "h", "llama3").row(rate.mtbf_hours(16_384)),
    );
    for (nodes, ids, setups, published) in [
        (
            31,
            ["superpod-31-leaf", "superpod-31-spine"],
            [
                "leaf switches of 31 servers",
                "spine switches of 31 servers",
            ],
            [8.0, 4.0],
        ),
        (
            63,
            ["superpod-63-leaf", "superpod-63-spine"],
            [
                "leaf switches of 63 servers",
                "spine switches of 63 servers",
            ],
            [16.0, 8.0],
        ),
        (
            95,
            ["superpod-95-leaf", "superpod-95-spine"],
            [
                "leaf switches of 95 servers",
                "spine switches of 95 servers",
            ],
            [24.0, 16.0],
        ),
        (
            127,
            ["superpod-127-leaf", "superpod-127-spine"],
            [
                "leaf switches of 127 servers",
                "spine switches of 127 servers",
            ],
            [32.0, 16.0],
        ),
    ] {
        let ours = Switches::of(nodes, 8, 64, 1.0, None)?;
        let counts = [ours.leaf, ours.spine];
        for (((id, setup), published), ours) in
            ids.into_iter().zip(setups).zip(published).zip(counts)
        {
            rows.push(point(id, setup, published, "switches", "nv_superpod").row(ours.into()));
        }
    }
    Ok(())
}
