//! Taking connections and dealing out requests.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::{get, post};
use crowfly_route::snapshot::MAX_SNAPSHOT_BYTES;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::seats::Seats;
use super::{Machines, assets, evidence, guard, plans, reply, routes, work};
use crate::failure::{Exit, Failure, errno};

/// The port of a server that is asked for none: the letters of `crow` on a telephone.
pub const USUAL_PORT: u16 = 2769;
/// The most connections at a time, of which the one that asks for nothing makes room for the next; a
/// browser opens six.
const MAX_CONNECTIONS: usize = 64;
/// How long a request's head may take.
const HEAD: Duration = Duration::from_secs(10);
/// How long to wait before the next connection is taken when none could be.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(50);
/// What a form needs around the files in it.
const FORM_BYTES: usize = 64 << 10;
/// The largest machine that is taken.
const MAX_MACHINE_BYTES: usize = MAX_SNAPSHOT_BYTES + FORM_BYTES;
/// The largest evidence that is taken, all files of a question together.
pub const MAX_EVIDENCE_BYTES: usize = 64 << 20;
/// The longest body of any request.
pub const MAX_BODY_BYTES: usize = if MAX_MACHINE_BYTES > MAX_EVIDENCE_BYTES + FORM_BYTES {
    MAX_MACHINE_BYTES
} else {
    MAX_EVIDENCE_BYTES + FORM_BYTES
};
/// What all requests share.
#[derive(Debug)]
pub struct Page {
    /// The port that is listened on.
    pub port: u16,
    /// The machines that can be looked at.
    pub machines: Machines,
    /// Answers being worked out.
    pub desks: Arc<Semaphore>,
}

/// A server that listens and answers nobody yet.
#[derive(Debug)]
pub struct Listening {
    listener: std::net::TcpListener,
    port: u16,
}

impl Listening {
    /// Listens on a port of the loopback interface; without one, on the usual port, or on any that is
    /// free should another program have that.
    pub fn on(port: Option<u16>) -> Result<Self, Failure> {
        let bind =
            |port| std::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        let listener = match (bind(port.unwrap_or(USUAL_PORT)), port) {
            (Err(error), None) if taken(&error) => bind(0),
            (other, _) => other,
        };
        let refused = |error: io::Error| {
            let port = port.unwrap_or(USUAL_PORT);
            let what = format!("could not listen on 127.0.0.1 port {port}: {error}");
            let failure = Failure::new("ui-not-listening", Exit::Unavailable, what);
            match taken(&error) {
                true => {
                    failure.hint("another program listens there; `--port 0` takes any that is free")
                }
                false => failure.maybe_hint(errno::hint(&error)),
            }
        };
        let listener = listener.map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let port = listener.local_addr().map_err(refused)?.port();
        Ok(Self { listener, port })
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The page's address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Answers until the process ends.
    pub fn serve(self, machines: Machines) -> Result<Exit, Failure> {
        let failed = |error: io::Error| {
            let what = format!("could not serve the page: {error}");
            Failure::new("ui-not-serving", Exit::Unavailable, what).maybe_hint(errno::hint(&error))
        };
        // This thread takes requests; answers are worked out beside it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let page = Arc::new(Page {
            port: self.port,
            machines,
            desks: Arc::new(Semaphore::new(work::DESKS)),
        });
        runtime.block_on(async {
            let listener = TcpListener::from_std(self.listener).map_err(failed)?;
            take_connections(&listener, &router(page)).await
        })
    }
}

async fn take_connections(listener: &TcpListener, router: &Router) -> Result<Exit, Failure> {
    let seats = Seats::new(MAX_CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely out of descriptors: some will be free again.
            tokio::time::sleep(AFTER_A_REFUSAL).await;
            continue;
        };
        let seat = seats.take();
        let sitting = Arc::clone(&seat);
        let answers = TowerToHyperService::new(router.clone());
        let task = tokio::spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD);
            let service = service_fn(|request| {
                let asking = sitting.asks();
                let answer = answers.call(request);
                async move {
                    let answer = answer.await;
                    drop(asking);
                    answer
                }
            });
            // A reader who goes away is nothing to report.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
        seat.held_by(task.abort_handle());
    }
}

/// What is answered where.
pub fn router(page: Arc<Page>) -> Router {
    Router::new()
        .route("/", get(assets::index))
        .route("/assets/{name}", get(assets::one))
        .route("/api/about", get(plans::about))
        .route("/api/machine", get(routes::machine))
        .route(
            "/api/machine",
            post(routes::given).layer(DefaultBodyLimit::max(MAX_MACHINE_BYTES)),
        )
        .route("/api/route", get(routes::route))
        .route("/api/plan", get(plans::plan))
        .route("/api/plan/export", get(plans::export))
        .route("/api/doctor", get(evidence::doctor))
        .route(
            "/api/explain",
            post(evidence::explain).layer(DefaultBodyLimit::max(MAX_EVIDENCE_BYTES + FORM_BYTES)),
        )
        .fallback(nothing)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&page),
            guard::guard,
        ))
        .with_state(page)
}

async fn nothing() -> axum::response::Response {
    let failure = Failure::new(
        "ui-nothing-there",
        Exit::NoInput,
        "the page has nothing there",
    );
    reply::refusal(StatusCode::NOT_FOUND, &failure)
}

async fn other_method() -> axum::response::Response {
    let failure = Failure::new(
        "ui-method",
        Exit::Usage,
        "that cannot be asked with this method",
    );
    reply::refusal(StatusCode::METHOD_NOT_ALLOWED, &failure)
}
