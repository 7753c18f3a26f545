//! The cuFile library: its log, its configuration, and the statistics of its kernel module.

mod config;
mod log;
mod stats;

use std::collections::BTreeMap;

use crowfly_route::units::PciAddress;
use serde::Serialize;

pub(crate) use self::config::CufileConfigReader;
pub(crate) use self::log::CufileLogReader;
pub(crate) use self::stats::NvidiaFsStatsReader;
use super::cite::Located;
use super::sighting::Sighting;

/// `cufile.log`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CufileLog {
    /// Messages, one for each wording; numbers, addresses and paths do not tell them apart.
    pub messages: Vec<Sighting<CufileMessage>>,
    /// Messages that said something new after the limit was reached.
    pub beyond_limit: u64,
}

/// One message of the log, at its first sighting.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CufileMessage {
    /// `ERROR`, `WARN`, `NOTICE`, `INFO`, `DEBUG` or `TRACE`.
    pub level: String,
    /// Component and line of the library (`cufio-fs:79`).
    pub site: String,
    /// The words.
    pub text: String,
}

/// `cufile.json`, or a piece of it. Comments are allowed in it and are skipped.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CufileConfig {
    /// Values as written, without quotes, by dotted path (`properties.allow_compat_mode`).
    pub values: BTreeMap<String, Located<String>>,
    /// The text ended inside an object.
    pub clipped: bool,
}

/// `/proc/driver/nvidia-fs/stats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NvidiaFsStats {
    /// Version of GPUDirect Storage.
    pub gds: Option<Located<String>>,
    /// Version of the module.
    pub driver: Option<Located<String>>,
    /// `Mellanox PeerDirect Supported`.
    pub peer_direct: Option<Located<bool>>,
    /// `IO stats: Enabled`. While disabled, reads and writes are not counted.
    pub io_stats: Option<Located<bool>>,
    /// Counters by line and name (`Bar1-map`, `ok`).
    pub counters: BTreeMap<String, Located<BTreeMap<String, u64>>>,
    /// GPUs with registered memory, and their counters.
    pub gpus: Vec<Located<(PciAddress, BTreeMap<String, u64>)>>,
}

impl NvidiaFsStats {
    /// One counter, by its line and name.
    pub fn counter(&self, line: &str, name: &str) -> Option<Located<u64>> {
        let found = self.counters.get(line)?;
        Some(found.cite.of(*found.value.get(name)?))
    }
}
