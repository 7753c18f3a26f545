//! The runs of nccl-tests.

use super::{GIB, MIB, Point};
use crate::calibrated::{Algorithm, Collective};
use crate::validate::{Group as Class, Use};

/// A run of nccl-tests: bus bandwidth in 1e9 B/s.
pub(super) struct Run {
    pub(super) point: Point,
    pub(super) server: &'static str,
    pub(super) servers: u32,
    pub(super) bytes: f64,
    pub(super) collective: Collective,
    pub(super) only: Option<Algorithm>,
}

pub(super) const fn bus(
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

pub(super) fn runs() -> Vec<Run> {
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
