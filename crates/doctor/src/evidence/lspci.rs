//! `lspci`: the list, with or without the details of `-vvv`, and the tree.

mod list;
mod tree;

use crowfly_route::units::{Bytes, PciAddress};
use serde::Serialize;

pub(crate) use self::list::LspciReader;
pub(crate) use self::tree::LspciTreeReader;
use super::cite::{Cite, Located};

/// The list.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lspci {
    /// Functions in the order listed.
    pub functions: Vec<PciFunction>,
    /// Details that came without their function, as from `grep`: no device can be named for them.
    pub orphans: PciDetails,
    /// Functions after the limit, not kept.
    pub beyond_limit: u64,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PciFunction {
    /// Its address; domain 0 where the tool printed none.
    pub address: PciAddress,
    /// Its class in words (`3D controller`).
    pub class: String,
    /// Its class number, with `-nn`.
    pub class_code: Option<u16>,
    /// Vendor and device in words.
    pub name: String,
    /// Vendor and device numbers, with `-nn`.
    pub ids: Option<(u16, u16)>,
    /// The line.
    pub cite: Cite,
    /// What `-vvv` adds.
    pub details: PciDetails,
}

/// Details of one function, or of several when they came without names.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PciDetails {
    /// `LnkCap`: fastest speed and width.
    pub link_max: Vec<Located<PciLink>>,
    /// `LnkSta`: speed and width now. An idle GPU slows its link down by itself.
    pub link_now: Vec<Located<PciLink>>,
    /// `ACSCtl`: access control in force.
    pub acs: Vec<Located<AcsControl>>,
    /// `Region n`: memory windows.
    pub regions: Vec<Located<Region>>,
    /// `DevCtl`: largest read request in bytes.
    pub max_read_request: Vec<Located<u32>>,
    /// `DevCtl`: largest payload in bytes.
    pub max_payload: Vec<Located<u32>>,
    /// `RlxdOrd+`: relaxed ordering allowed.
    pub relaxed_ordering: Vec<Located<bool>>,
    /// `NUMA node`.
    pub numa: Vec<Located<i32>>,
    /// `IOMMU group`.
    pub iommu_group: Vec<Located<u32>>,
    /// `Kernel driver in use`.
    pub driver: Vec<Located<String>>,
    /// `Physical Resizable BAR`: number and current size.
    pub resizable_bars: Vec<Located<(u32, Bytes)>>,
    /// `Bus: primary=…`: buses behind a bridge, secondary to subordinate.
    pub bridges_to: Vec<Located<(u8, u8)>>,
    /// `<access denied>`: capabilities could not be read without root.
    pub denied: Option<Cite>,
}

/// Speed and width of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PciLink {
    /// Gigatransfers per second; absent when `unknown`.
    pub gigatransfers: Option<f64>,
    /// Lanes; 0 for virtual functions.
    pub lanes: Option<u32>,
    /// The tool called it downgraded.
    pub downgraded: bool,
}

/// Access control in force on a bridge or function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct AcsControl {
    /// Source validation: harmless to peer-to-peer traffic.
    pub source_validation: bool,
    /// Translation blocking.
    pub translation_blocking: bool,
    /// Requests are sent up to the root complex.
    pub request_redirect: bool,
    /// Completions are sent up to the root complex.
    pub completion_redirect: bool,
    /// Upstream forwarding.
    pub upstream_forwarding: bool,
    /// Egress control.
    pub egress_control: bool,
    /// Already translated requests may go straight.
    pub direct_translated: bool,
}

impl AcsControl {
    /// Whether peer-to-peer traffic is turned away from the short way.
    pub fn redirects(&self) -> bool {
        self.request_redirect || self.completion_redirect || self.egress_control
    }
}

/// A memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Number of the BAR.
    pub bar: u32,
    /// Its size.
    pub size: Bytes,
    /// Whether it can be mapped anywhere in 64 bits.
    pub wide: bool,
    /// Whether it is prefetchable.
    pub prefetchable: bool,
}

/// The tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LspciTree {
    /// The functions in it, top down.
    pub functions: Vec<TreeFunction>,
}

/// One function of the tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeFunction {
    /// Its address.
    pub address: PciAddress,
    /// Bridges above it, from the root port down.
    pub above: Vec<PciAddress>,
    /// Buses behind it, secondary to subordinate, when it is a bridge.
    pub bridges_to: Option<(u8, u8)>,
    /// Its name, with `-v`.
    pub name: String,
    /// The line.
    pub cite: Cite,
}

impl LspciTree {
    /// The nearest bridge that two functions share; `None` when only a host bridge or less does.
    pub fn common_bridge(&self, a: PciAddress, b: PciAddress) -> Option<PciAddress> {
        let above = |wanted| {
            self.functions
                .iter()
                .find(|f| f.address == wanted)
                .map(|f| &f.above)
        };
        let (a, b) = (above(a)?, above(b)?);
        a.iter()
            .zip(b)
            .take_while(|(x, y)| x == y)
            .last()
            .map(|(x, _)| *x)
    }
}
