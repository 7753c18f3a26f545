//! The drawings: each machine, and what is known of pairs without one, with the pairs that are not on
//! the straight way marked.

use crowfly_doctor::{Case, Diagnosis, Pair, PairKind, PairVerdict, Verdict};
use crowfly_route::topology::Device;

use super::html::{chip, code_links, table, text};
use super::nccl_machine::Drawn;
use super::pair_picture;
use crate::render::map_svg::{Mark, render_marked};

/// The most pairs that are marked in one drawing; more would hide the machine.
const MAX_MARKS: usize = 24;
/// The most drawings; a report about a cluster has tables for the rest.
const MAX_DRAWINGS: usize = 8;

/// Every drawing, with the affected pairs marked and told below it.
pub fn render(case: &Case, diagnosis: &Diagnosis) -> String {
    let mut machines: Vec<Drawn<'_>> = case.machines.iter().map(Drawn::of).collect();
    machines.extend(Drawn::pasted(case));
    machines.retain(|machine| machine.topology.devices().next().is_some());
    let mut placed = vec![false; diagnosis.pairs.len()];
    let mut pictures: Vec<(&str, String)> = Vec::new();
    for machine in &machines {
        let mut here = Vec::new();
        for (judged, placed) in diagnosis.pairs.iter().zip(&mut placed) {
            let on = judged.pair.on.as_deref();
            let belongs = machines.len() == 1 || on == Some(machine.source);
            if belongs && let Some((a, b)) = ends(machine, &judged.pair) {
                *placed = true;
                here.push((judged, a, b));
            }
        }
        pictures.push((machine.source, of_machine(machine, &here)));
    }
    let mut groups: Vec<(&str, Vec<&PairVerdict>)> = Vec::new();
    for (judged, _) in diagnosis
        .pairs
        .iter()
        .zip(placed)
        .filter(|(_, placed)| !placed)
    {
        let on = judged.pair.on.as_deref().unwrap_or_default();
        match groups.iter_mut().find(|(name, _)| *name == on) {
            Some((_, group)) => group.push(judged),
            None => groups.push((on, vec![judged])),
        }
    }
    pictures.extend(groups.into_iter().map(|(on, group)| (on, of_pairs(&group))));
    let headed = pictures.len() > 1;
    let left = pictures.len().saturating_sub(MAX_DRAWINGS);
    let mut html = String::new();
    for (name, picture) in pictures.iter().take(MAX_DRAWINGS) {
        if headed && !name.is_empty() {
            html.push_str(&format!("<h3>{}</h3>\n", text(name)));
        }
        html.push_str(picture);
    }
    if left > 0 {
        html.push_str(&format!(
            "<p class=\"soft\">{left} more are not drawn; the table of pairs has them.</p>\n"
        ));
    }
    html
}

fn of_machine(machine: &Drawn<'_>, pairs: &[(&PairVerdict, Device, Device)]) -> String {
    let mut affected: Vec<_> = pairs.iter().filter(|(p, ..)| is_affected(p)).collect();
    affected.sort_by_key(|(pair, ..)| gravity(pair));
    let marked = affected.get(..MAX_MARKS).unwrap_or(&affected);
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
    let picture = render_marked(&machine.topology, &marks);
    let judged: Vec<&PairVerdict> = pairs.iter().map(|(pair, ..)| *pair).collect();
    let marked: Vec<&PairVerdict> = marked.iter().map(|(pair, ..)| *pair).collect();
    told(&picture, &judged, &marked, affected.len())
}

fn of_pairs(pairs: &[&PairVerdict]) -> String {
    let mut affected: Vec<&PairVerdict> =
        pairs.iter().copied().filter(|p| is_affected(p)).collect();
    affected.sort_by_key(|pair| gravity(pair));
    let marked = affected.get(..MAX_MARKS).unwrap_or(&affected);
    let numbered: Vec<pair_picture::Numbered<'_>> = pairs
        .iter()
        .map(|pair| {
            let at = marked.iter().position(|other| std::ptr::eq(*other, *pair));
            (*pair, at.map(|at| at + 1))
        })
        .collect();
    told(
        &pair_picture::render(&numbered),
        pairs,
        marked,
        affected.len(),
    )
}

/// A picture, and below it what its marks mean.
fn told(picture: &str, pairs: &[&PairVerdict], marked: &[&PairVerdict], affected: usize) -> String {
    let mut html = format!("<div class=\"wide\" tabindex=\"0\">{picture}</div>\n");
    if marked.is_empty() {
        let judged = pairs
            .iter()
            .any(|pair| pair.verdict != Verdict::InsufficientEvidence);
        if judged {
            html.push_str(
                "<p class=\"soft\">No pair in this drawing is known to take a detour.</p>\n",
            );
        }
        return html;
    }
    let rows: Vec<Vec<String>> = marked
        .iter()
        .enumerate()
        .map(|(index, pair)| {
            vec![
                (index + 1).to_string(),
                text(&format!("{}–{}", pair.pair.gpu, pair.pair.other)),
                chip(pair.verdict),
                text(&pair.why),
                code_links(&pair.findings),
            ]
        })
        .collect();
    html.push_str(&table(
        &["mark", "pair", "verdict", "why", "findings"],
        &rows,
    ));
    let left = affected.saturating_sub(marked.len());
    if left > 0 {
        html.push_str(&format!(
            "<p class=\"soft\">{left} more affected pairs are not marked; the table of pairs has \
             them.</p>\n"
        ));
    }
    html
}

const fn is_affected(pair: &PairVerdict) -> bool {
    !matches!(
        pair.verdict,
        Verdict::Direct | Verdict::InsufficientEvidence
    )
}

/// The worst comes first.
const fn gravity(pair: &PairVerdict) -> u8 {
    match pair.verdict {
        Verdict::Broken => 0,
        Verdict::Socket => 1,
        Verdict::Staged => 2,
        _ => 3,
    }
}

/// The devices that a pair names, in the words of whatever showed them.
fn ends(machine: &Drawn<'_>, pair: &Pair) -> Option<(Device, Device)> {
    let topology = &machine.topology;
    let gpu = machine.device(&pair.gpu)?;
    let other = machine.device(&pair.other).or_else(|| {
        let mounted = (pair.kind == PairKind::GpuFileSystem)
            .then(|| topology.mounts.iter().rev().find(|m| m.point == pair.other))??;
        let block = mounted.source.strip_prefix("/dev/")?;
        let drive = topology.drives_under(block).into_iter().next()?;
        machine.device(&drive.name)
    })?;
    (gpu != other).then_some((gpu, other))
}
