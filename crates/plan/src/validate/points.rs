//! The points, and how each is predicted.

use super::{Group as Class, Row, Use};
use crate::article::hours_between;
use crate::calibrated::{Algorithm, Collective, Group, StagedRange};
use crate::catalog::Catalog;
use crate::checkpoint::{failures, throughput_seconds};
use crate::cluster::{Cluster, Overrides, ServerSpec};
use crate::error::PlanError;
use crate::fabric::Switches;
use crate::step::{Path, Step, flops};
use crate::workload::{ModelSpec, Workload};

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

/// A run of nccl-tests: bus bandwidth in 1e9 B/s.
struct Run {
    point: Point,
    server: &'static str,
    servers: u32,
    bytes: f64,
    collective: Collective,
    only: Option<Algorithm>,
}

const fn bus(
    id: &'static str,
    setup: &'static str,
    busbw: f64,
    usage: Use,
    class: Class,
    source: &'static str,
) -> Point {
    Point {
        id,
        setup,
        measured: busbw,
        unit: "GB/s busbw",
        usage,
        class,
        source,
    }
}

fn runs() -> Vec<Run> {
    use Class::{Large, Small};
    use Use::{Calibrate, Check};
    let run = |point, server, servers, bytes| Run {
        point,
        server,
        servers,
        bytes,
        collective: Collective::AllReduce,
        only: None,
    };
    let ring = |run: Run| Run {
        only: Some(Algorithm::Ring),
        ..run
    };
    vec![
        run(
            bus(
                "h100-1n-16g",
                "8 H100, all-reduce 16 GiB in the switches",
                479.9,
                Calibrate,
                Large,
                "dgxc",
            ),
            "dgx-h100",
            1,
            16.0 * GIB,
        ),
        run(
            bus(
                "h100-1n-1m",
                "the same, 1 MiB",
                67.04,
                Calibrate,
                Small,
                "dgxc",
            ),
            "dgx-h100",
            1,
            MIB,
        ),
        ring(run(
            bus(
                "h200-1n-16g-ring",
                "8 H200, 16 GiB by a ring",
                367.2,
                Calibrate,
                Large,
                "stas_net",
            ),
            "dgx-h200",
            1,
            16.0 * GIB,
        )),
        run(
            bus(
                "a100-1n-16g",
                "8 A100 on NVSwitch, 16 GiB",
                234.89,
                Calibrate,
                Large,
                "stas_net",
            ),
            "dgx-a100",
            1,
            16.0 * GIB,
        ),
        run(
            bus(
                "b200-1n-16g",
                "8 B200, 16 GiB in the switches",
                845.67,
                Calibrate,
                Large,
                "stas_net",
            ),
            "aws-p6-b200",
            1,
            16.0 * GIB,
        ),
        ring(run(
            bus(
                "b200-1n-8g-ring",
                "8 B200, 8 GiB by a ring",
                682.2,
                Calibrate,
                Large,
                "stas_net",
            ),
            "aws-p6-b200",
            1,
            8.0 * GIB,
        )),
        run(
            bus(
                "mi300x-1n-4g",
                "8 MI300X, 4 GiB",
                312.9,
                Calibrate,
                Large,
                "stas_net",
            ),
            "az-nd-mi300x-v5",
            1,
            4.0 * GIB,
        ),
        run(
            bus(
                "h200-1n-16g-nvls",
                "8 H200, 16 GiB in the switches",
                482.26,
                Check,
                Large,
                "stas_net",
            ),
            "dgx-h200",
            1,
            16.0 * GIB,
        ),
        Run {
            collective: Collective::ReduceScatter,
            ..run(
                bus(
                    "h200-1n-reducescatter",
                    "8 H200, reduce-scatter 16 GiB",
                    362.9,
                    Check,
                    Large,
                    "stas_net",
                ),
                "dgx-h200",
                1,
                16.0 * GIB,
            )
        },
        run(
            bus(
                "gb300-1rack-16g",
                "72 GB300 in one rack, 16 GiB",
                937.0,
                Check,
                Large,
                "az_ai",
            ),
            "gb300-nvl72",
            1,
            16.0 * GIB,
        ),
        run(
            bus(
                "h100ib-8n-8g",
                "64 H100, 8 x NDR a server, 8 GiB",
                386.56,
                Check,
                Large,
                "coreweave",
            ),
            "az-nd-h100-v5",
            8,
            8.0 * GIB,
        ),
        run(
            bus(
                "p5en-16n-16g",
                "128 H200 on EFA, 16 GiB",
                369.86,
                Check,
                Large,
                "aws_adt",
            ),
            "aws-p5en",
            16,
            16.0 * GIB,
        ),
        run(
            bus(
                "p6b200-4n-16m",
                "32 B200 on EFA, 16 MiB",
                64.43,
                Check,
                Small,
                "stas_net",
            ),
            "aws-p6-b200",
            4,
            16.0 * MIB,
        ),
        run(
            bus(
                "p4de-2n-2g",
                "16 A100, 4 x 100 Gb/s a server, 2 GiB: two servers, one edge",
                78.33,
                Check,
                Large,
                "aws_adt",
            ),
            "aws-p4de",
            2,
            2.0 * GIB,
        ),
        run(
            bus(
                "gb200-2rack-16g",
                "144 GB200 in two racks, 16 GiB",
                810.4,
                Check,
                Large,
                "coreweave",
            ),
            "gb200-nvl72",
            2,
            16.0 * GIB,
        ),
    ]
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

    let simulated = Point {
        id: "rail-sim",
        setup: "256 GPUs on rails, 512 MiB, simulated packets, per NIC",
        measured: 45.65,
        unit: "GB/s",
        usage: Use::Check,
        class: Class::Large,
        source: "simai",
    };
    rows.push(simulated.row(50.0 * crate::calibrated::constants::RING_SHARE));
    Ok(())
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
    for (id, setup, nodes, switches) in [
        (
            "superpod-1",
            "leaf and spine switches of 31 servers",
            31,
            8 + 4,
        ),
        (
            "superpod-2",
            "leaf and spine switches of 63 servers",
            63,
            16 + 8,
        ),
        (
            "superpod-3",
            "leaf and spine switches of 95 servers",
            95,
            24 + 16,
        ),
        (
            "superpod-4",
            "leaf and spine switches of 127 servers",
            127,
            32 + 16,
        ),
    ] {
        let ours = Switches::of(nodes, 8, 64, 1.0, None)?;
        let published = f64::from(switches);
        rows.push(
            point(id, setup, published, "switches", "nv_superpod").row(f64::from(ours.total())),
        );
    }
    Ok(())
}
