//! The tree of a machine: memory, switches, devices, and the link above each.

use anstyle::Style;
use crowfly_route::topology::{
    Device, Drive, Gpu, GpuVendor, LinkState, Mount, Nic, NumaInfo, Topology,
};
use crowfly_route::units::{BytesPerSecond, PciAddress, significant};
use unicode_width::UnicodeWidthStr;

use super::cell::Cell;
use super::style::{BAD, FAINT, STRONG};
use super::table::Table;
use super::text::{count, harmless};
use crate::commands::map::groups;
use crate::commands::map::outline::{Branch, Outline, What};

/// What a thing is gets at least this many columns.
const MIN_WHAT: usize = 12;
/// The most mount points that are named of a drive.
const MAX_MOUNTS: usize = 3;
const LINK_ABOVE: &str = "link above";
/// A rate is one of the two directions.
const EACH_WAY: &str = "each way";
/// Between two columns of a table.
const GAP: usize = 2;

/// One line of the tree.
struct Row {
    label: Cell,
    what: String,
    address: String,
    link: Cell,
    rate: String,
}

/// The tree in at most `columns` columns.
pub fn render(topology: &Topology, outline: &Outline, columns: usize) -> String {
    let mut rows = Vec::new();
    for node in &outline.nodes {
        rows.push(row(topology, node, ""));
        below(topology, node, "", &mut rows);
    }
    for device in &outline.elsewhere {
        rows.push(device_row(topology, *device, ""));
    }
    if rows.is_empty() {
        return String::new();
    }
    let room = room_for_what(&rows, columns);
    let mut table = Table::new().text("").text("").text("");
    table = table.text(LINK_ABOVE).number(EACH_WAY);
    for row in rows {
        table.row([
            row.label,
            Cell::styled(FAINT, shortened(&row.what, room)),
            Cell::styled(FAINT, row.address),
            row.link,
            row.rate.into(),
        ]);
    }
    table.render(columns)
}

fn below(topology: &Topology, branch: &Branch, indent: &str, rows: &mut Vec<Row>) {
    for (position, child) in branch.below.iter().enumerate() {
        let last = position + 1 == branch.below.len();
        let (knee, rail) = if last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        rows.push(row(topology, child, &format!("{indent}{knee}")));
        below(topology, child, &format!("{indent}{rail}"), rows);
    }
}

/// The columns that are left for saying what things are.
fn room_for_what(rows: &[Row], columns: usize) -> usize {
    let widest = |of: fn(&Row) -> &str| rows.iter().map(|row| of(row).width()).max().unwrap_or(0);
    let others = widest(|row| row.label.text())
        + widest(|row| &row.address)
        + widest(|row| row.link.text()).max(LINK_ABOVE.width())
        + widest(|row| &row.rate).max(EACH_WAY.width());
    columns.saturating_sub(others + 4 * GAP).max(MIN_WHAT)
}

/// The text in at most `room` columns, with an ellipsis where something is left out.
pub fn shortened(text: &str, room: usize) -> String {
    let text = harmless(text);
    if text.width() <= room {
        return text.into_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        let mut with = short.clone();
        with.push(c);
        if with.width() >= room {
            break;
        }
        short = with;
    }
    format!("{}…", short.trim_end())
}

fn row(topology: &Topology, branch: &Branch, indent: &str) -> Row {
    let plain = |style: Style, name: String, what: String| Row {
        label: Cell::styled(style, format!("{indent}{name}")),
        what,
        address: String::new(),
        link: Cell::from(""),
        rate: String::new(),
    };
    match branch.what {
        What::Node(node) => {
            let info = topology.numa.iter().find(|info| info.node == node);
            plain(
                STRONG,
                node.to_string(),
                info.map(memory).unwrap_or_default(),
            )
        }
        What::UnknownNode => plain(STRONG, "unknown".into(), "NUMA node not told".into()),
        What::HostBridge(root) => plain(Style::new(), root.to_string(), "host bridge".into()),
        What::Switch(address) => {
            let function = topology.pci.get(&address);
            let name = match function.is_some_and(|f| f.is_bridge()) {
                true => "switch",
                false => "bridge",
            };
            Row {
                what: function.map(|f| f.name.clone()).unwrap_or_default(),
                ..linked(topology, address, format!("{indent}{name}"))
            }
        }
        What::Device(device) => device_row(topology, device, indent),
    }
}

fn device_row(topology: &Topology, device: Device, indent: &str) -> Row {
    let label = format!("{indent}{}", topology.name_of(device));
    let row = match topology.address_of(device) {
        Some(address) => linked(topology, address, label),
        None => Row {
            label: label.into(),
            what: String::new(),
            address: String::new(),
            link: Cell::styled(FAINT, "no PCI device"),
            rate: String::new(),
        },
    };
    Row {
        what: what(topology, device),
        ..row
    }
}

/// A row that has a link above it.
fn linked(topology: &Topology, address: PciAddress, label: String) -> Row {
    let (link, rate) = link(topology, address);
    Row {
        label: label.into(),
        what: String::new(),
        address: address.to_string(),
        link,
        rate: rate.map(|rate| rate.to_string()).unwrap_or_default(),
    }
}

/// The link above a function: its speed, or what is the matter with it, and what it carries.
pub fn link(topology: &Topology, address: PciAddress) -> (Cell, Option<BytesPerSecond>) {
    let (Some(link), Some(state), Some(crossing)) = (
        topology.link_above(address),
        topology.link_state(address),
        topology.crossing_above(address),
    ) else {
        return (Cell::from(""), None);
    };
    let cell = match (state, topology.speed_under_load(address), link.maximum) {
        (LinkState::Degraded, Some(speed), Some(maximum)) => {
            Cell::styled(BAD, format!("{speed}, not {maximum}"))
        }
        (LinkState::Idle, Some(speed), _) => Cell::styled(FAINT, format!("{speed}, idle")),
        (_, Some(speed), _) => speed.to_string().into(),
        (_, None, Some(maximum)) => Cell::styled(FAINT, format!("up to {maximum}")),
        (_, None, None) => Cell::from(""),
    };
    (cell, crossing.rate)
}

/// What a NUMA node has.
pub fn memory(node: &NumaInfo) -> String {
    let memory = node.memory.map(|memory| memory.to_string());
    let cpus = match node.cpus.as_str() {
        "" => None,
        cpus => Some(format!("CPUs {cpus}")),
    };
    let socket = node.socket.map(|socket| format!("socket {socket}"));
    let parts = [socket, memory, cpus];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What a device is, in a few words.
pub fn what(topology: &Topology, device: Device) -> String {
    match device {
        Device::Gpu(index) => topology.gpus.get(index).map(gpu),
        Device::Nic(index) => topology.nics.get(index).map(nic),
        Device::Drive(index) => topology.drives.get(index).map(|d| drive(topology, d)),
        Device::Function(address) => topology.pci.get(&address).map(|f| f.name.clone()),
    }
    .unwrap_or_default()
}

/// The few words that fit into a picture: what tells devices of a kind apart.
pub fn brief(topology: &Topology, device: Device) -> String {
    let full = what(topology, device);
    match device {
        Device::Gpu(_) => full.trim_start_matches("NVIDIA ").to_owned(),
        Device::Nic(index) => {
            let nic = topology.nics.get(index);
            let port = nic.and_then(|nic| nic.ports.first());
            match (nic, port.and_then(|port| port.rate)) {
                (Some(nic), Some(rate)) if port.is_some_and(|p| p.active != Some(false)) => {
                    let name = nic.model.as_deref().map(model).unwrap_or("RDMA");
                    format!("{name}, {}", gigabits(rate).trim_end())
                }
                _ => full,
            }
        }
        Device::Drive(index) => {
            let model = topology.drives.get(index).and_then(|d| d.model.as_deref());
            let named = model.map(|name| format!("{}, ", self::model(name)));
            let rest = named.and_then(|named| full.strip_prefix(&named).map(str::to_owned));
            rest.unwrap_or(full)
        }
        Device::Function(_) => full,
    }
}

fn gpu(gpu: &Gpu) -> String {
    let name = match gpu.vendor {
        GpuVendor::StandIn => "memory that stands in for a GPU",
        _ => model(&gpu.name),
    };
    match gpu.memory {
        Some(memory) => format!("{name}, {memory}"),
        None => name.to_owned(),
    }
}

fn nic(nic: &Nic) -> String {
    let mut parts = Vec::new();
    parts.extend(nic.model.as_deref().map(|name| model(name).to_owned()));
    let several = nic.ports.len() > 1;
    for port in &nic.ports {
        let rate = port.rate.map(gigabits).unwrap_or_default();
        let layer = port.link_layer.as_deref().unwrap_or("RDMA");
        let state = match port.active {
            Some(false) => " (down)",
            Some(true) | None => "",
        };
        let number = match several {
            true => format!("port {}: ", port.number),
            false => String::new(),
        };
        parts.push(format!("{number}{rate}{layer}{state}"));
    }
    for interface in &nic.interfaces {
        let rate = interface.rate.filter(|_| nic.ports.is_empty());
        let state = match interface.state.as_deref() {
            Some("down") => " (down)",
            _ => "",
        };
        let name = match interface.name == nic.name {
            true => "Ethernet",
            false => interface.name.as_str(),
        };
        parts.push(format!(
            "{}{name}{state}",
            rate.map(gigabits).unwrap_or_default()
        ));
    }
    parts.join(", ")
}

/// A line rate as such are sold, and a space behind it.
fn gigabits(rate: BytesPerSecond) -> String {
    format!("{} Gbit/s ", significant(rate.0 * 8.0 / 1e9))
}

fn drive(topology: &Topology, drive: &Drive) -> String {
    let mut parts = Vec::new();
    parts.extend(drive.model.as_deref().map(|name| model(name).to_owned()));
    let sizes = drive
        .blocks
        .iter()
        .filter_map(|block| topology.blocks.get(block)?.size);
    let size: crowfly_route::units::Bytes = sizes.sum();
    if size.0 > 0 {
        parts.push(size.to_string());
    }
    let mounts: Vec<&Mount> = topology
        .mounts
        .iter()
        .filter(|mount| {
            let block = topology.block_of(mount);
            block.is_some_and(|block| topology.drives_under(block).contains(&drive))
        })
        .collect();
    let points = mounts
        .iter()
        .take(MAX_MOUNTS)
        .map(|mount| mount.point.clone());
    parts.extend(points);
    if mounts.len() > MAX_MOUNTS {
        parts.push(count(mounts.len() - MAX_MOUNTS, "more mount"));
    }
    parts.join(", ")
}

/// What people call a model: lists of PCI ids put it in brackets behind the chip's name.
pub fn model(name: &str) -> &str {
    let inside = name
        .strip_suffix(']')
        .and_then(|rest| rest.rsplit_once('['))
        .map(|(_, inside)| inside);
    inside.filter(|inside| !inside.is_empty()).unwrap_or(name)
}

/// Names drawn together, for a line of text.
pub fn names(topology: &Topology, devices: &[Device]) -> String {
    let names: Vec<String> = devices.iter().map(|d| topology.name_of(*d)).collect();
    groups::names(&names)
}
