//! The drawing of a machine with the pairs that are not on the straight way.

use crowfly_doctor::{Diagnosis, Machine, Pair, PairKind, PairVerdict, Verdict};
use crowfly_route::topology::{Device, Topology};

use super::html::{chip, table, text};
use crate::render::map_svg::{Mark, render_marked};

/// The most pairs that are marked; more would hide the machine.
const MAX_MARKS: usize = 24;

/// Each machine, with the affected pairs marked and told below it.
pub fn render(machines: &[Machine], diagnosis: &Diagnosis) -> String {
    let drawn: Vec<&Machine> = machines
        .iter()
        .filter(|machine| machine.topology.devices().next().is_some())
        .collect();
    let only = drawn.len() == 1;
    drawn
        .into_iter()
        .map(|machine| {
            let affected = affected(machine, only, diagnosis);
            one(machine, &affected, only)
        })
        .collect()
}

fn one(machine: &Machine, affected: &[(&PairVerdict, Device, Device)], only: bool) -> String {
    let marked = affected.get(..MAX_MARKS).unwrap_or(affected);
    let marks: Vec<Mark> = marked
        .iter()
        .enumerate()
        .map(|(index, (pair, a, b))| Mark {
            a: *a,
            b: *b,
            label: (index + 1).to_string(),
            broken: pair.verdict == Verdict::Broken,
        })
        .collect();
    let mut html = String::new();
    if !only {
        html.push_str(&format!("<h3>{}</h3>\n", text(machine.source.as_str())));
    }
    let picture = render_marked(&machine.topology, &marks);
    html.push_str(&format!("<div class=\"wide\">{picture}</div>\n"));
    if marks.is_empty() {
        html.push_str("<p class=\"soft\">No pair in this drawing is known to take a detour.</p>\n");
        return html;
    }
    let rows: Vec<Vec<String>> = marked
        .iter()
        .enumerate()
        .map(|(index, (pair, ..))| {
            vec![
                (index + 1).to_string(),
                text(&format!("{}–{}", pair.pair.gpu, pair.pair.other)),
                chip(pair.verdict),
                text(&pair.why),
            ]
        })
        .collect();
    html.push_str(&table(&["mark", "pair", "verdict", "why"], &rows));
    let left = affected.len().saturating_sub(MAX_MARKS);
    if left > 0 {
        html.push_str(&format!(
            "<p class=\"soft\">{left} more affected pairs are not marked; the table of pairs has \
             them.</p>\n"
        ));
    }
    html
}

/// The pairs of this machine that are not on the straight way, worst first.
fn affected<'a>(
    machine: &Machine,
    only: bool,
    diagnosis: &'a Diagnosis,
) -> Vec<(&'a PairVerdict, Device, Device)> {
    let mut affected: Vec<_> = diagnosis
        .pairs
        .iter()
        .filter(|pair| {
            !matches!(
                pair.verdict,
                Verdict::Direct | Verdict::InsufficientEvidence
            )
        })
        .filter(|pair| only || pair.pair.on.as_deref() == Some(machine.source.as_str()))
        .filter_map(|pair| {
            let (a, b) = ends(&machine.topology, &pair.pair)?;
            Some((pair, a, b))
        })
        .collect();
    affected.sort_by_key(|(pair, ..)| match pair.verdict {
        Verdict::Broken => 0,
        Verdict::Socket => 1,
        Verdict::Staged => 2,
        _ => 3,
    });
    affected
}

/// The devices that a pair names, in the words of whatever showed them.
fn ends(topology: &Topology, pair: &Pair) -> Option<(Device, Device)> {
    let device = |name: &str| {
        topology
            .find(name)
            .or_else(|| topology.find(&name.to_ascii_lowercase()))
    };
    let gpu = device(&pair.gpu)?;
    let other = device(&pair.other).or_else(|| {
        let mounted = (pair.kind == PairKind::GpuFileSystem)
            .then(|| topology.mounts.iter().rev().find(|m| m.point == pair.other))??;
        let block = mounted.source.strip_prefix("/dev/")?;
        let drive = topology.drives_under(block).into_iter().next()?;
        device(&drive.name)
    })?;
    (gpu != other).then_some((gpu, other))
}
