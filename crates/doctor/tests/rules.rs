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
