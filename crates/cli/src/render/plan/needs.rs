//! Checkpoints, interruptions, data, storage, fabrics, collectives and simulations.

use crowfly_plan::calibrated::{Way, Ways};
use crowfly_plan::catalog::StorageDirect;
use crowfly_plan::checkpoint::{Checkpoint, CheckpointOn, Interval, Storage, Tier};
use crowfly_plan::cluster::Cluster;
use crowfly_plan::fabric::BillOfMaterials;
use crowfly_plan::loading::{Data, Loading};
use crowfly_plan::sim::{JobOutcome, Simulated};
use crowfly_plan::workload::ModelSpec;

use super::amounts::{count, figure, maybe, rate, ratio, share, size, time};
use super::{Amount, Column, Sheet, SheetTable};
use Column::{Flexible, Number, Text};

/// The answer to `crowfly plan checkpoint`.
pub fn checkpoint(model: &ModelSpec, cluster: &Cluster, answer: &Checkpoint) -> Sheet {
    let columns = [
        Text("storage"),
        Text("class"),
        Number("write"),
        Number("restore staged"),
        Number("direct"),
        Flexible("limited by"),
    ];
    let mut table = SheetTable::new("On storage", columns);
    let columns = [Text("storage"), Flexible("what it changes")];
    let mut gains = SheetTable::new("GPUDirect Storage", columns);
    for on in &answer.on {
        table.row(cells![
            on.storage.name.clone(),
            on.storage.class.as_str().to_owned(),
            figure(&on.write_staged),
            figure(&on.restore_staged),
            maybe(on.restore_direct.as_ref()),
            on.limit.as_str(),
        ]);
        gains.row(cells![on.storage.name.clone(), gain(on)]);
    }
    let fastest = answer
        .on
        .iter()
        .min_by(|a, b| a.restore_staged.value.total_cmp(&b.restore_staged.value));
    let restore = fastest.map_or(String::new(), |on| {
        let best = on.restore_direct.as_ref().unwrap_or(&on.restore_staged);
        format!(
            "; a restore takes {} from {}",
            figure(best),
            on.storage.name
        )
    });
    let stall = answer.copy_stall.as_ref().map_or(String::new(), |stall| {
        format!(
            " Copied to host RAM first, training stands still for {} only.",
            figure(stall)
        )
    });
    let notes = answer.on.iter().flat_map(|on| {
        on.storage
            .notes
            .iter()
            .map(move |note| format!("{}: {note}", on.storage.name))
    });
    Sheet {
        verdict: format!(
            "A checkpoint of {} is {}, {} a server on {}{restore}.{stall}",
            model.name,
            figure(&answer.bytes),
            figure(&answer.per_server),
            count(cluster.servers.into())
        ),
        tables: vec![table, gains],
        charts: super::chart::checkpoint(answer),
        notes: notes.collect(),
        ..Sheet::default()
    }
}

/// What the direct path changes.
fn gain(on: &CheckpointOn) -> String {
    let Some(direct) = &on.restore_direct else {
        return "nothing: there is no standard path, HTTP and TLS need the CPU".into();
    };
    let documented = match on.direct {
        StorageDirect::NotDocumented => ", if the client can; its documents do not say",
        _ => "",
    };
    let passes = format!("{} RAM passes a byte", on.passes_spared);
    let faster = on.restore_staged.value / direct.value;
    if faster > 1.005 {
        format!(
            "{} times as fast; spares {passes}{documented}",
            ratio(faster)
        )
    } else {
        format!(
            "no time, {} is the limit; spares {passes}{documented}",
            on.limit.as_str()
        )
    }
}

/// The answer to `crowfly plan interval`.
pub fn interval(model: &ModelSpec, gpus: u64, answer: &Interval) -> Sheet {
    let mut table = SheetTable::new(
        "Checkpoints and interruptions",
        [Text(""), Number(""), Flexible("")],
    );
    for (what, known) in [
        ("between interruptions", &answer.mtbf),
        ("stall of a checkpoint", &answer.stall),
        ("interval (Young)", &answer.young),
        ("interval (Daly)", &answer.daly),
        ("lost to stalls and work done again", &answer.overhead),
        ("lost to restores", &answer.restore_share),
    ] {
        table.row(cells![
            what.to_owned(),
            figure(known),
            known.provenance.detail().to_owned(),
        ]);
    }
    Sheet {
        verdict: format!(
            "On {} GPUs write a checkpoint of {} every {}: {} of the time is lost, {} h a day.",
            count(gpus as f64),
            model.name,
            figure(&answer.young),
            share((answer.overhead.value + answer.restore_share.value).min(1.0)),
            ratio(answer.lost_hours_per_day.value)
        ),
        tables: vec![table],
        ..Sheet::default()
    }
}

/// Of what the store serves, at most this is a trickle.
const MOST_OF_A_TRICKLE: f64 = 0.01;
/// Bytes a second into one server that are a trickle: what a hundredth of one drive gives.
const MOST_PER_SERVER_OF_A_TRICKLE: f64 = 50e6;

/// The answer to `crowfly plan loading`.
pub fn loading(cluster: &Cluster, answer: &Loading, store: Option<&Storage>) -> Sheet {
    let mut table = SheetTable::new("What training reads", [Text(""), Number(""), Flexible("")]);
    let rows = [
        ("all servers", Some(&answer.total)),
        ("a server", Some(&answer.per_server)),
        ("of what the store serves", answer.share_of_store.as_ref()),
        (
            "cores of a server to decode",
            answer.cores_per_server.as_ref(),
        ),
    ];
    for (what, known) in rows {
        if let Some(known) = known {
            table.row(cells![
                what.to_owned(),
                figure(known),
                known.provenance.detail().to_owned(),
            ]);
        }
    }
    let verdict = match (answer.data, &answer.share_of_store) {
        (Data::Text, part)
            if part
                .as_ref()
                .is_none_or(|part| part.value <= MOST_OF_A_TRICKLE)
                && answer.per_server.value <= MOST_PER_SERVER_OF_A_TRICKLE =>
        {
            format!(
                "A trickle: {} GPUs read {} of token ids; a faster path to storage changes nothing.",
                count(cluster.gpus() as f64),
                figure(&answer.total)
            )
        }
        (data, Some(part)) if part.value > 1.0 => format!(
            "The store is too slow: {} GPUs read {} of {}, {} of what {} serves.",
            count(cluster.gpus() as f64),
            figure(&answer.total),
            data.as_str(),
            figure(part),
            store.map_or("the store", |store| &store.name)
        ),
        (Data::Text, part) => format!(
            "{} GPUs read {} of token ids, {} a server{}.",
            count(cluster.gpus() as f64),
            figure(&answer.total),
            figure(&answer.per_server),
            part.as_ref().map_or(String::new(), |part| format!(
                ", {} of what {} serves",
                figure(part),
                store.map_or("the store", |store| &store.name)
            ))
        ),
        (data, _) => format!(
            "{} GPUs read {} of {}; {} cores of each server decode it, so decode on the GPU where those are wanted.",
            count(cluster.gpus() as f64),
            figure(&answer.total),
            data.as_str(),
            maybe(answer.cores_per_server.as_ref())
        ),
    };
    Sheet {
        verdict,
        tables: vec![table],
        ..Sheet::default()
    }
}

/// The answer to `crowfly plan storage`.
pub fn tier(model: &ModelSpec, answer: &Tier) -> Sheet {
    let order = match (&answer.storage, &answer.capacity, &answer.served) {
        (Some(name), Some(capacity), Some(served)) => format!(
            " Of {name} order {} GiB, which serves {}.",
            count(capacity.value / 1_073_741_824.0),
            figure(served)
        ),
        (Some(name), None, Some(served)) => format!(" {name} serves {}.", figure(served)),
        (Some(name), _, None) => format!(" What {name} serves is not known."),
        (None, ..) => String::new(),
    };
    let mut table = SheetTable::new("Storage", [Text(""), Number(""), Flexible("")]);
    for (what, known) in [
        ("allowed stall", Some(&answer.stall)),
        ("throughput", Some(&answer.rate)),
        ("capacity to order", answer.capacity.as_ref()),
        ("serves", answer.served.as_ref()),
    ] {
        if let Some(known) = known {
            table.row(cells![
                what.to_owned(),
                figure(known),
                known.provenance.detail().to_owned(),
            ]);
        }
    }
    Sheet {
        verdict: format!(
            "To write {} of {} in {} takes {}.{order}",
            size(model.checkpoint_bytes()),
            model.name,
            figure(&answer.stall),
            figure(&answer.rate)
        ),
        tables: vec![table],
        ..Sheet::default()
    }
}

/// The answer to `crowfly plan fabric`.
pub fn fabric(cluster: &Cluster, bill: &BillOfMaterials) -> Sheet {
    let switches = &bill.switches;
    let mut table = SheetTable::new("Bill of materials", [Text(""), Number(""), Flexible("")]);
    let mut row = |what: &str, amount: Amount, how: String| {
        if amount.text != "0" {
            table.row(cells![what.to_owned(), amount, how]);
        }
    };
    let cut = format!(
        "{} ports, {} down, {} up",
        switches.radix, switches.down, switches.up
    );
    row("leaf switches", count(switches.leaf.into()), cut);
    row(
        "spine switches",
        count(switches.spine.into()),
        format!("{} ports", switches.radix),
    );
    row(
        "core switches",
        count(switches.core.into()),
        format!("{} ports", switches.radix),
    );
    row(
        "cables to servers",
        count(bill.server_cables as f64),
        "one a NIC".into(),
    );
    row(
        "cables leaf to spine",
        count(bill.leaf_spine_cables as f64),
        String::new(),
    );
    row(
        "cables spine to core",
        count(bill.spine_core_cables as f64),
        String::new(),
    );
    row(
        "leaf ports left",
        count(bill.ports_left as f64),
        String::new(),
    );
    for (what, known) in [
        ("power", &bill.power),
        ("switches", &bill.switch_cost),
        ("cables and optics", &bill.cable_cost),
        ("a GPU", &bill.cost_per_gpu),
        ("a GPU and hour", &bill.cost_per_gpu_hour),
    ] {
        row(what, figure(known), known.provenance.detail().to_owned());
    }
    Sheet {
        verdict: format!(
            "{} GPUs take {} {} switches in {} tier{}, {} a GPU without NICs, {} an hour over four years.",
            count(cluster.gpus() as f64),
            count(switches.total().into()),
            bill.switch,
            switches.tiers,
            if switches.tiers == 1 { "" } else { "s" },
            figure(&bill.cost_per_gpu),
            figure(&bill.cost_per_gpu_hour)
        ),
        tables: vec![table],
        notes: vec!["Rails: NIC r of every server of a scalable unit goes to the same leaf. Prices are of August 2024.".into()],
        ..Sheet::default()
    }
}

/// The answer to `crowfly plan collective`.
pub fn collective(cluster: &Cluster, answer: &Ways) -> Sheet {
    let columns = [
        Text(""),
        Number("time"),
        Number("latency"),
        Number("GB/s busbw"),
        Flexible("capped by"),
    ];
    let mut table = SheetTable::new("By algorithm", columns);
    let mut row = |name: String, way: &Way| {
        let mark = if way.estimate.extrapolated { "~" } else { "" };
        table.row(cells![
            name,
            time(way.estimate.seconds).marked(mark),
            time(way.estimate.latency_seconds),
            way.busbw_gbs.map(ratio).unwrap_or_default(),
            way.estimate.bound.as_str().to_owned(),
        ]);
    };
    for way in &answer.direct {
        let chosen = if way.chosen { ", chosen" } else { "" };
        row(format!("{}{chosen}", way.estimate.algorithm.as_str()), way);
    }
    for (name, way) in [
        ("staged at best", &answer.staged_fast),
        ("staged at worst", &answer.staged_slow),
    ] {
        if let Some(way) = way {
            row(format!("{name}, {}", way.estimate.algorithm.as_str()), way);
        }
    }
    let chosen = answer.direct.iter().find(|way| way.chosen);
    let alone = || {
        format!(
            "One GPU of {} alone has nothing to exchange.",
            cluster.server.name
        )
    };
    let verdict = chosen.map_or_else(alone, |way| {
        let busbw = way.busbw_gbs.map_or(String::new(), |rate| {
            format!(": {} GB/s of bus bandwidth", ratio(rate))
        });
        format!(
            "{} of {} on {} GPUs of {} takes {} by {}{busbw}.",
            answer.op.as_str(),
            size(answer.bytes as f64),
            count(answer.gpus as f64),
            cluster.server.name,
            time(way.estimate.seconds),
            way.estimate.algorithm.as_str()
        )
    });
    let none = answer.direct.is_empty();
    Sheet {
        verdict,
        tables: if none { Vec::new() } else { vec![table] },
        ..Sheet::default()
    }
}

/// How many times as long a job took as it takes alone; `None` where it has nothing to do.
fn slowed(job: &JobOutcome) -> Option<f64> {
    (job.alone_seconds > 0.0).then(|| job.seconds / job.alone_seconds)
}

/// The answer to `crowfly plan simulate`.
pub fn simulation(answer: &Simulated) -> Sheet {
    let columns = [
        Text("job"),
        Number("flows"),
        Number("ends at"),
        Number("in the mean"),
        Number("alone"),
        Number("slowed"),
        Flexible("held up by"),
    ];
    let mut jobs = SheetTable::new("Jobs", columns);
    for job in &answer.jobs {
        jobs.row(cells![
            job.name.clone(),
            count(job.flows as f64),
            time(job.seconds),
            time(job.mean_seconds),
            time(job.alone_seconds),
            slowed(job).map(ratio).unwrap_or_default(),
            job.bottleneck.clone(),
        ]);
    }
    let columns = [
        Text("links"),
        Number("number"),
        Number("failed"),
        Number("busiest"),
        Number("mean"),
    ];
    let mut links = SheetTable::new("Links, while all jobs run", columns);
    for tier in &answer.links {
        links.row(cells![
            tier.name.to_owned(),
            count(tier.links as f64),
            count(tier.failed as f64),
            share(tier.busiest),
            share(tier.mean),
        ]);
    }
    let closed = answer.closed_form_seconds.map_or(String::new(), |closed| {
        format!(" The closed form says {}.", time(closed))
    });
    Sheet {
        verdict: format!(
            "The all-reduce of {} on {} GPUs takes {} ({} of it between servers), held up by {}.{closed}",
            size(answer.bytes),
            count(answer.gpus as f64),
            time(answer.all_reduce_seconds),
            time(answer.network_seconds),
            answer.jobs.first().map_or("nothing", |job| &job.bottleneck)
        ),
        // A single server sends nothing over the fabric.
        tables: [jobs, links]
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .collect(),
        notes: vec![format!(
            "Seed {}; {} events; {} a NIC. Flows are fluid: no latency, no packets.",
            answer.seed,
            count(answer.events as f64),
            rate(answer.nic_rate)
        )],
        ..Sheet::default()
    }
}
