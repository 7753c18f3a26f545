//! RDMA ports, whichever evidence lists them.

use crate::case::Case;
use crate::evidence::rdma::{LinkLayer, PortState, RdmaDevice, RdmaPort};
use crate::finding::Quote;

/// One port of one device.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// The machine or source.
    pub(crate) on: String,
    pub(crate) device: String,
    pub(crate) number: u32,
    pub(crate) model: Option<String>,
    pub(crate) firmware: Option<(String, Quote)>,
    pub(crate) active: Option<bool>,
    /// The physical state says that somebody switched it off.
    pub(crate) disabled: bool,
    pub(crate) rate_gbps: Option<f64>,
    pub(crate) ethernet: Option<bool>,
    pub(crate) active_mtu: Option<(u32, Quote)>,
    pub(crate) max_mtu: Option<u32>,
    pub(crate) gids: Vec<PortGid>,
    /// Where its state or name was read.
    pub(crate) quote: Quote,
    pub(crate) rate_quote: Option<Quote>,
}

/// One entry of a port's address table.
#[derive(Clone, Debug)]
pub(crate) struct PortGid {
    pub(crate) index: u32,
    pub(crate) version_2: bool,
    pub(crate) ipv4: bool,
    pub(crate) quote: Quote,
}

impl Port {
    pub(crate) fn name(&self) -> String {
        if self.number == 1 {
            self.device.clone()
        } else {
            format!("{}:{}", self.device, self.number)
        }
    }
}

/// Every port of the case. A device that several tools list on one machine counts once.
pub(crate) fn ports(case: &Case) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    for list in case.rdma_lists() {
        for device in &list.devices {
            for port in &device.ports {
                join(&mut ports, listed(device, port));
            }
        }
    }
    for machine in &case.machines {
        for nic in &machine.topology.nics {
            for port in &nic.ports {
                let base = format!("/sys/class/infiniband/{}", nic.name);
                let at = format!("{base}/ports/{}", port.number);
                let quote = machine.quote(&format!("{at}/state")).unwrap_or_else(|| {
                    Quote::device(machine.source.clone(), nic.name.clone(), "RDMA device")
                });
                ports.push(Port {
                    on: machine.source.to_string(),
                    device: nic.name.clone(),
                    number: port.number,
                    model: nic.model.clone(),
                    firmware: nic
                        .firmware
                        .clone()
                        .and_then(|fw| Some((fw, machine.quote(&format!("{base}/fw_ver"))?))),
                    active: port.active,
                    disabled: machine
                        .text(&format!("{at}/phys_state"))
                        .is_some_and(|s| s.to_ascii_lowercase().contains("disabled")),
                    rate_gbps: port.rate.map(|rate| rate.0 * 8.0 / 1e9),
                    ethernet: port.link_layer.as_deref().map(|layer| layer == "Ethernet"),
                    active_mtu: None,
                    max_mtu: None,
                    gids: port
                        .gids
                        .iter()
                        .filter_map(|gid| {
                            let key = format!("{at}/gids/{}", gid.index);
                            Some(PortGid {
                                index: gid.index,
                                version_2: gid.kind.as_deref() == Some("RoCE v2"),
                                ipv4: is_ipv4(&gid.gid),
                                quote: machine.quote(&key)?,
                            })
                        })
                        .collect(),
                    quote,
                    rate_quote: machine.quote(&format!("{at}/rate")),
                });
            }
        }
    }
    ports
}

fn listed(device: &RdmaDevice, port: &RdmaPort) -> Port {
    let state = port.state.as_ref();
    Port {
        on: device.cite.source.to_string(),
        device: device.name.clone(),
        number: port.number,
        model: device
            .part
            .as_ref()
            .map(|part| part.value.to_string())
            .or_else(|| device.model.as_ref().map(|m| m.value.clone())),
        firmware: device
            .firmware
            .as_ref()
            .map(|fw| (fw.value.clone(), Quote::from(&fw.cite))),
        active: state.map(|s| s.value == PortState::Active),
        disabled: port
            .physical
            .as_ref()
            .is_some_and(|p| p.value.to_ascii_lowercase().contains("disabled")),
        rate_gbps: port.rate_gbps.as_ref().map(|r| r.value),
        ethernet: port.layer.as_ref().and_then(|layer| match layer.value {
            LinkLayer::RoCe => Some(true),
            LinkLayer::InfiniBand => Some(false),
            LinkLayer::Other => None,
        }),
        active_mtu: port
            .active_mtu
            .as_ref()
            .map(|mtu| (mtu.value, Quote::from(&mtu.cite))),
        max_mtu: port.max_mtu.as_ref().map(|mtu| mtu.value),
        gids: port
            .gids
            .iter()
            .map(|gid| PortGid {
                index: gid.value.index,
                version_2: gid.value.roce == Some(2),
                ipv4: gid.value.ipv4.is_some() || is_ipv4(&gid.value.gid),
                quote: Quote::from(&gid.cite),
            })
            .collect(),
        quote: Quote::from(state.map_or(&port.cite, |s| &s.cite)),
        rate_quote: port.rate_gbps.as_ref().map(|r| Quote::from(&r.cite)),
    }
}

fn is_ipv4(gid: &str) -> bool {
    let gid = gid.to_ascii_lowercase();
    gid.starts_with("0000:0000:0000:0000:0000:ffff:") || gid.starts_with("::ffff:")
}

/// Adds a port, or what another tool says of the same one.
fn join(ports: &mut Vec<Port>, port: Port) {
    let known = ports
        .iter_mut()
        .find(|p| p.on == port.on && p.device == port.device && p.number == port.number);
    let Some(known) = known else {
        ports.push(port);
        return;
    };
    if known.active.is_none() && port.active.is_some() {
        known.active = port.active;
        known.quote = port.quote;
    }
    known.model = known.model.take().or(port.model);
    known.firmware = known.firmware.take().or(port.firmware);
    known.disabled |= port.disabled;
    if known.rate_gbps.is_none() {
        known.rate_gbps = port.rate_gbps;
        known.rate_quote = port.rate_quote;
    }
    known.ethernet = known.ethernet.or(port.ethernet);
    known.active_mtu = known.active_mtu.take().or(port.active_mtu);
    known.max_mtu = known.max_mtu.or(port.max_mtu);
    known.gids.extend(port.gids);
}
