//! The planner answers or refuses, whatever it is given: it never panics, and answers are numbers.

use crowfly_plan::assess::Assessment;
use crowfly_plan::calibrated::{Collective, Group};
use crowfly_plan::catalog::Catalog;
use crowfly_plan::cluster::{Cluster, Overrides, ServerSpec};
use crowfly_plan::fabric::Switches;
use crowfly_plan::sim::{Placement, Routing, Simulation};
use crowfly_plan::workload::{ModelSpec, Sharding, Workload};
use crowfly_route::terminal::is_harmful;
use proptest::prelude::*;

fn servers() -> Vec<String> {
    let catalog = Catalog::built_in();
    catalog
        .servers
        .iter()
        .map(|entry| entry.id.clone())
        .collect()
}

fn cluster(id: &str, overrides: &Overrides, count: u32, oversubscription: f64) -> Option<Cluster> {
    let server = ServerSpec::from_catalog(&Catalog::built_in(), id, overrides).ok()?;
    Cluster::new(server, count, oversubscription).ok()
}

fn overrides() -> impl Strategy<Value = Overrides> {
    let number = || prop::option::of(0u32..70);
    let rate = || prop::option::of(-1.0..2000.0f64);
    let slot = || prop::option::of(0u8..8);
    (number(), rate(), rate(), slot(), slot(), number(), number()).prop_map(
        |(nics, nic_gbps, memory_gbs, pcie_gen, pcie_lanes, pairs_per_uplink, domain)| Overrides {
            nics,
            nic_gbps,
            memory_gbs,
            pcie_gen,
            pcie_lanes,
            pairs_per_uplink,
            domain,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_is_a_catalogue_or_a_refusal(text in "(\\PC|[\u{1}-\u{1f}\u{202e}]){0,300}") {
        if let Err(refusal) = Catalog::built_in().add(&text) {
            let said = refusal.to_string();
            prop_assert!(said.chars().count() < 500, "{}", said);
            prop_assert!(!said.chars().any(is_harmful), "{}", said);
        }
    }

    #[test]
    fn any_entry_is_sound_or_refused(
        kind in "gpu|server|nic|storage|model|price|pcie|fabric|widget",
        field in "id|gpus|gbps|params|src|sources|note|names",
        value in prop_oneof!["-?[0-9]{1,20}", "\"[a-z]{0,9}\"", "\\[[0-9,]{0,5}\\]", "nan|inf|true"],
    ) {
        let text = format!("[[{kind}]]\nid = \"x\"\n{field} = {value}\nsources = [\"me\"]\nconfidence = \"high\"\n");
        let mut catalog = Catalog::built_in();
        let before = catalog.list(None, None).len();
        if catalog.add(&text).is_err() {
            prop_assert_eq!(catalog.list(None, None).len(), before);
        }
    }

    #[test]
    fn any_cluster_is_assessed_with_times_that_are_numbers(
        id in prop::sample::select(servers()),
        overrides in overrides(),
        count in 1u32..20_000,
        params in 1.0..1e14f64,
        sharding in prop::sample::select(Sharding::ALL.to_vec()),
        tensor in 1u32..17,
        pipeline in 1u32..17,
        expert in 1u32..65,
        tokens_per_gpu in 1u64..1_000_000,
    ) {
        let Some(cluster) = cluster(&id, &overrides, count, 1.0) else { return Ok(()) };
        let workload = Workload {
            sharding,
            tensor,
            pipeline,
            expert,
            tokens_per_gpu,
            ..Workload::data_parallel(ModelSpec::of_size(params).expect("in range"))
        };
        let Ok(answer) = Assessment::of(&cluster, &workload, None) else { return Ok(()) };
        let direct = answer.calibrated.direct.value;
        prop_assert!(direct.is_finite() && direct >= 0.0, "{}", direct);
        if let Some(staged) = answer.calibrated.staged {
            prop_assert!(staged.slow.value.is_finite());
            prop_assert!(direct <= staged.fast.value * (1.0 + 1e-9));
            prop_assert!(staged.fast.value <= staged.slow.value * (1.0 + 1e-9));
        }
    }

    #[test]
    fn any_collective_takes_a_time(
        id in prop::sample::select(servers()),
        count in 1u32..100_000,
        bytes in 1.0..1e15f64,
        collective in prop::sample::select(Collective::ALL.to_vec()),
    ) {
        let Some(cluster) = cluster(&id, &Overrides::default(), count, 2.0) else { return Ok(()) };
        let estimate = Group::of(&cluster).fastest(collective, bytes);
        prop_assert!(estimate.seconds.is_finite() && estimate.seconds >= 0.0);
        prop_assert!(estimate.latency_seconds <= estimate.seconds);
    }

    #[test]
    fn a_fabric_that_is_possible_has_a_port_for_everyone(
        servers in 1u32..200_000,
        nics in 1u32..64,
        radix in 2u32..1024,
        oversubscription in 1.0..8.0f64,
    ) {
        let Ok(switches) = Switches::of(servers, nics, radix, oversubscription, None) else { return Ok(()) };
        let endpoints = u64::from(servers) * u64::from(nics);
        let leaf_ports = u64::from(switches.leaf) * u64::from(switches.down);
        prop_assert!(leaf_ports >= endpoints);
        prop_assert!(switches.down + switches.up <= radix);
        let up = switches.leaf_spine_cables();
        prop_assert!(up <= u64::from(switches.spine) * u64::from(radix));
        prop_assert!(switches.spine_core_cables() <= u64::from(switches.core) * u64::from(radix));
    }

    #[test]
    fn any_simulation_ends_or_is_refused_and_never_beats_the_line(
        count in 1u32..200,
        radix in 4u32..130,
        hashed in any::<bool>(),
        scattered in any::<bool>(),
        failed_links in 0.0..1.0f64,
        failed_nics in 0u32..9,
        stragglers in 0.0..1.0f64,
        seed in any::<u64>(),
    ) {
        let Some(cluster) = cluster("dgx-h100", &Overrides::default(), count, 1.0) else { return Ok(()) };
        let healthy = Simulation::of(cluster, radix, 1e9);
        let simulation = Simulation {
            routing: if hashed { Routing::Static } else { Routing::Adaptive },
            placement: if scattered { Placement::Scattered } else { Placement::Packed },
            failed_links,
            failed_nics,
            stragglers,
            straggler_rate: 0.5,
            seed,
            ..healthy.clone()
        };
        let Ok(found) = simulation.run() else { return Ok(()) };
        let best = healthy.run().expect("the same fabric").network_seconds;
        prop_assert!(found.network_seconds >= best * (1.0 - 1e-9));
        for tier in &found.links {
            prop_assert!(tier.busiest <= 1.0 + 1e-9, "{:?}", tier);
        }
    }
}
