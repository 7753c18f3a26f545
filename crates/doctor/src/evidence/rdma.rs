//! RDMA devices and ports, from whichever tool listed them.

mod ibstat;
mod ibv_devinfo;
mod listing;
mod tables;

use std::collections::BTreeMap;

use serde::Serialize;

pub(crate) use self::ibstat::{IbstatReader, IbstatusReader};
pub(crate) use self::ibv_devinfo::IbvDevinfoReader;
pub(crate) use self::tables::{RdmaLinkReader, ShowGidsReader};
use super::cite::{Cite, Located};
pub use super::nccl_log::LinkLayer;

/// What a listing says. A field that its tool does not print is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RdmaDevices {
    /// The devices, in the order listed.
    pub devices: Vec<RdmaDevice>,
}

/// One RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RdmaDevice {
    /// Its name (`mlx5_0`).
    pub name: String,
    /// The line that names it.
    pub cite: Cite,
    /// Version of its firmware.
    pub firmware: Option<Located<String>>,
    /// Its model: the board (`MT_0000000834`) or the type (`MT4129`).
    pub model: Option<Located<String>>,
    /// The vendor's part number.
    pub part: Option<Located<u32>>,
    /// Other attributes by name, as printed.
    pub attributes: BTreeMap<String, Located<String>>,
    /// Its ports.
    pub ports: Vec<RdmaPort>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RdmaPort {
    /// Its number.
    pub number: u32,
    /// The line that names it.
    pub cite: Cite,
    /// Its logical state.
    pub state: Option<Located<PortState>>,
    /// Its physical state, as printed (`LinkUp`, `LINK_UP`).
    pub physical: Option<Located<String>>,
    /// Its rate in Gb/s. Of a port that is down it says nothing.
    pub rate_gbps: Option<Located<f64>>,
    /// The link.
    pub layer: Option<Located<LinkLayer>>,
    /// Active MTU in bytes.
    pub active_mtu: Option<Located<u32>>,
    /// Largest MTU in bytes.
    pub max_mtu: Option<Located<u32>>,
    /// Network interface, where printed.
    pub netdev: Option<Located<String>>,
    /// Its addresses.
    pub gids: Vec<Located<Gid>>,
}

/// State of a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// Down.
    Down,
    /// Link is up, no subnet manager has configured it yet.
    Init,
    /// Configured, not yet enabled.
    Armed,
    /// In service.
    Active,
    /// Another word.
    Other(String),
}

impl PortState {
    /// Reads `PORT_ACTIVE (4)`, `Active`, `4: ACTIVE` or `ACTIVE`.
    pub(crate) fn parse(text: &str) -> Self {
        let word = text
            .split([' ', ':', '(', ')', '\t'])
            .map(|w| w.trim_start_matches("PORT_"))
            .find(|w| w.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()))
            .unwrap_or_default()
            .to_ascii_lowercase();
        match word.as_str() {
            "down" => Self::Down,
            "init" | "initializing" => Self::Init,
            "armed" => Self::Armed,
            "active" => Self::Active,
            _ => Self::Other(text.trim().to_owned()),
        }
    }
}

/// One entry of a port's address table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Its index, as `NCCL_IB_GID_INDEX` counts.
    pub index: u32,
    /// The address.
    pub gid: String,
    /// IPv4 address that it stands for, where printed or contained.
    pub ipv4: Option<String>,
    /// RoCE version 1 or 2, where printed.
    pub roce: Option<u8>,
}
