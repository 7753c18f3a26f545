//! Claims about GPUDirect that go round, and what is right.
//!
//! They are those of a vendor's guide that contradict primary sources or plain arithmetic. The
//! numbers that the right answer needs are worked out here, from the catalogue where it has them.

use serde::Serialize;

/// A claim and what is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// A short name.
    pub id: &'static str,
    /// What is said.
    pub said: &'static str,
    /// What is right.
    pub right: &'static str,
}

/// All of them.
pub const CLAIMS: [Claim; 12] = [
    Claim {
        id: "quantum-generations",
        said: "Quantum-2 is HDR at 200 Gb/s, Quantum-3 is NDR at 400 Gb/s.",
        right: "Quantum is HDR at 200 Gb/s, Quantum-2 is NDR at 400 Gb/s with 64 ports, Quantum-X800 is XDR at 800 Gb/s.",
    },
    Claim {
        id: "gen3-slot",
        said: "A ConnectX-7 in a Gen3 x16 slot loses about 35 % against Gen4 x16.",
        right: "It loses half: Gen3 x16 carries 15.75 GB/s, Gen4 x16 31.5 GB/s, and the adapter wants 50.",
    },
    Claim {
        id: "line-rate",
        said: "Eight GPUs sustain 720 GB/s over GPUDirect RDMA on NDR 400.",
        right: "Eight 400 Gb/s adapters carry 400 GB/s in one direction; 720 is 90 % of both directions together. Beyond two servers runs measure 365 to 387 GB/s.",
    },
    Claim {
        id: "nvlink-rate",
        said: "GPUs sustain 900 GB/s over NVLink.",
        right: "900 GB/s is both directions together. Measured bus bandwidth of eight H100 is 480 GB/s in the switches and 367 GB/s by a ring.",
    },
    Claim {
        id: "connectx-6-dx",
        said: "ConnectX-6 Dx is the least for a new InfiniBand or RoCE design.",
        right: "ConnectX-6 Dx is Ethernet only; InfiniBand needs ConnectX-6 or later without Dx.",
    },
    Claim {
        id: "storage-rule",
        said: "Size the storage tier for twice the checkpoint in GB/s.",
        right: "A size is no rate: of a 980 GB checkpoint it would ask 1,960 GB/s. The rate is the checkpoint over the stall that is allowed: 98 GB/s for 10 s.",
    },
    Claim {
        id: "oversubscription",
        said: "1,024 GPUs map to a fat tree oversubscribed 2:1.",
        right: "Reference fabrics for that size are not oversubscribed: 32 leaf and 16 spine switches of 64 ports.",
    },
    Claim {
        id: "health-test",
        said: "On the fast path, bus bandwidth between servers is within 10 to 15 % of that inside one.",
        right: "Compare it with the adapters' line rate. Four healthy B200 servers show 382 GB/s where one shows 846, and 382 is 96 % of the line.",
    },
    Claim {
        id: "throughput-gain",
        said: "GPUDirect RDMA nearly doubles throughput.",
        right: "The same table's own numbers are a factor of 12 (720 against 60). On a DGX H100, host memory leaves each adapter at most 17.6 of 50 GB/s: a factor of 2.8.",
    },
    Claim {
        id: "latency-gain",
        said: "60 to 80 % of the latency goes away.",
        right: "Its own rows, 22 and 5 µs, are 77 %, and name neither a machine nor a measurement.",
    },
    Claim {
        id: "async",
        said: "GPUDirect Async is data placement by NIC or DPU for DPDK.",
        right: "GPUDirect Async lets the GPU start and await the NIC's work; data goes the same way as with GPUDirect RDMA.",
    },
    Claim {
        id: "network-cost",
        said: "The fabric costs about as much as the GPUs, 0.18 to 0.22 USD per GPU and hour.",
        right: "That rate is 6,312 to 7,714 USD per GPU over four years; a server of eight H100 was 38,750 USD per GPU. Switches, cables and optics of 1,024 GPUs were 4,248 USD per GPU (August 2024).",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::fabric::FOUR_YEARS_HOURS;

    fn right(id: &str) -> &'static str {
        let claim = CLAIMS.iter().find(|claim| claim.id == id);
        claim.expect("there").right
    }

    #[test]
    fn the_numbers_in_the_answers_are_those_that_the_planner_works_out() {
        let catalog = Catalog::built_in();
        let pcie = |id: &str| catalog.pcie.get(id).expect("there").facts.raw_gbs;
        assert!(right("gen3-slot").contains(&format!("{:.2}", pcie("gen3"))));
        assert!(right("gen3-slot").contains(&format!("{:.1}", pcie("gen4"))));
        let quantum = &catalog
            .switches
            .get("quantum-2-qm9700")
            .expect("there")
            .facts;
        assert_eq!(
            (quantum.ports, quantum.port_gbps, quantum.ib.as_deref()),
            (64, 400.0, Some("NDR"))
        );
        let dx = &catalog.nics.get("connectx-6-dx").expect("there").facts;
        assert_eq!(dx.ib, None);
        let lo = (0.18 * FOUR_YEARS_HOURS).round();
        let hi = (0.22 * FOUR_YEARS_HOURS).round();
        assert_eq!((lo, hi), (6312.0, 7714.0));
        let server = catalog
            .prices
            .get("server-8xh100")
            .expect("there")
            .facts
            .usd;
        assert_eq!(server.map(|usd| usd / 8.0), Some(38_750.0));
        assert_eq!(720.0 / 60.0, 12.0);
        assert!((0.96f64 - 382.0 / 400.0).abs() < 0.01);
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = CLAIMS.iter().map(|claim| claim.id).collect();
        assert_eq!(names.len(), CLAIMS.len());
    }
}
