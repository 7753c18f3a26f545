//! The reader of `ibv_devinfo`, with or without `-v`.

use super::Gid;
use super::listing::Listing;
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

#[derive(Default)]
pub(crate) struct IbvDevinfoReader {
    listing: Listing,
    /// Lanes of the port, until its speed comes.
    lanes: Option<f64>,
}

impl Reader for IbvDevinfoReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let text = line.trimmed();
        if let Some(name) = text.strip_prefix("hca_id:") {
            self.listing.turn_to(name.trim(), line);
            return Verdict::Taken;
        }
        if self.listing.is_empty() {
            return Verdict::Refused;
        }
        if is_flag(text) {
            return Verdict::Taken;
        }
        let Some((key, value)) = text.split_once(':') else {
            return Verdict::Refused;
        };
        if self.field(key.trim(), value.trim(), line) {
            Verdict::Taken
        } else {
            Verdict::Refused
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let found = self.listing.into_found();
        (!found.devices.is_empty()).then_some((Format::IbvDevinfo, Artefact::RdmaDevices(found)))
    }
}

impl IbvDevinfoReader {
    fn field(&mut self, key: &str, value: &str, line: &Line<'_>) -> bool {
        let number = || value.split_whitespace().next().and_then(|n| n.parse().ok());
        let cited = || line.cite().of(value.to_owned());
        match key {
            "port" => {
                if let Some(number) = number() {
                    self.listing.turn_to_port(number, line);
                    self.lanes = None;
                }
            }
            "fw_ver" => {
                if let Some(device) = self.listing.device() {
                    device.firmware = Some(cited());
                }
            }
            "board_id" => {
                if let Some(device) = self.listing.device() {
                    device.model = Some(cited());
                }
            }
            "vendor_part_id" => {
                if let Some(device) = self.listing.device() {
                    device.part = number().map(|n| line.cite().of(n));
                }
            }
            "state" => self.listing.state(value, line),
            "link_layer" => self.listing.layer(value, line),
            "phys_state" => {
                if let Some(port) = self.listing.port() {
                    let word = value.split(" (").next().unwrap_or(value);
                    port.physical = Some(line.cite().of(word.to_owned()));
                }
            }
            "max_mtu" | "active_mtu" => {
                if let (Some(bytes), Some(port)) = (number(), self.listing.port()) {
                    let mtu = Some(line.cite().of(bytes));
                    if key == "max_mtu" {
                        port.max_mtu = mtu;
                    } else {
                        port.active_mtu = mtu;
                    }
                }
            }
            "active_width" => {
                let lanes = value
                    .split(['X', 'x'])
                    .next()
                    .and_then(|n| n.trim().parse().ok());
                self.lanes = lanes;
            }
            "active_speed" => {
                let lane: Option<f64> =
                    value.split_whitespace().next().and_then(|n| n.parse().ok());
                if let (Some(lane), Some(lanes)) = (lane, self.lanes) {
                    self.listing.rate(&(lane * lanes).to_string(), line);
                }
            }
            _ if key.starts_with("GID[") => self.gid(key, value, line),
            "transport" => self.listing.attribute(key, value, line),
            // Anything else that the tool prints has an underscore in its name.
            _ if key.contains('_') && !key.contains(' ') => {
                self.listing.attribute(key, value, line)
            }
            _ => return key.starts_with("Unknown flags"),
        }
        true
    }

    /// `GID[  3]: 0000:…:ffff:0a00:0001, RoCE v2`.
    fn gid(&mut self, key: &str, value: &str, line: &Line<'_>) {
        let index = key
            .trim_start_matches("GID[")
            .trim_end_matches(']')
            .trim()
            .parse();
        let (gid, kind) = value.split_once(',').unwrap_or((value, ""));
        let roce = kind
            .trim()
            .strip_prefix("RoCE v")
            .and_then(|v| v.parse().ok());
        if let Ok(index) = index {
            self.listing
                .gid(Gid::new(index, gid.trim(), None, roce), line);
        }
    }
}

/// A capability of `-v`, alone on its line: `RC_RNR_NAK_GEN`.
fn is_flag(text: &str) -> bool {
    text.contains('_')
        && text
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}
