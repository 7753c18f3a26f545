//! A machine's map as a picture, in colours that hold on light and on dark paper.

use std::fmt::Write;

use crowfly_route::topology::{Device, LinkState, Topology};

use super::map;
use super::map_boxes::{
    CHARACTER, Canvas, TILE_HEIGHT, TILE_WIDTH, draw_node, draw_tile, node_size, node_widths,
};
use super::map_matrix;
use super::svg::escape;
use crate::commands::map::outline::{Outline, What};

/// A picture is at least and, unless a single switch needs more, at most this wide.
const NARROWEST: f64 = 640.0;
const WIDEST: f64 = 1130.0;
const MARGIN: f64 = 20.0;
const GAP: f64 = 22.0;
const LINE: f64 = 18.0;
/// Devices outside PCI stand in rows of this many.
const TILES_IN_A_ROW: usize = 3;
/// How far an arc leaves the straight line between its ends, as a share of its length.
const BEND: f64 = 0.15;
const TILE_PITCH: (f64, f64) = (192.0, 66.0);

const STYLE: &str = "\
text{fill:#1f2328;font-size:13px}\
.title{font-size:18px;font-weight:600}.strong{font-weight:600}\
.small{font-size:11px;fill:#59636e}\
.paper{fill:#fff}.node{fill:#f6f8fa;stroke:#8c959f}.switch{fill:#fff;stroke:#8c959f}\
.tile{fill:#fff;stroke:#d1d9e0}.rail{stroke:#8c959f;stroke-width:2;fill:none}\
.wire{stroke:#59636e;fill:none}.between{stroke:#8c959f;stroke-width:3;stroke-dasharray:5 3;fill:none}\
.gpu{fill:#1a7f37}.nic{fill:#0969da}.drive{fill:#bf8700}\
text.link{fill:#8250df;font-weight:600}\
rect.slow,path.slow{stroke:#cf222e;stroke-width:2}text.slow{fill:#cf222e;font-weight:600}\
text.idle{font-style:italic}\
@media(prefers-color-scheme:dark){\
text{fill:#f0f6fc}.small{fill:#9198a1}\
.paper{fill:#0d1117}.node{fill:#151b23;stroke:#656c76}.switch{fill:#0d1117;stroke:#656c76}\
.tile{fill:#151b23;stroke:#3d444d}.rail{stroke:#656c76}.wire{stroke:#9198a1}\
.between{stroke:#656c76}text.link{fill:#ab7df8}\
rect.slow,path.slow{stroke:#f85149}text.slow{fill:#f85149}}";

const MARK_STYLE: &str = "\
rect.mark,path.mark{fill:none;stroke:#d1570b;stroke-width:2.5}path.mark{stroke-dasharray:6 4}\
rect.mark.broken,path.mark.broken{stroke:#cf222e}\
.badge{fill:#fff;stroke:#8c959f}text.label{fill:#1f2328;font-weight:600}\
@media(prefers-color-scheme:dark){\
rect.mark,path.mark{stroke:#f0883e}rect.mark.broken,path.mark.broken{stroke:#f85149}\
.badge{fill:#0d1117;stroke:#656c76}text.label{fill:#f0f6fc}}";

/// A pair of devices that is to be seen at a glance.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// One device.
    pub a: Device,
    /// The other.
    pub b: Device,
    /// A few characters that say which pair this is.
    pub label: String,
    /// Whether data does not arrive, rather than taking a detour.
    pub broken: bool,
}

/// The picture as an SVG document.
pub fn render(topology: &Topology) -> String {
    render_marked(topology, &[])
}

/// The picture with a line between the devices of each mark. Without marks it carries no trace of
/// them.
pub fn render_marked(topology: &Topology, marks: &[Mark]) -> String {
    let outline = Outline::new(topology);
    let inside = outline.nodes.iter().map(node_widths).fold(
        NARROWEST - 2.0 * MARGIN,
        |inside, (least, best)| {
            let wanted = best.min(WIDEST - 2.0 * MARGIN).max(least);
            inside.max(wanted)
        },
    );
    let width = inside + 2.0 * MARGIN;
    let mut body = Canvas::default();
    let mut y = head(&mut body, topology, inside);
    for (position, node) in outline.nodes.iter().enumerate() {
        if position > 0 && node.what != What::UnknownNode {
            between(&mut body, y - GAP);
        }
        draw_node(&mut body, topology, node, MARGIN, y, inside);
        y += node_size(node, inside).height + GAP;
    }
    y = elsewhere(&mut body, topology, &outline.elsewhere, y);
    draw_marks(&mut body, marks);
    y = foot(&mut body, topology, inside, y);
    let title = map::devices(topology);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {y}\" width=\"{width}\" height=\"{y}\" \
         role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n\
         <title>{title}</title>\n<style>{STYLE}{marked}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{y}\"/>\n{body}</svg>\n",
        body = body.svg,
        marked = if marks.is_empty() { "" } else { MARK_STYLE },
        title = escape(&title),
    )
}

fn head(svg: &mut Canvas, topology: &Topology, width: f64) -> f64 {
    let _ = writeln!(
        svg,
        "<text class=\"title\" x=\"{MARGIN}\" y=\"34\">{}</text>",
        escape(&map::devices(topology))
    );
    paragraph(svg, "small", &map::host(topology), width, 54.0) + 6.0
}

/// Between two NUMA nodes.
fn between(svg: &mut Canvas, y: f64) {
    let x = MARGIN + 40.0;
    let _ = writeln!(
        svg,
        "<path class=\"between\" d=\"M{x} {y}v{GAP}\"/>\n\
         <text class=\"small\" x=\"{tx}\" y=\"{ty}\">between NUMA nodes, rate not known</text>",
        tx = x + 10.0,
        ty = y + GAP / 2.0 + 4.0,
    );
}

fn elsewhere(svg: &mut Canvas, topology: &Topology, devices: &[Device], y: f64) -> f64 {
    let mut top = y;
    for row in devices.chunks(TILES_IN_A_ROW) {
        let mut x = MARGIN;
        for device in row {
            draw_tile(svg, topology, *device, x, top);
            x += TILE_PITCH.0;
        }
        top += TILE_PITCH.1;
    }
    top
}

/// A frame around each marked device, and an arc with its label between the two of a mark.
fn draw_marks(svg: &mut Canvas, marks: &[Mark]) {
    let tiles = std::mem::take(&mut svg.tiles);
    let corner = |device: Device| tiles.iter().find(|(of, ..)| *of == device);
    for mark in marks {
        let (Some((_, ax, ay)), Some((_, bx, by))) = (corner(mark.a), corner(mark.b)) else {
            continue;
        };
        let class = if mark.broken { "mark broken" } else { "mark" };
        for (x, y) in [(ax, ay), (bx, by)] {
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{TILE_WIDTH}\" \
                 height=\"{TILE_HEIGHT}\" rx=\"4\"/>"
            );
        }
        let (x1, y1) = (ax + TILE_WIDTH / 2.0, ay + TILE_HEIGHT / 2.0);
        let (x2, y2) = (bx + TILE_WIDTH / 2.0, by + TILE_HEIGHT / 2.0);
        // Bent to the side, so that pairs in one row or column do not lie on each other.
        let (dx, dy) = (x2 - x1, y2 - y1);
        let (cx, cy) = ((x1 + x2) / 2.0 - dy * BEND, (y1 + y2) / 2.0 + dx * BEND);
        let (mx, my) = ((x1 + 2.0 * cx + x2) / 4.0, (y1 + 2.0 * cy + y2) / 4.0);
        let half = (mark.label.len() as f64 * CHARACTER + 8.0) / 2.0;
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}Q{cx:.1} {cy:.1} {x2:.1} {y2:.1}\"/>\n\
             <rect class=\"badge\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"16\" rx=\"8\"/>\n\
             <text class=\"small label\" text-anchor=\"middle\" x=\"{mx:.1}\" y=\"{base:.1}\">{label}</text>",
            left = mx - half,
            top = my - 8.0,
            width = 2.0 * half,
            base = my + 4.0,
            label = escape(&mark.label),
        );
    }
}

/// The links between GPUs, and what the colours mean.
fn foot(svg: &mut Canvas, topology: &Topology, width: f64, y: f64) -> f64 {
    let mut y = y + 4.0;
    for line in map_matrix::gpu_link_lines(topology) {
        y = paragraph(svg, "small link", &line, width, y + 4.0);
    }
    let states: Vec<LinkState> = topology
        .pci
        .keys()
        .filter_map(|address| topology.link_state(*address))
        .collect();
    let y = y + 8.0;
    let mut x = MARGIN;
    let keys = [
        ("gpu", "GPU", !topology.gpus.is_empty()),
        ("nic", "network adapter", !topology.nics.is_empty()),
        ("drive", "drive", !topology.drives.is_empty()),
    ];
    for (class, text, _) in keys.iter().filter(|(_, _, used)| *used) {
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{top}\" width=\"10\" height=\"10\" rx=\"2\"/>\n\
             <text class=\"small\" x=\"{tx}\" y=\"{y}\">{text}</text>",
            top = y - 9.0,
            tx = x + 15.0,
        );
        x += 15.0 + (text.len() as f64 + 3.0) * CHARACTER;
    }
    let mut y = y;
    for (class, text, state) in [
        (
            "slow",
            "degraded: below what both ends can do",
            LinkState::Degraded,
        ),
        (
            "idle",
            "idle: at the speed shown under load",
            LinkState::Idle,
        ),
    ] {
        if states.contains(&state) {
            y += LINE;
            let _ = writeln!(
                svg,
                "<text class=\"small {class}\" x=\"{MARGIN}\" y=\"{y}\">{text}</text>"
            );
        }
    }
    let note = "Link rates: one direction, after encoding. A wire is as thick as its link is fast.";
    paragraph(svg, "small", note, width, y + LINE)
}

/// Lines of small text from `y` on; returns where the next one would go.
fn paragraph(svg: &mut Canvas, class: &str, text: &str, width: f64, y: f64) -> f64 {
    let mut y = y;
    for line in textwrap::wrap(text, (width / CHARACTER) as usize) {
        let _ = writeln!(
            svg,
            "<text class=\"{class}\" x=\"{MARGIN}\" y=\"{y}\">{}</text>",
            escape(&line)
        );
        y += LINE;
    }
    y
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::{Fixture, NicModel, gen4, machines, speed};
    use roxmltree::Document;

    use super::*;

    /// Left, top, right and bottom of every box with this class.
    fn boxes(picture: &Document<'_>, class: &str) -> Vec<[f64; 4]> {
        let number = |node: roxmltree::Node<'_, '_>, name: &str| {
            let text = node.attribute(name).expect(name);
            text.parse::<f64>().expect(text)
        };
        picture
            .descendants()
            .filter(|node| {
                let classes = node.attribute("class").unwrap_or_default();
                node.has_tag_name("rect") && classes.split(' ').any(|c| c == class)
            })
            .map(|node| {
                let (x, y) = (number(node, "x"), number(node, "y"));
                [x, y, x + number(node, "width"), y + number(node, "height")]
            })
            .collect()
    }

    fn inside(inner: &[f64; 4], outer: &[f64; 4]) -> bool {
        let [left, top, right, bottom] = inner;
        *left >= outer[0] && *top >= outer[1] && *right <= outer[2] && *bottom <= outer[3]
    }

    fn apart(a: &[f64; 4], b: &[f64; 4]) -> bool {
        a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1]
    }

    #[test]
    fn given_a_box_without_nvlink_and_faults() {
        let mut machine = machines::pcie_box();
        let topology = machine.topology();
        let at = |name: &str| {
            let device = topology.find(name).expect(name);
            topology.address_of(device).expect(name)
        };
        machine.degrade(at("mlx5_0"), speed(3, 8));
        machine.degrade(at("gpu0"), speed(1, 16));
        insta::assert_snapshot!(render(&machine.topology()));
    }

    #[test]
    fn whatever_the_machine_tiles_lie_inside_their_node_and_beside_each_other() {
        let mut many = machines::dgx_h100();
        let socket = many.socket();
        let slot = many.root_port(socket, gen4(16));
        let switch = many.switch(slot, gen4(16));
        for drive in 20..45 {
            let slot = many.slot(switch, gen4(4));
            many.nvme(slot, &format!("nvme{drive}"));
        }
        let all = [
            (many, 51),
            (machines::sixteen_gpus(), 48),
            (machines::pcie_box(), 6),
            (machines::laptop(), 2),
            (Fixture::new(), 0),
        ];
        for (machine, devices) in all {
            let svg = render(&machine.topology());
            let picture = Document::parse(&svg).expect("well-formed");
            let view = picture.root_element().attribute("viewBox").expect("a box");
            let view: Vec<f64> = view
                .split(' ')
                .map(|n| n.parse().expect("a number"))
                .collect();
            let page = [view[0], view[1], view[2], view[3]];
            let (nodes, tiles) = (boxes(&picture, "node"), boxes(&picture, "tile"));
            assert_eq!(tiles.len(), devices);
            for (index, tile) in tiles.iter().enumerate() {
                assert!(nodes.iter().any(|node| inside(tile, node)), "{tile:?}");
                assert!(
                    tiles[..index].iter().all(|other| apart(tile, other)),
                    "{tile:?}"
                );
            }
            assert!(nodes.iter().all(|node| inside(node, &page)));
        }
    }

    #[test]
    fn given_marks_both_devices_are_framed_and_an_arc_with_the_label_joins_them() {
        let topology = machines::pcie_box().topology();
        let find = |name: &str| topology.find(name).expect(name);
        let mark = |a: &str, b: &str, broken: bool| Mark {
            a: find(a),
            b: find(b),
            label: "1<".into(),
            broken,
        };
        let svg = render_marked(
            &topology,
            &[mark("gpu0", "mlx5_0", false), mark("gpu2", "nvme0", true)],
        );
        let picture = Document::parse(&svg).expect("well-formed");
        let marks = boxes(&picture, "mark");
        let tiles = boxes(&picture, "tile");
        assert_eq!(marks.len(), 4);
        assert!(marks.iter().all(|mark| tiles.contains(mark)));
        assert_eq!(boxes(&picture, "broken").len(), 2);
        let arcs = picture.descendants().filter(|node| {
            let class = node.attribute("class").unwrap_or_default();
            node.has_tag_name("path") && class.starts_with("mark")
        });
        assert_eq!(arcs.count(), 2);
        assert!(svg.contains(">1&lt;</text>"));
        assert!(!render(&topology).contains("mark"));
    }

    #[test]
    fn given_hostile_names_the_picture_stays_well_formed() {
        let mut machine = machines::laptop();
        let socket = machine.socket();
        let slot = machine.root_port(socket, gen4(16));
        machine.nic(slot, "<script>\"&\u{1b}", &NicModel::X550);
        machine.text("/sys/class/nvme/nvme0/model", "</svg>&'\"");
        let svg = render(&machine.topology());
        let picture = Document::parse(&svg).expect("well-formed");
        assert!(
            !picture
                .descendants()
                .any(|node| node.has_tag_name("script"))
        );
        assert!(svg.contains("&lt;script&gt;"));
    }
}
