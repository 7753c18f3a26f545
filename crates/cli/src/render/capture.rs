//! What `capture` saw: a few lines beside the snapshot.

use crowfly_route::units::Bytes;

use super::style::{FAINT, WARN, paint};
use super::text::{count, harmless, wrap};
use crate::commands::capture::Capture;

/// The capture in at most `columns` columns; each place that showed nothing if `verbose`.
pub fn render(capture: &Capture, columns: usize, verbose: bool) -> String {
    let mut text = wrap(&summary(capture), columns, "", "  ");
    text.push('\n');
    let mut line = |style, line: &str| {
        text.push_str(&paint(style, wrap(line, columns, "", "  ")));
        text.push('\n');
    };
    if capture.redacted {
        line(
            FAINT,
            "Names, serial numbers, addresses and secrets have stand-ins; equal ones stayed equal.",
        );
    } else {
        line(
            WARN,
            "Not redacted: it names hosts, people, serial numbers and addresses, and may hold secrets.",
        );
    }
    if let Some(cut) = &capture.truncated {
        line(WARN, &format!("Incomplete: {}", harmless(cut)));
    }
    if !capture.denied.is_empty() {
        let places = count(capture.denied.len(), "place");
        let hint = if verbose {
            ":"
        } else {
            "; -v lists them, and root may look"
        };
        line(WARN, &format!("{places} denied to this user{hint}"));
    }
    if verbose {
        for key in &capture.denied {
            line(FAINT, &format!("  {}", harmless(key)));
        }
        if !capture.errors.is_empty() {
            line(
                FAINT,
                &format!("{} failed:", count(capture.errors.len(), "look")),
            );
        }
        for error in &capture.errors {
            line(
                FAINT,
                &format!("  {}: {}", harmless(&error.key), harmless(&error.error)),
            );
        }
    }
    text
}

fn summary(capture: &Capture) -> String {
    let file = match &capture.file {
        Some(file) => format!(" into {}", harmless(&file.display().to_string())),
        None => String::new(),
    };
    format!(
        "Captured {} ({}){file}: {}, {}, {}, {}",
        count(capture.observations, "observation"),
        Bytes(capture.bytes as u64),
        count(capture.gpus, "GPU"),
        count(capture.nics, "network adapter"),
        count(capture.drives, "drive"),
        count(capture.pci_functions, "PCI function"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::capture::Failed;
    use crate::render::plain;

    fn capture() -> Capture {
        Capture {
            file: Some("dgx.json".into()),
            bytes: 1_048_576,
            redacted: true,
            observations: 8_412,
            values: 6_100,
            absent: 2_300,
            denied: vec!["/sys/bus/pci/slots".into()],
            errors: vec![Failed {
                key: "/sys/class/net/eth1/speed".into(),
                error: "Invalid argument (os error 22)".into(),
            }],
            truncated: None,
            gpus: 8,
            nics: 10,
            drives: 1,
            pci_functions: 187,
            ..Capture::default()
        }
    }

    #[test]
    fn a_capture_says_what_was_found_and_what_was_hidden() {
        let text = plain(&render(&capture(), 100, false));
        assert_eq!(
            text,
            "Captured 8412 observations (1.05 MB) into dgx.json: 8 GPUs, 10 network adapters, 1 drive, 187 PCI\n  \
             functions\n\
             Names, serial numbers, addresses and secrets have stand-ins; equal ones stayed equal.\n\
             1 place denied to this user; -v lists them, and root may look\n"
        );
    }

    #[test]
    fn given_verbose_each_place_that_showed_nothing_is_listed() {
        let text = plain(&render(&capture(), 100, true));
        assert!(
            text.contains("1 place denied to this user:\n  /sys/bus/pci/slots\n"),
            "{text}"
        );
        assert!(
            text.ends_with(
                "1 look failed:\n  /sys/class/net/eth1/speed: Invalid argument (os error 22)\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn an_unredacted_or_incomplete_capture_warns() {
        let mut capture = capture();
        capture.redacted = false;
        capture.truncated = Some("full at \u{1b}[2J".into());
        let text = plain(&render(&capture, 100, false));
        assert!(text.contains("Not redacted: it names hosts"), "{text}");
        assert!(text.contains("Incomplete: full at \\u{1b}[2J\n"), "{text}");
    }
}
