//! The PCIe links of a topology: what they run at, and whether that is less than they could.

use serde::{Deserialize, Serialize};

use super::pcie::{self, PciDevice, PcieLink, PcieSpeed};
use super::{Topology, decode};
use crate::hop::{Crossing, LinkKind};
use crate::units::PciAddress;

/// How a link runs, compared with the best both ends could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// At its best.
    Full,
    /// Slower or narrower, with no reason to be.
    Degraded,
    /// Slower because the GPU behind it has nothing to do; it speeds up under load.
    Idle,
    /// Nobody can say: one of the two speeds is not known, or the link is that of a switch's
    /// management function, which is made slow.
    Unknown,
}

/// Performance states of NVIDIA GPUs from this one on are idle ones.
const IDLE_PERFORMANCE_STATE: u8 = 8;
const FIRST_GENERATION: u8 = 1;
const AMD: u16 = 0x1002;

impl Topology {
    /// The link above a function. A virtual function shares that of its physical function.
    pub fn link_above(&self, address: PciAddress) -> Option<PcieLink> {
        self.with_link(address)?.link
    }

    /// The function whose own registers tell of the link above this one.
    fn with_link(&self, address: PciAddress) -> Option<&PciDevice> {
        let function = self.pci.get(&address)?;
        let physical = function.physical_function.and_then(|p| self.pci.get(&p));
        let own = physical.unwrap_or(function);
        own.link.is_some().then_some(own)
    }

    /// How the link above a function runs; `None` where there is no link.
    pub fn link_state(&self, address: PciAddress) -> Option<LinkState> {
        let function = self.with_link(address)?;
        let link = function.link?;
        let (Some(current), Some(maximum)) = (link.current, link.maximum) else {
            return Some(LinkState::Unknown);
        };
        let full = |speed: PcieSpeed| speed.meet(maximum) == maximum;
        Some(if full(current) {
            LinkState::Full
        } else if is_management(function) {
            LinkState::Unknown
        } else if full(self.under_load(function, current, maximum)) {
            LinkState::Idle
        } else {
            LinkState::Degraded
        })
    }

    /// What a link would run at if the GPU behind it had something to do. Drivers slow links down
    /// to save power; AMD's narrows them too, while a narrow link to NVIDIA's is a fault.
    fn under_load(
        &self,
        function: &PciDevice,
        current: PcieSpeed,
        maximum: PcieSpeed,
    ) -> PcieSpeed {
        if !self.leads_to_idle_gpu(function, current) {
            return current;
        }
        PcieSpeed {
            width: match function.vendor {
                AMD => maximum.width,
                _ => current.width,
            },
            ..maximum
        }
    }

    /// Whether a link is one that a GPU's driver slows down to save power, at a time when it would:
    /// the GPU's own, or that of the bridge on its board.
    fn leads_to_idle_gpu(&self, function: &PciDevice, current: PcieSpeed) -> bool {
        let slowest = current.generation.0 == FIRST_GENERATION;
        if function.is_bridge() {
            return slowest && self.is_on_a_gpu_s_board(function);
        }
        if !self.is_gpu(function) {
            return false;
        }
        let asleep = function
            .power_state
            .as_deref()
            .is_some_and(|state| state.starts_with("D3"));
        let resting = self
            .gpus
            .iter()
            .find(|gpu| gpu.address == Some(function.address))
            .and_then(|gpu| gpu.performance_state)
            .is_some_and(|state| state >= IDLE_PERFORMANCE_STATE);
        slowest || asleep || resting
    }

    /// Boards carry bridges of the GPU's own maker, and its sound device beside the GPU.
    fn is_on_a_gpu_s_board(&self, bridge: &PciDevice) -> bool {
        let below = self.pci.values().filter(|endpoint| {
            let mut above = self.above(endpoint.address);
            !endpoint.is_bridge() && above.any(|one| one.address == bridge.address)
        });
        let mut gpus = 0;
        for endpoint in below {
            if endpoint.vendor != bridge.vendor {
                return false;
            }
            gpus += usize::from(self.is_gpu(endpoint));
        }
        gpus > 0
    }

    fn is_gpu(&self, function: &PciDevice) -> bool {
        decode::gpu_vendor(function, &self.pci).is_some()
    }

    /// What the link above a function runs at, or would if the idle GPU behind it were busy; `None`
    /// where there is no link or its speed is not known.
    pub fn speed_under_load(&self, address: PciAddress) -> Option<PcieSpeed> {
        let function = self.with_link(address)?;
        let link = function.link?;
        Some(match (link.current?, link.maximum) {
            (current, Some(maximum)) => self.under_load(function, current, maximum),
            (current, None) => current,
        })
    }

    /// The link above a function as something that a hop crosses; `None` where there is none.
    pub fn crossing_above(&self, address: PciAddress) -> Option<Crossing> {
        let link = self.link_above(address)?;
        let state = self.link_state(address)?;
        let upper = self
            .pci
            .get(&address)
            .and_then(|function| function.parent)
            .map_or_else(|| "host bridge".to_owned(), |parent| parent.to_string());
        let current = self.speed_under_load(address);
        let speed = match (current, link.rate, link.maximum) {
            (Some(current), _, _) => current.to_string(),
            (None, Some(rate), _) => rate.to_string(),
            (None, None, Some(maximum)) => format!("up to {maximum}"),
            (None, None, None) => "of unknown speed".into(),
        };
        Some(Crossing {
            link: format!("{upper}–{address} {speed}"),
            kind: LinkKind::Pcie,
            rate: current
                .map(PcieSpeed::rate)
                .or(link.rate)
                .or(link.maximum.map(PcieSpeed::rate)),
            degraded: state == LinkState::Degraded,
        })
    }
}

/// Whether a function exists to manage a switch. Such functions train to a narrow link by design.
fn is_management(function: &PciDevice) -> bool {
    !function.is_bridge()
        && pcie::name(function.vendor, function.device)
            .to_ascii_lowercase()
            .contains("switch")
}
