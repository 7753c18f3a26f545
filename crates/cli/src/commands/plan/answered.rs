//! An answer in every form in which it can be given.

use std::path::PathBuf;

use clap::Args;
use crowfly_route::terminal;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render::plan::Sheet;
use crate::{file, path};

/// How an answer is written.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct Export {
    /// Write the tables as comma-separated values
    #[arg(long, conflicts_with = "markdown")]
    csv: bool,
    /// Write the answer as Markdown
    #[arg(long)]
    markdown: bool,
}

/// As [`Export`], and a picture.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct ExportPicture {
    #[command(flatten)]
    export: Export,
    /// Also draw it into an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The answer to a question.
pub struct Answered {
    /// The document, or why it has none.
    document: Result<Vec<u8>, serde_json::Error>,
    /// The answer for people.
    pub sheet: Sheet,
    picture: Option<Box<dyn FnOnce() -> String>>,
}

#[derive(Serialize)]
struct Document<'a, T> {
    schema: &'static str,
    #[serde(flatten)]
    answer: &'a T,
}

impl Answered {
    /// An answer with its document of this schema and its sheet.
    pub fn new<T: Serialize>(schema: &'static str, answer: &T, sheet: Sheet) -> Self {
        Self {
            document: terminal::to_json(&Document { schema, answer }),
            sheet,
            picture: None,
        }
    }

    /// The same with a picture, which is drawn when somebody wants it.
    pub fn drawn_by(self, picture: impl FnOnce() -> String + 'static) -> Self {
        Self {
            picture: Some(Box::new(picture)),
            ..self
        }
    }

    /// The document as `--json` prints it, without the last newline.
    pub fn json(&self) -> Result<&[u8], Failure> {
        let no_form = |error: &serde_json::Error| {
            Failure::new("no-json-form", Exit::BadData, format!("no JSON: {error}"))
        };
        self.document.as_deref().map_err(no_form)
    }

    /// The picture, where there is one.
    pub fn picture(&mut self) -> Option<String> {
        self.picture.take().map(|draw| draw())
    }
}

impl Export {
    /// Writes an answer: as one JSON document, or as its sheet in the form asked for.
    pub fn write(&self, answered: &Answered, out: &mut Output) -> Result<Exit, Failure> {
        if out.is_json() && (self.csv || self.markdown) {
            return Err(Failure::usage(
                "--json goes with neither --csv nor --markdown",
            ));
        }
        if self.csv {
            out.bytes(answered.sheet.csv().as_bytes())?;
        } else if self.markdown {
            out.bytes(answered.sheet.markdown().as_bytes())?;
        } else if out.is_json() {
            out.bytes(&[answered.json()?, b"\n"].concat())?;
        } else {
            let text = answered.sheet.text(out.columns());
            out.text(&text)?;
        }
        Ok(Exit::Ok)
    }
}

impl ExportPicture {
    /// As [`Export::write`], after the picture.
    pub fn write(&self, mut answered: Answered, out: &mut Output) -> Result<Exit, Failure> {
        if let (Some(to), Some(picture)) = (&self.svg, answered.picture()) {
            file::replace(to, picture.as_bytes())?;
            out.note(&format!("picture written to {}", path::shown(to)));
        }
        self.export.write(&answered, out)
    }
}
