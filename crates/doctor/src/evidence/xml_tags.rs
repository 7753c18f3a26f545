//! Tags and attributes out of XML that may have lost its head, its tail or lines in between.
//!
//! A validating parser gives nothing for a clipped document, and needs all of it in memory. Here
//! tags come line by line, so that each keeps its place; text between tags is not wanted.

/// Longest tag read; a longer one is dropped.
const MAX_TAG_BYTES: usize = 64 << 10;

/// Whether a tag begins an element, ends one, or is one whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagKind {
    Begin,
    End,
    Whole,
}

/// One tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag<'a> {
    pub(crate) kind: TagKind,
    pub(crate) name: &'a str,
    attributes: &'a str,
}

impl<'a> Tag<'a> {
    /// Reads what stands between `<` and `>`.
    fn parse(inside: &'a str) -> Option<Self> {
        let (kind, inside) = match (inside.strip_prefix('/'), inside.strip_suffix('/')) {
            (Some(inside), _) => (TagKind::End, inside),
            (None, Some(inside)) => (TagKind::Whole, inside),
            (None, None) => (TagKind::Begin, inside),
        };
        let end = inside.find(char::is_whitespace).unwrap_or(inside.len());
        let (name, attributes) = inside.split_at(end);
        let sane = name.starts_with(|c: char| c.is_ascii_alphabetic());
        sane.then_some(Self {
            kind,
            name,
            attributes,
        })
    }

    /// The value of an attribute.
    pub(crate) fn attribute(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.attributes;
        loop {
            let (key, after) = rest.split_once('=')?;
            let after = after.trim_start();
            let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let (value, after) = after[1..].split_once(quote)?;
            if key.trim() == name {
                return Some(value);
            }
            rest = after;
        }
    }

    /// The value of an attribute as a number.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.attribute(name)?.trim().parse().ok()
    }

    /// The value of an attribute written `0x…`.
    pub(crate) fn hexadecimal(&self, name: &str) -> Option<u32> {
        let digits = self.attribute(name)?.trim().strip_prefix("0x")?;
        u32::from_str_radix(digits, 16).ok()
    }

    /// The value of an attribute that is 0 or 1.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.number::<u32>(name).map(|n| n != 0)
    }
}

/// Takes lines, gives tags.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    /// A tag whose end has not come yet.
    partial: String,
    in_comment: bool,
}

impl Tags {
    /// Whether a line can be a piece of the document.
    pub(crate) fn wants(&self, line: &str) -> bool {
        self.in_comment || !self.partial.is_empty() || line.trim_start().starts_with('<')
    }

    /// Gives each tag that ends in a line.
    pub(crate) fn feed(&mut self, line: &str, mut each: impl FnMut(&Tag<'_>)) {
        let mut rest = line;
        while !rest.is_empty() {
            if self.in_comment {
                let Some((_, after)) = rest.split_once("-->") else {
                    return;
                };
                self.in_comment = false;
                rest = after;
            } else if self.partial.is_empty() {
                let Some((_, after)) = rest.split_once('<') else {
                    return;
                };
                if let Some(comment) = after.strip_prefix("!--") {
                    self.in_comment = true;
                    rest = comment;
                } else {
                    self.partial.push('<');
                    rest = after;
                }
            } else {
                rest = self.extend(rest, &mut each);
            }
        }
        if !self.partial.is_empty() {
            self.partial.push(' ');
        }
    }

    /// Adds to an open tag as far as its end; gives what follows.
    fn extend<'a>(&mut self, text: &'a str, each: &mut impl FnMut(&Tag<'_>)) -> &'a str {
        let (piece, after, ended) = match text.split_once('>') {
            Some((piece, after)) => (piece, after, true),
            None => (text, "", false),
        };
        if self.partial.len() + piece.len() > MAX_TAG_BYTES {
            self.partial.clear();
            return after;
        }
        self.partial.push_str(piece);
        if ended {
            let whole = std::mem::take(&mut self.partial);
            if let Some(tag) = Tag::parse(whole[1..].trim_end()) {
                each(&tag);
            }
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tags(text: &str) -> Vec<(TagKind, String, Option<String>)> {
        let mut found = Vec::new();
        let mut tags = Tags::default();
        for line in text.lines() {
            tags.feed(line, |tag| {
                found.push((
                    tag.kind,
                    tag.name.to_owned(),
                    tag.attribute("id").map(str::to_owned),
                ));
            });
        }
        found
    }

    #[test]
    fn tags_read_across_lines_comments_and_several_on_a_line() {
        assert_eq!(
            tags(
                "<a id=\"1\"><!-- <b/> --><c\n  x='y' id='2'/> text </a>\n<!-- over\nlines <d/> --><e>"
            ),
            [
                (TagKind::Begin, "a".into(), Some("1".into())),
                (TagKind::Whole, "c".into(), Some("2".into())),
                (TagKind::End, "a".into(), None),
                (TagKind::Begin, "e".into(), None),
            ]
        );
    }

    #[test]
    fn declarations_and_broken_tags_are_passed_over() {
        assert_eq!(
            tags("<?xml version=\"1.0\"?>\n<!DOCTYPE x>\n< a>\n<>\n<b"),
            []
        );
        let long = format!("<a id=\"{}\"/><b/>", "x".repeat(MAX_TAG_BYTES));
        assert_eq!(tags(&long).len(), 1);
    }

    #[test]
    fn attributes_that_are_broken_read_as_missing() {
        assert_eq!(tags("<a id=1/>"), [(TagKind::Whole, "a".into(), None)]);
        assert_eq!(tags("<a id=\"1/>"), [(TagKind::Whole, "a".into(), None)]);
        assert_eq!(
            tags("<a x=\"é\" id=\"ü\"/>"),
            [(TagKind::Whole, "a".into(), Some("ü".into()))]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in "[<>!/ a-c=\"'\n-]{0,200}") {
            tags(&text);
        }
    }
}
