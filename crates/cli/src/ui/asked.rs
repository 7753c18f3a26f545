//! What a request asks, read from its address; what cannot be read is refused as everything else is.

use axum::extract::FromRequestParts;
use axum::extract::rejection::QueryRejection;
use axum::http::request::Parts;
use axum::response::Response;
use serde::de::DeserializeOwned;

use super::reply;
use crate::failure::{Exit, Failure};

/// The pairs after `?`, or a refusal as a document.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let read = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        let refused = |rejection: QueryRejection| {
            let what = format!("the question cannot be read: {}", rejection.body_text());
            let failure = Failure::new("ui-bad-question", Exit::Usage, what);
            reply::refusal(rejection.status(), &failure)
        };
        read.map(|axum::extract::Query(asked)| Self(asked))
            .map_err(refused)
    }
}
