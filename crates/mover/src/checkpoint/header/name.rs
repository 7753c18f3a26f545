//! Which tensor names are refused.

use super::error::HeaderError;

/// Refuses names that could do harm once somebody turns them into C strings or file names.
///
/// Slashes inside a name are common (JAX writes `encoder/layer_0/kernel`) and pass; a name that is
/// absolute or climbs with `..` does not.
pub(super) fn check(name: &str) -> Result<(), HeaderError> {
    if name.is_empty() {
        return Err(HeaderError::EmptyName);
    }
    if name.contains('\0') {
        return Err(HeaderError::NulInName {
            tensor: name.into(),
        });
    }
    if is_absolute(name) || climbs(name) {
        return Err(HeaderError::PathLikeName {
            tensor: name.into(),
        });
    }
    Ok(())
}

fn climbs(name: &str) -> bool {
    // Most names have no two dots in a row, which is quicker to see.
    let dots = |pair: &[u8]| pair == b"..";
    name.as_bytes().windows(2).any(dots) && name.split(['/', '\\']).any(|part| part == "..")
}

fn is_absolute(name: &str) -> bool {
    match name.as_bytes() {
        [b'/' | b'\\', ..] => true,
        [drive, b':', b'/' | b'\\', ..] => drive.is_ascii_alphabetic(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_pass_with_dots_slashes_and_letters_of_any_script() {
        for name in [
            "model.layers.0.weight",
            "encoder/layer_0/kernel",
            "..hidden",
            "a..b",
            "重み",
            "a:b",
            ".",
        ] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_that_climb_or_start_at_a_root_are_refused() {
        for name in [
            "..", "../x", "a/../b", "a/..", "..\\x", "/etc", "\\\\host", "C:\\x", "c:/x",
        ] {
            assert_eq!(
                check(name).map_err(|e| e.code()),
                Err("path-like-name"),
                "{name}"
            );
        }
    }
}
