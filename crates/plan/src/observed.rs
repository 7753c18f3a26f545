//! A server as a snapshot shows it, and rates as receipts measured them.

use crowfly_route::hop::{Capacity, Class, Provenance};
use crowfly_route::place::Place;
use crowfly_route::receipt::Receipt;
use crowfly_route::topology::{Gpu, GpuLinkKind, Nic, Topology};
use crowfly_route::units::{BytesPerSecond, PciAddress};

use crate::catalog::{Catalog, Entry, Gpu as GpuFacts, Transport, Used};
use crate::checkpoint::MeasuredStorage;
use crate::cluster::{Overrides, ScaleUp, ServerSpec, Uplink, usable};
use crate::error::PlanError;
use crate::quantity::STORAGE_RATE;

/// Slower adapters carry management and storage, not the GPUs' traffic.
const SLOWEST_FABRIC_GBPS: f64 = 100.0;
/// What such a server is called.
const SNAPSHOT: &str = "snapshot";
/// Of the most lanes.
const LANES: f64 = 16.0;

impl ServerSpec {
    /// The server that a topology shows. What the topology does not tell, such as the rate of host
    /// memory, is absent unless the question gives it.
    ///
    /// # Errors
    /// There is no GPU, the overrides are out of range, or there is no adapter for GPU traffic and
    /// none was given.
    pub fn from_topology(
        catalog: &Catalog,
        topology: &Topology,
        overrides: &Overrides,
    ) -> Result<Self, PlanError> {
        let Some(first) = topology.gpus.first() else {
            return Err(PlanError::Unknown {
                of: SNAPSHOT.into(),
                what: "a GPU",
                give: "take a snapshot of a server with GPUs, or name one with --server",
            });
        };
        let known = catalog.gpu_by_name(&first.name);
        let adapters = fabric_adapters(topology);
        let slowest = adapters
            .iter()
            .filter_map(|nic| rate(nic))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let gpus = count(topology.gpus.len());
        let mut used: Vec<Used> = known.iter().map(|entry| entry.used()).collect();
        let uplink = uplink(catalog, topology, &adapters, overrides, &mut used);
        let spec = Self {
            name: SNAPSHOT.into(),
            gpu: known.map_or_else(|| first.name.clone(), |entry| entry.id.clone()),
            gpu_flops: known
                .and_then(|e| e.facts.bf16_tflops)
                .map(|tflops| tflops * 1e12),
            gpu_memory_rate: known
                .and_then(|e| e.facts.hbm_tbs)
                .map(|tbs| BytesPerSecond(tbs * 1e12)),
            gpus,
            domain: if topology.gpu_links.is_empty() {
                1
            } else {
                gpus
            },
            scale_up: scale_up(topology, first, known),
            nics: count(adapters.len()),
            nic_rate: Capacity {
                rate: slowest.unwrap_or_default(),
                provenance: Provenance::LinkRate(format!(
                    "{SNAPSHOT}: the slowest of {} adapters",
                    adapters.len()
                )),
            },
            transport: transport(&adapters),
            // No file of the kernel states it; an override can.
            memory: None,
            uplink,
            used,
        };
        spec.changed(overrides, None)
    }
}

fn rate(nic: &Nic) -> Option<BytesPerSecond> {
    let ports = nic.ports.iter().filter_map(|port| port.rate);
    let interfaces = nic.interfaces.iter().filter_map(|interface| interface.rate);
    ports.chain(interfaces).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// RDMA devices fast enough for the GPUs' traffic, virtual functions apart.
fn fabric_adapters(topology: &Topology) -> Vec<&Nic> {
    let least = BytesPerSecond::from_gbps(SLOWEST_FABRIC_GBPS);
    let fast = |nic: &&Nic| rate(nic).is_some_and(|rate| rate >= least);
    let all = topology.nics.iter();
    all.filter(|nic| !nic.ports.is_empty() && !nic.virtual_function)
        .filter(fast)
        .collect()
}

fn transport(adapters: &[&Nic]) -> Transport {
    let ports = adapters.iter().flat_map(|nic| &nic.ports);
    let layers: Vec<&str> = ports
        .filter_map(|port| port.link_layer.as_deref())
        .collect();
    let efa = adapters
        .iter()
        .any(|nic| nic.name.starts_with("efa") || nic.name.starts_with("rdmap"));
    match (efa, layers.contains(&"InfiniBand")) {
        (true, _) => Transport::Efa,
        (false, true) => Transport::Infiniband,
        (false, false) if adapters.is_empty() => Transport::Tcp,
        (false, false) => Transport::Roce,
    }
}

/// All links of the first GPU together.
fn scale_up(topology: &Topology, first: &Gpu, known: Option<&Entry<GpuFacts>>) -> Option<ScaleUp> {
    let of_first = topology
        .gpu_links
        .iter()
        .filter(|link| link.a == 0 || link.b == 0);
    // Through switches every pair shows all links of the GPU, so the largest counts and not the sum.
    let widest = of_first.max_by_key(|link| link.count)?;
    let nvlink = known.and_then(|entry| entry.facts.nvlink_gen);
    let from_entry = known
        .and_then(|e| e.facts.nvlink_gbs)
        .map(|both| BytesPerSecond::gb(both / 2.0));
    let rate = widest.rate.or(from_entry)?;
    Some(ScaleUp {
        rate: Capacity {
            rate,
            provenance: Provenance::LinkRate(format!(
                "{SNAPSHOT}: {} links of {}",
                widest.count, first.name
            )),
        },
        nvlink: nvlink.filter(|_| widest.kind == GpuLinkKind::NvLink),
    })
}

/// The link that is the way of the first GPU to host memory, and how many adapters share it.
fn uplink(
    catalog: &Catalog,
    topology: &Topology,
    adapters: &[&Nic],
    overrides: &Overrides,
    used: &mut Vec<Used>,
) -> Option<Uplink> {
    let gpu = topology.gpus.first()?.address?;
    let top = |address: PciAddress| topology.above(address).last().map(|port| port.address);
    let root = top(gpu);
    let port = root.unwrap_or(gpu);
    let speed = topology
        .above(gpu)
        .filter_map(|bridge| topology.speed_under_load(bridge.address))
        .chain(topology.speed_under_load(gpu))
        .min_by(|a, b| a.rate().0.total_cmp(&b.rate().0))?;
    let generation = overrides.pcie_gen.unwrap_or(speed.generation.0);
    let lanes = f64::from(overrides.pcie_lanes.unwrap_or(speed.width)) / LANES;
    let pcie = catalog
        .pcie
        .iter()
        .find(|entry| entry.facts.generation == generation)?;
    used.push(pcie.used());
    let below = adapters.iter().filter_map(|nic| nic.address);
    let sharing = below.filter(|address| top(*address) == Some(port)).count();
    Some(Uplink {
        rate: usable(pcie, lanes),
        pairs: u32::try_from(sharing.max(1)).unwrap_or(u32::MAX),
        crossings: if sharing > 0 { 2 } else { 1 },
    })
}

/// What receipts measured.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Measured {
    /// Storage into one server.
    pub storage: MeasuredStorage,
    /// Between servers, one adapter, straight out of and into GPU memory.
    pub network_direct: Option<Capacity>,
    /// Between servers, one adapter, through host RAM.
    pub network_staged: Option<Capacity>,
}

/// Receipts of less than this measure start-up and not a rate.
pub const LEAST_MEASURED_BYTES: u64 = 1 << 20;

/// Why a receipt says nothing to the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unusable {
    /// Too few bytes, or no time passed.
    TooSmall,
    /// No machine has such a rate.
    Implausible,
    /// Its bytes by path do not sum to the bytes asked for.
    NotWhole,
    /// It is of a transfer that no plan is about.
    OtherPlaces,
    /// More than [`MOST_CACHED_SHARE`] of its bytes went by the page cache: that is host memory's rate.
    PageCache,
}

/// What a receipt was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// [`MeasuredStorage::direct`].
    StorageDirect,
    /// [`MeasuredStorage::staged`].
    StorageStaged,
    /// [`Measured::network_direct`].
    NetworkDirect,
    /// [`Measured::network_staged`].
    NetworkStaged,
}

impl Taken {
    /// For a sentence.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StorageDirect => "one server's storage, straight into GPU memory",
            Self::StorageStaged => "one server's storage, through host RAM",
            Self::NetworkDirect => "one NIC, direct, where that is below its line rate",
            Self::NetworkStaged => "one NIC, staged through host RAM",
        }
    }
}

/// Of a receipt about storage, the page cache's share may be as much as this.
pub const MOST_CACHED_SHARE: f64 = 0.01;

impl Measured {
    /// Takes a receipt in. Of several of one kind the fastest counts: nothing but the machine makes
    /// a transfer fast, while much makes one slow.
    ///
    /// # Errors
    /// The receipt says nothing to the planner.
    pub fn take(&mut self, receipt: &Receipt) -> Result<Taken, Unusable> {
        if !receipt.is_whole() {
            return Err(Unusable::NotWhole);
        }
        let rate = receipt
            .rate()
            .filter(|_| receipt.requested.0 >= LEAST_MEASURED_BYTES);
        let rate = rate.ok_or(Unusable::TooSmall)?;
        let rated = STORAGE_RATE.between(rate.as_gb());
        rated.map_err(|_| Unusable::Implausible)?;
        let moved = Capacity {
            rate,
            provenance: Provenance::Measured(format!(
                "receipt of {} from {} to {}",
                receipt.requested, receipt.from, receipt.to
            )),
        };
        let remote = |place: &Place| matches!(place, Place::Remote(_) | Place::Nic(_));
        let stored =
            |place: &Place| matches!(place, Place::File(_) | Place::Object(_) | Place::Drive(_));
        let device = |place: &Place| matches!(place, Place::Gpu(_) | Place::Peer(_));
        let straight = receipt
            .shares
            .iter()
            .all(|share| share.class == Class::Direct);
        let (taken, slot) = if remote(&receipt.from) || remote(&receipt.to) {
            if straight {
                (Taken::NetworkDirect, &mut self.network_direct)
            } else {
                (Taken::NetworkStaged, &mut self.network_staged)
            }
        } else if stored(&receipt.from) || stored(&receipt.to) {
            if cached(receipt) > MOST_CACHED_SHARE {
                return Err(Unusable::PageCache);
            }
            // Into host RAM there is a second leg to the GPU, so it is the staged way's rate at best.
            if straight && (device(&receipt.from) || device(&receipt.to)) {
                (Taken::StorageDirect, &mut self.storage.direct)
            } else {
                (Taken::StorageStaged, &mut self.storage.staged)
            }
        } else {
            return Err(Unusable::OtherPlaces);
        };
        if slot.as_ref().is_none_or(|old| old.rate < moved.rate) {
            *slot = Some(moved);
        }
        Ok(taken)
    }

    /// Puts the measured rate of direct network transfers in the place of the line rate.
    pub fn apply(&self, server: &mut ServerSpec) {
        if let Some(measured) = &self.network_direct
            && measured.rate < server.nic_rate.rate
        {
            server.nic_rate = measured.clone();
        }
    }
}

/// The share of a receipt's bytes that went by the page cache.
fn cached(receipt: &Receipt) -> f64 {
    let all = receipt.shares.iter();
    let shares = all.filter(|share| share.may_have_been_cached());
    let bytes: u64 = shares.map(|share| share.bytes.0).sum();
    bytes as f64 / receipt.requested.0.max(1) as f64
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::machines;
    use crowfly_route::hop::Route;
    use crowfly_route::policy::Policy;
    use crowfly_route::receipt::{
        CpuSeconds, FILLED_BY_DRIVE, Path, RECEIPT_SCHEMA, Share, Verification, Visibility,
    };
    use crowfly_route::units::Bytes;

    use super::*;

    fn spec(topology: &Topology) -> Result<ServerSpec, PlanError> {
        ServerSpec::from_topology(&Catalog::built_in(), topology, &Overrides::default())
    }

    #[test]
    fn given_a_dgx_s_snapshot_the_server_is_the_catalogue_s_apart_from_what_it_cannot_show() {
        let seen = spec(&machines::dgx_h100().topology()).expect("has GPUs");
        let catalog = Catalog::built_in();
        let listed = ServerSpec::from_catalog(&catalog, "dgx-h100", &Overrides::default());
        let listed = listed.expect("sound");
        assert_eq!((seen.gpus, seen.domain, seen.nics), (8, 8, 8));
        assert_eq!(seen.gpu, listed.gpu);
        assert_eq!(seen.nic_rate.rate, listed.nic_rate.rate);
        assert_eq!(seen.transport, listed.transport);
        let uplink = |spec: &ServerSpec| {
            spec.uplink
                .clone()
                .map(|u| (u.pairs, u.crossings, u.rate.rate))
        };
        assert_eq!(uplink(&seen), uplink(&listed));
        assert_eq!(seen.memory, None);
        assert_eq!(seen.scale_up.and_then(|s| s.nvlink), Some(4));
    }

    #[test]
    fn two_adapters_behind_one_root_port_share_its_link() {
        let seen = spec(&machines::sixteen_gpus().topology()).expect("has GPUs");
        assert_eq!(seen.uplink.expect("known").pairs, 2);
    }

    #[test]
    fn given_no_gpu_or_no_fast_adapter_the_error_says_what_to_give() {
        let refused = spec(&machines::laptop().topology()).expect_err("no GPU");
        assert_eq!(refused.to_string(), "snapshot: a GPU is not known");
        let boxed = spec(&machines::pcie_box().topology()).expect("has GPUs");
        assert_eq!((boxed.nics, boxed.transport), (1, Transport::Roce));
        assert_eq!((boxed.domain, boxed.scale_up), (1, None));
    }

    fn receipt(from: &str, to: &str, class: Class, bytes: u64, seconds: f64) -> Receipt {
        Receipt {
            schema: RECEIPT_SCHEMA.into(),
            from: from.parse().expect("a place"),
            to: to.parse().expect("a place"),
            policy: Policy::Prefer,
            route: Route {
                name: "test".into(),
                from: from.parse().expect("a place"),
                to: to.parse().expect("a place"),
                hops: Vec::new(),
            },
            requested: Bytes(bytes),
            shares: vec![Share {
                path: Path::Direct,
                class,
                bytes: Bytes(bytes),
                because: None,
            }],
            bounced: Bytes(0),
            overread: Bytes(0),
            retries: 0,
            wall_seconds: seconds,
            cpu: CpuSeconds::default(),
            ceiling: None,
            obstacles: Vec::new(),
            visibility: Visibility::Unknown(String::new()),
            verification: Verification::NotAsked,
        }
    }

    #[test]
    fn the_fastest_receipt_of_each_kind_counts() {
        let mut measured = Measured::default();
        let gb = 1_000_000_000;
        for (from, to, class, seconds, expected) in [
            ("file:/m", "host", Class::Direct, 1.0, Taken::StorageStaged),
            ("file:/m", "host", Class::Direct, 0.5, Taken::StorageStaged),
            (
                "file:/m",
                "gpu:0",
                Class::Direct,
                0.25,
                Taken::StorageDirect,
            ),
            (
                "gpu:0",
                "remote:gpu:0",
                Class::Staged,
                0.1,
                Taken::NetworkStaged,
            ),
            (
                "gpu:0",
                "remote:gpu:0",
                Class::Direct,
                0.025,
                Taken::NetworkDirect,
            ),
        ] {
            let taken = measured.take(&receipt(from, to, class, gb, seconds));
            assert_eq!(taken, Ok(expected), "{from} {to}");
        }
        let rate = |slot: &Option<Capacity>| slot.as_ref().map(|c| c.rate.as_gb());
        assert_eq!(rate(&measured.storage.staged), Some(2.0));
        assert_eq!(rate(&measured.storage.direct), Some(4.0));
        assert_eq!(rate(&measured.network_staged), Some(10.0));
        assert_eq!(rate(&measured.network_direct), Some(40.0));

        let catalog = Catalog::built_in();
        let server = ServerSpec::from_catalog(&catalog, "dgx-h100", &Overrides::default());
        let mut server = server.expect("sound");
        measured.apply(&mut server);
        assert_eq!(server.nic_rate.rate.as_gb(), 40.0);
        assert_eq!(server.nic_rate.provenance.word(), "measured");
    }

    #[test]
    fn receipts_that_measure_nothing_are_named() {
        let mut measured = Measured::default();
        let mut take = |receipt: &Receipt| measured.take(receipt);
        let small = receipt("file:/m", "host", Class::Direct, 10, 1.0);
        assert_eq!(take(&small), Err(Unusable::TooSmall));
        let mut partial = receipt("file:/m", "host", Class::Direct, 1 << 30, 1.0);
        partial.requested = Bytes(1 << 31);
        assert_eq!(take(&partial), Err(Unusable::NotWhole));
        let copies = receipt("host", "host:1", Class::Direct, 1 << 30, 1.0);
        assert_eq!(take(&copies), Err(Unusable::OtherPlaces));
        for path in [Path::Mapped, Path::Cached] {
            let mut warm = receipt("file:/m", "host", Class::Direct, 1 << 30, 0.04);
            warm.shares[0].path = path;
            assert_eq!(take(&warm), Err(Unusable::PageCache), "{path:?}");
        }
        let mut filled = receipt("file:/m", "host", Class::Direct, 1 << 30, 0.5);
        filled.shares[0].path = Path::Mapped;
        filled.shares[0].because = Some(FILLED_BY_DRIVE.into());
        assert_eq!(Measured::default().take(&filled), Ok(Taken::StorageStaged));
        for seconds in [1e-300, 1e300] {
            let absurd = receipt("file:/m", "host", Class::Direct, 1 << 30, seconds);
            assert_eq!(take(&absurd), Err(Unusable::Implausible));
        }
        assert_eq!(measured, Measured::default());
    }
}
