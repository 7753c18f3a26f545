//! What a machine shows besides findings.

use crowfly_route::hop::Standing;
use crowfly_route::topology::{PcieSpeed, Relation};

use super::{Extent, indented};
use crate::commands::doctor::host::{Host, Unseen};
use crate::commands::doctor::slots::{Other, Slot, Slots};
use crate::render::cell::Cell;
use crate::render::obstacle;
use crate::render::style::{BAD, FAINT, GOOD, STRONG, WARN, paint};
use crate::render::table::Table;
use crate::render::text::{count, harmless, wrap};

/// What exists, what could not be looked at, and what a GPU would find.
pub fn render(host: &Host, columns: usize, extent: Extent) -> String {
    let mut text = String::new();
    let mut line = |label: &str, rest: &str| {
        let label = format!("{label} ");
        text.push_str(&wrap(
            &harmless(&format!("{label}{rest}")),
            columns,
            "",
            "  ",
        ));
        text.push('\n');
    };
    line("Found:", &format!("{}.", host.devices));
    if !host.machine.is_empty() {
        line("The machine:", &format!("{}.", host.machine));
    }
    text.push_str(&unseen(&host.unseen, columns, extent));
    if let Some(slots) = &host.slots {
        text.push_str(&in_slots(slots, columns, extent));
    }
    format!("\n{text}")
}

fn unseen(unseen: &[Unseen], columns: usize, extent: Extent) -> String {
    if unseen.is_empty() {
        return String::new();
    }
    let told = extent.unseen;
    let mut text = format!("\n{}\n", paint(STRONG, "Could not be looked at or asked"));
    for one in unseen.iter().take(told) {
        let places = match one.places {
            1 => String::new(),
            n => format!(" ({n} places)"),
        };
        let mut line = format!("{}{places}: {}", one.what, one.why);
        if let Some(hint) = one.hint {
            line.push_str(&format!("; {hint}"));
        }
        text.push_str(&wrap(&harmless(&line), columns, "  ", "    "));
        text.push('\n');
        if extent.all {
            let example = wrap(&harmless(&one.example), columns, "    ", "    ");
            text.push_str(&format!("{}\n", paint(FAINT, example)));
        }
    }
    let left = unseen.len().saturating_sub(told);
    if left > 0 {
        text.push_str(&paint(FAINT, format!("  and {left} more\n")));
    }
    text
}

/// Slots that say the same, together.
struct Alike<'a> {
    link: Option<PcieSpeed>,
    others: &'a [Other],
    names: Vec<String>,
}

fn in_slots(slots: &Slots, columns: usize, extent: Extent) -> String {
    if slots.slots.is_empty() {
        return String::new();
    }
    let mut groups: Vec<Alike<'_>> = Vec::new();
    for slot in &slots.slots {
        let name = name(slot);
        match groups
            .iter_mut()
            .find(|g| g.link == slot.link && g.others == slot.others)
        {
            Some(group) => group.names.push(name),
            None => groups.push(Alike {
                link: slot.link,
                others: &slot.others,
                names: vec![name],
            }),
        }
    }
    let mut table = Table::new()
        .flexible("slot")
        .text("link")
        .flexible("its way to");
    for group in groups.iter().take(extent.slots) {
        let link = group.link.map_or_else(Cell::nothing, |speed| {
            Cell::from(format!("{speed} · {}", speed.rate()))
        });
        let mut first = [Cell::from(group.names.join(", ")), link];
        if group.others.is_empty() {
            let none = Cell::styled(FAINT, "no drive or RDMA adapter to exchange data with");
            table.row(first.into_iter().chain([none]));
            continue;
        }
        for (index, other) in alike(group.others).into_iter().enumerate() {
            if index > 0 {
                first = [Cell::from(""), Cell::from("")];
            }
            table.row(first.clone().into_iter().chain([other]));
        }
    }
    let heading = "If a GPU sat in a slot of this host";
    let mut text = format!("\n{}\n", paint(STRONG, heading));
    text.push_str(&indented(&table.render(columns - super::INDENT)));
    let left = groups.len().saturating_sub(extent.slots);
    if left > 0 {
        text.push_str(&paint(FAINT, format!("  and {left} more\n")));
    }
    if slots.beyond_limit > 0 {
        let left = format!(
            "  and {}, not looked at\n",
            count(slots.beyond_limit, "slot")
        );
        text.push_str(&paint(WARN, left));
    }
    let told = extent.obstacles;
    for met in slots.obstacles.iter().take(told) {
        text.push('\n');
        text.push_str(&obstacle::render(&met.obstacle, columns));
    }
    let left: Vec<&str> = slots
        .obstacles
        .iter()
        .skip(told)
        .map(|met| met.obstacle.code.as_str())
        .collect();
    if !left.is_empty() {
        let line = format!("--all explains {}", left.join(", "));
        text.push_str(&paint(FAINT, wrap(&line, columns, "  ", "  ")));
        text.push('\n');
    }
    text
}

/// Devices that are met in the same way, together.
fn alike(others: &[Other]) -> Vec<Cell> {
    let mut groups: Vec<(&Other, Vec<&str>)> = Vec::new();
    for other in others {
        let same = |(first, _): &&mut (&Other, Vec<&str>)| {
            (first.standing, first.relation, &first.obstacles)
                == (other.standing, other.relation, &other.obstacles)
        };
        match groups.iter_mut().find(same) {
            Some((_, names)) => names.push(&other.name),
            None => groups.push((other, vec![&other.name])),
        }
    }
    groups
        .into_iter()
        .map(|(other, names)| {
            let style = match (other.standing, other.relation) {
                (Standing::Open, Relation::Pix | Relation::Pxb) => GOOD,
                (Standing::Open | Standing::Unproven, _) => WARN,
                (Standing::Blocked, _) => BAD,
            };
            let how = way(other);
            let codes: Vec<&str> = other.obstacles.iter().map(|code| code.as_str()).collect();
            let why = match codes.as_slice() {
                [] => String::new(),
                codes => format!(" ({})", codes.join(", ")),
            };
            Cell::styled(style, format!("{}: {how}{why}", names.join(", ")))
        })
        .collect()
}

/// The way between a drive or adapter and a GPU in a slot, in words.
pub const fn way(other: &Other) -> &'static str {
    match (other.standing, other.relation) {
        (Standing::Open, Relation::Pix | Relation::Pxb) => "straight, below one switch",
        (Standing::Open, _) => "straight, through the CPU",
        (Standing::Unproven, _) => "not known",
        (Standing::Blocked, _) => "refused: host memory instead",
    }
}

/// A slot, and what is in it now.
pub fn name(slot: &Slot) -> String {
    let place = match (slot.port, slot.root) {
        (Some(port), _) => port.to_string(),
        (None, Some(root)) => format!("the bus {root}"),
        (None, None) => "somewhere".to_owned(),
    };
    match &slot.taken_by {
        Some(name) => format!("{place} (now {name})"),
        None => place,
    }
}
