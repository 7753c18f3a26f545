//! What all pictures share.

/// Text that is safe inside an element and an attribute.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // XML 1.0 has no way to write these.
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_text_can_neither_open_a_tag_nor_end_an_attribute() {
        assert_eq!(escape("a<b>&\"\u{1b}c"), "a&lt;b&gt;&amp;&quot;\u{fffd}c");
    }
}
