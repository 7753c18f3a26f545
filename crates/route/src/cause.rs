//! What is behind an error.

use std::error::Error;

/// An error and its sources in one sentence. Some errors quote their source and others leave it to
/// be asked for: each is told once.
pub fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let told = source.to_string();
        if !text.contains(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{said}")]
    struct Failed {
        said: &'static str,
        source: io::Error,
    }

    #[test]
    fn a_source_is_told_unless_the_error_quoted_it() {
        let failed = |said| Failed {
            said,
            source: io::Error::other("disk on fire"),
        };
        assert_eq!(
            sentence(&failed("cannot read m")),
            "cannot read m: disk on fire"
        );
        let quoting = "cannot read m: disk on fire";
        assert_eq!(sentence(&failed(quoting)), quoting);
    }
}
