//! The forms of answers.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use crowfly_route::terminal;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::failure::{ERROR_SCHEMA, Exit, Failure};

const JSON: &str = "application/json";

/// A document.
pub fn json(document: &impl Serialize) -> Result<Response, Failure> {
    Ok(typed(StatusCode::OK, JSON, to_json(document)?))
}

/// What a command prints with `--json`, to be put into another document.
pub fn raw(document: &[u8]) -> Result<Box<RawValue>, Failure> {
    serde_json::from_slice(document).map_err(|error| no_form(&error))
}

/// A value as a command would print it, to be put into another document.
pub fn as_raw(document: &impl Serialize) -> Result<Box<RawValue>, Failure> {
    raw(&to_json(document)?)
}

fn to_json(document: &impl Serialize) -> Result<Vec<u8>, Failure> {
    terminal::to_json(document).map_err(|error| no_form(&error))
}

fn no_form(error: &serde_json::Error) -> Failure {
    Failure::new("no-json-form", Exit::BadData, format!("no JSON: {error}"))
}

/// A body of a type.
pub fn typed(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A failure of a command, with the status that says whose fault it is.
pub fn failed(failure: &Failure) -> Response {
    let status = match failure.exit() {
        Exit::Usage => StatusCode::BAD_REQUEST,
        Exit::NoInput => StatusCode::NOT_FOUND,
        Exit::BadData => StatusCode::UNPROCESSABLE_ENTITY,
        Exit::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refusal(status, failure)
}

/// An error document, as commands print it with `--json`.
pub fn refusal(status: StatusCode, failure: &Failure) -> Response {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: &'static str,
        error: &'a Failure,
    }
    let document = Document {
        schema: ERROR_SCHEMA,
        error: failure,
    };
    typed(status, JSON, to_json(&document).unwrap_or_default())
}
