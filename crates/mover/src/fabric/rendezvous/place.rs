//! Which directory a user means.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use super::{Directory, Etcd, Folder};

/// What etcd's members are named by.
const ETCD: &str = "etcd://";
/// Below what crowfly's names lie when nobody says.
const PREFIX: &str = "crowfly/";

/// The text names no directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no directory: {why}")]
pub struct BadDirectory {
    /// What was written.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// The directory that a text names: a folder that all see, or `etcd://HOST:PORT[/PREFIX]`.
///
/// # Errors
/// When it is empty, or a URL of something else.
pub fn directory(text: &OsStr) -> Result<Arc<dyn Directory>, BadDirectory> {
    let shown = text.to_string_lossy();
    let bad = |why| BadDirectory {
        text: shown.clone().into_owned(),
        why,
    };
    if text.is_empty() {
        return Err(bad("it is a folder, or etcd://HOST:PORT"));
    }
    let Some(rest) = shown.strip_prefix(ETCD) else {
        return match shown.contains("://") {
            true => Err(bad("of all URLs only etcd://HOST:PORT is one")),
            false => Ok(Arc::new(Folder::at(Path::new(text)))),
        };
    };
    let (address, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = address
        .rsplit_once(':')
        .ok_or_else(|| bad("the port is missing: etcd://HOST:PORT"))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.[]:".contains(c);
    if host.is_empty() || !host.chars().all(plain) || port.parse::<u16>().is_err() {
        return Err(bad("it is written etcd://HOST:PORT[/PREFIX]"));
    }
    let prefix = match prefix.trim_end_matches('/') {
        "" => PREFIX.to_owned(),
        prefix => format!("{prefix}/"),
    };
    Ok(Arc::new(Etcd::new(address, prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_a_folder_or_etcd() {
        for good in [
            "/shared/job",
            "names",
            "etcd://h:2379",
            "etcd://[::1]:1/a/b/",
        ] {
            assert!(directory(OsStr::new(good)).is_ok(), "{good}");
        }
        for bad in [
            "",
            "http://h:1",
            "etcd://h",
            "etcd://:1",
            "etcd://h:x",
            "etcd://h h:1",
        ] {
            let error = directory(OsStr::new(bad)).map(drop).expect_err("none");
            assert_eq!(error.text, bad);
        }
    }
}
