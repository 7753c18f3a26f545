//! Every rule fires on what it is about and is quiet on what only looks like it.

mod rules {
    pub mod given;

    pub mod amd;
    pub mod cloud;
    pub mod container;
    pub mod gds;
    pub mod gpu;
    pub mod join;
    pub mod kernel;
    pub mod nccl;
    pub mod nccl_runs;
    pub mod rdma;
    pub mod results;
}

use std::collections::BTreeSet;

use crowfly_doctor::{Rule, diagnose};
use rules::given::Example;

fn examples() -> Vec<Example> {
    [
        rules::nccl::examples(),
        rules::nccl_runs::examples(),
        rules::kernel::examples(),
        rules::gds::examples(),
        rules::rdma::examples(),
        rules::container::examples(),
        rules::cloud::examples(),
        rules::amd::examples(),
        rules::gpu::examples(),
        rules::results::examples(),
        rules::join::examples(),
    ]
    .concat()
}

#[test]
fn given_what_a_rule_is_about_it_fires_with_evidence_and_the_right_weight() {
    let mut faults = Vec::new();
    for example in examples() {
        let diagnosis = diagnose(&(example.fires)());
        let found = diagnosis.findings.iter().find(|f| f.code == example.rule);
        match found {
            None => {
                let others: Vec<_> = diagnosis.findings.iter().map(|f| f.code).collect();
                faults.push(format!("{} does not fire; {others:?} do", example.rule));
            }
            Some(finding) => {
                if finding.severity != example.severity {
                    faults.push(format!(
                        "{} fires as {:?}, not {:?}: {}",
                        example.rule, finding.severity, example.severity, finding.title
                    ));
                }
                if finding.evidence.is_empty() && example.rule != "J4" {
                    faults.push(format!("{} quotes nothing", example.rule));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn given_what_only_looks_like_it_a_rule_is_quiet() {
    let mut faults = Vec::new();
    for example in examples() {
        let diagnosis = diagnose(&(example.quiet)());
        // A note of the same rule says what is as it should be; it is no alarm.
        let alarm = diagnosis
            .findings
            .iter()
            .find(|f| f.code == example.rule && f.severity >= example.severity);
        if let Some(finding) = alarm {
            faults.push(format!("{} fires: {}", example.rule, finding.title));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_finding_says_what_it_costs_or_why_that_is_not_known() {
    let mut faults = Vec::new();
    for example in examples() {
        for finding in diagnose(&(example.fires)()).findings {
            let code = finding.code;
            if finding.cost_basis.is_empty() {
                faults.push(format!("{code} says nothing of its cost"));
            }
            if let Some(cost) = finding.cost
                && cost.now.0 >= cost.without.0
            {
                faults.push(format!("{code} costs nothing: {cost:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_fault_and_warning_says_what_to_do_how_to_check_it_and_what_could_be_wrong() {
    let mut faults = BTreeSet::new();
    for example in examples() {
        for finding in diagnose(&(example.fires)()).findings {
            if finding.severity == crowfly_doctor::Severity::Note {
                continue;
            }
            let code = finding.code;
            if finding.fix.is_empty() {
                faults.insert(format!("{code} has no fix: {}", finding.title));
            } else if finding.fix.iter().all(|fix| fix.check.is_none()) {
                faults.insert(format!("{code} has no check: {}", finding.title));
            }
            if finding.doubts.is_empty() {
                faults.insert(format!("{code} doubts nothing: {}", finding.title));
            }
            if finding.reference.is_empty() {
                faults.insert(format!("{code} has no reference"));
            }
        }
    }
    let faults: Vec<String> = faults.into_iter().collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The conditions that the doctor was asked to know, as families and how many of each.
const ASKED: [(char, u32); 8] = [
    ('N', 22),
    ('K', 10),
    ('G', 10),
    ('R', 8),
    ('C', 4),
    ('V', 4),
    ('A', 3),
    ('H', 4),
];

#[test]
fn every_condition_that_was_asked_for_is_a_rule_with_an_example() {
    let shown: BTreeSet<&str> = examples().iter().map(|e| e.rule).collect();
    let asked: Vec<String> = ASKED
        .iter()
        .flat_map(|(family, last)| (1..=*last).map(move |n| format!("{family}{n}")))
        .collect();
    assert_eq!(asked.len(), 65);
    for id in &asked {
        assert!(Rule::find(id).is_some(), "{id}");
        assert!(shown.contains(id.as_str()), "{id} has no example");
    }
    // Where the list itself lies beside the repository, it names the same.
    let list = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(3)
        .map(|beside| beside.join("shared/facts/RULES.tsv"));
    let Some(Ok(list)) = list.map(std::fs::read_to_string) else {
        crowfly_waive::record("no list of rules beside the repository");
        return;
    };
    let ids: BTreeSet<&str> = list
        .lines()
        .skip(1)
        .filter_map(|l| l.split('\t').next())
        .filter(|id| !id.is_empty())
        .collect();
    assert_eq!(ids, asked.iter().map(String::as_str).collect());
}

#[test]
fn every_rule_has_an_example() {
    let shown: BTreeSet<&str> = examples().iter().map(|e| e.rule).collect();
    let all: BTreeSet<&str> = Rule::all().map(|rule| rule.id).collect();
    let missing: Vec<_> = all.difference(&shown).collect();
    assert!(missing.is_empty(), "without an example: {missing:?}");
}

#[test]
fn rules_have_unique_codes_and_whole_pages() {
    let mut seen = BTreeSet::new();
    for rule in Rule::all() {
        assert!(seen.insert(rule.id), "{} twice", rule.id);
        assert!(seen.insert(rule.name), "{} twice", rule.name);
        let kebab = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        assert!(rule.name.bytes().all(kebab), "{}", rule.name);
        let page = rule.page;
        for text in [
            page.condition,
            page.detection,
            page.consequence,
            page.fix,
            page.false_alarms,
        ] {
            assert!(text.ends_with('.'), "{}: {text}", rule.id);
        }
        assert!(
            !page.source.is_empty() && !rule.summary.is_empty(),
            "{}",
            rule.id
        );
        assert_eq!(Rule::find(rule.id).map(|r| r.name), Some(rule.name));
        assert_eq!(Rule::find(rule.name).map(|r| r.id), Some(rule.id));
    }
}
