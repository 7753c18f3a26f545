//! What two messages have in common when only numbers, addresses or paths tell them apart.

/// Longest wording; the rest of a message does not tell it apart.
const MAX_WORDING: usize = 240;

/// A message with every number as `#` and every path as `/…`, at most [`MAX_WORDING`] long.
pub(crate) fn wording(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_WORDING));
    let mut rest = text;
    while !rest.is_empty() && out.len() < MAX_WORDING {
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.' | ':')))
            .unwrap_or(rest.len());
        if end == 0 {
            let first = rest.chars().next().map_or(0, char::len_utf8);
            out.push_str(&rest[..first]);
            rest = &rest[first..];
            continue;
        }
        let (word, after) = rest.split_at(end);
        push_word(word, &mut out);
        rest = after;
    }
    out
}

fn push_word(word: &str, out: &mut String) {
    // The colon behind a word is not a part of it.
    let end = word.trim_end_matches([':', '.']).len();
    let (word, tail) = word.split_at(end);
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let groups = word.trim_start_matches("0x");
    let hexadecimal = groups
        .bytes()
        .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
    if word.starts_with('/') && word.len() > 1 {
        out.push_str("/…");
    } else if hexadecimal && (digits > 0 || word.contains(':')) {
        out.push('#');
    } else if digits == 0 {
        out.push_str(word);
    } else {
        let mut in_number = false;
        for c in word.chars() {
            if !c.is_ascii_digit() {
                out.push(c);
            } else if !in_number {
                out.push('#');
            }
            in_number = c.is_ascii_digit();
        }
    }
    out.push_str(tail);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_addresses_and_paths_do_not_tell_messages_apart() {
        assert_eq!(
            wording("peer 10.0.0.1<43210> status=12 at 0x7f456c22 in /dev/nvme0n1p2, mlx5_3"),
            wording("peer 10.0.7.9<999> status=4 at 0x1 in /dev/sda, mlx5_11")
        );
        assert_eq!(wording("GID: 00:ff:fe"), wording("GID: 00:00:01"));
        assert_eq!(wording("at 12:08:32 error: bad"), "at # error: bad");
        assert_ne!(wording("read failed"), wording("write failed"));
        assert_eq!(wording("fd: -22"), "fd: -#");
    }

    #[test]
    fn a_wording_is_bounded() {
        assert!(wording(&"ab ".repeat(10_000)).len() < MAX_WORDING + 16);
        assert_eq!(wording(&"é".repeat(3)), "ééé");
    }
}
