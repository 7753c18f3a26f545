//! The readers of `ibstat` and `ibstatus`.

use super::Gid;
use super::listing::Listing;
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Reads `ibstat`.
#[derive(Default)]
pub(crate) struct IbstatReader {
    listing: Listing,
}

impl Reader for IbstatReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let text = line.trimmed();
        if let Some(name) = text.strip_prefix("CA '").and_then(|t| t.strip_suffix('\'')) {
            self.listing.turn_to(name, line);
            return Verdict::Taken;
        }
        if self.listing.is_empty() {
            return Verdict::Refused;
        }
        let Some((key, value)) = text.split_once(':') else {
            return Verdict::Refused;
        };
        let value = value.trim();
        match key {
            "Firmware version" => {
                if let Some(device) = self.listing.device() {
                    device.firmware = Some(line.cite().of(value.to_owned()));
                }
            }
            "CA type" => {
                if let Some(device) = self.listing.device() {
                    device.model = Some(line.cite().of(value.to_owned()));
                }
            }
            "State" => self.listing.state(value, line),
            "Rate" => self.listing.rate(value, line),
            "Link layer" => self.listing.layer(value, line),
            "Physical state" => {
                if let Some(port) = self.listing.port() {
                    port.physical = Some(line.cite().of(value.to_owned()));
                }
            }
            "Number of ports" | "Hardware version" | "Node GUID" | "System image GUID"
            | "Base lid" | "LMC" | "SM lid" | "Capability mask" | "Port GUID" => {
                self.listing.attribute(key, value, line)
            }
            _ => match key.strip_prefix("Port ").and_then(|n| n.parse().ok()) {
                Some(number) => self.listing.turn_to_port(number, line),
                None => return Verdict::Refused,
            },
        }
        Verdict::Taken
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let found = self.listing.into_found();
        (!found.devices.is_empty()).then_some((Format::Ibstat, Artefact::RdmaDevices(found)))
    }
}

/// Reads `ibstatus`.
#[derive(Default)]
pub(crate) struct IbstatusReader {
    listing: Listing,
}

impl Reader for IbstatusReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let text = line.trimmed();
        if let Some(rest) = text.strip_prefix("Infiniband device '") {
            let Some((name, rest)) = rest.split_once('\'') else {
                return Verdict::Refused;
            };
            self.listing.turn_to(name, line);
            let port = rest
                .trim()
                .strip_prefix("port ")
                .and_then(|t| t.split(' ').next()?.parse().ok());
            if let Some(port) = port {
                self.listing.turn_to_port(port, line);
            }
            return Verdict::Taken;
        }
        if self.listing.is_empty() {
            return Verdict::Refused;
        }
        let Some((key, value)) = text.split_once(':') else {
            return Verdict::Refused;
        };
        let value = value.trim();
        match key {
            "state" => self.listing.state(value, line),
            "rate" => self.listing.rate(value, line),
            "link_layer" => self.listing.layer(value, line),
            "phys state" => {
                if let Some(port) = self.listing.port() {
                    let word = value.split_once(": ").map_or(value, |(_, word)| word);
                    port.physical = Some(line.cite().of(word.to_owned()));
                }
            }
            "default gid" => self.listing.gid(Gid::new(0, value, None, None), line),
            "base lid" | "sm lid" => self.listing.attribute(key, value, line),
            _ => return Verdict::Refused,
        }
        Verdict::Taken
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let found = self.listing.into_found();
        (!found.devices.is_empty()).then_some((Format::Ibstatus, Artefact::RdmaDevices(found)))
    }
}
