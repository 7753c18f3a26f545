//! Whether the straight way matters, and the curve over the number of servers.

use crowfly_plan::assess::{Assessment, Matters, SweepPoint, Traffic, is_article_exchange};
use crowfly_plan::calibrated::{StagedRange, StagedRate};
use crowfly_plan::figure::Figure;
use crowfly_plan::step::Step;

use super::amounts::{count, figure, maybe, rate, size, time, times};
use super::{Column, Sheet, SheetTable, three};
use Column::{Flexible, Number, Text};

/// The answer to `crowfly plan`.
pub fn assessment(answer: &Assessment) -> Sheet {
    let mut tables = vec![exchange(answer)];
    tables.extend(host_memory(answer));
    tables.push(step(answer));
    let mut notes = vec![notes_on_models(answer)];
    if !is_article_exchange(&answer.workload) {
        notes.push(
            "The article knows plain data parallelism alone: its row is what that would exchange."
                .into(),
        );
    }
    if answer.workload.expert > 1 && answer.workload.model.experts.is_none() {
        let (degree, model) = (answer.workload.expert, &answer.workload.model.name);
        notes.push(format!(
            "{model} has no experts: --expert {degree} changes nothing."
        ));
    }
    if answer.calibrated.direct.extrapolated {
        notes.push(
            "~ lies beyond what the calibrated model was held against: 128 domains, and NVLink 5."
                .into(),
        );
    }
    Sheet {
        verdict: sentence(answer),
        tables,
        charts: super::chart::assessment(answer),
        notes,
        ..Sheet::default()
    }
}

fn notes_on_models(answer: &Assessment) -> String {
    let tokens = count(answer.workload.tokens_per_gpu as f64);
    format!(
        "article: line rates, no latency, no overlap. calibrated: NCCL's algorithms at measured rates \
         (`crowfly plan validate`); the step is for {tokens} tokens a GPU, with compute at an assumed \
         65 % of the GPU's dense rate."
    )
}

/// The verdict.
fn sentence(answer: &Assessment) -> String {
    let name = &answer.cluster.server.name;
    let servers = answer.cluster.servers;
    let plural = if servers == 1 { "" } else { "s" };
    let model = &answer.workload.model.name;
    let who = format!("{} {name} server{plural}", count(servers.into()));
    let bytes = size(answer.step.direct.gradient_bytes_per_nic);
    let direct = figure(&answer.calibrated.direct);
    let staged = answer.calibrated.staged.as_ref();
    let range = staged.map(|staged| times(staged.fast.value, staged.slow.value));
    let range = range.unwrap_or_default();
    let with = format!(
        "with {who} each step of {model} sends {bytes} through every NIC, which takes {direct} direct"
    );
    let from = answer.crosses_from_servers;
    match answer.matters {
        Matters::WithinOneDomain => format!(
            "It does not matter yet: the GPUs of {who} share one NVLink domain and the NICs stand idle. From {from} servers on gradients cross the network."
        ),
        Matters::NoDirectPath => format!(
            "It cannot be had: {name} has no direct path between GPU memory and network; {with}, if it had one."
        ),
        Matters::Unknown => format!(
            "Nobody can say how much it matters: {with}, but the bandwidth of host memory, which staging would use, is not known."
        ),
        Matters::No => {
            format!("It matters little: {with}, and about as long staged through host RAM.")
        }
        Matters::Yes | Matters::Somewhat
            if answer
                .most_slowed
                .is_some_and(|traffic| traffic != Traffic::Gradients) =>
        {
            let (matters, traffic) = (answer.matters, answer.most_slowed);
            of_the_step(answer, &who, matters, traffic.map_or("", Traffic::as_str))
        }
        Matters::Yes => {
            let felt = answer.felt_from_servers.map_or(String::new(), |felt| {
                format!(" The step feels it from {} servers on.", count(felt.into()))
            });
            format!("It matters: {with} and {range} staged through host RAM.{felt}")
        }
        Matters::Somewhat => format!(
            "It matters for the exchange: {with} and {range} staged through host RAM; but {} tokens a GPU give the backward pass time to hide most of that.",
            count(answer.workload.tokens_per_gpu as f64)
        ),
    }
}

/// The verdict where staging slows other traffic more than gradients.
fn of_the_step(answer: &Assessment, who: &str, matters: Matters, traffic: &str) -> String {
    let total = |step: Option<&Step>| step.and_then(|step| step.total);
    let steps = &answer.step;
    let direct = total(Some(&steps.direct)).map(time);
    let staged = total(steps.staged_fast.as_ref())
        .zip(total(steps.staged_slow.as_ref()))
        .map(|(fast, slow)| times(fast, slow));
    let model = &answer.workload.model.name;
    let word = match matters {
        Matters::Yes => "It matters",
        _ => "It matters somewhat",
    };
    format!(
        "{word}: with {who} a step of {model} takes {} direct and {} staged through host RAM, which slows its {traffic} the most.",
        direct.unwrap_or_default(),
        staged.unwrap_or_default()
    )
}

fn exchange(answer: &Assessment) -> SheetTable {
    let columns = [
        Text(""),
        Number("direct"),
        Number("staged at best"),
        Number("at worst"),
        Number("ratio"),
        Flexible("capped by"),
    ];
    let mut table = SheetTable::new("Exchange of gradients, per step", columns);
    let article = &answer.article;
    let crosses = answer.domains > 1;
    table.row(cells![
        "article",
        figure(&article.direct),
        maybe(article.staged.as_ref()),
        maybe(article.staged.as_ref()),
        maybe(article.ratio.as_ref()),
        match (&article.staged_share, crosses) {
            (Some(share), true) if share.value < 1.0 => "staged: host memory",
            (_, true) => "the NICs' line rate",
            (_, false) => "",
        },
    ]);
    let calibrated = &answer.calibrated;
    let staged = calibrated.staged.as_ref();
    let direct = calibrated.direct.value;
    let knows_memory = answer.cluster.server.memory.is_some();
    let ratio = staged.filter(|_| direct > 0.0 && crosses).map(|staged| {
        let (low, high) = (
            three(staged.fast.value / direct),
            three(staged.slow.value / direct),
        );
        if !knows_memory {
            format!("from {low}")
        } else if low == high {
            low
        } else {
            format!("{low} to {high}")
        }
    });
    let algorithm = calibrated.estimate.as_ref().map(|e| e.algorithm.as_str());
    table.row(cells![
        format!("calibrated, {}", algorithm.unwrap_or("nothing")),
        figure(&calibrated.direct),
        maybe(staged.map(|staged| &staged.fast)),
        maybe(
            staged
                .filter(|_| knows_memory || !crosses)
                .map(|staged| &staged.slow)
        ),
        ratio.unwrap_or_default(),
        caps(answer, staged.map(|staged| &staged.range)),
    ]);
    for (name, figure_) in [
        ("flat ring", &calibrated.flat_ring),
        ("hierarchical", &calibrated.hierarchical),
    ] {
        table.row(cells![format!("  {name}"), figure(figure_), "", "", "", "",]);
    }
    table
}

fn caps(answer: &Assessment, range: Option<&StagedRange>) -> String {
    let direct = answer.direct_cap.map_or("nothing", |cap| cap.as_str());
    let end =
        |rate_: &StagedRate| format!("{} ({} a NIC)", rate_.bound.as_str(), rate(rate_.per_nic.0));
    match range.filter(|_| answer.domains > 1) {
        Some(range) if answer.cluster.server.memory.is_none() => {
            format!("direct: {direct}; staged: {} at best", end(&range.fast))
        }
        Some(range) if range.slow == range.fast => {
            format!("direct: {direct}; staged: {}", end(&range.slow))
        }
        Some(range) => format!(
            "direct: {direct}; staged: {} at worst, {} at best",
            end(&range.slow),
            end(&range.fast)
        ),
        None => direct.to_owned(),
    }
}

fn host_memory(answer: &Assessment) -> Option<SheetTable> {
    let article = &answer.article;
    let peak = article.memory_peak.as_ref()?;
    let columns = [Text(""), Number(""), Flexible("")];
    let mut table = SheetTable::new("Host RAM, if the network is staged through it", columns);
    let mut row = |what: &str, figure_: Option<&Figure>| {
        if let Some(known) = figure_ {
            table.row(cells![
                what.to_owned(),
                figure(known),
                known.provenance.detail().to_owned(),
            ]);
        }
    };
    row("all NICs, one direction", Some(&article.line_rate));
    row("memory traffic at line rate", Some(&article.memory_traffic));
    row("memory peak", Some(peak));
    row("leaves each NIC", article.staged_per_nic.as_ref());
    row("of its line rate", article.staged_share.as_ref());
    Some(table)
}

fn step(answer: &Assessment) -> SheetTable {
    let columns = [
        Text(""),
        Number("direct"),
        Number("staged at best"),
        Number("staged at worst"),
    ];
    let mut table = SheetTable::new("The step, calibrated", columns);
    let steps = [
        Some(&answer.step.direct),
        answer.step.staged_fast.as_ref(),
        answer.step.staged_slow.as_ref(),
    ];
    let mut row = |what: &str, part: fn(&Step) -> Option<f64>| {
        let parts = steps.map(|step| step.and_then(part));
        if parts.iter().flatten().any(|seconds| *seconds > 0.0) {
            let shown = parts.map(|part| part.map(time).unwrap_or_default());
            table.row(std::iter::once(what.into()).chain(shown));
        }
    };
    row("compute", |step| step.compute);
    row("pipeline bubble", |step| Some(step.bubble));
    row("tensor parallel", |step| Some(step.tensor));
    row("pipeline parallel", |step| Some(step.pipeline));
    row("expert parallel", |step| Some(step.expert));
    row("exchange not hidden", |step| Some(step.exposed));
    row("step", |step| step.total);
    table
}

/// The answer to `--compare`.
pub fn comparison(answers: &[Assessment]) -> Sheet {
    let columns = [
        Text(""),
        Number("GPUs"),
        Number("direct"),
        Number("staged at best"),
        Number("at worst"),
        Number("step direct"),
        Number("staged at worst"),
        Flexible("direct capped by"),
    ];
    let mut table = SheetTable::new("Per step, calibrated", columns);
    for answer in answers {
        let staged = answer.calibrated.staged.as_ref();
        let total = |step: Option<&Step>| step.and_then(|s| s.total).map(time).unwrap_or_default();
        table.row(cells![
            format!("{}:{}", answer.cluster.server.name, answer.cluster.servers),
            count(answer.cluster.gpus() as f64),
            figure(&answer.calibrated.direct),
            maybe(staged.map(|staged| &staged.fast)),
            maybe(staged.map(|staged| &staged.slow)),
            total(Some(&answer.step.direct)),
            total(answer.step.staged_slow.as_ref()),
            answer.direct_cap.map_or("", |cap| cap.as_str()).to_owned(),
        ]);
    }
    Sheet {
        verdict: compared(answers),
        tables: vec![table],
        ..Sheet::default()
    }
}

fn compared(answers: &[Assessment]) -> String {
    let [a, b] = answers else {
        return String::new();
    };
    let per_token = |answer: &Assessment| {
        let tokens = answer.workload.tokens_per_gpu as f64 * answer.cluster.gpus() as f64;
        answer.step.direct.total.map(|step| tokens / step)
    };
    let name =
        |answer: &Assessment| format!("{}:{}", answer.cluster.server.name, answer.cluster.servers);
    match per_token(a).zip(per_token(b)) {
        Some((first, second)) if three(first / second) == three(1.0) => format!(
            "Direct, {} and {} train {} equally fast.",
            name(a),
            name(b),
            a.workload.model.name
        ),
        Some((first, second)) => {
            let (fast, slow, ratio) = if first >= second {
                (a, b, first / second)
            } else {
                (b, a, second / first)
            };
            format!(
                "Direct, {} trains {} {} times as fast as {}.",
                name(fast),
                a.workload.model.name,
                three(ratio),
                name(slow)
            )
        }
        None => format!(
            "The step of {} and {} cannot be compared: a GPU's rate is not known.",
            name(a),
            name(b)
        ),
    }
}

/// The answer to `--sweep`.
pub fn sweep(server: &str, model: &str, points: &[SweepPoint]) -> Sheet {
    let columns = [
        Number("servers"),
        Number("GPUs"),
        Number("article direct"),
        Number("staged"),
        Number("calibrated direct"),
        Number("staged at best"),
        Number("at worst"),
        Text("by"),
    ];
    let mut table = SheetTable::new("Exchange of gradients, per step", columns);
    for point in points {
        let mark = if point.extrapolated { "~" } else { "" };
        let known =
            |seconds: Option<f64>| seconds.map(|s| time(s).marked(mark)).unwrap_or_default();
        table.row(cells![
            count(point.servers.into()),
            count(point.gpus as f64),
            time(point.article_direct),
            point.article_staged.map(time).unwrap_or_default(),
            known(Some(point.direct)),
            known(point.staged_fast),
            known(point.staged_slow),
            point
                .algorithm
                .map_or("", |algorithm| algorithm.as_str())
                .to_owned(),
        ]);
    }
    let ends = points
        .iter()
        .find(|p| p.article_direct > 0.0)
        .zip(points.last());
    let verdict = match ends {
        Some((first, last)) if first.servers < last.servers => format!(
            "The exchange of {model} on {server} takes {} on {} servers and {} on {}, direct: it climbs to a plateau, and staging multiplies it at every size{}.",
            time(first.direct),
            count(first.servers.into()),
            time(last.direct),
            count(last.servers.into()),
            last.article_staged.map_or(String::new(), |staged| format!(
                ", by the article {}-fold",
                three(staged / last.article_direct)
            ))
        ),
        _ => format!("The exchange of {model} on {server}, by the number of servers."),
    };
    let mut notes = Vec::new();
    if points.iter().any(|point| point.extrapolated) {
        notes.push("~ lies beyond the 128 domains up to which the calibrated model was held against measurements.".into());
    }
    Sheet {
        verdict,
        tables: vec![table],
        notes,
        ..Sheet::default()
    }
}
