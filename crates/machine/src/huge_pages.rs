//! Whether the kernel gives out transparent huge pages at all.

/// Where the kernel says so.
pub const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The setting's text when it forbids huge pages even to programs that ask; `None` when it allows
/// them or cannot be read.
pub fn forbidden() -> Option<String> {
    let text = std::fs::read_to_string(SETTING).ok()?;
    forbids(&text).then(|| text.trim().to_owned())
}

fn forbids(setting: &str) -> bool {
    setting.split_whitespace().any(|word| word == "[never]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_chosen_word_counts() {
        assert!(forbids("always madvise [never]\n"));
        assert!(!forbids("always [madvise] never\n"));
        assert!(!forbids(""));
    }
}
