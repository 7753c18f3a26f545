//! Any bytes as a paste: read, judged and told, the same whether they come whole or in pieces.
#![no_main]

use crowfly_doctor::evidence::{Document, Intake, read};
use crowfly_doctor::finding::Spot;
use crowfly_doctor::{Case, Diagnosis, Finding, diagnose};
use libfuzzer_sys::fuzz_target;

/// Separates the sources of one story.
const BETWEEN: &[u8] = b"\n%%\n";
/// More sources than this are one.
const MAX_SOURCES: usize = 4;

fuzz_target!(|bytes: &[u8]| {
    let mut case = Case::new();
    for (at, source) in sources(bytes).into_iter().enumerate() {
        let name = format!("source{at}");
        let document = read(name.as_str(), source);
        assert_eq!(document, in_pieces(&name, source));
        for section in &document.sections {
            assert!(section.first <= section.last && section.last.0 <= document.lines);
        }
        case.add_document(document);
    }
    let diagnosis = diagnose(&case);
    assert!(!diagnosis.headline.is_empty());
    assert!(diagnosis.pairs.len() <= Diagnosis::MAX_PAIRS);
    for finding in &diagnosis.findings {
        assert!(!finding.title.is_empty());
        assert!(finding.evidence.len() <= Finding::MAX_EVIDENCE);
        assert!(finding.pairs.len() <= Finding::MAX_PAIRS);
        // What is quoted is there.
        for quote in &finding.evidence {
            if let Spot::Line(line) = quote.at {
                // A part that one machine of several wrote is named after the source.
                let said = |d: &&Document| quote.source.as_str().starts_with(d.source.as_str());
                let source = case.documents.iter().find(said).expect("a source");
                assert!(line.0 >= 1 && line.0 <= source.lines);
            }
        }
    }
    serde_json::to_string(&diagnosis).expect("a diagnosis has a JSON form");
});

fn sources(bytes: &[u8]) -> Vec<&[u8]> {
    let mut sources = Vec::new();
    let mut rest = bytes;
    while sources.len() + 1 < MAX_SOURCES {
        let Some(at) = rest.windows(BETWEEN.len()).position(|w| w == BETWEEN) else {
            break;
        };
        sources.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    sources.push(rest);
    sources
}

/// The same bytes in pieces whose lengths follow from the bytes themselves.
fn in_pieces(name: &str, bytes: &[u8]) -> Document {
    let mut intake = Intake::new(name);
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let length = (1 + usize::from(*first) * 3).min(rest.len());
        let (piece, after) = rest.split_at(length);
        intake.feed(piece);
        rest = after;
    }
    intake.finish()
}
