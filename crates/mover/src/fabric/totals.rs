//! What went where since a fabric started: by peer, by path and by NIC.

use std::collections::BTreeMap;

use crowfly_route::receipt::Path;

use super::identity::Incarnation;
use super::port::PortCount;
use super::rail::{RailReport, RailTotals};

/// What went where since a fabric started. Sums by path and NIC hold peers that are gone as well, so
/// they only grow.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Totals {
    /// By peer; those that are gone are forgotten when new ones come.
    pub peers: Vec<PeerTotals>,
    /// By engine path.
    pub paths: Vec<PathTotals>,
    /// By NIC.
    pub nics: Vec<NicTotals>,
}

/// What went to and from one peer.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PeerTotals {
    /// Which life of which process.
    #[serde(serialize_with = "as_text")]
    pub peer: Incarnation,
    /// The address it was reached at, or came from.
    pub address: String,
    /// Why it is gone, if it is.
    pub lost: Option<String>,
    /// Transfers under way.
    pub under_way: usize,
    /// By rail.
    pub rails: Vec<RailReport>,
}

/// What went by one engine path.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PathTotals {
    /// The path.
    pub path: Path,
    /// What went by it.
    pub totals: RailTotals,
}

/// What went by one NIC.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NicTotals {
    /// The engine path.
    pub path: Path,
    /// The NIC on this host.
    pub nic: String,
    /// What went by it.
    pub totals: RailTotals,
    /// What its port has counted by itself.
    pub port: Port,
}

/// What a port has counted by itself since it came up: everybody's bytes, headers included.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Port {
    /// It has counters.
    Counted(PortCount),
    /// There is nothing to read.
    Unavailable {
        /// Why not.
        why: String,
    },
}

impl From<Result<PortCount, String>> for Port {
    fn from(looked: Result<PortCount, String>) -> Self {
        match looked {
            Ok(count) => Self::Counted(count),
            Err(why) => Self::Unavailable { why },
        }
    }
}

fn as_text<S: serde::Serializer>(peer: &Incarnation, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(peer)
}

/// Sums by path and NIC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums(BTreeMap<(Path, String), RailTotals>);

impl Sums {
    pub(crate) fn add(&mut self, rails: &[RailReport]) {
        for rail in rails {
            let key = (rail.path, rail.nic.clone());
            *self.0.entry(key).or_default() += rail.totals;
        }
    }

    /// The totals of these peers and of those that were added before; `port` looks at the counters of
    /// a NIC.
    pub(crate) fn with(
        mut self,
        peers: Vec<PeerTotals>,
        port: impl Fn(Path, &str) -> Port,
    ) -> Totals {
        peers.iter().for_each(|peer| self.add(&peer.rails));
        let mut paths: BTreeMap<Path, RailTotals> = BTreeMap::new();
        for ((path, _), totals) in &self.0 {
            *paths.entry(*path).or_default() += *totals;
        }
        let paths = paths.into_iter();
        let nics = self.0.into_iter();
        Totals {
            peers,
            paths: paths
                .map(|(path, totals)| PathTotals { path, totals })
                .collect(),
            nics: nics
                .map(|((path, nic), totals)| NicTotals {
                    port: port(path, &nic),
                    path,
                    nic,
                    totals,
                })
                .collect(),
        }
    }
}
