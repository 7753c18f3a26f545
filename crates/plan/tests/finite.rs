//! Within the ranges of the quantities every answer is made of finite numbers, from end to end.

use crowfly_plan::PlanError;
use crowfly_plan::assess::{Assessment, sizes, sweep};
use crowfly_plan::calibrated::{Collective, MAX_BUFFER_BYTES, Ways};
use crowfly_plan::catalog::Catalog;
use crowfly_plan::checkpoint::{Checkpoint, Interval, MeasuredStorage, Storage, Tier, failures};
use crowfly_plan::cluster::{Cluster, MAX_SERVERS, Overrides, ServerSpec};
use crowfly_plan::fabric::{BillOfMaterials, DEFAULT_SWITCH};
use crowfly_plan::loading::{Data, Loading, Samples};
use crowfly_plan::quantity::{self, Quantity};
use crowfly_plan::sim::{CheckpointTraffic, Simulation};
use crowfly_plan::validate::Validation;
use crowfly_plan::workload::{MAX_TOKENS, ModelSpec, Sharding, Workload};
use proptest::prelude::*;
use serde::Serialize;
use toml::Value;

/// Whether all numbers of an answer are finite. TOML writes what is not, where JSON has no word for
/// it, and leaves out what is absent.
fn assert_finite(answer: &impl Serialize) -> Result<(), TestCaseError> {
    let value = Value::try_from(answer).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let mut numbers = 0;
    walk(&value, &mut numbers)?;
    prop_assert!(numbers > 0, "no number in {}", value);
    Ok(())
}

fn walk(value: &Value, numbers: &mut usize) -> Result<(), TestCaseError> {
    match value {
        Value::Float(number) => {
            *numbers += 1;
            prop_assert!(number.is_finite(), "{}", number);
        }
        Value::Array(all) => all.iter().try_for_each(|one| walk(one, numbers))?,
        Value::Table(all) => all.iter().try_for_each(|(name, one)| {
            walk(one, numbers).map_err(|e| TestCaseError::fail(format!("{name}: {e}")))
        })?,
        _ => {}
    }
    Ok(())
}

/// Answers are finite; refusals are refusals.
fn sound<T: Serialize>(answer: Result<T, PlanError>) -> Result<(), TestCaseError> {
    match answer {
        Ok(answer) => assert_finite(&answer),
        Err(refusal) => {
            let said = refusal.to_string();
            prop_assert!(said.chars().count() < 200, "{}", said);
            Ok(())
        }
    }
}

/// Both ends, and any magnitude between them.
fn of(quantity: Quantity) -> BoxedStrategy<f64> {
    let (least, most) = (quantity.least, quantity.most);
    let between = if least > 0.0 {
        let (low, high) = (least.ln(), most.ln());
        (low..=high)
            .prop_map(move |power| power.exp().clamp(least, most))
            .boxed()
    } else {
        (least..=most).boxed()
    };
    prop_oneof![Just(least), Just(most), between].boxed()
}

fn count(most: u64) -> impl Strategy<Value = u64> {
    let power = (0.0..=(most as f64).ln()).prop_map(move |p| (p.exp() as u64).clamp(1, most));
    prop_oneof![Just(1), Just(most), power]
}

fn some<T: Strategy>(strategy: T) -> impl Strategy<Value = Option<T::Value>> {
    prop::option::of(strategy)
}

fn server(catalog: &Catalog, id: &str, overrides: &Overrides) -> Option<ServerSpec> {
    ServerSpec::from_catalog(catalog, id, overrides).ok()
}

fn clusters() -> impl Strategy<Value = Cluster> {
    let catalog = Catalog::built_in();
    let ids: Vec<String> = catalog.servers.iter().map(|e| e.id.clone()).collect();
    let parts = (
        prop::sample::select(ids),
        some(of(quantity::NIC_RATE)),
        some(of(quantity::MEMORY_RATE)),
        some(1u32..=4096),
        some(1u32..=4096),
        count(MAX_SERVERS),
        of(quantity::OVERSUBSCRIPTION),
    );
    parts.prop_filter_map(
        "refused",
        move |(id, nic, memory, nics, domain, n, over)| {
            let overrides = Overrides {
                nic_gbps: nic,
                memory_gbs: memory,
                nics,
                domain,
                ..Overrides::default()
            };
            let spec = server(&catalog, &id, &overrides)?;
            Cluster::new(spec, u32::try_from(n).ok()?, over).ok()
        },
    )
}

fn models() -> impl Strategy<Value = ModelSpec> {
    of(quantity::PARAMETERS).prop_map(|params| ModelSpec::of_size(params).expect("in range"))
}

fn workloads() -> impl Strategy<Value = Workload> {
    let sharding = prop::sample::select(Sharding::ALL.to_vec());
    (models(), sharding, count(MAX_TOKENS), any::<bool>()).prop_map(
        |(model, sharding, tokens_per_gpu, recompute)| Workload {
            sharding,
            tokens_per_gpu,
            recompute,
            ..Workload::data_parallel(model)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn assessments_and_sweeps_are_finite(cluster in clusters(), workload in workloads()) {
        sound(Assessment::of(&cluster, &workload, None))?;
        for point in sweep(&cluster, &workload, None, &sizes(1, 4096).expect("sizes")).expect("sound") {
            assert_finite(&point)?;
        }
    }

    #[test]
    fn checkpoints_are_finite(
        cluster in clusters(),
        model in models(),
        gbs in of(quantity::STORAGE_RATE),
        tib in of(quantity::STORAGE_CAPACITY),
    ) {
        let catalog = Catalog::built_in();
        let mut asked = vec![Storage::of_rate(gbs).expect("in range")];
        for entry in catalog.storage.iter() {
            match Storage::from_catalog(&catalog, &entry.id, Some(tib)) {
                Ok(storage) => asked.push(storage),
                Err(refusal) => sound::<f64>(Err(refusal))?,
            }
        }
        let none = MeasuredStorage::default();
        assert_finite(&Checkpoint::of(&catalog, &cluster, &model, &asked, &none))?;
    }

    #[test]
    fn intervals_are_finite(
        gpus in count(u64::from(u32::MAX)),
        stall in of(quantity::STALL),
        restore in of(quantity::RESTORE),
    ) {
        let catalog = Catalog::built_in();
        let mut rated = 0;
        for entry in catalog.reliability.iter() {
            let Ok(failures) = failures(&catalog, &entry.id) else { continue };
            assert_finite(&Interval::of(&failures, gpus, stall, restore).expect("in range"))?;
            rated += 1;
        }
        prop_assert!(rated > 0);
    }

    #[test]
    fn tiers_are_finite(model in models(), stall in of(quantity::ALLOWED_STALL)) {
        let catalog = Catalog::built_in();
        sound(Tier::of(&catalog, &model, stall, None))?;
        for entry in catalog.storage.iter() {
            sound(Tier::of(&catalog, &model, stall, Some(&entry.id)))?;
        }
    }

    #[test]
    fn what_training_reads_is_finite(
        cluster in clusters(),
        workload in workloads(),
        data in prop::sample::select(Data::ALL.to_vec()),
        per_gpu in some(of(quantity::SAMPLES)),
        bytes in some(of(quantity::SAMPLE_BYTES)),
        gbs in of(quantity::STORAGE_RATE),
    ) {
        let store = Storage::of_rate(gbs).expect("in range");
        let samples = Samples { per_gpu, bytes };
        sound(Loading::of(&cluster, &workload, data, samples, Some(&store)))?;
    }

    #[test]
    fn fabrics_are_finite(cluster in clusters(), tiers in some(1u32..=3)) {
        sound(BillOfMaterials::of(&Catalog::built_in(), &cluster, DEFAULT_SWITCH, tiers))?;
    }

    #[test]
    fn collectives_are_finite(
        cluster in clusters(),
        op in prop::sample::select(Collective::ALL.to_vec()),
        bytes in count(MAX_BUFFER_BYTES),
    ) {
        let ways = Ways::of(&cluster, op, bytes, None).expect("in range");
        if ways.gpus > 1 {
            assert_finite(&ways)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn simulations_are_finite(
        nic_gbps in some(of(quantity::NIC_RATE)),
        servers in 1u32..100,
        bytes in of(quantity::REDUCED_BYTES),
        all_to_all in some(of(quantity::EXCHANGED_BYTES)),
        checkpoint in some((of(quantity::CHECKPOINT_BYTES), of(quantity::CHECKPOINT_RATE))),
        straggler_rate in of(quantity::STRAGGLER_RATE),
        stragglers in of(quantity::STRAGGLERS),
        failed_links in of(quantity::FAILED_LINKS),
    ) {
        let overrides = Overrides { nic_gbps, ..Overrides::default() };
        let Some(spec) = server(&Catalog::built_in(), "dgx-h100", &overrides) else { return Ok(()) };
        let cluster = Cluster::new(spec, servers, 1.0).expect("sound");
        let simulation = Simulation {
            all_to_all,
            checkpoint: checkpoint.map(|(bytes, gbs)| CheckpointTraffic { bytes, storage: gbs * 1e9 }),
            straggler_rate,
            stragglers,
            failed_links,
            ..Simulation::of(cluster, 64, bytes)
        };
        sound(simulation.run())?;
    }
}

#[test]
fn the_ends_of_the_storage_on_the_simulated_fabric_are_allowed() {
    let catalog = Catalog::built_in();
    let spec = server(&catalog, "dgx-h100", &Overrides::default()).expect("sound");
    let cluster = Cluster::new(spec, 2, 1.0).expect("sound");
    let ends = quantity::CHECKPOINT_RATE;
    for gbs in [ends.least, ends.most] {
        let simulation = Simulation {
            checkpoint: Some(CheckpointTraffic {
                bytes: 1e9,
                storage: gbs * 1e9,
            }),
            ..Simulation::of(cluster.clone(), 64, 1e9)
        };
        simulation.run().expect("within the range");
    }
}

#[test]
fn rates_of_a_catalogue_that_no_machine_has_are_refused_when_a_question_uses_them() {
    let entry = |gpu: &str, memory: &str, nic: &str| {
        let basis = "sources = [\"me\"]\nconfidence = \"high\"\n";
        format!(
            "[[gpu]]\nid = \"g\"\nnvlink_gbs = {gpu}\n{basis}\
             [[memory]]\nid = \"m\"\npeak_gbs = {memory}\n{basis}\
             [[server]]\nid = \"s\"\ngpu = \"g\"\ngpus = 8\nnics = 8\nnic_gbps = {nic}\n\
             memory = \"m\"\ntransport = \"roce\"\n{basis}"
        )
    };
    for (gpu, memory, nic, quantity) in [
        ("1e12", "600", "400", quantity::SCALE_UP_RATE),
        ("900", "1e12", "400", quantity::MEMORY_RATE),
        ("900", "600", "1e12", quantity::NIC_RATE),
    ] {
        let mut catalog = Catalog::built_in();
        catalog.add(&entry(gpu, memory, nic)).expect("facts");
        let refused = ServerSpec::from_catalog(&catalog, "s", &Overrides::default());
        match refused.expect_err("refused") {
            PlanError::NotBetween {
                quantity: named, ..
            } => assert_eq!(named, quantity),
            other => panic!("{other}"),
        }
    }
    let mut catalog = Catalog::built_in();
    catalog.add(&entry("900", "600", "400")).expect("facts");
    ServerSpec::from_catalog(&catalog, "s", &Overrides::default()).expect("sound");
}

#[test]
fn the_validation_is_finite_with_facts_at_the_ends_of_their_range() {
    for rate in ["1e-3", "1e6"] {
        let mut catalog = Catalog::built_in();
        let text = format!(
            "[[pcie]]\nid = \"gen5\"\ngeneration = 5\ngts = 32\nraw_gbs = {rate}\n\
             sources = [\"me\"]\nconfidence = \"high\"\n"
        );
        catalog.add(&text).expect("in range");
        match Validation::of(&catalog) {
            Ok(answer) => assert_finite(&answer).expect("finite"),
            Err(refusal) => assert_eq!(refusal.code(), "plan-not-between"),
        }
    }
    assert_finite(&Validation::of(&Catalog::built_in()).expect("sound")).expect("finite");
}
