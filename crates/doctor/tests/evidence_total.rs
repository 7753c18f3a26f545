//! No text does harm, and no decoration or company hides an artefact.

#[path = "evidence/samples.rs"]
mod samples;

use crowfly_doctor::evidence::intake::MAX_SECTIONS;
use crowfly_doctor::evidence::{Artefact, Document, Format, Intake, Section, read};
use proptest::prelude::*;
use samples::SAMPLES;

/// A way to print or paste a line.
type Way = (&'static str, fn(&str) -> String);

fn formats(text: &str) -> Vec<Format> {
    read("x", text.as_bytes())
        .sections
        .iter()
        .map(|s| s.format)
        .collect()
}

/// What holds of the reading of any bytes.
fn check(bytes: &[u8]) -> Document {
    let document = read("x", bytes);
    for section in &document.sections {
        assert!(section.first <= section.last && section.last.0 <= document.lines);
    }
    for cite in &document.unread.first {
        assert!(cite.line.0 >= 1 && cite.line.0 <= document.lines);
    }
    // Every cite anywhere names a line of this source.
    let json = serde_json::to_value(&document.sections).unwrap();
    check_cites(&json, document.lines);
    document
}

fn check_cites(value: &serde_json::Value, lines: u64) {
    match value {
        serde_json::Value::Object(fields) => {
            if let (Some(line), Some(_)) = (fields.get("line"), fields.get("quote")) {
                let line = line.as_u64().unwrap();
                assert!((1..=lines).contains(&line), "line {line} of {lines}");
            }
            fields.values().for_each(|v| check_cites(v, lines));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|v| check_cites(v, lines)),
        _ => {}
    }
}

#[test]
fn given_a_sample_of_each_format_then_it_is_recognised_as_that_and_nothing_else() {
    let sampled: Vec<_> = SAMPLES.iter().map(|(format, _)| *format).collect();
    assert_eq!(sampled, Format::ALL);
    for (format, text) in SAMPLES {
        let document = check(text.as_bytes());
        assert_eq!(formats(text), [*format], "{format}");
        assert_eq!(
            document.unread.lines, 0,
            "{format}: {:?}",
            document.unread.first
        );
    }
}

#[test]
fn given_two_artefacts_in_one_paste_then_both_are_found() {
    for (a, first) in SAMPLES {
        for (b, second) in SAMPLES {
            let found = formats(&format!("some words\n{first}\nmore words\n{second}"));
            assert!(
                found.contains(a) && found.contains(b),
                "{a} then {b}: {found:?}"
            );
        }
    }
}

#[test]
fn given_fences_then_two_artefacts_of_one_format_stay_apart() {
    for (format, text) in SAMPLES {
        let found = formats(&format!(
            "First:\n```text\n{text}```\nand then\n```\n{text}```\n"
        ));
        assert_eq!(found, [*format, *format], "{format}");
    }
}

#[test]
fn given_every_way_to_paste_then_each_format_is_still_recognised() {
    let ways: &[Way] = &[
        ("mail", |l| format!("> {l}")),
        ("mail twice", |l| format!(">> {l}")),
        ("windows", |l| format!("{l}\r")),
        ("srun -l", |l| format!(" 0: {l}")),
        ("mpirun", |l| format!("[1,0]<stdout>:{l}")),
        ("indented", |l| format!("    {l}")),
        ("trailing space", |l| format!("{l}   ")),
        ("colour", |l| format!("\x1b[32m{l}\x1b[0m")),
        ("kubectl", |l| format!("[pod/a-0/main] {l}")),
        ("pdsh", |l| format!("gpu-a01: {l}")),
    ];
    for (format, text) in SAMPLES {
        for (way, decorate) in ways {
            // A snapshot is a file; nobody prints it on many machines at once.
            if (*format, *way) == (Format::Snapshot, "pdsh") {
                continue;
            }
            let pasted: String = text.lines().map(|l| decorate(l) + "\n").collect();
            assert_eq!(formats(&pasted), [*format], "{format}, {way}:\n{pasted}");
        }
    }
}

#[test]
fn given_utf_16_of_either_order_then_each_format_is_read_as_in_utf_8() {
    for (format, text) in SAMPLES {
        let units = || {
            text.replace('\n', "\r\n")
                .encode_utf16()
                .collect::<Vec<_>>()
        };
        let little: Vec<u8> = units().into_iter().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = units().into_iter().flat_map(u16::to_be_bytes).collect();
        for bytes in [
            [&b"\xff\xfe"[..], &little].concat(),
            [&b"\xfe\xff"[..], &big].concat(),
            little,
        ] {
            let document = check(&bytes);
            let found: Vec<_> = document.sections.iter().map(|s| s.format).collect();
            assert_eq!(found, [*format], "{format}");
        }
    }
}

/// The words of the RDMA devices of each section, with the source that they are quoted from.
fn devices_by_source(text: &str) -> Vec<String> {
    let document = check(text.as_bytes());
    let of = |section: &Section| match &section.artefact {
        Artefact::RdmaDevices(list) => list
            .devices
            .iter()
            .map(|d| format!("{}: {}", d.cite.source, d.name))
            .collect(),
        _ => Vec::new(),
    };
    document.sections.iter().flat_map(of).collect()
}

#[test]
fn given_several_machines_in_one_text_then_each_is_read_apart() {
    let pdsh = "b1: CA 'mlx5_0'\nb2: CA 'mlx5_0'\nb2: \tPort 1:\nb1: \tPort 1:\nb1: \t\tState: Active\nb2: \t\tState: Down\n";
    let dshbak = "----------------\nb1\n----------------\nCA 'mlx5_0'\n\tPort 1:\n----------------\nb2\n----------------\nCA 'mlx5_0'\n\tPort 1:\n";
    let ansible = "b1 | CHANGED | rc=0 >>\nCA 'mlx5_0'\n\tPort 1:\nb2 | SUCCESS | rc=0 >>\nCA 'mlx5_0'\n\tPort 1:\n";
    for text in [pdsh, dshbak, ansible] {
        assert_eq!(
            devices_by_source(text),
            ["x (b1): mlx5_0", "x (b2): mlx5_0"],
            "{text}"
        );
    }
    let files =
        "==> b1/ibstat <==\nCA 'mlx5_0'\n\tPort 1:\n\n==> b2/ibstat <==\nCA 'mlx5_0'\n\tPort 1:\n";
    assert_eq!(
        devices_by_source(files),
        ["x (b1/ibstat): mlx5_0", "x (b2/ibstat): mlx5_0"]
    );
}

#[test]
fn given_an_unknown_text_then_its_first_telling_lines_are_shown() {
    let document = read("x", b"\n---\nhello there\n\n  general text\n");
    assert_eq!(document.sections, []);
    let shown: Vec<_> = document
        .unread
        .first
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(shown, ["x:3: hello there", "x:5: general text"]);
    assert_eq!((document.unread.lines, document.lines), (2, 5));
}

#[test]
fn given_bytes_that_are_no_text_then_their_kind_is_said() {
    let kind = |bytes: &[u8]| read("x", bytes).unread.binary;
    assert_eq!(kind(b"BZh91AY&SY"), Some("bzip2 archive"));
    assert_eq!(kind(b"\x1f\x8b\x08\0"), Some("gzip archive"));
    assert_eq!(kind(b"abc\0def"), Some("binary file"));
    assert_eq!(kind("\u{feff}NCCL version 2.7.8\n".as_bytes()), None);
    assert_eq!(kind(b""), None);
}

#[test]
fn given_a_progress_bar_then_what_is_written_over_it_is_read() {
    let document = read(
        "x",
        b"loading 10%\rloading 20%\ra:1:1 [0] NCCL INFO Using network IB\nloading\r\n",
    );
    assert_eq!(document.sections.len(), 1);
    assert_eq!(
        (document.sections[0].format, document.sections[0].first.0),
        (Format::NcclLog, 1)
    );
    assert_eq!((document.lines, document.unread.lines), (2, 3));
}

#[test]
fn given_more_artefacts_than_the_limit_then_the_rest_is_counted_as_unread() {
    let one = "```\nCA 'mlx5_0'\n\tPort 1:\n```\n";
    let document = read("x", one.repeat(MAX_SECTIONS + 3).as_bytes());
    assert_eq!(document.sections.len(), MAX_SECTIONS);
    assert_eq!(document.unread.lines, 6);
}

#[test]
fn given_hostile_lengths_then_reading_ends() {
    // Anything quadratic would not end today.
    const LENGTH: usize = 3 << 20;
    let words = [
        "[",
        "NCCL INFO ",
        "a:1:2 [0] NCCL INFO ",
        "<a ",
        "<!-- ",
        "\"properties\": {",
        "{",
        "}",
        "> ",
        "-[00]-",
        "00.0-[01]-",
        "GPU0 ",
        "X ",
        "[0]={[",
        "(",
        "= ",
        "NCCL_A=1 ",
        "-x NCCL_A=1 ",
        "UCX  ",
        "|",
        " via NET/IB/0",
        "\x1b[",
        "&lt;",
        "[0m",
        "\"",
        "//",
        "é",
        "0:",
        "Xid (PCI:",
        "LnkSta: ",
        "hca_id: a\n",
        "a b: c\n",
        "\r",
        " comm 0x1",
        "\\",
    ];
    for word in words {
        let text = word.repeat(LENGTH / word.len());
        check(text.as_bytes());
        for (_, sample) in SAMPLES.iter().step_by(5) {
            check(
                format!(
                    "{sample}{}",
                    &text[..text.len() / 16 / word.len() * word.len()]
                )
                .as_bytes(),
            );
        }
    }
    for (_, sample) in SAMPLES {
        let many = sample.repeat(LENGTH / 8 / sample.len());
        check(many.as_bytes());
    }
}

/// A sample with some of its bytes cut, doubled or replaced.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edit = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        0..4_u8,
        "[ -~\\n\\t\u{1b}é]{0,8}",
    );
    (0..SAMPLES.len(), prop::collection::vec(edit, 1..6)).prop_map(|(sample, edits)| {
        let mut text = SAMPLES[sample].1.as_bytes().to_vec();
        for (from, to, how, insert) in edits {
            if text.is_empty() {
                break;
            }
            let (a, b) = (from.index(text.len()), to.index(text.len()));
            let (a, b) = (a.min(b), a.max(b));
            match how {
                0 => drop(text.drain(a..b)),
                1 => {
                    let doubled = text[a..b].to_vec();
                    text.splice(b..b, doubled);
                }
                2 => text.truncate(b),
                _ => drop(text.splice(a..a, insert.into_bytes())),
            }
        }
        text
    })
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        check(&bytes);
    }

    #[test]
    fn mutated_samples_are_read_without_harm(bytes in mutated()) {
        check(&bytes);
    }

    #[test]
    fn lines_of_all_samples_shuffled_are_read_without_harm(picks in prop::collection::vec((0..SAMPLES.len(), any::<prop::sample::Index>()), 0..60)) {
        let mut text = String::new();
        for (sample, line) in picks {
            let lines: Vec<_> = SAMPLES[sample].1.lines().collect();
            text.push_str(lines[line.index(lines.len())]);
            text.push('\n');
        }
        check(text.as_bytes());
    }

    #[test]
    fn pieces_of_any_size_give_the_same_reading(
        bytes in prop_oneof![mutated(), prop::collection::vec(any::<u8>(), 0..1500)],
        step in 1..200_usize,
    ) {
        let mut intake = Intake::new("x");
        for piece in bytes.chunks(step) {
            intake.feed(piece);
        }
        prop_assert_eq!(intake.finish(), read("x", &bytes));
    }
}
