//! The boxes of a machine's picture: where each goes, and how it is drawn.
//!
//! A NUMA node is a wide box whose contents flow in rows; a switch is a narrow box whose contents
//! flow in columns; a device is a tile. Lengths are in user units, one of which is a pixel.

use std::fmt::Write;

use crowfly_route::topology::{Device, LinkState, Topology};
use crowfly_route::units::{BytesPerSecond, PciAddress};

use super::map_tree::{self, shortened};
use super::svg::escape;
use crate::commands::map::outline::{Branch, What};

/// A device's tile.
pub const TILE_WIDTH: f64 = 184.0;
/// A device's tile.
pub const TILE_HEIGHT: f64 = 58.0;
const GAP: f64 = 8.0;
const PAD: f64 = 10.0;
/// The two lines of text on top of a switch.
const SWITCH_HEAD: f64 = 44.0;
/// The line of text on top of a NUMA node, and the rail that its links start from.
const NODE_HEAD: f64 = 34.0;
/// From the rail down to a box.
const DROP: f64 = 16.0;
/// A switch with more below than this gets another column.
const TILES_IN_A_COLUMN: usize = 6;
/// Characters of small text that fit into a tile; the words about a link are narrow ones.
const TILE_CHARACTERS: usize = 25;
const LINK_CHARACTERS: usize = 27;
/// The width of one character of the small text, on the generous side.
pub const CHARACTER: f64 = 6.4;

/// A picture's elements so far, and where the devices went.
#[derive(Debug, Default)]
pub struct Canvas {
    /// The elements.
    pub svg: String,
    /// The upper left corner of each device's tile.
    pub tiles: Vec<(Device, f64, f64)>,
}

impl Write for Canvas {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.svg.write_str(text)
    }
}

/// How much room a box takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    /// From left to right.
    pub width: f64,
    /// From top to bottom.
    pub height: f64,
}

/// The size of a NUMA node in a picture of this width.
pub fn node_size(node: &Branch, width: f64) -> Size {
    let rows = rows(node, width);
    let inside: f64 = rows.iter().map(|row| DROP + row.height() + GAP).sum();
    Size {
        width,
        height: NODE_HEAD + inside + PAD,
    }
}

/// The narrowest width in which every switch of a NUMA node fits, and the width in which all of
/// them stand in one row.
pub fn node_widths(node: &Branch) -> (f64, f64) {
    let widths = || node.below.iter().map(|below| size(below).width);
    let widest = widths().fold(0.0, f64::max);
    let all: f64 = widths().map(|width| width + GAP).sum();
    (widest + 3.0 * PAD, all - GAP + 3.0 * PAD)
}

/// Draws a NUMA node with its upper left corner at `x` and `y`.
pub fn draw_node(svg: &mut Canvas, topology: &Topology, node: &Branch, x: f64, y: f64, width: f64) {
    let Size { height, .. } = node_size(node, width);
    let title = node_title(topology, node, width);
    let _ = writeln!(
        svg,
        "<rect class=\"node\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n\
         <text class=\"strong\" x=\"{tx}\" y=\"{ty}\">{title}</text>",
        tx = x + PAD,
        ty = y + 22.0,
    );
    let rails: Vec<Row<'_>> = rows(node, width);
    let mut top = y + NODE_HEAD;
    let spine = x + PAD;
    for (position, row) in rails.iter().enumerate() {
        if position > 0 {
            let above = top
                - rails
                    .get(position - 1)
                    .map_or(0.0, |r| DROP + r.height() + GAP);
            let _ = writeln!(svg, "<path class=\"rail\" d=\"M{spine} {above}V{top}\"/>");
        }
        row.draw(svg, topology, spine, top);
        top += DROP + row.height() + GAP;
    }
}

fn node_title(topology: &Topology, node: &Branch, width: f64) -> String {
    let title = match node.what {
        What::Node(number) => {
            let info = topology.numa.iter().find(|info| info.node == number);
            let what = info.map(map_tree::memory).unwrap_or_default();
            match what.is_empty() {
                true => number.to_string(),
                false => format!("{number}: {what}"),
            }
        }
        _ => "NUMA node not told".to_owned(),
    };
    escape(&shortened(&title, (width / CHARACTER) as usize - 4))
}

/// Boxes beside each other below one rail.
struct Row<'a> {
    boxes: Vec<(&'a Branch, Size)>,
}

impl Row<'_> {
    fn height(&self) -> f64 {
        self.boxes
            .iter()
            .map(|(_, size)| size.height)
            .fold(0.0, f64::max)
    }

    fn draw(&self, svg: &mut Canvas, topology: &Topology, left: f64, top: f64) {
        let mut x = left + PAD;
        let mut last = left;
        // The wires and boxes lie on the rail, which is as long as they need it.
        let mut below = Canvas::default();
        for (branch, size) in &self.boxes {
            let middle = x + size.width / 2.0;
            let (class, stroke) = wire(topology, branch);
            let _ = writeln!(
                below,
                "<path class=\"{class}\" stroke-width=\"{stroke:.1}\" d=\"M{middle} {top}v{DROP}\"/>"
            );
            draw(&mut below, topology, branch, x, top + DROP);
            last = middle;
            x += size.width + GAP;
        }
        let _ = writeln!(svg, "<path class=\"rail\" d=\"M{left} {top}H{last}\"/>");
        svg.svg.push_str(&below.svg);
        svg.tiles.extend(below.tiles);
    }
}

fn rows(node: &Branch, width: f64) -> Vec<Row<'_>> {
    let room = width - 3.0 * PAD;
    let mut rows: Vec<Row<'_>> = Vec::new();
    let mut used = 0.0;
    for branch in &node.below {
        let size = size(branch);
        match rows.last_mut() {
            Some(row) if used + GAP + size.width <= room => {
                used += GAP + size.width;
                row.boxes.push((branch, size));
            }
            _ => {
                used = size.width;
                rows.push(Row {
                    boxes: vec![(branch, size)],
                });
            }
        }
    }
    rows
}

/// What is below a switch, in columns.
fn columns(branch: &Branch) -> impl Iterator<Item = &[Branch]> {
    let count = branch.below.len().div_ceil(TILES_IN_A_COLUMN).max(1);
    branch
        .below
        .chunks(branch.below.len().div_ceil(count).max(1))
}

fn size(branch: &Branch) -> Size {
    if matches!(branch.what, What::Device(_)) {
        return Size {
            width: TILE_WIDTH,
            height: TILE_HEIGHT,
        };
    }
    let mut inside = Size::default();
    for column in columns(branch) {
        let sizes = column.iter().map(size);
        let column = sizes.fold(Size::default(), |all, one| Size {
            width: all.width.max(one.width),
            height: all.height + one.height + GAP,
        });
        inside.width += column.width + GAP;
        inside.height = inside.height.max(column.height);
    }
    Size {
        width: inside.width - GAP + 2.0 * PAD,
        height: SWITCH_HEAD + inside.height - GAP + PAD,
    }
}

fn draw(svg: &mut Canvas, topology: &Topology, branch: &Branch, x: f64, y: f64) {
    if let What::Device(device) = branch.what {
        return draw_tile(svg, topology, device, x, y);
    }
    let Size { width, height } = size(branch);
    let (title, link) = match branch.what {
        What::Switch(address) => {
            let bridge = topology.pci.get(&address).is_some_and(|f| !f.is_bridge());
            let name = if bridge { "bridge" } else { "switch" };
            (format!("{name} {address}"), link_line(topology, address))
        }
        What::HostBridge(root) => {
            let ports = Line {
                text: "on root ports of their own".into(),
                class: "",
            };
            (format!("host bridge {root}"), ports)
        }
        _ => (String::new(), Line::default()),
    };
    let _ = writeln!(
        svg,
        "<rect class=\"switch {class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n\
         <text x=\"{tx}\" y=\"{t1}\">{title}</text>\n\
         <text class=\"small {class}\" x=\"{tx}\" y=\"{t2}\">{link}</text>",
        class = link.class,
        tx = x + PAD,
        t1 = y + 18.0,
        t2 = y + 34.0,
        title = escape(&title),
        link = escape(&link.text),
    );
    let mut left = x + PAD;
    for column in columns(branch) {
        let mut top = y + SWITCH_HEAD;
        let mut widest: f64 = 0.0;
        for below in column {
            draw(svg, topology, below, left, top);
            let one = size(below);
            top += one.height + GAP;
            widest = widest.max(one.width);
        }
        left += widest + GAP;
    }
}

/// Draws a device with its upper left corner at `x` and `y`.
pub fn draw_tile(svg: &mut Canvas, topology: &Topology, device: Device, x: f64, y: f64) {
    let name = topology.name_of(device);
    let what = map_tree::what(topology, device);
    let brief = map_tree::brief(topology, device);
    let link = match topology.address_of(device) {
        Some(address) => link_line(topology, address),
        None => Line {
            text: "no PCI device".into(),
            class: "",
        },
    };
    let kind = match device {
        Device::Gpu(_) => "gpu",
        Device::Nic(_) => "nic",
        Device::Drive(_) | Device::Function(_) => "drive",
    };
    let text = x + 14.0;
    svg.tiles.push((device, x, y));
    let _ = writeln!(
        svg,
        "<g><title>{tip}</title>\n\
         <rect class=\"tile {class}\" x=\"{x}\" y=\"{y}\" width=\"{TILE_WIDTH}\" height=\"{TILE_HEIGHT}\" rx=\"4\"/>\n\
         <rect class=\"{kind}\" x=\"{x}\" y=\"{y}\" width=\"6\" height=\"{TILE_HEIGHT}\" rx=\"2\"/>\n\
         <text class=\"strong\" x=\"{text}\" y=\"{t1}\">{name}</text>\n\
         <text class=\"small\" x=\"{text}\" y=\"{t2}\">{brief}</text>\n\
         <text class=\"small {class}\" x=\"{text}\" y=\"{t3}\">{link}</text>\n</g>",
        tip = escape(&format!("{name}: {what}")),
        class = link.class,
        t1 = y + 17.0,
        t2 = y + 34.0,
        t3 = y + 50.0,
        name = escape(&shortened(&name, TILE_CHARACTERS)),
        brief = escape(&shortened(&brief, TILE_CHARACTERS)),
        link = escape(&shortened(&link.text, LINK_CHARACTERS)),
    );
    if let Device::Gpu(index) = device
        && let Some(badge) = gpu_link_badge(topology, index)
    {
        let _ = writeln!(
            svg,
            "<text class=\"small link\" text-anchor=\"end\" x=\"{bx}\" y=\"{by}\">{badge}</text>",
            bx = x + TILE_WIDTH - 8.0,
            by = y + 17.0,
        );
    }
}

/// The best that a GPU has to any other.
fn gpu_link_badge(topology: &Topology, index: usize) -> Option<String> {
    let others = (0..topology.gpus.len()).filter(|other| *other != index);
    let relation = |other| {
        topology
            .distance(Device::Gpu(index), Device::Gpu(other))
            .relation
    };
    let linked = topology
        .gpu_links
        .iter()
        .any(|link| [link.a, link.b].contains(&(index as u32)));
    linked.then(|| others.map(relation).min().map(|best| best.to_string()))?
}

/// The class of what is below its best.
const SLOW: &str = "slow";

/// The line of text about a link, and the class that draws attention to it.
#[derive(Default)]
struct Line {
    text: String,
    class: &'static str,
}

fn link_line(topology: &Topology, address: PciAddress) -> Line {
    let (link, rate) = map_tree::link(topology, address);
    let class = class(topology, address);
    // There is no room for what a degraded link still carries besides both its speeds.
    let rate = rate.filter(|_| class != SLOW);
    let parts = [
        Some(link.text().to_owned()).filter(|text| !text.is_empty()),
        rate.map(|rate| rate.to_string()),
    ];
    Line {
        text: parts.into_iter().flatten().collect::<Vec<_>>().join(" · "),
        class,
    }
}

fn class(topology: &Topology, address: PciAddress) -> &'static str {
    match topology.link_state(address) {
        Some(LinkState::Degraded) => SLOW,
        Some(LinkState::Idle) => "idle",
        Some(LinkState::Full | LinkState::Unknown) | None => "",
    }
}

/// The wire down to a box: red where it is degraded, as thick as it is fast.
fn wire(topology: &Topology, branch: &Branch) -> (&'static str, f64) {
    let address = match branch.what {
        What::Switch(address) => Some(address),
        What::Device(device) => topology.address_of(device),
        _ => None,
    };
    let rate = address
        .and_then(|address| topology.crossing_above(address))
        .and_then(|crossing| crossing.rate)
        .map_or(4.0, BytesPerSecond::as_gb);
    let class = match address.map(|address| class(topology, address)) {
        Some(SLOW) => "wire slow",
        _ => "wire",
    };
    (class, (rate / 8.0).sqrt().clamp(0.5, 4.0) * 1.5)
}
