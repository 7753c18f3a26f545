//! What a GPU would find in each slot, as HTML.

use std::fmt::Write;

use crowfly_route::hop::Standing;
use crowfly_route::topology::Relation;

use super::html::{table, text};
use crate::commands::doctor::slots::{Other, Slot, Slots};
use crate::render::diagnosis::host::{name, way};

/// A table of the slots, and each obstacle once.
pub fn render(slots: &Slots) -> String {
    if slots.slots.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = slots.slots.iter().map(row).collect();
    let mut html = String::from(
        "<p class=\"soft\">There is no GPU. This is what the host shows for one in each place; gpu0 \
         stands for it.</p>\n",
    );
    html.push_str(&table(&["slot", "link", "its way to"], &rows));
    for met in &slots.obstacles {
        let _ = writeln!(
            html,
            "<article class=\"finding is-warn\">\n<h3>{}</h3>\n<p>{}</p>",
            text(met.obstacle.code.as_str()),
            text(&met.obstacle.summary)
        );
        for seen in &met.obstacle.evidence {
            let _ = writeln!(
                html,
                "<div class=\"quote\"><span class=\"at\">{}</span><pre>{}</pre></div>",
                text(&seen.at),
                text(&seen.shows)
            );
        }
        for fix in &met.obstacle.fix {
            let _ = writeln!(html, "<p>{}</p>", text(&fix.what));
            if let Some(command) = &fix.command {
                let _ = writeln!(html, "<pre>{}</pre>", text(command));
            }
        }
        html.push_str("</article>\n");
    }
    html
}

fn row(slot: &Slot) -> Vec<String> {
    let link = slot.link.map(|speed| format!("{speed} · {}", speed.rate()));
    let others: Vec<String> = slot.others.iter().map(other).collect();
    vec![
        text(&name(slot)),
        text(&link.unwrap_or_else(|| "–".into())),
        match others.as_slice() {
            [] => "no drive or RDMA adapter".to_owned(),
            others => others.join("<br>"),
        },
    ]
}

fn other(other: &Other) -> String {
    let class = match (other.standing, other.relation) {
        (Standing::Open, Relation::Pix | Relation::Pxb) => "is-good",
        (Standing::Open | Standing::Unproven, _) => "is-warn",
        (Standing::Blocked, _) => "is-bad",
    };
    let codes: Vec<&str> = other.obstacles.iter().map(|code| code.as_str()).collect();
    format!(
        "{}: <span class=\"{class}\">{}</span> <span class=\"soft\">{}</span>",
        text(&other.name),
        way(other),
        text(&codes.join(", "))
    )
}
