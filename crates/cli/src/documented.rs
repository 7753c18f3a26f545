//! What is documented is true: every example in the documents parses, every help text fits.

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;

use crate::args::{Cli, Parsed};
use crate::failure::Exit;
use crate::output::MAX_COLUMNS;

const DOCUMENTS: [&str; 2] = ["README.md", "ARCHITECTURE.md"];

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The commands typed in a document's code blocks, each as words from `crowfly` on.
fn examples(text: &str) -> Vec<Vec<String>> {
    let blocks = text.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(str::lines).map(str::trim);
    lines
        .map(|line| line.strip_prefix("$ ").unwrap_or(line))
        .filter_map(|line| match line.strip_prefix("cargo run --release -- ") {
            Some(arguments) => Some(format!("crowfly {arguments}")),
            None => line.starts_with("crowfly ").then(|| line.to_owned()),
        })
        .map(|line| words(&line))
        .collect()
}

/// The words of a simple shell command, up to a comment, pipe or redirection.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut quoted = false;
    let mut word = String::new();
    for c in line.chars().chain([' ']) {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => {
                if ["#", "|", ">", "2>", "&&"].contains(&word.as_str()) {
                    return words;
                }
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => word.push(c),
        }
    }
    words
}

#[test]
fn every_example_in_the_documents_is_a_command_that_exists() {
    let mut seen = 0;
    for name in DOCUMENTS {
        for example in examples(&document(name)) {
            seen += 1;
            let line = example.join(" ");
            let parsed = Cli::read(example.into_iter().map(OsString::from).collect());
            assert!(
                !matches!(parsed, Parsed::Misused(..)),
                "{name}: {line}: {parsed:?}"
            );
        }
    }
    assert!(seen > 0, "no example was found");
}

#[test]
fn the_readme_names_every_command_and_every_exit_status() {
    let readme = document("README.md");
    for command in Cli::command().get_subcommands() {
        let name = format!("crowfly {}", command.get_name());
        assert!(readme.contains(&name), "`{name}` is missing");
    }
    for exit in Exit::ALL {
        let errors = exit.errors().join(", ");
        let row = format!("| {} | {} | {errors} |", exit.status(), exit.meaning());
        assert!(readme.contains(&row), "the table lacks `{row}`");
    }
}

#[test]
fn every_help_text_fits_the_screen_and_is_what_was_last_agreed() {
    let mut root = Cli::command().term_width(MAX_COLUMNS);
    root.build();
    check_help("crowfly", &mut root);
}

fn check_help(name: &str, command: &mut clap::Command) {
    let help = command.render_long_help().to_string();
    for line in help.lines() {
        let width = textwrap::core::display_width(line);
        assert!(width <= MAX_COLUMNS, "{name}: {line}");
    }
    insta::assert_snapshot!(format!("help {name}"), help);
    for subcommand in command.get_subcommands_mut() {
        if subcommand.get_name() != "help" {
            let name = format!("{name} {}", subcommand.get_name());
            check_help(&name, subcommand);
        }
    }
}
