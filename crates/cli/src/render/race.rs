//! A race side by side, and below it what stands between this machine and a GPU.

use crowfly_route::hop::{Candidate, Class, Standing};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::units::{Bytes, significant};

use super::cell::Cell;
use super::obstacle;
use super::receipt::{class_cell, percent};
use super::style::{FAINT, GOOD, STRONG, paint};
use super::table::Table;
use super::text::{count, harmless, wrap};
use crate::commands::race::standing::{Lane, Race};

/// The race in at most `columns` columns.
pub fn render(race: &Race, columns: usize) -> String {
    let title = format!("{} from {}", race.bytes, harmless(&race.from.to_string()));
    let how = format!(
        "{}, {} of each way, taken in turns; times are medians.",
        cache(race),
        count(race.runs, "run")
    );
    let mut text = wrap(&title, columns, "", "  ") + "\n";
    text.push_str(&paint(FAINT, wrap(&how, columns, "", "")));
    text.push_str("\n\n");
    text.push_str(&table(race).render(columns));
    text.push('\n');
    text.push_str(&paint(FAINT, wrap(&footer(race), columns, "", "")));
    text.push('\n');
    if !race.missing.is_empty() {
        text.push_str(&heading("Ways that were not run"));
        text.push_str(&obstacle::render_all(&race.missing, columns));
    }
    text.push_str(&to_gpu(&race.to_gpu, columns));
    text
}

/// In what state the page cache was before each run.
pub fn cache(race: &Race) -> String {
    match race.warm {
        Bytes(0) => "Cold page cache before every run".into(),
        warm => format!("Page cache not cold (up to {warm} stayed in it)"),
    }
}

fn heading(title: &str) -> String {
    format!("\n{}\n", paint(STRONG, title))
}

fn table(race: &Race) -> Table {
    let mut table = Table::new()
        .text("way")
        .text("class")
        .number("s")
        .text("range")
        .number("GB/s")
        .number("share")
        .number("CPU s/GB")
        .number("copies")
        .number("touches")
        .number("PCIe")
        .number("RAM");
    for (place, lane) in race.lanes.iter().enumerate() {
        table.row(row(lane, place == 0));
    }
    table
}

fn row(lane: &Lane, first: bool) -> Vec<Cell> {
    let range = format!(
        "{}–{}",
        significant(lane.seconds.min),
        significant(lane.seconds.max)
    );
    let number = |value: Option<f64>| value.map_or_else(Cell::nothing, |v| significant(v).into());
    let counters = lane.counters;
    let mut cells = vec![
        Cell::styled(
            if first { STRONG } else { anstyle::Style::new() },
            &lane.name,
        ),
        class_cell(lane.class),
        significant(lane.seconds.median).into(),
        Cell::styled(FAINT, range),
        number(lane.rate.map(|rate| rate.as_gb())),
        lane.share
            .map_or_else(Cell::nothing, |share| percent(share).into()),
        number(lane.cpu_per_gb.map(|spread| spread.median)),
    ];
    let counts = [
        counters.copies,
        counters.cpu_touches,
        counters.pcie_hops,
        counters.host_ram_passes,
    ];
    cells.extend(counts.map(|count| count.to_string().into()));
    cells
}

fn footer(race: &Race) -> String {
    let ceiling = race.ceiling.as_ref().map_or_else(
        || "No ceiling is known.".to_owned(),
        |ceiling| {
            format!(
                "Share: of the ceiling, {} ({}: {}).",
                ceiling.rate,
                ceiling.provenance.word(),
                harmless(ceiling.provenance.detail())
            )
        },
    );
    format!(
        "{ceiling} Touches: hops on which a CPU core moves the bytes. PCIe: links crossed. RAM: reads and writes of host RAM per byte."
    )
}

fn to_gpu(candidates: &[Candidate], columns: usize) -> String {
    let mut direct = candidates
        .iter()
        .filter(|candidate| {
            let route = &candidate.route;
            // Without a GPU the search adds what host memory could have instead.
            matches!(route.to, Place::Gpu(_)) && route.class() == Class::Direct
        })
        .peekable();
    if direct.peek().is_none() {
        return String::new();
    }
    if let Some(open) = direct.clone().find(|c| c.standing() == Standing::Open) {
        let title = heading("The direct route to a GPU is open");
        let name = Cell::styled(GOOD, &open.route.name);
        let slower = obstacle::render_all(&open.obstacles, columns);
        return format!("{title}{name}\n{slower}");
    }
    let mut seen: Vec<&Obstacle> = Vec::new();
    for obstacle in direct.flat_map(|candidate| &candidate.obstacles) {
        if !seen.contains(&obstacle) {
            seen.push(obstacle);
        }
    }
    let mut text = heading("What stands between this machine and the direct route to a GPU");
    for obstacle in seen {
        text.push_str(&obstacle::render(obstacle, columns));
    }
    text
}

#[cfg(test)]
mod tests {
    use crowfly_route::hop::Route;
    use crowfly_route::obstacle::Code;

    use super::super::obstacle::tests::{across_sockets, no_storage_driver};
    use super::*;
    use crate::commands::race::standing::tests::race;

    fn candidate(name: &str, obstacles: Vec<Obstacle>) -> Candidate {
        Candidate {
            route: Route {
                name: name.into(),
                from: Place::File("/data/m".into()),
                to: Place::Gpu(0),
                hops: vec![],
            },
            obstacles,
        }
    }

    #[test]
    fn a_race_shows_every_way_side_by_side_and_each_obstacle_once() {
        let no_gpu = Obstacle::blocks(Code::NoGpu, "This machine has no GPU.");
        let mut race = race().settle(None);
        race.to_gpu = vec![
            candidate(
                "gpudirect-storage",
                vec![no_storage_driver(), across_sockets()],
            ),
            candidate("p2pdma", vec![across_sockets(), no_gpu]),
        ];
        insta::assert_snapshot!(crate::render::plain(&render(&race, 100)));
    }

    #[test]
    fn given_an_open_direct_route_only_what_slows_it_is_told() {
        let mut race = race().settle(None);
        let mut host = candidate("o-direct", vec![]);
        host.route.to = Place::Host(None);
        race.to_gpu = vec![host, candidate("p2pdma", vec![across_sockets()])];
        let text = crate::render::plain(&render(&race, 80));
        assert!(
            text.contains("The direct route to a GPU is open\np2pdma\nslows     across-sockets")
        );
        assert!(!text.contains("What stands between"));
    }
}
