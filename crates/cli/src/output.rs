//! Where a command's words go: results to standard output, notes and progress to standard error.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use crowfly_machine::streams::stdout_was_closed;
use crowfly_route::terminal;
use rustix::io::Errno;
use serde::Serialize;

use crate::args::{Color, Global};
use crate::failure::{ERROR_SCHEMA, Exit, Failure};
use crate::render;
use crate::render::progress::Progress;

/// No line of output for people is wider than this, however wide the terminal is.
pub const MAX_COLUMNS: usize = 100;
/// Narrower terminals get this many columns and wrap by themselves.
const MIN_COLUMNS: usize = 60;

/// Long documents are written in pieces of this size: a whole one in memory costs more than its making.
const BUFFER_BYTES: usize = 64 << 10;

/// Whether anything went to standard output: a document that follows half of another is none.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Standard output and standard error, as the options and the environment want them.
///
/// Renderers always write their styles; the streams take them out where no colour is wanted.
#[derive(Debug)]
pub struct Output {
    json: bool,
    quiet: bool,
    verbose: bool,
    hung_up: bool,
    stdout: AutoStream<io::Stdout>,
    stderr: AutoStream<io::Stderr>,
}

/// How many columns a line for people may have.
pub fn columns() -> usize {
    terminal_size::terminal_size().map_or(MAX_COLUMNS, |(width, _)| {
        usize::from(width.0).clamp(MIN_COLUMNS, MAX_COLUMNS)
    })
}

/// Text without styles. Most lines have none, and looking for one is much cheaper than taking a text
/// apart: the listing of a large model is a megabyte of plain lines.
fn unstyled(text: &str) -> Cow<'_, str> {
    const ESCAPE: char = '\u{1b}';
    if !text.contains(ESCAPE) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.contains(ESCAPE) {
            plain.push_str(&strip_str(line).to_string());
        } else {
            plain.push_str(line);
        }
    }
    Cow::Owned(plain)
}

/// Whether to colour a stream. `CLICOLOR_FORCE=0` forces nothing, as its convention has it, and is no
/// reason not to colour a terminal either.
fn choice(wanted: Color, stream: &impl IsTerminal) -> ColorChoice {
    let is = |name: &str, value: &str| std::env::var_os(name).is_some_and(|given| given == value);
    let given = |name: &str| std::env::var_os(name).is_some_and(|given| !given.is_empty());
    match wanted {
        Color::Always => ColorChoice::AlwaysAnsi,
        Color::Never => ColorChoice::Never,
        Color::Auto if !is("CLICOLOR_FORCE", "0") => ColorChoice::Auto,
        Color::Auto => {
            let unwanted = given("NO_COLOR") || is("CLICOLOR", "0") || is("TERM", "dumb");
            match stream.is_terminal() && !unwanted {
                true => ColorChoice::Always,
                false => ColorChoice::Never,
            }
        }
    }
}

impl Output {
    /// The process's own streams.
    pub fn new(global: &Global) -> Self {
        Self {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            hung_up: false,
            stdout: AutoStream::new(io::stdout(), choice(global.color, &io::stdout())),
            stderr: AutoStream::new(io::stderr(), choice(global.color, &io::stderr())),
        }
    }

    /// Whether the details are wanted as well.
    pub const fn verbose(&self) -> bool {
        self.verbose
    }

    /// Whether results are JSON documents.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// [`columns`].
    pub fn columns(&self) -> usize {
        columns()
    }

    /// Prints a result: the document with `--json`, else the text for people, which is rendered
    /// for the number of columns it is given.
    pub fn show<D: Serialize>(
        &mut self,
        document: &D,
        text: impl FnOnce(usize) -> String,
    ) -> Result<(), Failure> {
        if self.json {
            self.json_document(document)
        } else {
            let text = text(self.columns());
            self.text(&text)
        }
    }

    /// Prints text for people on standard output.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        let newline: &[u8] = if text.ends_with('\n') { b"" } else { b"\n" };
        let styled = self.stdout.current_choice() != ColorChoice::Never;
        let text = if styled {
            Cow::Borrowed(text)
        } else {
            unstyled(text)
        };
        self.write(|to| {
            to.write_all(text.as_bytes())
                .and_then(|()| to.write_all(newline))
        })
    }

    /// Prints bytes that are no text for people: a script, a picture, a manual page.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.write(|to| to.write_all(bytes))
    }

    /// Hands standard output to something that writes much, buffered.
    fn write(
        &mut self,
        words: impl FnOnce(&mut BufWriter<io::StdoutLock<'_>>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if stdout_was_closed() {
            return Err(Failure::output(&Errno::BADF.into()));
        }
        BEGUN.store(true, Ordering::SeqCst);
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
        let written = words(&mut to).and_then(|()| to.flush());
        // What could not be written is not tried again.
        let _ = to.into_parts();
        self.heard(written)
    }

    /// A reader who went away has seen enough: nothing is wrong, and the status still tells the
    /// answer.
    fn heard(&mut self, written: io::Result<()>) -> Result<(), Failure> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.hung_up = true;
                Ok(())
            }
            other => other.map_err(|error| Failure::output(&error)),
        }
    }

    /// Whether the reader of standard output went away.
    pub const fn is_hung_up(&self) -> bool {
        self.hung_up
    }

    /// Tells the user something besides the result, unless asked to be quiet.
    pub fn note(&mut self, text: &str) {
        if !self.quiet {
            // A closed standard error must not end work that goes well.
            let text = render::text::wrap(text, self.columns(), "", "  ");
            let _ = writeln!(self.stderr, "{text}");
        }
    }

    /// A progress bar on standard error; invisible when nobody looks.
    pub fn progress(&self) -> Progress {
        if self.quiet || !io::stderr().is_terminal() {
            Progress::hidden()
        } else {
            Progress::visible()
        }
    }

    /// Ends the process's output: reports a failure and chooses the exit status.
    pub fn finish(&mut self, result: Result<Exit, Failure>) -> ExitCode {
        let failure = match result {
            Ok(exit) => return exit.into(),
            Err(failure) => failure,
        };
        let columns = self.columns();
        let _ = write!(
            self.stderr,
            "{}",
            render::failure::render(&failure, columns)
        );
        if self.json && !BEGUN.load(Ordering::SeqCst) {
            #[derive(Serialize)]
            struct Document<'a> {
                schema: &'static str,
                error: &'a Failure,
            }
            // With standard output gone there is nowhere left to say so but the exit status.
            let _ = self.json_document(&Document {
                schema: ERROR_SCHEMA,
                error: &failure,
            });
        }
        failure.exit().into()
    }

    fn json_document<D: Serialize>(&mut self, document: &D) -> Result<(), Failure> {
        self.write(|to| {
            terminal::write_json(document, to)?;
            to.write_all(b"\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_styles_in_some_lines_they_are_taken_out_and_nothing_else() {
        let plain = "one\ntwo";
        assert!(matches!(unstyled(plain), Cow::Borrowed(same) if same == plain));
        assert_eq!(
            unstyled("one\n\u{1b}[1mtwo\u{1b}[0m\nthree\n"),
            "one\ntwo\nthree\n"
        );
    }
}
