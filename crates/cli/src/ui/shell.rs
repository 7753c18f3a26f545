//! Words of a command line that a reader may copy into a shell.

/// Characters that mean nothing to a shell.
const PLAIN: &str = "-_./:=,+@%";

/// A word, in quotes where a shell would read more into it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_reads_a_word_back_as_it_was() {
        assert_eq!(quoted("--servers=8"), "--servers=8");
        assert_eq!(quoted("gpu:0"), "gpu:0");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
    }
}
