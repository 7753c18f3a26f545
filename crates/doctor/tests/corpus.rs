//! Real pastes with known verdicts, run where they are present: beside the repository, never in it.
//!
//! `corpus.tsv` says for each file which verdict and which findings are right. A file whose verdict
//! is `insufficient-evidence` without being expected to be counts as insufficient; anything else
//! that differs is wrong.

use std::path::{Path, PathBuf};

use crowfly_doctor::{Case, Diagnosis, Severity, diagnose};

const EXPECTED: &str = include_str!("corpus.tsv");

/// One line of the table.
struct Expected {
    file: &'static str,
    verdict: &'static str,
    /// Codes that must be among the findings.
    codes: Vec<&'static str>,
}

fn expected() -> Vec<Expected> {
    EXPECTED
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [file, verdict, codes] = fields[..] else {
                panic!("not three fields: {line}");
            };
            Expected {
                file,
                verdict,
                codes: codes.split(' ').filter(|c| *c != "-").collect(),
            }
        })
        .collect()
}

/// The corpus lies beside the repository's directory, or where a variable says.
fn corpus() -> Option<PathBuf> {
    let named = std::env::var_os("CROWFLY_CORPUS").map(PathBuf::from);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let beside = repository.parent()?.join("shared/corpus");
    named.or(Some(beside)).filter(|path| path.is_dir())
}

/// Grave findings that the table does not expect: a healthy machine must have none.
fn surprises<'a>(diagnosis: &'a Diagnosis, expected: &Expected) -> Vec<&'a str> {
    diagnosis
        .findings
        .iter()
        .filter(|f| f.severity >= Severity::Fault && !expected.codes.contains(&f.code))
        .map(|f| f.code)
        .collect()
}

#[test]
fn given_real_pastes_every_verdict_is_right_or_says_what_is_missing() {
    let Some(corpus) = corpus() else {
        crowfly_waive::waived!("no corpus of real pastes beside the repository");
    };
    let (mut right, mut insufficient, mut wrong) = (0, Vec::new(), Vec::new());
    for expected in expected() {
        let path = corpus.join(expected.file);
        let bytes = std::fs::read(&path).expect("the table names files of the corpus");
        let document = crowfly_doctor::evidence::read(expected.file, &bytes);
        let diagnosis = diagnose(&Case::new().with_document(document));
        let found: Vec<&str> = diagnosis.findings.iter().map(|f| f.code).collect();
        let missing: Vec<&str> = expected
            .codes
            .iter()
            .filter(|code| !found.contains(code))
            .copied()
            .collect();
        let surprises = surprises(&diagnosis, &expected);
        let verdict = diagnosis.verdict.as_str();
        if std::env::var_os("CROWFLY_CORPUS_SHOW").is_some() {
            println!(
                "\n== {}: {verdict} {found:?}\n   {}",
                expected.file, diagnosis.headline
            );
            for finding in &diagnosis.findings {
                println!(
                    "   {} {} {}",
                    finding.code,
                    finding.severity.as_str(),
                    finding.title
                );
            }
        }
        if verdict == expected.verdict && missing.is_empty() && surprises.is_empty() {
            right += 1;
        } else if verdict == "insufficient-evidence" && surprises.is_empty() {
            insufficient.push(format!(
                "{}: expected {}, {missing:?}",
                expected.file, expected.verdict
            ));
        } else {
            wrong.push(format!(
                "{}: {verdict} {found:?}, expected {} {:?}; missing {missing:?}, too much {surprises:?}",
                expected.file, expected.verdict, expected.codes
            ));
        }
    }
    println!(
        "right {right}, insufficient {}, wrong {}",
        insufficient.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "wrong:\n{}", wrong.join("\n"));
    assert!(
        insufficient.is_empty(),
        "insufficient:\n{}",
        insufficient.join("\n")
    );
}

#[test]
fn every_expected_code_is_a_rule() {
    for expected in expected() {
        for code in expected.codes {
            assert!(
                crowfly_doctor::Rule::find(code).is_some(),
                "{}: {code}",
                expected.file
            );
        }
    }
}
