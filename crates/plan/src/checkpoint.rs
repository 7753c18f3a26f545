//! Checkpoints: how large, how long they stall training, how long a restore takes, how often to
//! write one, and how much storage keeps the stall below what is allowed.

use crowfly_route::hop::{Capacity, Provenance};
use crowfly_route::units::BytesPerSecond;
use serde::Serialize;

use crate::calibrated::constants::SUSTAINED_MEMORY_SHARE;
use crate::catalog::{Catalog, StorageClass, StorageDirect, Used};
use crate::cluster::{Cluster, given};
use crate::error::PlanError;
use crate::figure::{Figure, Unit};
use crate::quantity::{ALLOWED_STALL, STORAGE_CAPACITY, STORAGE_RATE};
use crate::workload::ModelSpec;

mod interval;

pub use interval::{Failures, Interval, failures};

const GIB: f64 = 1_073_741_824.0;
const TIB: f64 = 1_099_511_627_776.0;
/// What one core moves of HTTP with TLS, decrypting and copying; assumed.
const OBJECT_CORE_RATE: f64 = 1e9;
/// Cores of a server that do that beside the training; assumed.
const OBJECT_CORES: f64 = 32.0;
/// What a server has towards storage where nothing is known: two 200 Gb/s ports; assumed.
const STORAGE_NETWORK_RATE: f64 = 50e9;
/// A storage adapter where only their number is known; assumed.
const STORAGE_NIC_RATE: f64 = 50e9;
/// Host memory is written once and read once.
const BOUNCE_PASSES: f64 = 2.0;
/// The kernel's socket buffers are written and read besides.
const OBJECT_PASSES: f64 = 4.0;

/// Seconds for `bytes` at `rate` B/s.
pub fn throughput_seconds(bytes: f64, rate: f64) -> f64 {
    bytes / rate
}

/// A storage system of a given size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Storage {
    /// Its name.
    pub name: String,
    /// What kind.
    pub class: StorageClass,
    /// Whether GPUDirect Storage is documented for it.
    pub direct: StorageDirect,
    /// Whole system, reading; of drives in servers, one server.
    pub read: Capacity,
    /// The same, writing.
    pub write: Capacity,
    /// One client, where it has a limit.
    pub client: Option<Capacity>,
    /// Capacity in bytes, where it was asked for or is known.
    pub capacity: Option<f64>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// Entries of the catalogue that this rests on.
    pub used: Vec<Used>,
}

impl Storage {
    /// A system of which only the rate is known, in 1e9 B/s.
    ///
    /// # Errors
    /// The rate is outside the range of [`STORAGE_RATE`].
    pub fn of_rate(gbs: f64) -> Result<Self, PlanError> {
        STORAGE_RATE.between(gbs)?;
        let rate = Capacity {
            rate: BytesPerSecond::gb(gbs),
            provenance: given(),
        };
        Ok(Self {
            name: format!("storage of {gbs} GB/s"),
            class: StorageClass::Parallel,
            direct: StorageDirect::NotDocumented,
            read: rate.clone(),
            write: rate,
            client: None,
            capacity: None,
            notes: Vec::new(),
            used: Vec::new(),
        })
    }

    /// A system of the catalogue; `tib` is the capacity of one that is bought by capacity, rounded
    /// down to what can be ordered.
    ///
    /// # Errors
    /// The name is unknown, the capacity is below the least or above the most, or the system is
    /// bought by capacity and none was given.
    pub fn from_catalog(catalog: &Catalog, id: &str, tib: Option<f64>) -> Result<Self, PlanError> {
        let entry = catalog.storage.get(id)?;
        let facts = &entry.facts;
        let cited = |gbs: f64| Capacity {
            rate: BytesPerSecond::gb(gbs),
            provenance: Provenance::Catalogue(entry.cite()),
        };
        let mut notes = Vec::new();
        let mut capacity = facts.capacity_tib.map(|tib| tib * TIB);
        let bought = match (facts.mbps_per_tib, tib) {
            (Some(rate), Some(tib)) => {
                STORAGE_CAPACITY.between(tib)?;
                let gib = orderable(facts, tib * 1024.0, &entry.id)?;
                if (gib - tib * 1024.0).abs() > 0.5 {
                    notes.push(format!("{tib} TiB cannot be ordered; {gib} GiB can"));
                }
                capacity = Some(gib * GIB);
                Some(gib / 1024.0 * rate / 1e3)
            }
            _ => None,
        };
        let known = facts.gbs.or(facts.per_server_gbs).or(facts.max_gbs);
        let read = bought
            .or(known)
            .or(facts.client_gbs)
            .ok_or(PlanError::Unknown {
                of: entry.id.clone(),
                what: "its rate, which grows with its capacity,",
                give: "give --storage-tib or --storage-gbs",
            })?;
        if facts.class == StorageClass::Local {
            notes.push(
                "not shared: each server holds its own part, and loses it with its drives".into(),
            );
        }
        if facts.gbs.is_none() && facts.max_gbs.is_some() {
            notes.push("taken at the most that can be provisioned".into());
        }
        let write = facts
            .write_gbs
            .or(facts.per_server_write_gbs)
            .unwrap_or(read);
        Ok(Self {
            name: entry.id.clone(),
            class: facts.class,
            direct: facts.direct,
            read: cited(read),
            write: cited(write),
            client: facts.client_gbs.map(cited),
            capacity,
            notes,
            used: vec![entry.used()],
        })
    }
}

/// The capacity that can be ordered, in GiB, at most `gib`.
fn orderable(facts: &crate::catalog::StorageSystem, gib: f64, id: &str) -> Result<f64, PlanError> {
    let least = facts.min_gib.unwrap_or(STORAGE_CAPACITY.least * 1024.0);
    let most = facts.max_gib.unwrap_or(STORAGE_CAPACITY.most * 1024.0);
    if !(least..=most).contains(&gib) {
        return Err(PlanError::Impossible {
            what: format!("{id} is not offered with {gib} GiB"),
            hint: format!("{least} to {most} GiB"),
        });
    }
    let step = facts.step_gib.or(facts.min_gib);
    Ok(step.map_or(gib, |step| (gib / step).floor() * step))
}

/// How long a checkpoint takes on one kind of storage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointOn {
    /// The storage.
    pub storage: Storage,
    /// Training stands still for this long when the write is synchronous, straight from GPU memory.
    pub write_direct: Option<Figure>,
    /// The same through host RAM.
    pub write_staged: Figure,
    /// A restore straight into GPU memory; `None` where there is no standard path.
    pub restore_direct: Option<Figure>,
    /// A restore through host RAM.
    pub restore_staged: Figure,
    /// What limits the restore.
    pub limit: StorageLimit,
    /// Whether the direct path is documented for this storage.
    pub direct: StorageDirect,
    /// Host RAM traffic per byte that the direct path spares.
    pub passes_spared: f64,
}

impl CheckpointOn {
    /// For so many bytes of all servers together, of a checkpoint or anything else.
    pub fn of(
        catalog: &Catalog,
        cluster: &Cluster,
        bytes: f64,
        storage: &Storage,
        measured: &MeasuredStorage,
    ) -> Self {
        let network = storage_network(catalog, cluster);
        on(cluster, bytes, storage, network, measured)
    }
}

/// What limits a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageLimit {
    /// What the storage serves.
    Storage,
    /// What a client may take.
    Client,
    /// The servers' links to storage.
    Network,
    /// Host memory.
    HostMemory,
    /// Cores that handle HTTP and TLS.
    Cpu,
    /// What one server reached by a receipt.
    Measured,
}

impl StorageLimit {
    /// For a sentence.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Storage => "the storage",
            Self::Client => "the rate of one client",
            Self::Network => "the servers' links to storage",
            Self::HostMemory => "host memory",
            Self::Cpu => "the CPU (HTTP and TLS)",
            Self::Measured => "what a receipt measured",
        }
    }
}

/// A checkpoint of a model on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checkpoint {
    /// Its size.
    pub bytes: Figure,
    /// Each server's part.
    pub per_server: Figure,
    /// Training stands still for this long when it is first copied to host RAM and written from there.
    pub copy_stall: Option<Figure>,
    /// On each storage asked about.
    pub on: Vec<CheckpointOn>,
}

/// Rates of storage transfers that somebody measured on one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeasuredStorage {
    /// Straight into GPU memory.
    pub direct: Option<Capacity>,
    /// Through host RAM.
    pub staged: Option<Capacity>,
}

impl Checkpoint {
    /// For a model on a cluster, on each storage. `storage_rate` is what one server has towards
    /// storage, where it is known.
    pub fn of(
        catalog: &Catalog,
        cluster: &Cluster,
        model: &ModelSpec,
        storage: &[Storage],
        measured: &MeasuredStorage,
    ) -> Self {
        let bytes = model.checkpoint_bytes();
        let servers = f64::from(cluster.servers);
        let per_server = bytes / servers;
        let copy = copy_rate(cluster).map(|(rate, by)| {
            Figure::computed(
                per_server / rate,
                Unit::Seconds,
                format!("bytes per server / {by}"),
            )
        });
        let each = |storage| CheckpointOn::of(catalog, cluster, bytes, storage, measured);
        Self {
            bytes: Figure::computed(bytes, Unit::Bytes, "14 B × parameters"),
            per_server: Figure::computed(per_server, Unit::Bytes, "checkpoint / servers"),
            copy_stall: copy,
            on: storage.iter().map(each).collect(),
        }
    }
}

/// From the GPUs of a server to its host memory, B/s.
fn copy_rate(cluster: &Cluster) -> Option<(f64, &'static str)> {
    let server = &cluster.server;
    let uplinks = server
        .uplink
        .as_ref()
        .map(|uplink| uplink.rate.rate.0 * f64::from(server.gpus) / f64::from(uplink.pairs));
    let memory = server
        .memory
        .as_ref()
        .map(|memory| memory.rate.0 * SUSTAINED_MEMORY_SHARE);
    match (uplinks, memory) {
        (Some(uplinks), Some(memory)) if memory < uplinks => Some((memory, "host memory")),
        (Some(uplinks), _) => Some((uplinks, "links to host memory")),
        (None, Some(memory)) => Some((memory, "host memory")),
        (None, None) => None,
    }
}

/// What one server has towards storage.
fn storage_network(catalog: &Catalog, cluster: &Cluster) -> f64 {
    let entry = catalog.servers.get(&cluster.server.name).ok();
    let nics = entry.and_then(|entry| entry.facts.storage_nics);
    nics.map_or(STORAGE_NETWORK_RATE, |nics| {
        f64::from(nics) * STORAGE_NIC_RATE
    })
}

fn on(
    cluster: &Cluster,
    bytes: f64,
    storage: &Storage,
    network: f64,
    measured: &MeasuredStorage,
) -> CheckpointOn {
    let servers = f64::from(cluster.servers);
    let memory = cluster
        .server
        .memory
        .as_ref()
        .map(|memory| memory.rate.0 * SUSTAINED_MEMORY_SHARE);
    let (passes, local) = match storage.class {
        StorageClass::Object => (OBJECT_PASSES, false),
        StorageClass::Parallel => (BOUNCE_PASSES, false),
        StorageClass::Local => (BOUNCE_PASSES, true),
    };
    let mut server_caps = Vec::new();
    if !local {
        server_caps.push((network, StorageLimit::Network));
        server_caps.extend(
            storage
                .client
                .as_ref()
                .map(|c| (c.rate.0, StorageLimit::Client)),
        );
    }
    let mut staged_caps = server_caps.clone();
    staged_caps.extend(memory.map(|memory| (memory / passes, StorageLimit::HostMemory)));
    if storage.class == StorageClass::Object {
        staged_caps.push((OBJECT_CORE_RATE * OBJECT_CORES, StorageLimit::Cpu));
    }
    // A measurement says more than all caps.
    if let Some(measured) = &measured.direct {
        server_caps = vec![(measured.rate.0, StorageLimit::Measured)];
    }
    if let Some(measured) = &measured.staged {
        staged_caps = vec![(measured.rate.0, StorageLimit::Measured)];
    }
    let whole = |rate: &Capacity| rate.rate.0 * if local { servers } else { 1.0 };
    let seconds = |caps: &[(f64, StorageLimit)], rate: &Capacity| {
        let all = caps.iter().map(|(rate, limit)| (rate * servers, *limit));
        let slowest = all.fold((whole(rate), StorageLimit::Storage), |a, b| {
            if b.0 < a.0 { b } else { a }
        });
        (throughput_seconds(bytes, slowest.0), slowest.1)
    };
    let figure = |(seconds, limit): (f64, StorageLimit)| {
        let by = format!("checkpoint / rate, limited by {}", limit.as_str());
        Figure::computed(seconds, Unit::Seconds, by)
    };
    let possible = storage.direct != StorageDirect::No;
    let direct = |rate: &Capacity| possible.then(|| figure(seconds(&server_caps, rate)));
    let staged = seconds(&staged_caps, &storage.read);
    CheckpointOn {
        write_direct: direct(&storage.write),
        write_staged: figure(seconds(&staged_caps, &storage.write)),
        restore_direct: direct(&storage.read),
        restore_staged: figure(staged),
        limit: staged.1,
        direct: storage.direct,
        passes_spared: if possible { passes } else { 0.0 },
        storage: storage.clone(),
    }
}

/// How much storage keeps a checkpoint's stall below what is allowed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// The allowed stall.
    pub stall: Figure,
    /// The rate that takes: checkpoint / stall.
    pub rate: Figure,
    /// The capacity to order in bytes, of storage that is bought by capacity.
    pub capacity: Option<Figure>,
    /// What that then serves.
    pub served: Option<Figure>,
    /// The storage.
    pub storage: Option<String>,
    /// Entries of the catalogue that this rests on.
    pub used: Vec<Used>,
}

impl Tier {
    /// For a model and an allowed stall in seconds, on a storage of the catalogue where one is named.
    ///
    /// # Errors
    /// The stall is outside the range of [`ALLOWED_STALL`], the storage is unknown or cannot serve that much.
    pub fn of(
        catalog: &Catalog,
        model: &ModelSpec,
        stall: f64,
        storage: Option<&str>,
    ) -> Result<Self, PlanError> {
        ALLOWED_STALL.positive(stall)?;
        let rate = model.checkpoint_bytes() / stall;
        let mut tier = Self {
            stall: Figure::new(stall, Unit::Seconds, given()),
            rate: Figure::computed(rate, Unit::BytesPerSecond, "checkpoint / allowed stall"),
            capacity: None,
            served: None,
            storage: storage.map(str::to_owned),
            used: model.used.clone(),
        };
        let Some(id) = storage else {
            return Ok(tier);
        };
        let entry = catalog.storage.get(id)?;
        tier.used.push(entry.used());
        let cited = || Provenance::Catalogue(entry.cite());
        let facts = &entry.facts;
        let too_much = |most: f64| PlanError::Impossible {
            what: format!(
                "{id} serves {most} GB/s at most, not {:.1} GB/s",
                rate / 1e9
            ),
            hint: "allow a longer stall, or write to storage with more throughput".into(),
        };
        if let Some(per_tib) = facts.mbps_per_tib {
            let step = facts.step_gib.or(facts.min_gib).unwrap_or(1.0);
            let wanted = rate / (per_tib * 1e6) * 1024.0;
            let gib = (wanted / step).ceil() * step;
            if gib > facts.max_gib.unwrap_or(f64::INFINITY) {
                let most = facts.max_gib.unwrap_or(0.0) / 1024.0 * per_tib / 1e3;
                return Err(too_much(most));
            }
            tier.capacity = Some(Figure::new(gib * GIB, Unit::Bytes, cited()));
            let served = gib / 1024.0 * per_tib * 1e6;
            tier.served = Some(Figure::new(served, Unit::BytesPerSecond, cited()));
        } else if let Some(gbs) = facts.write_gbs.or(facts.gbs).or(facts.max_gbs) {
            if gbs * 1e9 < rate {
                return Err(too_much(gbs));
            }
            tier.served = Some(Figure::new(gbs * 1e9, Unit::BytesPerSecond, cited()));
        }
        Ok(tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Overrides, ServerSpec};

    fn catalog() -> Catalog {
        Catalog::built_in()
    }

    fn interval(rate: f64) -> Interval {
        let failures = failures(&catalog(), "llama3-405b").expect("there");
        let bytes = ModelSpec::of_size(405e9).expect("sound").checkpoint_bytes();
        Interval::of(&failures, 16_384, bytes / rate, bytes / rate).expect("sound")
    }

    #[test]
    fn the_published_intervals_come_out() {
        let fast = interval(2e12);
        assert!((fast.stall.value - 2.835).abs() < 1e-9);
        assert!((fast.mtbf.value / 3600.0 - 3.093_078_758_949_881).abs() < 1e-9);
        assert!(
            (fast.young.value - 251.3).abs() < 0.1,
            "{}",
            fast.young.value
        );
        assert!((fast.overhead.value - 0.0226).abs() < 1e-4);
        let slow = interval(100e9);
        assert!(
            (slow.young.value - 1_123.7).abs() < 0.1,
            "{}",
            slow.young.value
        );
        assert!((slow.overhead.value - 0.1009).abs() < 1e-4);
        assert!(slow.daly.value < slow.young.value);
    }

    #[test]
    fn twice_the_gpus_fail_twice_as_often() {
        let failures = failures(&catalog(), "mlcommons-rule").expect("there");
        assert!((failures.mtbf_hours(100_000) - 0.5).abs() < 1e-12);
        assert!((failures.mtbf_hours(1_000_000) - 0.05).abs() < 1e-12);
    }

    #[test]
    fn capacity_that_cannot_be_ordered_is_rounded_down_and_said() {
        let lustre = Storage::from_catalog(&catalog(), "gcp-managed-lustre-1000", Some(100.0));
        let lustre = lustre.expect("offered");
        assert_eq!(lustre.notes, ["100 TiB cannot be ordered; 99000 GiB can"]);
        assert!((lustre.read.rate.as_gb() - 96.68).abs() < 0.01);
        let refused = Storage::from_catalog(&catalog(), "gcp-managed-lustre-1000", Some(1.0));
        assert_eq!(refused.expect_err("too small").code(), "plan-impossible");
        let refused = Storage::from_catalog(&catalog(), "gcp-managed-lustre-1000", Some(-1.0));
        assert_eq!(refused.expect_err("negative").code(), "plan-not-between");
        let refused = Storage::from_catalog(&catalog(), "gcp-managed-lustre-1000", None);
        assert_eq!(refused.expect_err("no size").code(), "plan-unknown-fact");
    }

    #[test]
    fn an_object_store_has_no_direct_path_and_a_file_system_that_is_the_limit_gains_no_time() {
        let catalog = catalog();
        let server = ServerSpec::from_catalog(&catalog, "dgx-h100", &Overrides::default());
        let cluster = Cluster::new(server.expect("sound"), 8, 1.0).expect("sound");
        let model = ModelSpec::from_catalog(&catalog, "70b").expect("there");
        let lustre = Storage::of_rate(100.0).expect("sound");
        let object = Storage::from_catalog(&catalog, "gcs-rapid-cache", None).expect("there");
        let local = Storage::from_catalog(&catalog, "dgx-h100-local-nvme", None).expect("there");
        let asked = [lustre, object, local];
        let none = MeasuredStorage::default();
        let answer = Checkpoint::of(&catalog, &cluster, &model, &asked, &none);
        let [lustre, object, local] = &answer.on[..] else {
            panic!("three were asked about");
        };
        assert_eq!(lustre.restore_staged.value, 9.8);
        assert_eq!(lustre.restore_direct.as_ref().map(|f| f.value), Some(9.8));
        assert_eq!(lustre.limit, StorageLimit::Storage);
        assert!(object.restore_direct.is_none());
        assert_eq!(object.limit, StorageLimit::Cpu);
        assert!((local.restore_staged.value - 980.0 / (8.0 * 53.6)).abs() < 1e-9);
        let stall = answer.copy_stall.expect("known").value;
        assert!((stall - 122.5 / (8.0 * 55.06)).abs() < 1e-9, "{stall}");
    }

    #[test]
    fn given_a_measured_rate_it_takes_the_place_of_the_caps() {
        let catalog = catalog();
        let server = ServerSpec::from_catalog(&catalog, "dgx-h100", &Overrides::default());
        let cluster = Cluster::new(server.expect("sound"), 2, 1.0).expect("sound");
        let model = ModelSpec::of_size(1e9).expect("sound");
        let measured = MeasuredStorage {
            direct: Some(Capacity {
                rate: BytesPerSecond::gb(7.0),
                provenance: Provenance::Measured("a receipt".into()),
            }),
            staged: None,
        };
        let asked = [Storage::of_rate(100.0).expect("sound")];
        let answer = Checkpoint::of(&catalog, &cluster, &model, &asked, &measured);
        let direct = answer.on[0]
            .restore_direct
            .as_ref()
            .expect("possible")
            .value;
        assert!((direct - 1.0).abs() < 1e-12, "{direct}");
    }

    #[test]
    fn storage_is_sized_by_the_stall_and_not_by_twice_the_checkpoint() {
        let model = ModelSpec::from_catalog(&catalog(), "70b").expect("there");
        let tier = |stall, id| Tier::of(&catalog(), &model, stall, id);
        let plain = tier(10.0, None).expect("sound");
        assert_eq!(plain.rate.value, 98e9);
        let lustre = tier(10.0, Some("gcp-managed-lustre-1000")).expect("offered");
        assert_eq!(lustre.capacity.expect("bought").value, 108_000.0 * GIB);
        assert!(lustre.served.expect("known").value >= 98e9);
        assert_eq!(
            tier(0.0, None).expect_err("none").code(),
            "plan-not-positive"
        );
        let refused = tier(0.001, Some("gcp-managed-lustre-1000")).expect_err("too much");
        assert_eq!(refused.code(), "plan-impossible");
        let refused = tier(1.0, Some("azure-amlfs-40")).expect_err("too much");
        assert_eq!(refused.code(), "plan-impossible");
    }
}
