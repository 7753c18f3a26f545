//! The page's files, which are part of the program: nothing is fetched from anywhere else.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;

use super::reply;
use crate::failure::{Exit, Failure};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// A file with its name and type.
struct Asset(&'static str, &'static str, &'static str);

macro_rules! assets {
    ($($kind:ident $name:literal,)+) => {
        [$(Asset($name, $kind, include_str!(concat!("assets/", $name)))),+]
    };
}

const INDEX: &str = include_str!("assets/index.html");
/// The report's style is the page's: findings look the same in both.
const REPORT: Asset = Asset(
    "report.css",
    CSS,
    include_str!("../render/report/style.css"),
);
static ASSETS: [Asset; 14] = assets![
    CSS "page.css",
    CSS "stage.css",
    PICTURE "icon.svg",
    SCRIPT "app.js",
    SCRIPT "ask.js",
    SCRIPT "bars.js",
    SCRIPT "doctor.js",
    SCRIPT "dom.js",
    SCRIPT "drop.js",
    SCRIPT "link.js",
    SCRIPT "plan.js",
    SCRIPT "player.js",
    SCRIPT "routes.js",
    SCRIPT "stage.js",
];

/// The page.
pub async fn index() -> Response {
    reply::typed(StatusCode::OK, HTML, INDEX)
}

/// One of its files.
pub async fn one(Path(name): Path<String>) -> Response {
    let mut all = ASSETS.iter().chain([&REPORT]);
    match all.find(|asset| asset.0 == name) {
        Some(Asset(_, kind, content)) => reply::typed(StatusCode::OK, kind, *content),
        None => {
            let what = "the page has no such file";
            let failure = Failure::new("ui-nothing-there", Exit::NoInput, what);
            reply::refusal(StatusCode::NOT_FOUND, &failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a browser loads before the first question, uncompressed.
    const MAX_BYTES: usize = 96 << 10;

    fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        let files = ASSETS.iter().chain([&REPORT]);
        files
            .map(|asset| (asset.0, asset.2))
            .chain([("index.html", INDEX)])
    }

    #[test]
    fn the_page_is_small() {
        let bytes: usize = all().map(|(_, content)| content.len()).sum();
        assert!(bytes <= MAX_BYTES, "{bytes} bytes of at most {MAX_BYTES}");
    }

    #[test]
    fn the_page_names_no_other_place_and_runs_nothing_inline() {
        for (name, content) in all() {
            for line in content.lines() {
                let elsewhere = line.contains("://") && !line.contains("http://www.w3.org/");
                assert!(!elsewhere, "{name}: {line}");
            }
        }
        for inline in [
            "<script>",
            "javascript:",
            " onclick=",
            " onload=",
            " style=",
        ] {
            assert!(!INDEX.contains(inline), "{inline}");
        }
    }

    #[test]
    fn every_file_that_the_page_names_is_there_and_every_file_is_named() {
        let text: String = all().map(|(_, content)| content).collect();
        for (name, _) in all().filter(|(name, _)| *name != "index.html") {
            let named = [format!("assets/{name}\""), format!("'./{name}'")];
            assert!(named.iter().any(|n| text.contains(n)), "{name} is not used");
        }
        let imports = text.split("from './").skip(1);
        for import in imports.filter_map(|rest| rest.split('\'').next()) {
            assert!(ASSETS.iter().any(|asset| asset.0 == import), "{import}");
        }
    }
}
