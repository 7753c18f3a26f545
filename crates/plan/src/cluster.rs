//! The cluster that a question is about: one server as the models see it, how many of them, and
//! the fabric between them.

use crowfly_route::hop::{Capacity, Provenance};
use crowfly_route::topology::{PcieGeneration, PcieSpeed};
use crowfly_route::units::BytesPerSecond;
use serde::Serialize;

use crate::catalog::{Catalog, Entry, Gpu, Server, Transport, Used};
use crate::error::PlanError;
use crate::quantity::{MEMORY_RATE, NIC_RATE, OVERSUBSCRIPTION, SCALE_UP_RATE, UPLINK_RATE};

/// The most servers of a cluster.
pub const MAX_SERVERS: u64 = 1 << 20;
/// The most GPUs, or adapters, of a server and of an NVLink fabric.
pub const MAX_PER_SERVER: u64 = 4096;
/// What a PCIe slot of an accelerator or adapter has.
const LANES: u8 = 16;
/// Both ways at once over the link between Grace and its GPU, one direction; measured on a
/// GB300-class module as 172 to 175 GB/s (stas00, ml-engineering).
const COHERENT_BOTH_WAYS_GBS: f64 = 172.0;

/// The fabric between the GPUs of one domain: NVLink, xGMI, Ethernet between Gaudis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleUp {
    /// One GPU, one direction.
    pub rate: Capacity,
    /// Generation of NVLink; `None` where it is something else.
    pub nvlink: Option<u8>,
}

/// The link by which staged data reaches host RAM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uplink {
    /// One direction.
    pub rate: Capacity,
    /// GPU and adapter pairs that share it.
    pub pairs: u32,
    /// How often staged data crosses it in each direction: twice where GPU and adapter are both
    /// below it, once where only the GPU is.
    pub crossings: u32,
}

/// One server as the models see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerSpec {
    /// Its name in the catalogue, or of the snapshot.
    pub name: String,
    /// The name of its accelerator.
    pub gpu: String,
    /// Dense bf16 rate of one accelerator in FLOP/s, when known.
    pub gpu_flops: Option<f64>,
    /// Bandwidth of one accelerator's own memory, when known.
    pub gpu_memory_rate: Option<BytesPerSecond>,
    /// Accelerators of the server.
    pub gpus: u32,
    /// Accelerators that share one scale-up fabric; a multiple of `gpus` where servers share it.
    pub domain: u32,
    /// That fabric; `None` where there is none.
    pub scale_up: Option<ScaleUp>,
    /// Adapters of the GPU fabric.
    pub nics: u32,
    /// Line rate of one of them, one direction.
    pub nic_rate: Capacity,
    /// What carries GPU traffic between servers.
    pub transport: Transport,
    /// Theoretical peak of host memory; `None` where it is not known.
    pub memory: Option<Capacity>,
    /// The link to host memory; `None` where it is not known.
    pub uplink: Option<Uplink>,
    /// Entries of the catalogue that this rests on.
    pub used: Vec<Used>,
}

/// What a question changes about a server of the catalogue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Adapters of the GPU fabric.
    pub nics: Option<u32>,
    /// Line rate of one, in 1e9 bit/s.
    pub nic_gbps: Option<f64>,
    /// Peak of host memory in 1e9 B/s.
    pub memory_gbs: Option<f64>,
    /// Generation of the slots.
    pub pcie_gen: Option<u8>,
    /// Lanes of the slots.
    pub pcie_lanes: Option<u8>,
    /// GPU and adapter pairs that share an uplink.
    pub pairs_per_uplink: Option<u32>,
    /// GPUs that share one NVLink fabric.
    pub domain: Option<u32>,
}

/// Where a number that the user gave comes from.
pub(crate) fn given() -> Provenance {
    Provenance::Assumed("given with the question".into())
}

fn gb(rate: f64, provenance: Provenance) -> Capacity {
    Capacity {
        rate: BytesPerSecond::gb(rate),
        provenance,
    }
}

impl ServerSpec {
    /// A server of the catalogue, with changes.
    ///
    /// # Errors
    /// The name is unknown, the server has no adapters and none were given, a number is out of its
    /// range, or the adapters are faster than their slots.
    pub fn from_catalog(
        catalog: &Catalog,
        id: &str,
        overrides: &Overrides,
    ) -> Result<Self, PlanError> {
        let entry = catalog.servers.get(id)?;
        let gpu = catalog.gpus.get(&entry.facts.gpu)?;
        let mut used = vec![entry.used(), gpu.used()];
        let memory = match &entry.facts.memory {
            Some(name) => {
                let memory = catalog.memory.get(name)?;
                used.push(memory.used());
                let parts = f64::from(entry.facts.memories.unwrap_or(1));
                let cited = Provenance::Catalogue(memory.cite());
                Some(gb(memory.facts.peak_gbs * parts, cited))
            }
            None => None,
        };
        let spec = Self {
            name: entry.id.clone(),
            gpu: gpu.id.clone(),
            gpu_flops: gpu.facts.bf16_tflops.map(|tflops| tflops * 1e12),
            gpu_memory_rate: gpu.facts.hbm_tbs.map(|tbs| BytesPerSecond(tbs * 1e12)),
            gpus: entry.facts.gpus,
            domain: entry.facts.nvlink_domain.unwrap_or(entry.facts.gpus),
            scale_up: ScaleUp::of(gpu),
            nics: entry.facts.nics.unwrap_or(0),
            nic_rate: Capacity {
                rate: BytesPerSecond::from_gbps(entry.facts.nic_gbps.unwrap_or(0.0)),
                provenance: Provenance::LinkRate(entry.cite()),
            },
            transport: entry.facts.transport,
            memory,
            uplink: uplink(catalog, entry, gpu, overrides),
            used,
        };
        let slot = entry
            .facts
            .nic
            .as_ref()
            .and_then(|name| catalog.nics.get(name).ok());
        let generation = slot
            .and_then(|nic| nic.facts.pcie_gen)
            .or(gpu.facts.pcie_gen);
        spec.changed(overrides, generation)
    }

    /// This server with the changes of a question. `generation` is that of the adapters' slots.
    pub(crate) fn changed(
        mut self,
        overrides: &Overrides,
        generation: Option<u8>,
    ) -> Result<Self, PlanError> {
        if let Some(nics) = overrides.nics {
            PlanError::count("NICs per server", nics.into(), MAX_PER_SERVER)?;
            self.nics = nics;
        }
        if let Some(gbps) = overrides.nic_gbps {
            let rate = BytesPerSecond::from_gbps(NIC_RATE.positive(gbps)?);
            self.nic_rate = Capacity {
                rate,
                provenance: given(),
            };
        }
        if let Some(gbs) = overrides.memory_gbs {
            let peak = MEMORY_RATE.positive(gbs)?;
            self.memory = Some(gb(peak, given()));
        }
        if let Some(domain) = overrides.domain {
            self.domain = domain;
        }
        if let (Some(pairs), Some(uplink)) = (overrides.pairs_per_uplink, &mut self.uplink) {
            PlanError::count("pairs per uplink", pairs.into(), MAX_PER_SERVER)?;
            uplink.pairs = pairs;
        }
        PlanError::count("GPUs per server", self.gpus.into(), MAX_PER_SERVER)?;
        PlanError::count("GPUs per NVLink domain", self.domain.into(), MAX_PER_SERVER)?;
        if overrides.domain.is_some() && !self.domain.is_multiple_of(self.gpus) {
            return Err(PlanError::Impossible {
                what: format!(
                    "an NVLink domain of {} GPUs is no whole number of servers with {} GPUs each",
                    self.domain, self.gpus
                ),
                hint: format!(
                    "give --nvlink-domain as a multiple of {}, such as {}",
                    self.gpus,
                    self.domain.div_ceil(self.gpus) * self.gpus
                ),
            });
        }
        if self.nics == 0 {
            return Err(PlanError::Unknown {
                of: self.name,
                what: "the number of NICs for GPU traffic",
                give: "give --nics and --nic-gbps",
            });
        }
        PlanError::count("NICs per server", self.nics.into(), MAX_PER_SERVER)?;
        if self.nic_rate.rate.0 <= 0.0 {
            return Err(PlanError::Unknown {
                of: self.name,
                what: "the line rate of its NICs",
                give: "give --nic-gbps",
            });
        }
        self.is_plausible(overrides)?;
        if let Some(generation) = overrides.pcie_gen.or(generation) {
            self.fits_slot(generation, overrides.pcie_lanes.unwrap_or(LANES))?;
        }
        Ok(self)
    }

    /// Whether rates that a snapshot or a catalogue states are any that machines have.
    fn is_plausible(&self, overrides: &Overrides) -> Result<(), PlanError> {
        if overrides.nic_gbps.is_none() {
            NIC_RATE.between(self.nic_rate.rate.0 * 8.0 / 1e9)?;
        }
        if let (Some(memory), None) = (&self.memory, overrides.memory_gbs) {
            MEMORY_RATE.between(memory.rate.as_gb())?;
        }
        if let Some(fabric) = &self.scale_up {
            SCALE_UP_RATE.between(fabric.rate.rate.as_gb())?;
        }
        if let Some(uplink) = &self.uplink {
            UPLINK_RATE.between(uplink.rate.rate.as_gb())?;
        }
        Ok(())
    }

    fn fits_slot(&self, generation: u8, lanes: u8) -> Result<(), PlanError> {
        let slot = PcieSpeed {
            generation: PcieGeneration(generation),
            width: lanes,
        };
        let slot = slot.rate();
        if slot.0 >= self.nic_rate.rate.0 {
            return Ok(());
        }
        Err(PlanError::NicFasterThanSlot {
            nic_gbs: self.nic_rate.rate.as_gb(),
            generation,
            lanes,
            slot_gbs: (slot.as_gb() * 1e3).round() / 1e3,
        })
    }

    /// How many servers share one scale-up fabric.
    pub fn servers_per_domain(&self) -> u32 {
        (self.domain / self.gpus.max(1)).max(1)
    }
}

impl ScaleUp {
    fn of(gpu: &Entry<Gpu>) -> Option<Self> {
        let facts = &gpu.facts;
        let rate = |gbs: f64| gb(gbs, Provenance::LinkRate(gpu.cite()));
        if let Some(both) = facts.nvlink_gbs {
            return Some(Self {
                rate: rate(both / 2.0),
                nvlink: facts.nvlink_gen,
            });
        }
        let both_ways = facts
            .scaleup_gbs
            .or(facts.ici_gbs_bidir)
            .map(|both| both / 2.0);
        let one_way = both_ways.or(facts.eth_gbs_per_dir)?;
        Some(Self {
            rate: rate(one_way),
            nvlink: None,
        })
    }
}

fn uplink(
    catalog: &Catalog,
    server: &Entry<Server>,
    gpu: &Entry<Gpu>,
    overrides: &Overrides,
) -> Option<Uplink> {
    if gpu.facts.c2c_gbs.is_some() && overrides.pcie_gen.is_none() {
        return Some(Uplink {
            rate: gb(
                COHERENT_BOTH_WAYS_GBS,
                Provenance::Catalogue(
                    "C2C with both ways busy, measured on a GB300-class module".into(),
                ),
            ),
            pairs: 1,
            crossings: 1,
        });
    }
    let generation = overrides.pcie_gen.or(gpu.facts.pcie_gen)?;
    let pcie = catalog
        .pcie
        .iter()
        .find(|entry| entry.facts.generation == generation)?;
    let lanes = f64::from(overrides.pcie_lanes.unwrap_or(LANES)) / f64::from(LANES);
    Some(Uplink {
        rate: usable(pcie, lanes),
        pairs: server.facts.pairs_per_uplink.unwrap_or(1),
        crossings: 2,
    })
}

/// Where nobody measured what transfers reach of a generation, it is assumed to be as much as of
/// the generation that somebody measured.
const USABLE_SHARE: f64 = 55.06 / 63.015;

pub(crate) fn usable(pcie: &Entry<crate::catalog::Pcie>, lanes: f64) -> Capacity {
    match pcie.facts.usable_gbs {
        Some(usable) => gb(usable * lanes, Provenance::Catalogue(pcie.cite())),
        None => gb(
            pcie.facts.raw_gbs * USABLE_SHARE * lanes,
            Provenance::Assumed(format!(
                "{}: as large a share as measured of Gen5",
                pcie.cite()
            )),
        ),
    }
}

/// Servers and the fabric between them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// One server.
    pub server: ServerSpec,
    /// How many.
    pub servers: u32,
    /// Ports down per port up at the leaf: 1 is a fabric that blocks nothing.
    pub oversubscription: f64,
}

impl Cluster {
    /// A cluster.
    ///
    /// # Errors
    /// No servers, too many, or an oversubscription below 1.
    pub fn new(server: ServerSpec, servers: u32, oversubscription: f64) -> Result<Self, PlanError> {
        PlanError::count("servers", servers.into(), MAX_SERVERS)?;
        OVERSUBSCRIPTION.between(oversubscription)?;
        Ok(Self {
            server,
            servers,
            oversubscription,
        })
    }

    /// All GPUs.
    pub fn gpus(&self) -> u64 {
        u64::from(self.server.gpus) * u64::from(self.servers)
    }

    /// How many scale-up domains the servers make: that many take part in what crosses the network.
    pub fn domains(&self) -> u32 {
        self.servers.div_ceil(self.server.servers_per_domain())
    }

    /// GPUs of one domain, as far as this cluster fills it.
    pub fn domain_gpus(&self) -> u32 {
        self.server.gpus * self.domain_servers()
    }

    /// Adapters of one domain.
    pub fn domain_nics(&self) -> u32 {
        self.server.nics * self.domain_servers()
    }

    /// Servers of one domain.
    pub fn domain_servers(&self) -> u32 {
        self.server.servers_per_domain().min(self.servers)
    }

    /// The same cluster with another number of servers.
    ///
    /// # Errors
    /// As [`Cluster::new`].
    pub fn with_servers(&self, servers: u32) -> Result<Self, PlanError> {
        Self::new(self.server.clone(), servers, self.oversubscription)
    }
}
