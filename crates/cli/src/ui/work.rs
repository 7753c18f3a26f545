//! Answers are worked out beside the thread that takes requests, a few at a time, each with a deadline.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;

use super::reply;
use super::server::Page;
use crate::failure::{Exit, Failure, errno};

/// Answers worked out at a time. One more waits for a desk.
pub const DESKS: usize = 4;
/// How long a question waits for a desk.
const QUEUE: Duration = Duration::from_secs(20);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(60);

/// Works out an answer. Should it take too long the question is refused; the desk is free again when
/// the work has really ended.
pub async fn answer(
    page: Arc<Page>,
    work: impl FnOnce(&Page) -> Result<Response, Failure> + Send + 'static,
) -> Response {
    let busy = |what: &str| {
        let failure = Failure::new("ui-too-slow", Exit::Unavailable, what)
            .hint("ask again when there is less to do at once");
        reply::refusal(StatusCode::SERVICE_UNAVAILABLE, &failure)
    };
    let desk = tokio::time::timeout(QUEUE, Arc::clone(&page.desks).acquire_owned()).await;
    let Ok(Ok(desk)) = desk else {
        return busy("too many questions are being answered");
    };
    let (tell, worked) = tokio::sync::oneshot::channel();
    let desk = move || {
        let answer = work(&page);
        drop(desk);
        // Whoever asked may have gone.
        let _ = tell.send(answer);
    };
    let at_desk = std::thread::Builder::new().name("crowfly-desk".into());
    if let Err(error) = at_desk.spawn(desk) {
        let what = format!("no thread to work out the answer could be started: {error}");
        let failure = Failure::new("ui-no-thread", Exit::Unavailable, what);
        let failure = failure.maybe_hint(errno::hint(&error));
        return reply::refusal(StatusCode::SERVICE_UNAVAILABLE, &failure);
    }
    match tokio::time::timeout(ANSWER, worked).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(failure))) => reply::failed(&failure),
        Ok(Err(_)) => {
            let what = "the answer could not be worked out: a fault of the program's";
            let failure = Failure::new("ui-fault", Exit::Unavailable, what);
            reply::refusal(StatusCode::INTERNAL_SERVER_ERROR, &failure)
        }
        Err(_) => busy("the answer takes too long"),
    }
}
