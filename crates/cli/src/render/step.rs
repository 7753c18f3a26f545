//! A training run for people: the three paths, where the time went, what was lost, what GPUDirect
//! would change.

use crowfly_mover::step::Work;
use crowfly_route::hop::{Class, Standing as Open};
use crowfly_route::units::{Bytes, significant};

use super::cell::Cell;
use super::plan::amounts::{time, times};
use super::receipt::{class_cell, percent};
use super::style::{BAD, FAINT, GOOD, STRONG, WARN, paint};
use super::table::Table;
use super::text::{count, harmless, seconds, wrap};
use crate::commands::step::outlook::{At, Outlook, Range, Ways};
use crate::commands::step::standing::{About, Lane, Loss, Phase, Standing};

mod page;
mod plots;

pub use page::page;

/// Columns of a bar that is all of the time.
const BAR: usize = 24;

/// The run in at most `columns` columns.
pub fn render(standing: &Standing, columns: usize) -> String {
    let mut text = wrap(&paint(STRONG, title(standing)), columns, "", "  ") + "\n";
    text.push_str(&paint(FAINT, wrap(&how(&standing.about), columns, "", "")));
    text.push_str("\n\n");
    text.push_str(&lanes(standing).render(columns));
    text.push_str(&paint(FAINT, wrap(&lanes_note(standing), columns, "", "")));
    text.push('\n');
    text.push_str(&heading("Which way the bytes went, by their receipts"));
    text.push_str(&ways(standing).render(columns));
    text.push_str(&heading("Where the time of the ranks went"));
    text.push_str(&phases(&standing.phases).render(columns));
    for line in story(standing) {
        text.push_str(&wrap(&line, columns, "", "  "));
        text.push('\n');
    }
    text.push_str(&heading("What GPUDirect would change"));
    text.push_str(&outlook(&standing.outlook).render(columns));
    for line in here(standing).iter().chain(&standing.outlook.assumptions) {
        text.push_str(&paint(FAINT, wrap(line, columns, "- ", "  ")));
        text.push('\n');
    }
    text
}

fn heading(title: &str) -> String {
    format!("\n{}\n", paint(STRONG, title))
}

/// What was run.
pub fn title(standing: &Standing) -> String {
    let about = &standing.about;
    format!(
        "Training {} at scale {}: {} on {}, {} in {}",
        about.model,
        about.scale,
        count(about.ranks as usize, "rank"),
        count(standing.hosts, "host"),
        count(about.steps as usize, "step"),
        seconds(standing.seconds),
    )
}

/// How it was run.
pub fn how(about: &About) -> String {
    let parameters = |n: f64| {
        if n >= 1e9 {
            format!("{} billion", significant(n / 1e9))
        } else if n >= 1e6 {
            format!("{} million", significant(n / 1e6))
        } else if n >= 1e3 {
            format!("{} thousand", significant(n / 1e3))
        } else {
            format!("{n}")
        }
    };
    let work = match about.work {
        Work::Once => "its gradients once".to_owned(),
        Work::Seconds(s) => format!("for {}", seconds(s)),
        Work::Flops(flops) => format!("{} GFLOP", significant(flops / 1e9)),
    };
    let data = match about.made {
        Bytes(0) => "of the data given".to_owned(),
        made => format!("of {made} made from seed {}", about.seed),
    };
    let saved = match about.every {
        Some(every) => format!(
            "a checkpoint of {} every {}",
            about.checkpoint_bytes,
            count(every as usize, "step")
        ),
        None => "no checkpoints".to_owned(),
    };
    let load = about.load.map_or_else(String::new, |load| {
        format!(", load {} at the end", significant(load))
    });
    format!(
        "{} of {} parameters; in a step each rank reads {} {data} to {}, computes a stand-in ({work}), and exchanges {} \
         of bf16 gradients; {saved}; {}{load}.",
        parameters(about.parameters as f64),
        parameters(about.model_parameters),
        about.batch,
        about.to,
        about.gradient_bytes,
        count(about.processors, "processor"),
    )
}

fn lanes(standing: &Standing) -> Table {
    let mut table = Table::new()
        .text("path")
        .number("times")
        .number("asked")
        .number("by receipts")
        .number("GB/s")
        .number("waited")
        .number("direct")
        .number("staged")
        .number("socket");
    let all = standing.lanes.iter().chain(&standing.restored);
    for lane in all {
        table.row(lane_row(lane));
    }
    table
}

fn lane_row(lane: &Lane) -> Vec<Cell> {
    let of = |class| match lane.of_class(class) {
        Bytes(0) => Cell::nothing(),
        bytes => bytes.to_string().into(),
    };
    vec![
        Cell::styled(STRONG, lane.name),
        lane.transfers.to_string().into(),
        lane.asked.to_string().into(),
        lane.moved.to_string().into(),
        lane.rate
            .map_or_else(Cell::nothing, |rate| significant(rate.as_gb()).into()),
        seconds(lane.seconds).into(),
        of(Class::Direct),
        of(Class::Staged),
        of(Class::Socket),
    ]
}

/// What the numbers of the lanes are, and whether they come out even.
pub fn lanes_note(standing: &Standing) -> String {
    let [storage, gradients, checkpoints] = &standing.lanes;
    let exact = storage.is_whole()
        && checkpoints.is_whole()
        && standing.restored.as_ref().is_none_or(Lane::is_whole);
    let sums = match exact {
        true => "The receipts of storage and checkpoints sum exactly to the bytes asked for",
        false => "THE RECEIPTS OF STORAGE AND CHECKPOINTS DO NOT SUM TO THE BYTES ASKED FOR",
    };
    let least = match (gradients.moved.0, gradients.due.0) {
        (_, 0) => "nobody had anybody to exchange gradients with".to_owned(),
        (moved, due) if moved == due => {
            "those of gradients to 2 (n - 1) buffers an exchange, the least that there is"
                .to_owned()
        }
        (moved, due) => format!(
            "those of gradients to {} times the least, 2 (n - 1) buffers an exchange",
            significant(moved as f64 / due as f64)
        ),
    };
    format!(
        "Sums over all ranks. {sums}; {least}. GB/s: of one transfer, on average; waited: what ranks stood still for."
    )
}

fn ways(standing: &Standing) -> Table {
    let mut table = Table::new()
        .text("path")
        .text("way")
        .text("class")
        .number("bytes")
        .number("of it")
        .flexible("because");
    for lane in standing.lanes.iter().chain(&standing.restored) {
        for (index, share) in lane.shares.iter().enumerate() {
            let part = share.bytes.0 as f64 / lane.moved.0.max(1) as f64;
            table.row([
                if index == 0 { lane.name } else { "" }.into(),
                Cell::styled(STRONG, share.path.as_str()),
                class_cell(share.class),
                share.bytes.to_string().into(),
                percent(part).into(),
                Cell::styled(FAINT, because(standing, lane, share.because.as_deref())),
            ]);
        }
    }
    table
}

/// Why bytes went the way that they went.
pub fn because(standing: &Standing, lane: &Lane, told: Option<&str>) -> String {
    let exchange = standing
        .exchange
        .as_ref()
        .filter(|_| lane.name == "gradients");
    match (told, exchange) {
        (Some(told), _) => told.to_owned(),
        (None, Some((algorithm, why))) => format!("{algorithm}: {why}"),
        (None, None) => "the straightest way there is to host memory".to_owned(),
    }
}

fn phases(phases: &[Phase]) -> Table {
    let mut table = Table::new()
        .text("what")
        .number("per step")
        .number("of all")
        .text("");
    for phase in phases {
        let bar = "█".repeat((phase.share * BAR as f64).round() as usize);
        table.row([
            phase.name.into(),
            seconds(phase.per_step).into(),
            percent(phase.share).into(),
            Cell::styled(STRONG, bar),
        ]);
    }
    table
}

/// Checkpoints, losses and the state at the end, a sentence each.
fn story(standing: &Standing) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(saves(standing));
    for unsaved in &standing.unsaved {
        let what = format!(
            "The checkpoint after step {} was not published: {} ({}, rank {})",
            unsaved.step,
            harmless(&unsaved.what),
            unsaved.code,
            unsaved.rank
        );
        lines.push(paint(WARN, what));
    }
    lines.extend(standing.losses.iter().map(|loss| loss_line(loss, standing)));
    let digest = &standing.digest;
    lines.push(match digest.same {
        true => format!(
            "State at the end: {} at {}.",
            paint(GOOD, &digest.value),
            match digest.ranks {
                1 => "the only rank".to_owned(),
                n => format!("all {n} ranks"),
            }
        ),
        false => paint(BAD, "The ranks ended with DIFFERENT states."),
    });
    lines
}

/// What saving came to.
pub fn saves(standing: &Standing) -> Option<String> {
    let saves = &standing.saves;
    let first = saves.first()?;
    let stalls = saves.iter().map(|save| save.stall);
    let (least, most) = stalls.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), stall| {
        (least.min(stall), most.max(stall))
    });
    let slowest = saves.iter().map(|save| save.background).fold(0.0, f64::max);
    Some(format!(
        "{} of {} in {}: training stood still for {} each, and they were durable after {} at most.",
        count(saves.len(), "checkpoint"),
        first.bytes,
        count(first.ranks, "file"),
        times(least, most),
        seconds(slowest),
    ))
}

/// A loss in one sentence.
pub fn loss_line(loss: &Loss, standing: &Standing) -> String {
    let ranks: Vec<String> = loss.ranks.iter().map(usize::to_string).collect();
    let signal = loss
        .signals
        .first()
        .map_or_else(String::new, |signal| match signal {
            9 => " by SIGKILL".to_owned(),
            other => format!(" by signal {other}"),
        });
    let heard = match (loss.survivors, loss.same) {
        (0, _) => "nobody was left to hear of it".to_owned(),
        (n, same) => format!(
            "{} heard of it {} after their call, {} ({})",
            count(n, "survivor"),
            seconds(loss.heard_after),
            match same {
                true => "by the same error",
                false => "by DIFFERENT errors",
            },
            loss.code
        ),
    };
    let after = match loss.restored {
        None => "nothing was restored".to_owned(),
        Some(0) => format!(
            "{} began anew {} later, as no checkpoint was complete",
            count(loss.ranks_after, "rank"),
            seconds(loss.seconds)
        ),
        Some(step) => format!(
            "{} went on from step {step} {} later, {} of it reading {}",
            count(loss.ranks_after, "rank"),
            seconds(loss.seconds),
            seconds(loss.read_seconds),
            loss.bytes
        ),
    };
    let redone = match loss.redone {
        0 => "no step was done again".to_owned(),
        n => format!("{} done again", count(n as usize, "step")),
    };
    let step = match loss.step {
        0 => String::new(),
        step => format!(" in step {step}"),
    };
    format!(
        "Rank {} ended{signal}{step}: {heard}; {after} ({}); {redone}.",
        ranks.join(", "),
        standing.about.after_loss
    )
}

fn outlook(outlook: &Outlook) -> Table {
    let mut table = Table::new().text(&format!("{} with {}", outlook.server, outlook.storage));
    for at in &outlook.at {
        table = table.number(&format!("{} servers", at.servers));
    }
    for (name, cells) in outlook_rows(outlook) {
        let style = match name.ends_with("staged") {
            true => FAINT,
            false => anstyle::Style::new(),
        };
        let cells = cells.into_iter().map(Cell::from);
        table.row([Cell::styled(style, name)].into_iter().chain(cells));
    }
    table
}

/// The rows of the outlook: what it is, and a cell for each size of cluster.
pub fn outlook_rows(outlook: &Outlook) -> Vec<(String, Vec<String>)> {
    type Of = fn(&At) -> &Ways;
    let rows: [(&str, Of); 5] = [
        ("gradients of a step", |at| &at.gradients),
        ("step, with this run's computation", |at| &at.step),
        ("a batch for every GPU", |at| &at.batch),
        ("checkpoint, written", |at| &at.write),
        ("checkpoint, read back", |at| &at.restore),
    ];
    let mut all = Vec::new();
    for (name, of) in rows {
        let cells = |way: fn(&Ways) -> Option<&Range>| {
            let cell = |at: &At| way(of(at)).map_or_else(|| "–".to_owned(), range);
            outlook.at.iter().map(cell).collect()
        };
        all.push((
            format!("{name}, direct"),
            cells(|ways| ways.direct.as_ref()),
        ));
        all.push((
            format!("{name}, staged"),
            cells(|ways| ways.staged.as_ref()),
        ));
    }
    let longer = |at: &At| at.longer.as_ref().map_or_else(|| "–".to_owned(), growth);
    let longer = outlook.at.iter().map(longer).collect();
    all.push(("a staged step is longer by".to_owned(), longer));
    all
}

fn range(range: &Range) -> String {
    let mark = if range.most.extrapolated { "~" } else { "" };
    let (least, most) = (range.least.value, range.most.value);
    match least == most {
        true => format!("{mark}{}", time(most)),
        false => format!("{mark}{}", times(least, most)),
    }
}

fn growth(range: &Range) -> String {
    let (least, most) = (percent(range.least.value), percent(range.most.value));
    match least == most {
        true => most,
        false => format!("{} to {most}", least.trim_end_matches(" %")),
    }
}

/// What GPUDirect would change on this machine.
pub fn here(standing: &Standing) -> Vec<String> {
    let here = &standing.outlook.here;
    let [storage, ..] = &standing.lanes;
    let mut lines = Vec::new();
    let to_gpu = standing.about.to != "host";
    if let (Some(bounce), Some(copy), false) = (&here.bounce, &here.copy, to_gpu) {
        let each = storage.seconds / storage.transfers.max(1) as f64;
        lines.push(format!(
            "Here, a batch took {} into host memory. On its way to a GPU it would be copied once more: 0 to {} longer, at {} \
             measured of one core. That, and two passes over host memory for each byte, is what GPUDirect Storage would spare.",
            seconds(each),
            seconds(bounce.most.value),
            copy.rate,
        ));
    }
    if !here.crosses_network {
        lines.push(
            "Here, gradients crossed no network, so GPUDirect RDMA would change nothing."
                .to_owned(),
        );
    }
    let direct = here.to_gpu.iter().find(|candidate| {
        candidate.route.class() == Class::Direct && candidate.standing() != Open::Open
    });
    let blocking = direct.and_then(|candidate| candidate.obstacles.first());
    if let Some(obstacle) = blocking {
        lines.push(format!(
            "Here, what stands first between this data and a GPU: {} ({}).",
            harmless(&obstacle.summary),
            obstacle.code.as_str()
        ));
    }
    lines
}
