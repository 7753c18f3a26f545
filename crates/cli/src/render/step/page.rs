//! A training run as one page of HTML that needs nothing but itself: no script, and nothing is
//! fetched.

use std::fmt::Write;

use crowfly_route::hop::Class;
use crowfly_route::units::significant;

use super::plots::{PHASES, bars, kinds, over_steps};
use super::{because, here, how, lanes_note, loss_line, outlook_rows, saves, title};
use crate::commands::step::standing::{Lane, Standing};
use crate::render::plan::picture::curve;
use crate::render::receipt::percent;
use crate::render::report::html::{document, section, table, text, unfold};
use crate::render::text::seconds;

/// What the page has besides the style of reports.
const STYLE: &str = include_str!("page.css");

/// The page.
pub fn page(standing: &Standing) -> String {
    let mut body = format!(
        "<header>\n{}\n<h1>{}</h1>\n<p>{}</p>\n<p class=\"soft\">crowfly {} · {}</p>\n</header>\n",
        chip(standing),
        text(&title(standing)),
        text(&how(&standing.about)),
        env!("CARGO_PKG_VERSION"),
        standing.schema,
    );
    body.push_str(&section("The three paths", &lanes(standing)));
    body.push_str(&section("Where the time went", &time(standing)));
    body.push_str(&section("Checkpoints and losses", &story(standing)));
    body.push_str(&section("What GPUDirect would change", &outlook(standing)));
    body.push_str(&section("On this machine", &on_this_machine(standing)));
    document(&format!("crowfly step: {}", title(standing)), STYLE, &body)
}

fn chip(standing: &Standing) -> String {
    let (class, words) = match standing.is_sound() {
        true => ("is-good", "all ranks agree, all receipts add up"),
        false => ("is-bad", "ranks or receipts disagree"),
    };
    format!("<span class=\"chip {class}\">{words}</span>")
}

fn all_lanes(standing: &Standing) -> impl Iterator<Item = &Lane> {
    standing.lanes.iter().chain(&standing.restored)
}

fn lanes(standing: &Standing) -> String {
    let rows: Vec<Vec<String>> = all_lanes(standing)
        .map(|lane| {
            vec![
                format!("<strong>{}</strong>", text(lane.name)),
                lane.transfers.to_string(),
                lane.asked.to_string(),
                lane.moved.to_string(),
                lane.rate
                    .map_or_else(|| "–".to_owned(), |rate| significant(rate.as_gb())),
                seconds(lane.seconds),
            ]
        })
        .collect();
    let titles = ["path", "times", "asked", "by receipts", "GB/s", "waited"];
    let mut html = table(&titles, &rows);
    let _ = writeln!(
        html,
        "<p class=\"soft\">{}</p>",
        text(&lanes_note(standing))
    );
    html.push_str("<p class=\"sub\">Which way the bytes went</p>\n");
    html.push_str(&legend(&[
        ("direct", "is-direct"),
        ("staged", "is-staged"),
        ("socket", "is-socket"),
    ]));
    html.push_str(&kinds(all_lanes(standing)));
    let mut rows = Vec::new();
    for lane in all_lanes(standing) {
        for share in &lane.shares {
            let class = match share.class {
                Class::Direct => "is-good",
                Class::Staged => "is-warn",
                Class::Socket => "is-bad",
            };
            rows.push(vec![
                text(lane.name),
                text(share.path.as_str()),
                format!("<span class=\"{class}\">{}</span>", share.class),
                share.bytes.to_string(),
                percent(share.bytes.0 as f64 / lane.moved.0.max(1) as f64),
                format!(
                    "<div class=\"why\">{}</div>",
                    text(&because(standing, lane, share.because.as_deref()))
                ),
            ]);
        }
    }
    html.push_str(&table(
        &["path", "way", "class", "bytes", "of it", "because"],
        &rows,
    ));
    html
}

/// What the colours of a plot mean.
fn legend(entries: &[(&str, &str)]) -> String {
    let entry = |(name, class): &(&str, &str)| {
        format!(
            "<span><i class=\"swatch {class}\"></i>{}</span>",
            text(name)
        )
    };
    let all: Vec<String> = entries.iter().map(entry).collect();
    format!("<p class=\"legend\">{}</p>\n", all.join(" "))
}

fn time(standing: &Standing) -> String {
    let mut html = legend(&PHASES);
    html.push_str(&over_steps(standing));
    let rows: Vec<Vec<String>> = standing
        .phases
        .iter()
        .map(|phase| {
            vec![
                text(phase.name),
                seconds(phase.per_step),
                percent(phase.share),
                seconds(phase.seconds),
            ]
        })
        .collect();
    html.push_str(&table(&["what", "per step", "of all", "all ranks"], &rows));
    let rows: Vec<Vec<String>> = standing
        .steps
        .iter()
        .map(|row| {
            let times = &row.times;
            vec![
                match row.again {
                    0 => row.step.to_string(),
                    _ => format!("{} again", row.step),
                },
                row.ranks.to_string(),
                seconds(times.read),
                seconds(times.compute + times.update),
                seconds(times.exchange),
                seconds(times.stall),
                seconds(row.slowest),
            ]
        })
        .collect();
    let titles = [
        "step",
        "ranks",
        "storage",
        "computation",
        "gradients",
        "stall",
        "slowest rank",
    ];
    html.push_str(&unfold("Every step", false, &table(&titles, &rows)));
    html
}

fn story(standing: &Standing) -> String {
    let mut html = String::new();
    let mut tell = |class: &str, line: &str| {
        let _ = writeln!(html, "<p class=\"{class}\">{}</p>", text(line));
    };
    if let Some(saves) = saves(standing) {
        tell("", &saves);
    }
    for unsaved in &standing.unsaved {
        let what = format!(
            "The checkpoint after step {} was not published: {} ({})",
            unsaved.step, unsaved.what, unsaved.code
        );
        tell("is-warn", &what);
    }
    for loss in &standing.losses {
        tell("", &loss_line(loss, standing));
        if !loss.what.is_empty() {
            tell("soft", &format!("The error: {}", loss.what));
        }
    }
    let digest = &standing.digest;
    match digest.same {
        true => tell(
            "",
            &format!(
                "State at the end, the same bits at each of {} ranks: {}",
                digest.ranks, digest.value
            ),
        ),
        false => tell("is-bad", "The ranks ended with different states."),
    }
    html
}

fn outlook(standing: &Standing) -> String {
    let outlook = &standing.outlook;
    let mut html = format!(
        "<p>{} servers with {}, by the planner's calibrated model.</p>\n",
        text(&outlook.server),
        text(&outlook.storage)
    );
    html.push_str(&legend(&[
        ("direct", "is-direct"),
        ("staged, at best", "is-staged"),
        ("staged, at worst", "is-slow"),
    ]));
    html.push_str(&bars(outlook));
    let mut titles = vec![String::new()];
    titles.extend(
        outlook
            .at
            .iter()
            .map(|at| format!("{} servers", at.servers)),
    );
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = outlook_rows(outlook)
        .into_iter()
        .map(|(name, cells)| {
            let name = text(&name);
            let cells = cells.iter().map(|cell| text(cell));
            [name].into_iter().chain(cells).collect()
        })
        .collect();
    html.push_str(&table(&titles, &rows));
    let what = format!("{} on {}", standing.about.model, outlook.server);
    let _ = writeln!(
        html,
        "<div class=\"plot\" tabindex=\"0\">{}</div>",
        curve(&what, &outlook.curve)
    );
    html.push_str("<p class=\"sub\">What this stands on</p>\n<ul>\n");
    for assumption in &outlook.assumptions {
        let _ = writeln!(html, "<li>{}</li>", text(assumption));
    }
    html.push_str("</ul>\n");
    html
}

fn on_this_machine(standing: &Standing) -> String {
    let mut html = String::new();
    for line in here(standing) {
        let _ = writeln!(html, "<p>{}</p>", text(&line));
    }
    for obstacle in &standing.obstacles {
        let _ = writeln!(
            html,
            "<p class=\"soft\">Met on the way: {} ({})</p>",
            text(&obstacle.summary),
            text(obstacle.code.as_str())
        );
    }
    html
}
