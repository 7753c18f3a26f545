//! The distances of every pair: device by device where that fits, else by groups of devices that
//! are in the same place, else as sentences.

use std::collections::{BTreeMap, BTreeSet};

use crowfly_route::topology::{Device, Relation, Topology};
use unicode_width::UnicodeWidthStr;

use super::cell::Cell;
use super::map_tree::names;
use super::style::{BAD, FAINT, GOOD, STRONG, WARN, paint};
use super::table::Table;
use super::text::{harmless, wrap};
use crate::commands::map::groups::{Grouped, cluster, group};

/// Between two columns.
const GAP: usize = 2;
/// The most doubts that are told.
const FEW_DOUBTS: usize = 3;

/// The distances of all pairs of `devices` in at most `columns` columns, with a legend.
pub fn render(topology: &Topology, devices: &[Device], columns: usize) -> String {
    let mut used = BTreeSet::new();
    let mut text = match whole(topology, devices, columns, &mut used) {
        Some(matrix) => matrix,
        None => folded(topology, devices, columns, &mut used),
    };
    text.push_str(&legend(&used, columns));
    text.push_str(&doubts(topology, devices, columns));
    text
}

/// One row and one column a device; `None` when that is too wide.
fn whole(
    topology: &Topology,
    devices: &[Device],
    columns: usize,
    used: &mut BTreeSet<Relation>,
) -> Option<String> {
    let names: Vec<String> = devices.iter().map(|d| topology.name_of(*d)).collect();
    let widest = names.iter().map(|name| name.width()).max()?;
    let cell = |name: &String| GAP + name.width().max(WIDEST_RELATION);
    let width = widest + names.iter().map(cell).sum::<usize>();
    if width > columns {
        return None;
    }
    let mut table = names
        .iter()
        .fold(Table::new().text(""), |table, name| table.text(name));
    for (a, name) in devices.iter().zip(&names) {
        let relation = |b: &Device| topology.distance(*a, *b).relation;
        let relations: Vec<Relation> = devices.iter().map(relation).collect();
        used.extend(&relations);
        let cells = relations.iter().map(|relation| cell_of(*relation));
        table.row(std::iter::once(Cell::from(name)).chain(cells));
    }
    Some(table.render(columns))
}

/// `NODE`; NVLinks have up to two digits.
const WIDEST_RELATION: usize = 4;

/// One row and one column a group, GPU links apart.
fn folded(
    topology: &Topology,
    devices: &[Device],
    columns: usize,
    used: &mut BTreeSet<Relation>,
) -> String {
    let mut text = gpu_links(topology, columns, used);
    let groups = group(topology, devices);
    used.extend(groups.between.iter().flatten());
    if fits(&groups, columns) {
        text.push_str(&matrix(topology, &groups, columns));
        return text;
    }
    match cluster(topology, devices).filter(|clusters| fits(clusters, columns)) {
        Some(clusters) => {
            text.push_str(&matrix(topology, &clusters, columns));
            text.push_str(&within(topology, &clusters, columns));
        }
        None => text.push_str(&sentences(topology, &groups, columns)),
    }
    text
}

fn fits(grouped: &Grouped, columns: usize) -> bool {
    MIN_NAMES + grouped.groups.len() * (WIDEST_RELATION + GAP) <= columns
}

fn matrix(topology: &Topology, grouped: &Grouped, columns: usize) -> String {
    let letters: Vec<String> = (0..grouped.groups.len()).map(letter).collect();
    let mut table = letters.iter().fold(
        Table::new().text("").flexible("by PCIe"),
        |table, letter| table.text(letter),
    );
    for ((group, letter), row) in grouped.groups.iter().zip(&letters).zip(&grouped.between) {
        let cells = row.iter().map(|relation| cell_of(*relation));
        let first = [
            Cell::styled(STRONG, letter),
            Cell::from(names(topology, &group.devices)),
        ];
        table.row(first.into_iter().chain(cells));
    }
    table.render(columns)
}

/// Which devices of a cluster are nearer to each other than the farthest pair, which the matrix
/// tells.
fn within(topology: &Topology, clusters: &Grouped, columns: usize) -> String {
    let mut text = String::new();
    for (index, cluster) in clusters.groups.iter().enumerate() {
        let inside = group(topology, &cluster.devices);
        let mut nearer: Vec<String> = Vec::new();
        for (place, (one, row)) in inside.groups.iter().zip(&inside.between).enumerate() {
            let of_one = names(topology, &one.devices);
            if one.within != Relation::Same && one.within < cluster.within {
                nearer.push(format!("{} between {of_one}", one.within));
            }
            let others = inside.groups.iter().zip(row).skip(place + 1);
            for (other, relation) in others.filter(|(_, relation)| **relation < cluster.within) {
                let of_other = names(topology, &other.devices);
                nearer.push(format!("{relation} between {of_one} and {of_other}"));
            }
        }
        if !nearer.is_empty() {
            let line = format!(
                "within {} {}, but {}",
                letter(index),
                cluster.within,
                nearer.join("; ")
            );
            text.push_str(&wrap(&line, columns, "", "  "));
            text.push('\n');
        }
    }
    text
}

/// The letter and the names of a group get at least this much.
const MIN_NAMES: usize = 24;

/// `A` to `Z`, then `AA`.
fn letter(index: usize) -> String {
    let one = |n: usize| char::from(b'A' + (n % 26) as u8);
    match index / 26 {
        0 => one(index).to_string(),
        round => format!("{}{}", one(round - 1), one(index)),
    }
}

/// For each group what is how far away, nearest first.
fn sentences(topology: &Topology, grouped: &Grouped, columns: usize) -> String {
    let mut text = String::new();
    for (row, group) in grouped.between.iter().zip(&grouped.groups) {
        let mut by_relation: BTreeMap<Relation, Vec<Device>> = BTreeMap::new();
        for (relation, other) in row.iter().zip(&grouped.groups) {
            let others = by_relation.entry(*relation).or_default();
            if other != group {
                others.extend(&other.devices);
            }
        }
        let far = by_relation.iter().filter(|(_, others)| !others.is_empty());
        let far = far.map(|(relation, others)| format!("{relation} {}", names(topology, others)));
        let own = match group.within {
            Relation::Same => String::new(),
            within => format!("{within} among each other; "),
        };
        let line = format!("{own}{}", far.collect::<Vec<_>>().join("; "));
        let line = format!("{}: {line}", names(topology, &group.devices));
        text.push_str(&wrap(&line, columns, "", "  "));
        text.push('\n');
    }
    text
}

fn gpu_links(topology: &Topology, columns: usize, used: &mut BTreeSet<Relation>) -> String {
    for link in &topology.gpu_links {
        let (a, b) = (Device::Gpu(link.a as usize), Device::Gpu(link.b as usize));
        used.insert(topology.distance(a, b).relation);
    }
    let mut text = String::new();
    for line in gpu_link_lines(topology) {
        text.push_str(&wrap(&line, columns, "", "  "));
        text.push('\n');
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// Which GPUs have how many links to each other, and what they carry, a line for each number.
pub fn gpu_link_lines(topology: &Topology) -> Vec<String> {
    let mut by_kind: BTreeMap<(Relation, String), Vec<(usize, usize)>> = BTreeMap::new();
    for link in &topology.gpu_links {
        let (a, b) = (link.a as usize, link.b as usize);
        let relation = topology.distance(Device::Gpu(a), Device::Gpu(b)).relation;
        let rate = match link.rate {
            Some(rate) => format!(", {rate} each way"),
            None => String::new(),
        };
        by_kind.entry((relation, rate)).or_default().push((a, b));
    }
    let pairs = topology.gpus.len() * topology.gpus.len().saturating_sub(1) / 2;
    let line = |((relation, rate), linked): (&(Relation, String), &Vec<(usize, usize)>)| {
        let between = if linked.len() == pairs {
            let all: Vec<Device> = (0..topology.gpus.len()).map(Device::Gpu).collect();
            format!("all of {}", names(topology, &all))
        } else {
            partners(topology, linked)
        };
        format!("{relation}{rate}, between {between}")
    };
    by_kind.iter().map(line).collect()
}

/// `gpu0 and gpu1–3; gpu1 and gpu2–3`
fn partners(topology: &Topology, linked: &[(usize, usize)]) -> String {
    let mut of: BTreeMap<usize, Vec<Device>> = BTreeMap::new();
    for (a, b) in linked {
        of.entry(*a).or_default().push(Device::Gpu(*b));
    }
    let line =
        |(a, others): (&usize, &Vec<Device>)| format!("gpu{a} and {}", names(topology, others));
    of.iter().map(line).collect::<Vec<_>>().join("; ")
}

fn cell_of(relation: Relation) -> Cell {
    let style = match relation {
        Relation::Same => FAINT,
        Relation::NvLink(_) | Relation::Xgmi(_) | Relation::Pix | Relation::Pxb => GOOD,
        Relation::Phb | Relation::Node => anstyle::Style::new(),
        Relation::Sys => WARN,
        Relation::Unknown => BAD,
    };
    Cell::styled(style, relation.to_string())
}

fn legend(used: &BTreeSet<Relation>, columns: usize) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for relation in used {
        let part = match relation {
            Relation::Same => continue,
            Relation::NvLink(_) => "NVn: n NVLinks",
            Relation::Xgmi(_) => "XGn: n xGMI links",
            Relation::Pix => "PIX: at most one PCIe switch",
            Relation::Pxb => "PXB: several PCIe switches",
            Relation::Phb => "PHB: the host bridge",
            Relation::Node => "NODE: between host bridges of one NUMA node",
            Relation::Sys => "SYS: between NUMA nodes",
            Relation::Unknown => "?: not known",
        };
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    if parts.is_empty() {
        return String::new();
    }
    let legend = wrap(&parts.join(" · "), columns, "", "");
    format!("{}\n", paint(FAINT, legend))
}

/// What about the distances is not known, each once.
fn doubts(topology: &Topology, devices: &[Device], columns: usize) -> String {
    let mut doubts = BTreeSet::new();
    for (position, a) in devices.iter().enumerate() {
        for b in devices.iter().skip(position + 1) {
            doubts.extend(topology.pcie_distance(*a, *b).path.doubts);
        }
    }
    let mut text = String::new();
    for doubt in doubts.iter().take(FEW_DOUBTS) {
        let line = wrap(&harmless(doubt), columns, "doubt: ", "       ");
        text.push_str(&paint(WARN, line));
        text.push('\n');
    }
    if doubts.len() > FEW_DOUBTS {
        let more = format!(
            "doubt: {} more; --json tells them",
            doubts.len() - FEW_DOUBTS
        );
        text.push_str(&paint(WARN, more));
        text.push('\n');
    }
    text
}
