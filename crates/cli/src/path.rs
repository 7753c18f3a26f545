//! Paths as text. A path is any bytes but NUL: neither always text nor always harmless.

use std::path::{Path, PathBuf};

use serde::Serializer;

use crate::render::text::harmless;

/// A path in a sentence for people.
pub fn shown(path: &Path) -> String {
    harmless(&path.display().to_string()).into_owned()
}

/// A path in a document. JSON holds only text, so bytes that are not UTF-8 become U+FFFD, as they do
/// in places and receipts: a result must not be lost over the name of its file.
pub fn as_text<P: AsRef<Path>, S: Serializer>(path: &P, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.as_ref().display())
}

/// [`as_text`] of a path that may be absent, which is `null`.
pub fn as_optional_text<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => as_text(path, to),
        None => to.serialize_none(),
    }
}
