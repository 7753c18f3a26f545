//! What logs and snapshots show: the findings of `crowfly explain` and `crowfly doctor`.

use std::sync::Arc;

use axum::extract::multipart::{MultipartError, MultipartRejection};
use axum::extract::{Multipart, State};
use axum::http::StatusCode;
use axum::response::Response;
use crowfly_doctor::Case;
use serde::Serialize;
use serde_json::value::RawValue;

use super::server::{MAX_EVIDENCE_BYTES, Page};
use super::shell::quoted;
use super::{reply, work};
use crate::commands::doctor::answer::Answer;
use crate::commands::doctor::evidence::add;
use crate::commands::doctor::host::Host;
use crate::failure::{Exit, Failure};
use crate::render::report;

const SCHEMA: &str = "crowfly.ui.findings/1";
/// The most files of one question.
const MAX_FILES: usize = 64;
/// The longest name of a file.
const MAX_NAME_CHARS: usize = 256;

/// Findings.
#[derive(Serialize)]
struct Findings {
    schema: &'static str,
    /// What asks the same on a command line.
    command: String,
    /// What that prints with `--json`.
    document: Box<RawValue>,
    /// The report, as HTML in which all text from outside is text.
    report: String,
}

struct File {
    name: String,
    content: Vec<u8>,
}

/// Findings of files.
pub async fn explain(
    State(page): State<Arc<Page>>,
    form: Result<Multipart, MultipartRejection>,
) -> Response {
    let form = match form {
        Ok(form) => form,
        Err(rejection) => return no_form(rejection.status(), &rejection.body_text()),
    };
    let files = match files(form).await {
        Ok(files) => files,
        Err(refusal) => return *refusal,
    };
    work::answer(page, move |_| {
        let mut case = Case::new();
        let mut words = vec!["crowfly".to_owned(), "explain".to_owned()];
        for file in &files {
            add(&file.name, &file.content, &mut case)?;
            words.push(quoted(&file.name));
        }
        findings(&Answer::new(case, None), words.join(" "))
    })
    .await
}

/// Findings of the machine that the page started with.
pub async fn doctor(State(page): State<Arc<Page>>) -> Response {
    work::answer(page, |page| {
        let machine = page.machines.look(None)?;
        let Some(snapshot) = &machine.snapshot else {
            let what = format!(
                "{} is no snapshot: there is too little to judge",
                machine.name
            );
            return Err(Failure::new("ui-no-snapshot", Exit::BadData, what)
                .hint("drop the file in: what it shows is judged as evidence"));
        };
        let mut case = Case::new();
        case.add_snapshot(machine.name.as_str(), snapshot.clone());
        let host = case.machines.first().and_then(Host::of);
        let choice = machine.choice.as_ref();
        let choice = choice.map(|(option, value)| format!(" {option} {}", quoted(value)));
        let command = format!("crowfly doctor{}", choice.unwrap_or_default());
        findings(&Answer::new(case, host), command)
    })
    .await
}

fn findings(answer: &Answer, command: String) -> Result<Response, Failure> {
    reply::json(&Findings {
        schema: SCHEMA,
        command,
        document: reply::as_raw(&answer.report())?,
        report: report::body(answer),
    })
}

/// The files of a form, all of them together bounded.
async fn files(mut form: Multipart) -> Result<Vec<File>, Box<Response>> {
    let mut files: Vec<File> = Vec::new();
    let mut left = MAX_EVIDENCE_BYTES;
    while let Some(mut field) = form.next_field().await.map_err(refused)? {
        let name = field.file_name().unwrap_or("pasted").to_owned();
        let long = name.chars().count() > MAX_NAME_CHARS;
        if long || files.len() == MAX_FILES {
            let what = format!(
                "at most {MAX_FILES} files, with names of at most {MAX_NAME_CHARS} characters"
            );
            return Err(Box::new(reply::failed(&Failure::usage(what))));
        }
        let mut content = Vec::new();
        while let Some(piece) = field.chunk().await.map_err(refused)? {
            left = left.checked_sub(piece.len()).ok_or_else(too_much)?;
            content.extend_from_slice(&piece);
        }
        files.push(File { name, content });
    }
    match files.is_empty() {
        true => Err(Box::new(reply::failed(&Failure::usage(
            "no file was given",
        )))),
        false => Ok(files),
    }
}

fn too_much() -> Box<Response> {
    let what = format!("the files are larger than {MAX_EVIDENCE_BYTES} bytes together");
    let failure = Failure::new("ui-too-large", Exit::BadData, what)
        .hint("`crowfly explain FILE…` reads files of any size");
    Box::new(reply::refusal(StatusCode::PAYLOAD_TOO_LARGE, &failure))
}

fn refused(error: MultipartError) -> Box<Response> {
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return too_much();
    }
    Box::new(no_form(error.status(), &error.body_text()))
}

fn no_form(status: StatusCode, why: &str) -> Response {
    let what = format!("the form could not be read: {why}");
    let failure = Failure::new("ui-bad-form", Exit::Usage, what);
    reply::refusal(status, &failure)
}
