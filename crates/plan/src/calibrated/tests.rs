use super::*;
use crate::catalog::Catalog;
use crate::cluster::{Overrides, ServerSpec};
use crowfly_route::hop::Capacity;

fn cluster(id: &str, servers: u32) -> Cluster {
    let catalog = Catalog::built_in();
    let server = ServerSpec::from_catalog(&catalog, id, &Overrides::default());
    Cluster::new(server.expect("sound"), servers, 1.0).expect("sound")
}

fn group(id: &str, servers: u32) -> Group {
    Group::of(&cluster(id, servers))
}

/// On a server whose NVLink is no limit.
fn ring_seconds(servers: u32, bytes: f64) -> f64 {
    let ways = group("dgx-b200", servers).ring(Collective::AllReduce, bytes);
    let simple = ways.iter().find(|way| way.protocol == Protocol::Simple);
    simple.expect("every group has it").seconds
}

/// The curve that fits SimAI's table of flat rings over 2 to 128 servers: 0.96/(1 + 15.5 MB·n/S).
fn fitted(servers: f64, bytes: f64) -> f64 {
    0.96 / (1.0 + 15.5e6 * servers / bytes)
}

#[test]
fn the_ring_follows_the_curve_that_fits_a_published_table() {
    for servers in [2, 8, 32, 128] {
        for bytes in [67e6, 1.07e9, 17.2e9] {
            let n = f64::from(servers);
            let ranks = 8.0 * n;
            let reached =
                2.0 * (ranks - 1.0) / ranks * bytes / ring_seconds(servers, bytes) / 400e9;
            let error = reached / fitted(n, bytes) - 1.0;
            assert!(error.abs() < 0.15, "{servers} {bytes}: {error}");
        }
    }
}

#[test]
fn at_a_hundred_thousand_gpus_a_flat_ring_is_slow_and_a_tree_is_chosen() {
    let ring = ring_seconds(12_500, 140e9);
    assert!((ring / 1.74 - 1.0).abs() < 0.06, "{ring}");
    assert!((ring_seconds(64, 140e9) - 0.73).abs() < 0.01);
    let chosen = group("dgx-h100", 12_500).fastest(Collective::AllReduce, 140e9);
    assert!(
        matches!(chosen.algorithm, Algorithm::Tree | Algorithm::NvlsTree),
        "{chosen:?}"
    );
    assert!(chosen.extrapolated && chosen.seconds < 0.85, "{chosen:?}");
    let small = group("dgx-h100", 128).fastest(Collective::AllReduce, 140e9);
    assert!(!small.extrapolated);
}

#[test]
fn within_one_domain_the_network_plays_no_part() {
    let mut alone = group("dgx-h100", 1);
    let with = alone.fastest(Collective::AllReduce, 1e9);
    alone.network = BytesPerSecond(1.0);
    assert_eq!(alone.fastest(Collective::AllReduce, 1e9), with);
    assert_eq!(with.algorithm, Algorithm::Nvls);
    let rack = group("gb200-nvl72", 1);
    assert_eq!((rack.domains, rack.per_domain), (1, 72));
    let trays = group("gcp-a4x", 18);
    assert_eq!((trays.domains, trays.per_domain), (1, 72));
    let two = group("gcp-a4x", 36);
    assert_eq!((two.domains, two.per_domain), (2, 72));
}

#[test]
fn one_gpu_alone_has_nothing_to_do() {
    let mut one = group("dgx-h100", 1);
    one.per_domain = 1;
    assert_eq!(one.fastest(Collective::AllReduce, 1e9).seconds, 0.0);
    assert_eq!(
        group("dgx-h100", 4)
            .fastest(Collective::AllToAll, 0.0)
            .seconds,
        0.0
    );
}

#[test]
fn more_data_never_takes_less_time_and_more_rate_never_more() {
    for id in [
        "dgx-h100",
        "aws-p5en",
        "gb200-nvl72",
        "az-nd-mi300x-v5",
        "dgx-a100",
    ] {
        for servers in [1, 2, 3, 16, 500] {
            let plain = group(id, servers);
            let mut quick = plain.clone();
            quick.network = BytesPerSecond(plain.network.0 * 2.0);
            for collective in Collective::ALL {
                let mut before = 0.0;
                for doubling in 3..40 {
                    let bytes = f64::from(doubling).exp2();
                    let seconds = plain.fastest(collective, bytes).seconds;
                    assert!(seconds >= before, "{id} {servers} {collective:?} {bytes}");
                    assert!(quick.fastest(collective, bytes).seconds <= seconds);
                    before = seconds;
                }
            }
        }
    }
}

#[test]
fn staging_is_a_range_whose_ends_name_what_caps_them() {
    let range = StagedRange::of(&cluster("dgx-h100", 8), None).expect("known");
    assert_eq!(range.slow.bound, Bound::HostMemory);
    assert!((range.slow.per_nic.as_gb() - 563.2 * 0.8 / 32.0).abs() < 1e-9);
    assert_eq!(range.fast.bound, Bound::Uplink);
    assert!((range.fast.per_nic.as_gb() - 55.06 / 2.0).abs() < 1e-9);

    let shared = StagedRange::of(&cluster("meta-grand-teton-h100", 8), None).expect("known");
    assert_eq!(shared.slow.bound, Bound::Uplink);
    assert!((shared.slow.per_nic.as_gb() - 55.06 / 4.0).abs() < 1e-9);

    let slow_nics = StagedRange::of(&cluster("aws-p4de", 2), None).expect("known");
    assert_eq!(slow_nics.fast.bound, Bound::Nic);
}

#[test]
fn given_a_measurement_staging_is_no_range_any_more() {
    let measured = Capacity {
        rate: BytesPerSecond::gb(20.0),
        provenance: Provenance::Measured("a receipt".into()),
    };
    let range = StagedRange::of(&cluster("dgx-h100", 8), Some(&measured)).expect("known");
    assert_eq!(range.slow, range.fast);
    assert_eq!(range.slow.per_nic.as_gb(), 20.0);
}
