//! The fabric's bill of materials: switches, cables, ports left, power and cost.
//!
//! Rail-optimised unless said otherwise: NIC `r` of every server of a scalable unit goes to the same
//! leaf. Two tiers of radix k hold k²/2 endpoints, three tiers k³/4.

use serde::Serialize;

use crate::catalog::{Catalog, Used};
use crate::cluster::Cluster;
use crate::error::PlanError;
use crate::figure::{Figure, Unit};
use crate::quantity::{OVERSUBSCRIPTION, Quantity, SWITCH_PORTS};
use crowfly_route::hop::Provenance;

/// Four years, over which fabrics are written off.
pub const FOUR_YEARS_HOURS: f64 = 35_064.0;

/// Which NICs share a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wiring {
    /// Those of one rail, of as many servers as the leaf has ports down.
    #[default]
    Rails,
    /// All those of a server, and of as many servers as fit.
    Servers,
}

impl Wiring {
    /// Servers that have a NIC on the same leaf with `down` ports for servers of `nics` NICs.
    pub const fn unit(self, down: u32, nics: u32) -> u32 {
        match self {
            Self::Rails => down,
            Self::Servers => match down.checked_div(nics) {
                Some(servers) => servers,
                None => 0,
            },
        }
    }
}

/// How many switches there are, tier by tier, and what joins them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Switches {
    /// 1, 2 or 3.
    pub tiers: u32,
    /// Ports of a switch.
    pub radix: u32,
    /// Ports of a leaf that go down.
    pub down: u32,
    /// Ports of a leaf that go up; 0 with one tier.
    pub up: u32,
    /// Leaf switches.
    pub leaf: u32,
    /// Spine switches.
    pub spine: u32,
    /// Core switches.
    pub core: u32,
}

/// What is to be joined.
#[derive(Clone, Copy)]
struct Ends {
    wiring: Wiring,
    servers: u32,
    nics: u32,
    oversubscription: f64,
}

impl Switches {
    /// For `servers` with `nics` each, on switches of `radix` ports, with `oversubscription` ports
    /// down per port up at the leaf, on rails. `tiers` of `None` takes as few as do.
    ///
    /// # Errors
    /// A number is out of range, or three tiers do not hold the endpoints, or the tiers asked for
    /// do not.
    pub fn of(
        servers: u32,
        nics: u32,
        radix: u32,
        oversubscription: f64,
        tiers: Option<u32>,
    ) -> Result<Self, PlanError> {
        Self::wired(Wiring::Rails, servers, nics, radix, oversubscription, tiers)
    }

    /// As [`of`](Self::of), for this wiring.
    ///
    /// # Errors
    /// As [`of`](Self::of); or a leaf has fewer ports down than a server whose NICs share it.
    pub fn wired(
        wiring: Wiring,
        servers: u32,
        nics: u32,
        radix: u32,
        oversubscription: f64,
        tiers: Option<u32>,
    ) -> Result<Self, PlanError> {
        SWITCH_PORTS.between(radix.into())?;
        PlanError::count("servers", servers.into(), crate::cluster::MAX_SERVERS)?;
        PlanError::count(
            "NICs per server",
            nics.into(),
            crate::cluster::MAX_PER_SERVER,
        )?;
        let most = f64::from(radix - 1);
        let quantity = Quantity {
            most,
            ..OVERSUBSCRIPTION
        };
        quantity.between(oversubscription)?;
        if let Some(tiers) = tiers {
            PlanError::count("tiers", tiers.into(), 3)?;
        }
        let ends = Ends {
            wiring,
            servers,
            nics,
            oversubscription,
        };
        let fit = |radix, tiers| Self::fit(ends, radix, tiers);
        fit(radix, tiers).ok_or_else(|| {
            let endpoints = u64::from(servers) * u64::from(nics);
            let asked = tiers.map_or("three tiers".to_owned(), |tiers| format!("{tiers} tiers"));
            PlanError::Impossible {
                what: format!("{asked} of {radix}-port switches do not join {endpoints} endpoints"),
                hint: nearest(radix, tiers, fit),
            }
        })
    }

    /// With this many spine switches, over which the links of every leaf spread evenly.
    ///
    /// # Errors
    /// There is no tier of spines between leaves alone, or the links do not spread over so many.
    pub fn with_spines(self, spines: u32) -> Result<Self, PlanError> {
        let least = self.spine;
        let even = spines >= least && spines <= self.up && self.up.is_multiple_of(spines);
        if self.tiers == 2 && even {
            return Ok(Self {
                spine: spines,
                ..self
            });
        }
        let hint = match self.tiers {
            2 => format!(
                "take a divisor of the {} links up of a leaf, {least} or more",
                self.up
            ),
            1 => "one switch joins all of them".to_owned(),
            _ => "a fabric of three tiers has as many as it needs".to_owned(),
        };
        Err(PlanError::Impossible {
            what: format!(
                "leaf switches here: {}, whose links do not spread evenly over {spines} spines",
                self.leaf
            ),
            hint,
        })
    }

    /// As few tiers as do, or the number asked for, where they do.
    fn fit(ends: Ends, radix: u32, tiers: Option<u32>) -> Option<Self> {
        [Self::one, Self::two, Self::three]
            .into_iter()
            .zip(1..)
            .filter(|(_, count)| tiers.is_none_or(|tiers| tiers == *count))
            .find_map(|(build, _)| build(ends, radix))
    }

    fn one(ends: Ends, radix: u32) -> Option<Self> {
        let endpoints = ends.servers.checked_mul(ends.nics)?;
        (endpoints <= radix).then_some(Self {
            tiers: 1,
            radix,
            down: radix,
            up: 0,
            leaf: 1,
            spine: 0,
            core: 0,
        })
    }

    fn leaves(ends: Ends, radix: u32) -> Option<Self> {
        let Ends {
            wiring,
            servers,
            nics,
            oversubscription,
        } = ends;
        let share = oversubscription / (1.0 + oversubscription);
        let down = (f64::from(radix) * share) as u32;
        let up = (f64::from(down) / oversubscription).ceil() as u32;
        let unit = wiring.unit(down, nics);
        let units = servers.div_ceil((unit > 0).then_some(unit)?);
        Some(Self {
            tiers: 2,
            radix,
            down,
            up,
            leaf: match wiring {
                Wiring::Rails => units.checked_mul(nics)?,
                Wiring::Servers => units,
            },
            spine: 0,
            core: 0,
        })
    }

    fn two(ends: Ends, radix: u32) -> Option<Self> {
        let leaves = Self::leaves(ends, radix)?;
        if leaves.leaf > radix {
            return None;
        }
        // Every leaf reaches every spine over equally many links.
        let least = leaves.leaf.checked_mul(leaves.up)?.div_ceil(radix);
        let even = |spine: &u32| leaves.up.is_multiple_of(*spine);
        let spine = (least..=leaves.up).find(even)?;
        Some(Self { spine, ..leaves })
    }

    fn three(ends: Ends, radix: u32) -> Option<Self> {
        let leaves = Self::leaves(ends, radix)?;
        let most = u64::from(radix) * u64::from(radix) / 2;
        if u64::from(leaves.leaf) > most {
            return None;
        }
        let half = radix / 2;
        let spine = leaves.leaf.checked_mul(leaves.up)?.div_ceil(half);
        let core = spine.checked_mul(half)?.div_ceil(radix);
        Some(Self {
            tiers: 3,
            spine,
            core,
            ..leaves
        })
    }

    /// All switches.
    pub const fn total(&self) -> u32 {
        self.leaf + self.spine + self.core
    }

    /// Cables from leaf to spine.
    pub const fn leaf_spine_cables(&self) -> u64 {
        if self.tiers > 1 {
            self.leaf as u64 * self.up as u64
        } else {
            0
        }
    }

    /// Cables from spine to core.
    pub const fn spine_core_cables(&self) -> u64 {
        if self.tiers > 2 {
            self.spine as u64 * (self.radix / 2) as u64
        } else {
            0
        }
    }
}

/// What would join the endpoints: more tiers, or else switches with more ports.
fn nearest(
    radix: u32,
    tiers: Option<u32>,
    fit: impl Fn(u32, Option<u32>) -> Option<Switches>,
) -> String {
    let more_tiers =
        tiers.and_then(|tiers| (tiers + 1..=3).find(|more| fit(radix, Some(*more)).is_some()));
    if let Some(more) = more_tiers {
        return format!("{more} tiers do");
    }
    let mut larger = (0..u32::BITS).map(|bit| 1u32 << bit);
    let larger = larger.find(|ports| {
        *ports > radix && f64::from(*ports) <= SWITCH_PORTS.most && fit(*ports, tiers).is_some()
    });
    match larger {
        Some(ports) => format!("switches of {ports} ports do"),
        None => "take more tiers, or accept oversubscription".into(),
    }
}

/// What to buy, and what it costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BillOfMaterials {
    /// The switch.
    pub switch: String,
    /// How many, and how they are joined.
    pub switches: Switches,
    /// NICs.
    pub endpoints: u64,
    /// Cables from server to leaf.
    pub server_cables: u64,
    /// Cables from leaf to spine.
    pub leaf_spine_cables: u64,
    /// Cables from spine to core.
    pub spine_core_cables: u64,
    /// Leaf ports down that stay free.
    pub ports_left: u64,
    /// Power of switches and optics.
    pub power: Figure,
    /// Price of the switches.
    pub switch_cost: Figure,
    /// Price of cables and optics.
    pub cable_cost: Figure,
    /// Both per GPU, NICs apart.
    pub cost_per_gpu: Figure,
    /// The same per hour over four years.
    pub cost_per_gpu_hour: Figure,
    /// Entries of the catalogue that this rests on.
    pub used: Vec<Used>,
}

/// The switch of a fabric where nobody says which.
pub const DEFAULT_SWITCH: &str = "quantum-2-qm9700";

impl BillOfMaterials {
    /// The fabric of a cluster on one of the catalogue's switches.
    ///
    /// # Errors
    /// The switch is unknown, its ports are slower than the NICs, or [`Switches::of`] refuses.
    pub fn of(
        catalog: &Catalog,
        cluster: &Cluster,
        switch: &str,
        tiers: Option<u32>,
    ) -> Result<Self, PlanError> {
        let entry = catalog.switches.get(switch)?;
        let server = &cluster.server;
        let nic_gbps = server.nic_rate.rate.0 * 8.0 / 1e9;
        let radix = radix(&entry.facts, nic_gbps).ok_or_else(|| PlanError::Impossible {
            what: format!(
                "a NIC of {nic_gbps} Gb/s is faster than a port of {switch}, {} Gb/s",
                entry.facts.port_gbps
            ),
            hint: "choose a switch with faster ports (--switch)".into(),
        })?;
        let switches = Switches::of(
            cluster.servers,
            server.nics,
            radix,
            cluster.oversubscription,
            tiers,
        )?;
        let endpoints = u64::from(cluster.servers) * u64::from(server.nics);
        let cables = endpoints + switches.leaf_spine_cables() + switches.spine_core_cables();
        let price = |id: &str| catalog.prices.get(id);
        let (unit, cable, watts, optic) = (
            price("switch-64x400")?,
            price("cable-with-optics-400")?,
            price("switch-power")?,
            price("optic-power-400")?,
        );
        let total = f64::from(switches.total());
        // Prices are of 64 ports of 400 Gb/s; others are taken in proportion to what they carry.
        let capacity =
            f64::from(radix) * nic_gbps.max(port_rate(&entry.facts, radix)) / (64.0 * 400.0);
        let speed = (nic_gbps / 400.0).max(f64::MIN_POSITIVE);
        let scaled = |what: &str, factor: f64| {
            if (factor - 1.0).abs() < 1e-9 {
                Provenance::Catalogue(what.to_owned())
            } else {
                Provenance::Assumed(format!("{what}, in proportion to the rate"))
            }
        };
        let switch_cost = total * unit.facts.usd.unwrap_or(0.0) * capacity;
        let cable_cost = cables as f64 * cable.facts.usd.unwrap_or(0.0) * speed;
        let power = total * watts.facts.watts.unwrap_or(0.0) * capacity
            + 2.0 * cables as f64 * optic.facts.watts.unwrap_or(0.0) * speed;
        let per_gpu = (switch_cost + cable_cost) / cluster.gpus() as f64;
        let mut used = vec![
            entry.used(),
            unit.used(),
            cable.used(),
            watts.used(),
            optic.used(),
        ];
        used.extend(server.used.iter().cloned());
        Ok(Self {
            switch: entry.id.clone(),
            switches,
            endpoints,
            server_cables: endpoints,
            leaf_spine_cables: switches.leaf_spine_cables(),
            spine_core_cables: switches.spine_core_cables(),
            ports_left: u64::from(switches.leaf) * u64::from(switches.down) - endpoints,
            power: Figure::new(power, Unit::Watts, scaled(&watts.cite(), capacity)),
            switch_cost: Figure::new(switch_cost, Unit::Dollars, scaled(&unit.cite(), capacity)),
            cable_cost: Figure::new(cable_cost, Unit::Dollars, scaled(&cable.cite(), speed)),
            cost_per_gpu: Figure::computed(
                per_gpu,
                Unit::Dollars,
                "(switches + cables) / GPUs, without NICs",
            ),
            cost_per_gpu_hour: Figure::computed(
                per_gpu / FOUR_YEARS_HOURS,
                Unit::DollarsPerHour,
                "cost per GPU / 35,064 h",
            ),
            used,
        })
    }
}

/// Ports of a switch when cut to the rate of the NICs; `None` where no cut is fast enough.
fn radix(switch: &crate::catalog::Switch, nic_gbps: f64) -> Option<u32> {
    let otherwise = switch.alt_ports.zip(switch.alt_gbps);
    let cuts = [Some((switch.ports, switch.port_gbps)), otherwise];
    let whole = cuts
        .into_iter()
        .flatten()
        .filter(|(_, gbps)| *gbps >= nic_gbps)
        .map(|(ports, _)| ports)
        .max()?;
    // An 800 Gb/s port breaks out into two of 400.
    let halves = switch.port_gbps >= 2.0 * nic_gbps && whole == switch.ports;
    Some(if halves { 2 * switch.ports } else { whole })
}

fn port_rate(switch: &crate::catalog::Switch, radix: u32) -> f64 {
    f64::from(switch.ports) * switch.port_gbps / f64::from(radix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Overrides, ServerSpec};

    fn switches(servers: u32) -> Switches {
        Switches::of(servers, 8, 64, 1.0, None).expect("possible")
    }

    #[test]
    fn the_counts_of_published_fabrics_come_out() {
        let catalog = Catalog::built_in();
        let mut compared = 0;
        for entry in catalog.fabrics.iter() {
            let fabric = &entry.facts;
            for (column, nodes) in fabric.nodes.iter().enumerate() {
                let ours = switches(*nodes);
                assert_eq!(ours.leaf, fabric.leaf[column], "{} {nodes}", entry.id);
                assert_eq!(ours.spine, fabric.spine[column], "{} {nodes}", entry.id);
                let core = fabric.core.get(column).copied().unwrap_or(0);
                assert_eq!(ours.core, core, "{} {nodes}", entry.id);
                compared += 1;
            }
        }
        assert_eq!(compared, 6);
        assert_eq!(switches(512).total(), 320);
        assert_eq!(switches(127).leaf_spine_cables(), 1024);
    }

    #[test]
    fn two_tiers_hold_half_the_square_and_three_a_quarter_of_the_cube() {
        let tiers = |servers| switches(servers).tiers;
        assert_eq!((tiers(8), tiers(9), tiers(256), tiers(257)), (1, 2, 2, 3));
        assert_eq!(tiers(8192), 3);
        let refused = Switches::of(8193, 8, 64, 1.0, None).expect_err("too many");
        assert_eq!(refused.code(), "plan-impossible");
        let two = Switches::of(16_384, 8, 512, 1.0, None).expect("fits");
        assert_eq!((two.tiers, two.leaf), (2, 512));
    }

    #[test]
    fn given_whole_servers_on_a_leaf_it_takes_as_many_as_have_ports() {
        let wired = |servers, nics, radix| {
            Switches::wired(Wiring::Servers, servers, nics, radix, 1.0, None)
        };
        let small = wired(32, 8, 128).expect("possible");
        assert_eq!((small.tiers, small.leaf, small.spine), (2, 4, 2));
        assert_eq!(small.with_spines(64).expect("even").spine, 64);
        for uneven in [0, 1, 3, 128] {
            let refused = small.with_spines(uneven).expect_err("uneven");
            assert_eq!(refused.code(), "plan-impossible");
        }
        assert!(switches(8).with_spines(1).is_err());
        // Nine servers of three NICs: eight ports down hold two.
        let odd = wired(9, 3, 16).expect("possible");
        assert_eq!((odd.tiers, odd.leaf), (2, 5));
        let refused = wired(9, 16, 16).expect_err("no leaf holds a server");
        assert_eq!(refused.hint().as_deref(), Some("switches of 32 ports do"));
    }

    #[test]
    fn given_more_ports_down_than_up_there_are_fewer_of_everything() {
        let narrow = Switches::of(128, 8, 64, 2.0, None).expect("possible");
        assert_eq!((narrow.down, narrow.up, narrow.leaf), (42, 21, 32));
        assert!(narrow.total() < switches(128).total() + 16);
    }

    #[test]
    fn impossible_fabrics_are_refused_with_their_values() {
        let code = |servers, nics, radix, oversubscription, tiers| {
            let refused = Switches::of(servers, nics, radix, oversubscription, tiers);
            refused.expect_err("refused").code()
        };
        assert_eq!(code(0, 8, 64, 1.0, None), "plan-out-of-range");
        assert_eq!(code(8, 0, 64, 1.0, None), "plan-out-of-range");
        assert_eq!(code(8, 8, 2, 1.0, None), "plan-not-between");
        assert_eq!(code(8, 8, 64, 0.5, None), "plan-not-between");
        assert_eq!(code(8, 8, 64, f64::NAN, None), "plan-not-between");
        assert_eq!(code(512, 8, 64, 1.0, Some(2)), "plan-impossible");
        let hint = |servers, tiers| {
            let refused = Switches::of(servers, 8, 64, 1.0, tiers).expect_err("too small");
            refused.hint().expect("a hint")
        };
        assert_eq!(hint(512, Some(2)), "3 tiers do");
        assert_eq!(hint(16_384, None), "switches of 128 ports do");
        assert_eq!(hint(512, Some(1)), "3 tiers do");
        assert_eq!(
            hint(1 << 20, Some(1)),
            "take more tiers, or accept oversubscription"
        );
        assert_eq!(code(8, 8, 64, 1.0, Some(4)), "plan-out-of-range");
    }

    #[test]
    fn a_thousand_gpus_cost_what_the_published_sheet_says() {
        let catalog = Catalog::built_in();
        let server = ServerSpec::from_catalog(&catalog, "dgx-h100", &Overrides::default());
        let cluster = Cluster::new(server.expect("sound"), 128, 1.0).expect("sound");
        let bill = BillOfMaterials::of(&catalog, &cluster, DEFAULT_SWITCH, None).expect("possible");
        assert_eq!((bill.switches.leaf, bill.switches.spine), (32, 16));
        let per_gpu = |figure: &Figure| figure.value / 1024.0;
        assert_eq!(per_gpu(&bill.switch_cost), 1687.5);
        assert_eq!(per_gpu(&bill.cable_cost), 2560.0);
        assert_eq!(bill.cost_per_gpu.value, 4247.5);
        assert_eq!(bill.ports_left, 0);
        let small = Cluster {
            servers: 127,
            ..cluster
        };
        let bill = BillOfMaterials::of(&catalog, &small, DEFAULT_SWITCH, None).expect("possible");
        assert_eq!((bill.endpoints, bill.ports_left), (1016, 8));
    }

    #[test]
    fn a_nic_faster_than_the_port_is_refused() {
        let catalog = Catalog::built_in();
        let server = ServerSpec::from_catalog(&catalog, "dgx-b300", &Overrides::default());
        let cluster = Cluster::new(server.expect("sound"), 8, 1.0).expect("sound");
        let refused = BillOfMaterials::of(&catalog, &cluster, DEFAULT_SWITCH, None);
        let message = refused.expect_err("refused").to_string();
        assert!(
            message.contains("800 Gb/s is faster than a port"),
            "{message}"
        );
    }
}
