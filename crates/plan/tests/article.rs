//! Every number of the two source articles, in full precision and as printed.

use std::collections::BTreeMap;

use crowfly_plan::article::{self, Article};
use crowfly_plan::catalog::Catalog;
use crowfly_plan::cluster::{Cluster, Overrides, ServerSpec};
use crowfly_plan::figure::half_up;
use crowfly_plan::workload::ModelSpec;

const GB: f64 = 1e9;

fn dgx(servers: u32) -> Article {
    let catalog = Catalog::built_in();
    let server = ServerSpec::from_catalog(&catalog, "dgx-h100", &Overrides::default());
    let cluster = Cluster::new(server.expect("sound"), servers, 1.0).expect("sound");
    Article::of(
        &cluster,
        &ModelSpec::from_catalog(&catalog, "70b").expect("there"),
    )
}

/// A number as the planner has it, and as an article would print it.
struct Row {
    id: &'static str,
    value: f64,
    printed: String,
}

fn row(id: &'static str, value: f64, printed: impl Into<String>) -> Row {
    Row {
        id,
        value,
        printed: printed.into(),
    }
}

fn rows() -> Vec<Row> {
    let catalog = Catalog::built_in();
    let eight = dgx(8);
    let at = |servers: u32| dgx(servers);
    let staged = |a: &Article| a.staged.as_ref().expect("memory is known").value;
    let share = eight.staged_share.as_ref().expect("known").value;
    let hbm = eight.gpu_memory_ratio.as_ref().expect("known").value;
    let server = catalog.servers.get("dgx-h100").expect("there");
    let gaudi = &catalog.gpus.get("gaudi3").expect("there").facts;
    let azure = &catalog.servers.get("az-nd-h100-v5").expect("there").facts;
    let fsx = &catalog
        .storage
        .get("aws-fsx-lustre-p2")
        .expect("there")
        .facts;
    let cache = &catalog.storage.get("gcs-rapid-cache").expect("there").facts;
    let lustre = &catalog
        .storage
        .get("gcp-managed-lustre-1000")
        .expect("there")
        .facts;
    let llama = &catalog.reliability.get("llama3-405b").expect("there").facts;
    let gen_ = |id: &str| catalog.pcie.get(id).expect("there").facts.raw_gbs;
    let large = ModelSpec::of_size(405e9).expect("sound").checkpoint_bytes();
    let lustre_rate = 100.0 * lustre.mbps_per_tib.expect("known") * 1e6;
    let restore = eight.checkpoint.value / lustre_rate;
    let interval = article::hours_between(
        llama.days.expect("known"),
        f64::from(llama.unexpected.expect("known")),
    );
    let (two, many) = (at(2), at(512));
    vec![
        row(
            "000-line-dir",
            eight.line_rate.value / GB,
            format!("{} GB/s", half_up(eight.line_rate.value / GB, 0)),
        ),
        row(
            "000-line-bidir",
            eight.line_rate_both_ways.value / GB,
            format!("{} GB/s", half_up(eight.line_rate_both_ways.value / GB, 0)),
        ),
        row(
            "000-ram-traffic",
            eight.memory_traffic.value / GB,
            format!("{} TB/s", half_up(eight.memory_traffic.value / 1e12, 1)),
        ),
        row(
            "000-ram-peak",
            eight.memory_peak.as_ref().expect("known").value / GB,
            format!(
                "{} GB/s",
                half_up(article::memory_peak(2.0, 8.0, 4.4e9) / GB, 0)
            ),
        ),
        row(
            "000-staged-nic",
            eight.staged_per_nic.as_ref().expect("known").value / GB,
            format!(
                "{} GB/s",
                half_up(eight.staged_per_nic.as_ref().expect("known").value / GB, 1)
            ),
        ),
        row(
            "000-staged-pct",
            share,
            format!("{}%", half_up(share * 100.0, 0)),
        ),
        row("000-hbm-ratio", hbm, half_up(hbm, 0)),
        row(
            "000-grad-70b",
            eight.gradients.value,
            format!("{} GB", half_up(eight.gradients.value / GB, 0)),
        ),
        row(
            "000-shard",
            eight.shard.value,
            format!(
                "1/{}",
                half_up(eight.gradients.value / eight.shard.value, 0)
            ),
        ),
        row(
            "000-nic-bytes-8",
            eight.bytes_per_nic.value,
            format!("{} GB", half_up(eight.bytes_per_nic.value / GB, 0)),
        ),
        row(
            "000-direct-8",
            eight.direct.value,
            format!("{} ms", half_up(eight.direct.value * 1e3, 0)),
        ),
        row(
            "000-staged-8",
            staged(&eight),
            format!("{} s", half_up(staged(&eight), 1)),
        ),
        row(
            "000-ckpt-70b",
            eight.checkpoint.value,
            format!("{} GB", half_up(eight.checkpoint.value / GB, 0)),
        ),
        row(
            "000-restore-70b",
            restore,
            format!("{} s", half_up(restore, 1)),
        ),
        row(
            "000-lustre",
            lustre_rate,
            format!("{} GB/s", half_up(lustre_rate / GB, 0)),
        ),
        row(
            "000-ckpt-405b",
            large,
            format!("{} TB", half_up(large / 1e12, 1)),
        ),
        row("000-interrupts", interval, half_up(interval, 0)),
        row(
            "000-tokens",
            10e9 * crowfly_plan::workload::TOKEN_BYTES,
            "20 GB",
        ),
        row(
            "000-curve-1",
            at(1).direct.value,
            half_up(at(1).direct.value, 0),
        ),
        row(
            "000-curve-2",
            two.direct.value,
            format!(
                "{} ms, {} ms",
                half_up(two.direct.value * 1e3, 0),
                half_up(staged(&two) * 1e3, 0)
            ),
        ),
        row(
            "000-curve-512",
            many.direct.value,
            format!(
                "{} ms, {} s",
                half_up(many.direct.value * 1e3, 0),
                half_up(staged(&many), 2)
            ),
        ),
        row(
            "000-plateau",
            2.0 * eight.shard.value / 50e9,
            half_up(2.0 * eight.shard.value / eight.shard.value, 0),
        ),
        row(
            "000-speedup",
            eight.ratio.as_ref().expect("known").value,
            half_up(eight.ratio.as_ref().expect("known").value, 2),
        ),
        row(
            "000-local-nvme",
            server.facts.local_nvme_tb.expect("known"),
            "8 x 3.84 TB",
        ),
        row(
            "000-fsx",
            fsx.client_gbs.expect("known"),
            format!("{} Gb/s", half_up(fsx.client_gbs.expect("known") * 8.0, 0)),
        ),
        row(
            "000-azure",
            f64::from(azure.nics.expect("known")) * azure.nic_gbps.expect("known") / 1e3,
            "3.2 Tb/s",
        ),
        row(
            "000-gaudi3",
            f64::from(gaudi.eth_ports.expect("known")) * gaudi.eth_port_gbps.expect("known") / 1e3,
            "4.8 Tb/s",
        ),
        row(
            "000-rapid-cache",
            cache.max_gbs.expect("known"),
            format!(
                "{} GB/s to {} GB/s",
                cache.min_gbs.expect("known"),
                cache.max_gbs.expect("known")
            ),
        ),
        row(
            "000-servers-405b",
            16_384.0 / f64::from(server.facts.gpus),
            "2048",
        ),
        row(
            "002-p2p-latency",
            1.0 - 5.0 / 22.0,
            format!("{}%", half_up((1.0 - 5.0 / 22.0) * 100.0, 0)),
        ),
        row("002-bw-ratio", 720.0 / 60.0, "12"),
        row(
            "002-line",
            8.0 * 400.0 / 8.0,
            format!("x{}", half_up(720.0 / (eight.line_rate.value / GB), 1)),
        ),
        row(
            "002-gen3-gen4",
            1.0 - gen_("gen3") / gen_("gen4"),
            format!(
                "{}%",
                half_up((1.0 - gen_("gen3") / gen_("gen4")) * 100.0, 0)
            ),
        ),
        row(
            "002-net-cost-lo",
            0.18 * crowfly_plan::fabric::FOUR_YEARS_HOURS,
            format!(
                "${}k",
                half_up(0.18 * crowfly_plan::fabric::FOUR_YEARS_HOURS / 1e3, 1)
            ),
        ),
        row(
            "002-net-cost-hi",
            0.22 * crowfly_plan::fabric::FOUR_YEARS_HOURS,
            format!(
                "${}k",
                half_up(0.22 * crowfly_plan::fabric::FOUR_YEARS_HOURS / 1e3, 1)
            ),
        ),
        row("002-2x-ckpt", 2.0 * eight.checkpoint.value / GB, "1960"),
    ]
}

/// The values of the articles: exact, and as they print them.
const EXPECTED: [(&str, f64, &str); 36] = [
    ("000-line-dir", 400.0, "400 GB/s"),
    ("000-line-bidir", 800.0, "800 GB/s"),
    ("000-ram-traffic", 1600.0, "1.6 TB/s"),
    ("000-ram-peak", 563.2, "563 GB/s"),
    ("000-staged-nic", 17.6, "17.6 GB/s"),
    ("000-staged-pct", 0.352, "35%"),
    ("000-hbm-ratio", 5.948_153_409_090_909, "6"),
    ("000-grad-70b", 140e9, "140 GB"),
    ("000-shard", 17.5e9, "1/8"),
    ("000-nic-bytes-8", 30.625e9, "31 GB"),
    ("000-direct-8", 0.6125, "613 ms"),
    ("000-staged-8", 1.740_056_818_181_818_1, "1.7 s"),
    ("000-ckpt-70b", 980e9, "980 GB"),
    ("000-restore-70b", 9.8, "9.8 s"),
    ("000-lustre", 100e9, "100 GB/s"),
    ("000-ckpt-405b", 5.67e12, "5.7 TB"),
    ("000-interrupts", 3.093_078_758_949_881, "3"),
    ("000-tokens", 20e9, "20 GB"),
    ("000-curve-1", 0.0, "0"),
    ("000-curve-2", 0.35, "350 ms, 994 ms"),
    ("000-curve-512", 0.698_632_812_5, "699 ms, 1.98 s"),
    ("000-plateau", 0.7, "2"),
    ("000-speedup", 2.840_909_090_909_091, "2.84"),
    ("000-local-nvme", 30.72, "8 x 3.84 TB"),
    ("000-fsx", 150.0, "1200 Gb/s"),
    ("000-azure", 3.2, "3.2 Tb/s"),
    ("000-gaudi3", 4.8, "4.8 Tb/s"),
    ("000-rapid-cache", 2500.0, "12.5 GB/s to 2500 GB/s"),
    ("000-servers-405b", 2048.0, "2048"),
    ("002-p2p-latency", 0.772_727_272_727_272_7, "77%"),
    ("002-bw-ratio", 12.0, "12"),
    ("002-line", 400.0, "x1.8"),
    ("002-gen3-gen4", 0.5, "50%"),
    ("002-net-cost-lo", 6311.52, "$6.3k"),
    ("002-net-cost-hi", 7714.08, "$7.7k"),
    ("002-2x-ckpt", 1960.0, "1960"),
];

/// The order of floating point operations may differ in the last bit.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * b.abs()
}

#[test]
fn every_number_of_the_articles_comes_out_in_full_and_as_printed() {
    let rows = rows();
    assert_eq!(rows.len(), EXPECTED.len());
    for (row, (id, exact, printed)) in rows.iter().zip(EXPECTED) {
        assert_eq!(row.id, id);
        assert!(same(row.value, exact), "{id}: {} for {exact}", row.value);
        assert_eq!(row.printed, printed, "{id}");
    }
}

#[test]
fn the_curve_climbs_to_a_plateau_and_staging_costs_the_same_factor_everywhere() {
    let limit = 0.7;
    let mut before = 0.0;
    for doubling in 1..=16 {
        let at = dgx(1 << doubling);
        let direct = at.direct.value;
        assert!(direct > before && direct < limit, "{direct}");
        let ratio = at.ratio.expect("crosses servers").value;
        assert!(same(ratio, 50.0 / 17.6), "{ratio}");
        before = direct;
    }
    assert!(dgx(1).ratio.is_none());
}

/// Where the list of numbers that the planner was specified with is at hand, nothing of it is
/// missing from the table above.
#[test]
fn given_the_specified_list_every_number_in_it_is_in_the_table() {
    let path = std::env::var("CROWFLY_SEED_NUMBERS");
    let Some(text) = path
        .ok()
        .and_then(|path| std::fs::read_to_string(path).ok())
    else {
        crowfly_waive::waived!("CROWFLY_SEED_NUMBERS names no file of specified numbers");
    };
    let document: toml::Table = text.parse().expect("TOML");
    let listed = document["t"].as_array().expect("a list");
    let ours: BTreeMap<&str, f64> = rows().iter().map(|row| (row.id, row.value)).collect();
    assert!(!listed.is_empty());
    for number in listed {
        let id = number["id"].as_str().expect("an id");
        let exact = &number["exact"];
        let exact = exact.as_float().or(exact.as_integer().map(|n| n as f64));
        let exact = exact.expect("a number");
        assert!(
            ours.get(id).is_some_and(|value| same(*value, exact)),
            "{id}"
        );
    }
}
