//! The readers of `show_gids`, `rdma link` and `ibdev2netdev`: one line for each thing.

use super::listing::{Listing, is_gid};
use super::{Gid, PortState};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Reads `show_gids`.
#[derive(Default)]
pub(crate) struct ShowGidsReader {
    listing: Listing,
    begun: bool,
}

impl Reader for ShowGidsReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let words: Vec<&str> = line.text.split_whitespace().take(8).collect();
        let is_head = words.starts_with(&["DEV", "PORT", "INDEX", "GID"]);
        let is_tail = line.trimmed().starts_with("n_gids_found");
        if is_head && self.begun {
            return Verdict::Restart;
        }
        if !is_head && !is_tail && !self.row(&words, line) {
            return Verdict::Refused;
        }
        self.begun = true;
        if is_tail {
            Verdict::Last
        } else {
            Verdict::Taken
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let found = self.listing.into_found();
        (!found.devices.is_empty()).then_some((Format::ShowGids, Artefact::RdmaDevices(found)))
    }
}

impl ShowGidsReader {
    /// `mlx5_0 1 3 0000:…:ffff:0a0a:0a01 10.10.10.1 v2 eth0`; the IPv4 column can be blank.
    fn row(&mut self, words: &[&str], line: &Line<'_>) -> bool {
        let [device, port, index, gid, rest @ ..] = words else {
            return false;
        };
        let (Ok(port), Ok(index)) = (port.parse(), index.parse()) else {
            return false;
        };
        if !is_gid(gid) {
            return false;
        }
        let ipv4 = rest
            .iter()
            .find(|w| w.parse::<std::net::Ipv4Addr>().is_ok());
        let version = rest.iter().position(|w| matches!(*w, "v1" | "v2"));
        let roce = version.and_then(|at| rest[at].strip_prefix('v')?.parse().ok());
        self.listing.turn_to(device, line);
        self.listing.turn_to_port(port, line);
        self.listing
            .gid(Gid::new(index, gid, ipv4.copied(), roce), line);
        if let (Some(netdev), Some(port)) =
            (version.and_then(|at| rest.get(at + 1)), self.listing.port())
        {
            port.netdev
                .get_or_insert_with(|| line.cite().of((*netdev).to_owned()));
        }
        true
    }
}

/// Reads `rdma link` and `ibdev2netdev`.
#[derive(Default)]
pub(crate) struct RdmaLinkReader {
    listing: Listing,
}

impl Reader for RdmaLinkReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let words: Vec<&str> = line.text.split_whitespace().take(32).collect();
        if self.link(&words, line) || self.netdev(&words, line) {
            Verdict::Taken
        } else {
            Verdict::Refused
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let found = self.listing.into_found();
        (!found.devices.is_empty()).then_some((Format::RdmaLink, Artefact::RdmaDevices(found)))
    }
}

impl RdmaLinkReader {
    /// `link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0`, and the older
    /// `0/1: mlx5_0/1: state …`.
    fn link(&mut self, words: &[&str], line: &Line<'_>) -> bool {
        let (name, rest) = match words {
            ["link", name, rest @ ..] => (*name, rest),
            [first, name, rest @ ..] if first.ends_with(':') && name.ends_with(':') => {
                (name.trim_end_matches(':'), rest)
            }
            _ => return false,
        };
        let Some((device, port)) = name.split_once('/') else {
            return false;
        };
        let (Ok(port), true) = (port.parse(), rest.contains(&"state")) else {
            return false;
        };
        self.listing.turn_to(device, line);
        self.listing.turn_to_port(port, line);
        for pair in rest.windows(2) {
            let [key, value] = pair else { continue };
            let Some(port) = self.listing.port() else {
                break;
            };
            match *key {
                "state" => port.state = Some(line.cite().of(PortState::parse(value))),
                "physical_state" => port.physical = Some(line.cite().of((*value).to_owned())),
                "netdev" => port.netdev = Some(line.cite().of((*value).to_owned())),
                _ => {}
            }
        }
        true
    }

    /// `mlx5_0 port 1 ==> eth0 (Up)`.
    fn netdev(&mut self, words: &[&str], line: &Line<'_>) -> bool {
        let [device, "port", port, "==>", netdev, state, ..] = words else {
            return false;
        };
        let Ok(port) = port.parse() else { return false };
        self.listing.turn_to(device, line);
        self.listing.turn_to_port(port, line);
        if let Some(port) = self.listing.port() {
            port.netdev = Some(line.cite().of((*netdev).to_owned()));
            port.state = Some(line.cite().of(match *state {
                "(Up)" => PortState::Active,
                "(Down)" => PortState::Down,
                other => PortState::Other(other.to_owned()),
            }));
        }
        true
    }
}
