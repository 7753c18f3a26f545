//! The command line: what every command shares.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Args, Parser, ValueEnum};
use serde::Serialize;

use crate::commands::Command;
use crate::failure::{Exit, Failure};
use crate::output::{MAX_COLUMNS, columns};
use crate::render::text::{harmless, wrap};

/// The version of the JSON form of help and of the version.
pub const HELP_SCHEMA: &str = "crowfly.help/1";

/// Gets data into accelerator memory as the crow flies, with a receipt.
#[derive(Debug, Parser)]
#[command(
    name = "crowfly",
    version,
    about = "Gets data into accelerator memory as the crow flies, with a receipt",
    max_term_width = MAX_COLUMNS,
    subcommand_required = true,
    arg_required_else_help = true,
    after_long_help = exit_codes()
)]
pub struct Cli {
    /// What every command shares.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct Global {
    /// Print one JSON document with a versioned schema, errors included
    #[arg(long, global = true)]
    pub json: bool,
    /// When to colour; NO_COLOR and CLICOLOR_FORCE are respected
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: Color,
    /// Print nothing but the result: no progress, no notes
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print the details as well
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless the environment says otherwise.
    #[default]
    Auto,
    /// Even into a file or a pipe.
    Always,
    /// Not at all.
    Never,
}

/// What the arguments ask for.
#[derive(Debug)]
pub enum Parsed {
    /// A command to run.
    Run(Box<Cli>),
    /// Help or the version, to be printed on standard output.
    Explain(Explanation, Global),
    /// Arguments that make no command.
    Misused(Failure, Global),
}

/// Help, or the version.
#[derive(Debug, Serialize)]
pub struct Explanation {
    schema: &'static str,
    version: &'static str,
    /// Without styles.
    text: String,
    /// With styles.
    #[serde(skip)]
    pub laid_out: String,
}

impl Cli {
    /// Reads arguments, the program's name first.
    pub fn read(args: Vec<OsString>) -> Parsed {
        let error = match Self::try_parse_from(&args) {
            Ok(cli) => return Parsed::Run(Box::new(cli)),
            Err(error) => error,
        };
        let global = Global::scan(&args);
        // The report quotes arguments between its own styles, so they have to be harmless before.
        let quotable = args
            .iter()
            .map(|arg| harmless(&arg.to_string_lossy()).into_owned());
        let error = Self::try_parse_from(quotable).err().unwrap_or(error);
        let report = error.render();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                let explanation = Explanation {
                    schema: HELP_SCHEMA,
                    version: env!("CARGO_PKG_VERSION"),
                    text: report.to_string(),
                    laid_out: report.ansi().to_string(),
                };
                Parsed::Explain(explanation, global)
            }
            kind => {
                let missing = kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
                let laid_out = report.ansi().to_string();
                let failure = if missing {
                    Failure::usage("a command is missing").laid_out(laid_out)
                } else {
                    let laid_out = within(&laid_out, columns());
                    Failure::usage(sentence(&report.to_string())).laid_out(laid_out)
                };
                Parsed::Misused(failure, global)
            }
        }
    }
}

/// A report of the parser's, which knows no width, in at most `columns` columns. Lines that are
/// continued keep their indentation.
fn within(report: &str, columns: usize) -> String {
    let wrapped = report.split('\n').map(|line| {
        let indent = &line[..line.len() - line.trim_start().len()];
        wrap(line.trim_start(), columns, indent, &format!("{indent}  "))
    });
    wrapped.collect::<Vec<_>>().join("\n")
}

impl Global {
    /// The output options of arguments that are not parsed, or cannot be.
    pub fn scan(args: &[OsString]) -> Self {
        let mut words = args.iter().map(|a| a.to_string_lossy());
        let mut global = Self::default();
        let color = |word: &str| Color::from_str(word, true).unwrap_or_default();
        while let Some(word) = words.next() {
            match word.as_ref() {
                "--" => break,
                "--json" => global.json = true,
                "--color" => global.color = color(&words.next().unwrap_or_default()),
                other => {
                    if let Some(when) = other.strip_prefix("--color=") {
                        global.color = color(when);
                    }
                }
            }
        }
        global
    }
}

/// The first paragraph of the parser's report on one line, without its label.
fn sentence(report: &str) -> String {
    let first = report.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    let sentence = words.join(" ");
    sentence
        .strip_prefix("error: ")
        .unwrap_or(&sentence)
        .to_owned()
}

fn exit_codes() -> String {
    const INDENT: &str = "       ";
    let mut text = "Exit statuses, and the answers of the system that lead to them:".to_owned();
    for exit in Exit::ALL {
        let first = format!("\n  {:<4} ", exit.status());
        text.push_str(&wrap(exit.meaning(), MAX_COLUMNS, &first, INDENT));
        let errors = exit.errors().join(" ");
        if !errors.is_empty() {
            let errors = wrap(&errors, MAX_COLUMNS, INDENT, INDENT);
            text.push('\n');
            text.push_str(&errors);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Parsed {
        Cli::read(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn given_arguments_that_make_no_command_the_output_options_are_still_respected() {
        let Parsed::Misused(failure, global) = read("crowfly --json --color=never no-such-command")
        else {
            panic!("an unknown command must not run");
        };
        assert_eq!((failure.code(), failure.exit()), ("usage", Exit::Usage));
        assert_eq!(
            failure.message(),
            "unrecognized subcommand 'no-such-command'"
        );
        assert!(global.json);
        assert_eq!(global.color, Color::Never);
    }

    #[test]
    fn given_nothing_at_all_help_is_shown_as_a_usage_error() {
        assert!(
            matches!(read("crowfly"), Parsed::Misused(failure, _) if failure.exit() == Exit::Usage)
        );
        assert!(matches!(read("crowfly --help"), Parsed::Explain(..)));
        assert!(
            matches!(read("crowfly --version"), Parsed::Explain(e, _) if e.text.starts_with("crowfly "))
        );
    }

    #[test]
    fn given_a_long_or_hostile_argument_the_report_stays_within_the_screen_and_is_harmless() {
        let long = "x".repeat(500);
        let values = [
            long.as_str(),
            "a\u{1b}[2Jb\nc",
            "1 parsec or so ".repeat(20).as_str(),
        ]
        .map(str::to_owned);
        for value in values {
            let size = format!("--size={value}");
            for wrong in [vec!["race", &size], vec![&value]] {
                let args = ["crowfly"]
                    .iter()
                    .chain(&wrong)
                    .map(OsString::from)
                    .collect();
                let Parsed::Misused(failure, _) = Cli::read(args) else {
                    panic!("{wrong:?} is no command");
                };
                let report = failure.laid_out_text().expect("a report");
                let report = crate::render::plain(report);
                assert!(!report.contains('\u{1b}'));
                let spelt = report.contains("\\u{1b}[2Jb\\nc");
                assert_eq!(spelt, value.contains('\u{1b}'), "{report:?}");
                for line in report.lines() {
                    let width = textwrap::core::display_width(line);
                    assert!(width <= MAX_COLUMNS, "{line}");
                }
            }
        }
    }
}
