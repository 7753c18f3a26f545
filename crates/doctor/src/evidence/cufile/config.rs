//! The reader of `cufile.json`, with its comments, whole or in pieces.

use super::CufileConfig;
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Deepest nesting followed, and most values kept.
const MAX_DEPTH: usize = 16;
const MAX_VALUES: usize = 1_024;

/// Objects at the top of the file.
const OBJECTS: [&str; 8] = [
    "logging",
    "profile",
    "execution",
    "properties",
    "fs",
    "denylist",
    "miscellaneous",
    "blacklist",
];

#[derive(Default)]
pub(crate) struct CufileConfigReader {
    found: CufileConfig,
    path: Vec<String>,
    /// Inside a list: its path, and what has come of it.
    list: Option<(String, Vec<String>)>,
    begun: bool,
}

impl Reader for CufileConfigReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let text = without_comment(line.trimmed()).trim();
        if !self.begun {
            let telling = OBJECTS.iter().any(|object| {
                let rest = text.strip_prefix('"').and_then(|t| t.strip_prefix(object));
                rest.is_some_and(|rest| rest.trim_start_matches('"').trim_start().starts_with(':'))
            });
            let mentions =
                text.contains("\"allow_compat_mode\"") || text.contains("\"use_pci_p2pdma\"");
            if !telling && !mentions {
                return Verdict::Refused;
            }
            self.begun = true;
        }
        if text.is_empty() {
            return Verdict::Taken;
        }
        if !text.starts_with(['"', '{', '}', '[', ']', ',']) && self.list.is_none() {
            return Verdict::Refused;
        }
        let before = self.path.len();
        self.tokens(text, line);
        if self.path.is_empty() && before > 0 && text.ends_with('}') && text.len() > 1 {
            return Verdict::Taken;
        }
        if text == "}" && before == 0 {
            return Verdict::Last;
        }
        Verdict::Taken
    }

    fn finish(mut self: Box<Self>) -> Option<(Format, Artefact)> {
        self.found.clipped = !self.path.is_empty();
        let says_something = !self.found.values.is_empty();
        says_something.then_some((Format::CufileConfig, Artefact::CufileConfig(self.found)))
    }
}

impl CufileConfigReader {
    fn tokens(&mut self, text: &str, line: &Line<'_>) {
        let mut key: Option<String> = None;
        let mut tokens = Tokens(text).peekable();
        while let Some(token) = tokens.next() {
            match token {
                Token::Mark('{') => {
                    if self.path.len() < MAX_DEPTH
                        && let Some(key) = key.take()
                    {
                        self.path.push(key);
                    }
                }
                Token::Mark('}') => {
                    self.path.pop();
                }
                Token::Mark('[') => self.list = Some((self.dotted(key.take()), Vec::new())),
                Token::Mark(']') => {
                    if let Some((path, items)) = self.list.take() {
                        self.keep(path, &items.join(", "), line);
                    }
                }
                Token::Mark(_) => {}
                Token::Word(word)
                    if tokens.peek() == Some(&Token::Mark(':')) && self.list.is_none() =>
                {
                    key = Some(word.to_owned());
                }
                Token::Word(word) => match (&mut self.list, key.take()) {
                    (Some((_, items)), _) if items.len() < MAX_VALUES => {
                        items.push(word.to_owned())
                    }
                    (None, Some(key)) => {
                        let path = self.dotted(Some(key));
                        self.keep(path, word, line);
                    }
                    _ => {}
                },
            }
        }
    }

    fn dotted(&self, key: Option<String>) -> String {
        let mut path = self.path.join(".");
        if let Some(key) = key {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&key);
        }
        path
    }

    fn keep(&mut self, path: String, value: &str, line: &Line<'_>) {
        if self.found.values.len() < MAX_VALUES {
            self.found
                .values
                .insert(path, line.cite().of(value.to_owned()));
        }
    }
}

/// A text without `// …`, unless that stands inside quotes.
fn without_comment(text: &str) -> &str {
    let mut quoted = false;
    let mut slash = None;
    for (at, b) in text.bytes().enumerate() {
        match b {
            b'"' => quoted = !quoted,
            b'/' if !quoted && slash == Some(at) => return &text[..at - 1],
            b'/' if !quoted => slash = Some(at + 1),
            _ => {}
        }
    }
    text
}

#[derive(Debug, PartialEq, Eq)]
enum Token<'a> {
    Mark(char),
    /// A string without its quotes, or a bare number or word.
    Word(&'a str),
}

struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let text = self.0.trim_start();
        let first = text.chars().next()?;
        if matches!(first, '{' | '}' | '[' | ']' | ':' | ',') {
            self.0 = &text[1..];
            return Some(Token::Mark(first));
        }
        if first == '"' {
            let inside = &text[1..];
            let end = inside.find('"').unwrap_or(inside.len());
            self.0 = inside.get(end + 1..).unwrap_or_default();
            return Some(Token::Word(&inside[..end]));
        }
        let end = text
            .find(|c: char| {
                c.is_whitespace() || matches!(c, '{' | '}' | '[' | ']' | ':' | ',' | '"')
            })
            .unwrap_or(text.len());
        self.0 = &text[end..];
        Some(Token::Word(&text[..end]))
    }
}
