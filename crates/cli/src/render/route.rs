//! The ways between two places: a table, the best hop by hop, and what stands in each.

use crowfly_route::hop::{Carrier, LinkKind, Standing};
use crowfly_route::obstacle::Obstacle;

use super::cell::Cell;
use super::receipt::class_cell;
use super::style::{BAD, FAINT, GOOD, STRONG, WARN, paint};
use super::table::Table;
use super::text::{harmless, wrap};
use super::{hop, obstacle};
use crate::commands::route::{Plan, Way};

const INDENT: &str = "  ";

/// The plan in at most `columns` columns, with the hops of every way if `all`.
pub fn render(plan: &Plan, columns: usize, all: bool) -> String {
    let title = format!("{} → {}", plan.from, plan.to);
    let mut text = paint(STRONG, wrap(&harmless(&title), columns, "", INDENT));
    text.push_str("\n\n");
    text.push_str(&table(plan).render(columns));
    text.push('\n');
    text.push_str(&paint(FAINT, wrap(&footer(plan), columns, "", "")));
    text.push('\n');
    let shown = if all { plan.ways.len() } else { 1 };
    let known = plan.ways.iter().filter(|way| !way.route.hops.is_empty());
    for way in known.take(shown) {
        text.push_str(&hops(plan, way, columns));
    }
    text.push_str(&obstacles(plan, columns));
    text
}

fn table(plan: &Plan) -> Table {
    let mut table = Table::new()
        .flexible("way")
        .text("standing")
        .text("class")
        .number("ceiling")
        .text("known by")
        .number("copies")
        .number("touches")
        .number("PCIe")
        .number("RAM");
    for (place, way) in plan.ways.iter().enumerate() {
        table.row(row(plan, way, place == 0));
    }
    table
}

fn row(plan: &Plan, way: &Way, first: bool) -> Vec<Cell> {
    let style = match way.standing {
        Standing::Open if first => STRONG,
        _ => anstyle::Style::new(),
    };
    let ceiling = way.ceiling.as_ref().map(|ceiling| &ceiling.capacity);
    let unknown = way.ceiling.as_ref().is_some_and(|c| c.unknown_hops > 0);
    let most = if unknown { "≤ " } else { "" };
    let mut cells = vec![
        Cell::styled(style, name(plan, way)),
        standing(way.standing),
        way.class.map_or_else(Cell::nothing, class_cell),
        ceiling.map_or_else(Cell::nothing, |c| format!("{most}{}", c.rate).into()),
        ceiling.map_or_else(Cell::nothing, |c| Cell::styled(FAINT, c.provenance.word())),
    ];
    let counts = way
        .counters
        .map(|c| [c.copies, c.cpu_touches, c.pcie_hops, c.host_ram_passes]);
    match counts {
        Some(counts) => cells.extend(counts.map(|count| count.to_string().into())),
        None => cells.extend(std::iter::repeat_n(Cell::nothing(), 4)),
    }
    cells
}

/// The way's name, with what tells it from others of that name.
fn name(plan: &Plan, way: &Way) -> String {
    let mut name = way.route.name.clone();
    let twice = plan
        .ways
        .iter()
        .filter(|other| other.route.name == name)
        .count()
        > 1;
    if let Some(adapter) = adapter(way).filter(|_| twice) {
        name.push_str(&format!(" by {adapter}"));
    }
    if way.route.from != plan.from {
        name.push_str(&format!(" from {}", way.route.from));
    }
    if way.route.to != plan.to {
        name.push_str(&format!(" to {}", way.route.to));
    }
    name
}

/// The first adapter that the data passes.
fn adapter(way: &Way) -> Option<String> {
    use crowfly_route::hop::Stop;
    way.route
        .hops
        .iter()
        .find_map(|hop| match (&hop.from, &hop.to) {
            (Stop::Nic { name }, _) | (_, Stop::Nic { name }) => Some(name.clone()),
            _ => None,
        })
}

fn standing(standing: Standing) -> Cell {
    match standing {
        Standing::Open => Cell::styled(GOOD, "open"),
        Standing::Unproven => Cell::styled(WARN, "unproven"),
        Standing::Blocked => Cell::styled(BAD, "blocked"),
    }
}

fn footer(plan: &Plan) -> String {
    let mut footer =
        "Ceiling: what the slowest hop carries. Touches: hops on which a CPU core moves the \
                      bytes. PCIe: links crossed. RAM: reads and writes of host RAM per byte."
            .to_owned();
    if plan
        .ways
        .iter()
        .any(|way| way.route.to != plan.to || way.route.from != plan.from)
    {
        footer.push_str(" Ways between other places are what this machine offers instead.");
    }
    footer
}

fn hops(plan: &Plan, way: &Way, columns: usize) -> String {
    let title = format!("{}, hop by hop", name(plan, way));
    let mut text = format!("\n{}\n", paint(STRONG, harmless(&title)));
    let binding = way.ceiling.as_ref().map(|ceiling| ceiling.hop);
    for (index, hop) in way.route.hops.iter().enumerate() {
        let number = format!("{INDENT}{}  ", index + 1);
        let rest = " ".repeat(number.len());
        let mut line: String = hop::line(hop).iter().map(Cell::to_string).collect();
        if binding == Some(index) && way.route.hops.len() > 1 {
            line.push_str(&paint(WARN, " ← binds"));
        }
        text.push_str(&wrap(&line, columns, &number, &rest));
        text.push('\n');
    }
    for note in notes(way) {
        text.push_str(&paint(
            FAINT,
            wrap(&harmless(&note), columns, INDENT, INDENT),
        ));
        text.push('\n');
    }
    text
}

/// What the numbers alone do not tell.
fn notes(way: &Way) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(ceiling) = &way.ceiling {
        let detail = ceiling.capacity.provenance.detail();
        notes.push(format!("Ceiling {}: {detail}.", ceiling.capacity));
        if ceiling.unknown_hops > 0 {
            notes.push("Some hops have no known rate: the real ceiling may be lower.".into());
        }
    }
    if !way.shared_links.is_empty() {
        notes.push(format!(
            "Goes up and down {}. PCIe carries both directions at once, so that this does not halve one \
             transfer; transfers both ways at once do.",
            way.shared_links.join(" and ")
        ));
    }
    let crossed = || way.route.hops.iter().flat_map(|hop| &hop.crosses);
    let unrated = crossed()
        .any(|c| c.rate.is_none() && matches!(c.kind, LinkKind::HostBridge | LinkKind::Socket));
    let by_device = way
        .route
        .hops
        .iter()
        .any(|hop| matches!(hop.carrier, Carrier::Dma { .. }));
    if unrated && by_device {
        notes.push(
            "What the CPU's host bridge and the link between sockets carry is not known; the ceiling \
             leaves them out."
                .into(),
        );
    }
    notes
}

/// The obstacles of every way, each told once.
fn obstacles(plan: &Plan, columns: usize) -> String {
    let mut text = String::new();
    let mut told: Vec<&Obstacle> = Vec::new();
    for way in plan.ways.iter().filter(|way| !way.obstacles.is_empty()) {
        let verdict = match way.standing {
            Standing::Open => "slowed",
            Standing::Unproven => "unproven",
            Standing::Blocked => "blocked",
        };
        let title = format!("{} is {verdict}", name(plan, way));
        text.push_str(&format!("\n{}\n", paint(STRONG, harmless(&title))));
        let mut again: Vec<&str> = Vec::new();
        for obstacle in &way.obstacles {
            if told.iter().any(|known| same(known, obstacle)) {
                again.push(obstacle.code.as_str());
            } else {
                text.push_str(&obstacle::render(obstacle, columns));
                told.push(obstacle);
            }
        }
        if !again.is_empty() {
            let line = format!("as above: {}", again.join(", "));
            text.push_str(&paint(FAINT, wrap(&line, columns, "", "")));
            text.push('\n');
        }
    }
    text
}

/// Whether two obstacles are the same thing, whatever it costs each way.
fn same(a: &Obstacle, b: &Obstacle) -> bool {
    (a.code, a.effect, &a.summary) == (b.code, b.effect, &b.summary)
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::machines;

    use super::*;
    use crate::commands::route::tests::plan;

    fn plain(plan: &Plan, all: bool) -> String {
        let text = crate::render::plain(&render(plan, 100, all));
        for line in text.lines() {
            let width = unicode_width::UnicodeWidthStr::width(line);
            assert!(width <= 100, "{width}: {line}");
        }
        text
    }

    #[test]
    fn given_a_dgx_the_ways_from_a_drive_to_the_gpu_beside_it() {
        let machine = machines::dgx_h100();
        insta::assert_snapshot!(plain(&plan(&machine, "drive:nvme0", "gpu:0"), false));
    }

    #[test]
    fn given_a_laptop_the_missing_gpu_and_what_there_is_instead() {
        let machine = machines::laptop();
        insta::assert_snapshot!(plain(&plan(&machine, "/home/me/m", "gpu:0"), true));
    }

    #[test]
    fn given_the_nearest_port_is_down_ways_of_one_name_are_told_apart() {
        let mut machine = machines::dgx_h100();
        machine.text("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
        let text = plain(&plan(&machine, "gpu:0", "remote:gpu:0"), false);
        assert!(text.contains("rdma by mlx5_1"), "{text}");
        assert!(text.contains("rdma by mlx5_0 is blocked"), "{text}");
    }
}
