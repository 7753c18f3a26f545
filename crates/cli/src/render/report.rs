//! A diagnosis as one page of HTML that needs nothing but itself: no script, and nothing is fetched.

use std::collections::BTreeSet;
use std::fmt::Write;

use crowfly_doctor::evidence::Format;
use crowfly_doctor::verdict::Basis;
use crowfly_doctor::{Diagnosis, Finding, Missing, Severity, Verdict};
use crowfly_route::obstacle::Fix;
use crowfly_route::units::significant;

use crate::commands::doctor::answer::Answer;
use crate::commands::doctor::host::Host;

mod drawing;
pub mod html;
mod nccl_machine;
mod pair_picture;
mod slots;

use html::{chip, code_links, section, severity, table, text, unfold};

/// Findings whose evidence is unfolded from the start.
const FIRST_FINDINGS: usize = 3;
/// More pairs than this are folded away.
const FEW_PAIRS: usize = 24;
/// Pairs named by one finding.
const FEW_NAMED: usize = 12;

/// The page.
pub fn render(answer: &Answer) -> String {
    let words = super::diagnosis::words(answer.diagnosis.verdict);
    html::document(&format!("crowfly doctor: {words}"), "", &body(answer))
}

/// What stands on the page.
pub fn body(answer: &Answer) -> String {
    let diagnosis = &answer.diagnosis;
    let mut body = head(diagnosis);
    body.push_str(&section("By kind of path", &kinds(diagnosis)));
    body.push_str(&section("Findings", &findings(diagnosis)));
    let drawing = drawing::render(&answer.case, diagnosis);
    body.push_str(&section("What goes where", &drawing));
    body.push_str(&section("Pairs", &pairs(diagnosis)));
    body.push_str(&section(
        "To settle what is open",
        &missing(&diagnosis.missing),
    ));
    if let Some(host) = &answer.host {
        body.push_str(&section("What was looked at", &looked_at(host)));
        let slots = host.slots.as_ref().map(slots::render);
        body.push_str(&section(
            "If a GPU sat in a slot",
            &slots.unwrap_or_default(),
        ));
    }
    body.push_str(&section("What was read", &sources(answer)));
    body.push_str(&identity(answer));
    if answer.case.is_empty() {
        body.push_str(&section("What is known", &formats()));
    }
    body
}

fn head(diagnosis: &Diagnosis) -> String {
    format!(
        "<header>\n{}\n<h1>{}</h1>\n<p class=\"soft\">crowfly {} · {}</p>\n</header>\n",
        chip(diagnosis.verdict),
        text(&diagnosis.headline),
        env!("CARGO_PKG_VERSION"),
        diagnosis.schema,
    )
}

fn kinds(diagnosis: &Diagnosis) -> String {
    if diagnosis.kinds.is_empty() {
        return String::new();
    }
    let mut html = String::from("<div class=\"cards\">\n");
    for kind in &diagnosis.kinds {
        let _ = writeln!(
            html,
            "<div class=\"card\"><h3>{} {}</h3><p>{}</p></div>",
            text(kind.kind.title()),
            chip(kind.verdict),
            text(&kind.why)
        );
    }
    html.push_str("</div>\n");
    html
}

fn findings(diagnosis: &Diagnosis) -> String {
    let mut seen = BTreeSet::new();
    let all = diagnosis.findings.iter().enumerate();
    all.map(|(index, finding)| {
        one_finding(finding, index < FIRST_FINDINGS, seen.insert(finding.code))
    })
    .collect()
}

fn one_finding(finding: &Finding, open: bool, first: bool) -> String {
    let mut html = format!(
        "<article class=\"finding {class}\"{id}>\n<h3>{code} {name}</h3>\n<p>{title}</p>\n",
        // Several findings can have one code; links lead to the first of them.
        id = match first {
            true => format!(" id=\"{}\"", text(finding.code)),
            false => String::new(),
        },
        class = severity(finding.severity),
        code = text(finding.code),
        name = text(finding.name),
        title = text(&finding.title),
    );
    if finding.severity != Severity::Note {
        let word = finding.severity.as_str();
        html = html.replacen(
            "</h3>",
            &format!(" <span class=\"soft\">{word}</span></h3>"),
            1,
        );
    }
    if let Some(cost) = finding.cost {
        let factor = match cost.now.0 > 0.0 {
            true => format!(" (×{})", significant(cost.without.0 / cost.now.0)),
            false => String::new(),
        };
        let _ = writeln!(
            html,
            "<h4>Cost</h4>\n<p>{} now, {} without it{factor} <span class=\"soft\">({})</span></p>",
            cost.now,
            cost.without,
            text(&finding.cost_basis)
        );
    } else if finding.severity != Severity::Note {
        let _ = writeln!(html, "<h4>Cost</h4>\n<p>{}</p>", text(&finding.cost_basis));
    }
    if !finding.fix.is_empty() {
        html.push_str("<h4>Fix</h4>\n<ol>\n");
        finding.fix.iter().for_each(|fix| html.push_str(&step(fix)));
        html.push_str("</ol>\n");
    }
    if !finding.evidence.is_empty() {
        html.push_str(&unfold("Evidence", open, &quotes(finding)));
    }
    if !finding.doubts.is_empty() {
        html.push_str("<h4>What could be wrong about it</h4>\n<ul>\n");
        for doubt in &finding.doubts {
            let _ = writeln!(html, "<li>{}</li>", text(doubt));
        }
        html.push_str("</ul>\n");
    }
    if !finding.pairs.is_empty() {
        let named: Vec<String> = finding
            .pairs
            .iter()
            .take(FEW_NAMED)
            .map(|p| text(&p.to_string()))
            .collect();
        let left = finding.pairs.len().saturating_sub(FEW_NAMED);
        let more = if left > 0 {
            format!(" and {left} more")
        } else {
            String::new()
        };
        let _ = writeln!(html, "<h4>Pairs</h4>\n<p>{}{more}</p>", named.join(", "));
    }
    let _ = writeln!(
        html,
        "<p class=\"soft\">Source: {}</p>\n</article>",
        text(finding.reference)
    );
    html
}

fn step(fix: &Fix) -> String {
    let mut html = format!("<li>{}", text(&fix.what));
    if let Some(command) = &fix.command {
        let _ = write!(html, "<pre>{}</pre>", text(command));
    }
    if let Some(check) = &fix.check {
        let _ = write!(
            html,
            "<span class=\"soft\">check</span><pre>{}</pre>",
            text(check)
        );
    }
    html.push_str("</li>\n");
    html
}

fn quotes(finding: &Finding) -> String {
    let quote = |quote: &crowfly_doctor::Quote| {
        format!(
            "<div class=\"quote\"><span class=\"at\">{}</span><pre>{}</pre></div>\n",
            text(&super::diagnosis::place(quote)),
            text(&super::diagnosis::quoted(quote))
        )
    };
    finding.evidence.iter().map(quote).collect()
}

fn pairs(diagnosis: &Diagnosis) -> String {
    if diagnosis.pairs.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = diagnosis
        .pairs
        .iter()
        .map(|pair| {
            let basis = match (pair.verdict, pair.basis) {
                (Verdict::InsufficientEvidence, _) => "–",
                (_, Basis::Observed) => "transfers",
                (_, Basis::Measured) => "the rate",
                (_, Basis::Predicted) => "the layout",
            };
            vec![
                text(pair.pair.kind.title()),
                text(&pair.pair.to_string()),
                chip(pair.verdict),
                basis.to_owned(),
                text(&pair.why),
                code_links(&pair.findings),
            ]
        })
        .collect();
    let titles = ["kind", "pair", "verdict", "shown by", "why", "findings"];
    let all = table(&titles, &rows);
    let mut html = match rows.len() > FEW_PAIRS {
        true => unfold(&format!("All {} pairs", rows.len()), false, &all),
        false => all,
    };
    if diagnosis.pairs_beyond_limit > 0 {
        let _ = writeln!(
            html,
            "<p class=\"soft\">{} more pairs are not listed.</p>",
            diagnosis.pairs_beyond_limit
        );
    }
    html
}

fn missing(missing: &[Missing]) -> String {
    let one = |missing: &Missing| {
        let about = missing
            .about
            .map_or(String::new(), |kind| format!(" ({})", kind.title()));
        format!(
            "<p><strong>{}</strong>{}: {}</p>\n<pre>{}</pre>\n",
            text(&missing.what),
            text(&about),
            text(&missing.why),
            text(&missing.command)
        )
    };
    missing.iter().map(one).collect()
}

fn looked_at(host: &Host) -> String {
    let mut html = format!("<p>Found: {}.</p>\n", text(&host.devices));
    if !host.machine.is_empty() {
        let _ = writeln!(html, "<p class=\"soft\">{}.</p>", text(&host.machine));
    }
    if !host.unseen.is_empty() {
        let rows: Vec<Vec<String>> = host
            .unseen
            .iter()
            .map(|unseen| {
                vec![
                    text(&unseen.what),
                    unseen.places.to_string(),
                    text(&unseen.why),
                    text(unseen.hint.unwrap_or("–")),
                ]
            })
            .collect();
        html.push_str("<p class=\"sub\">Could not be looked at or asked</p>\n");
        html.push_str(&table(&["what", "places", "why", "how to look"], &rows));
    }
    html
}

fn sources(answer: &Answer) -> String {
    let case = &answer.case;
    let mut rows = Vec::new();
    for document in &case.documents {
        let read: Vec<String> = document
            .sections
            .iter()
            .map(|s| format!("{}, lines {}–{}", s.format, s.first, s.last))
            .collect();
        let read = match read.as_slice() {
            [] => "nothing known".to_owned(),
            read => read.join("; "),
        };
        let looked: Vec<String> = document
            .unread
            .first
            .iter()
            .map(|cite| format!("{}: {}", cite.line, cite.quote))
            .collect();
        let unread = match looked.as_slice() {
            [] => "–".to_owned(),
            looked => unfold(
                &format!("{} of {} lines", document.unread.lines, document.lines),
                false,
                &format!(
                    "<pre>{}</pre>",
                    looked
                        .iter()
                        .map(|l| text(l))
                        .collect::<Vec<_>>()
                        .join("\n")
                ),
            ),
        };
        rows.push(vec![text(document.source.as_str()), text(&read), unread]);
    }
    for machine in &case.machines {
        let read = case.documents.iter().any(|d| d.source == machine.source);
        if !read {
            rows.push(vec![
                text(machine.source.as_str()),
                "the machine".into(),
                "–".into(),
            ]);
        }
    }
    let mut html = match rows.is_empty() {
        true => String::new(),
        false => table(&["source", "read as", "not known"], &rows),
    };
    for refused in &case.refused {
        let _ = writeln!(
            html,
            "<p class=\"is-warn\">{} looks like a machine and could not be read as one: {}</p>",
            text(&super::diagnosis::place(&refused.quote)),
            text(&refused.why)
        );
    }
    html
}

/// Whether what identifies the machines is shown.
fn identity(answer: &Answer) -> String {
    let mut snapshots = answer
        .case
        .machines
        .iter()
        .filter_map(|m| m.snapshot.as_ref());
    let machines = match (snapshots.clone().next(), snapshots.all(|s| s.redacted)) {
        (None, _) => "",
        (Some(_), true) => {
            "Names of hosts and users, serial numbers and addresses of the machines are stand-ins. "
        }
        (Some(_), false) => {
            "Names of hosts and users, serial numbers and addresses of the machines are not replaced. "
        }
    };
    let files = match answer.case.documents.is_empty() {
        true => "",
        false => "Lines quoted from files are as they were given.",
    };
    match (machines, files) {
        ("", "") => String::new(),
        _ => format!("<p class=\"soft\">{machines}{files}</p>\n"),
    }
}

fn formats() -> String {
    let rows: Vec<Vec<String>> = Format::ALL
        .iter()
        .map(|format| {
            vec![
                text(format.title()),
                format!("<code>{}</code>", text(format.collect())),
            ]
        })
        .collect();
    table(&["format", "how to get it"], &rows)
}
