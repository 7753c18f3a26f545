//! What a store says when it does not do what was asked, and the XML in which it says anything.

use std::fmt;
use std::io::Read;
use std::time::SystemTime;

use roxmltree::{Document, Node, ParsingOptions};
use ureq::{Body, http};

/// The longest answer in XML that is read, in bytes: a page of the longest keys, escaped.
const MAX_TEXT: u64 = 8 << 20;
/// The most elements of an answer.
const MAX_NODES: u32 = 100_000;
/// The longest word of a store that is repeated.
const MAX_WORD: usize = 128;
/// From how far on stores refuse a signature for its time, in seconds.
const MAX_SKEW: i64 = 15 * 60;

/// What was said instead of what was hoped for.
pub(super) struct Answer {
    pub status: u16,
    /// The store's word for it; empty where it has none.
    pub code: String,
    message: String,
    /// The region of the bucket, where the store says.
    pub region: Option<String>,
    /// What time it is there.
    date: Option<SystemTime>,
}

impl Answer {
    /// Reads what was answered.
    pub(super) fn of(answer: &mut http::Response<Body>) -> Self {
        let header = |name: &str| {
            let value = answer.headers().get(name)?.to_str().ok()?;
            Some(bounded(value))
        };
        let region = header("x-amz-bucket-region");
        let date = header("date").and_then(|date| parse_http_date(&date));
        let mut said = Self {
            status: answer.status().as_u16(),
            code: String::new(),
            message: String::new(),
            region,
            date,
        };
        // What is not XML, or none of it, says nothing more than the status.
        if said.status >= 300
            && let Ok(body) = text(answer)
        {
            said.take(&body);
        }
        said
    }

    /// Takes up what a text says, if it is an error's.
    pub(super) fn take(&mut self, body: &str) {
        let Some(document) = parsed(body) else { return };
        let root = document.root_element();
        if root.tag_name().name() != "Error" {
            return;
        }
        let word = |name| child(root, name).map(bounded);
        self.code = word("Code").unwrap_or_default();
        self.message = word("Message").unwrap_or_default();
        self.region = self.region.take().or_else(|| word("Region"));
    }

    /// How far the clock of this machine is ahead of the store's, where that is why it refuses.
    pub(super) fn skew(&self) -> Option<i64> {
        let there = self.date?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let here = SystemTime::now();
        let here = here.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let ahead = i64::try_from(here.as_secs()).ok()? - i64::try_from(there.as_secs()).ok()?;
        let told = self.code == "RequestTimeTooSkewed";
        let silent = self.status == 403 && self.code.is_empty() && ahead.abs() > MAX_SKEW;
        (told || silent).then_some(ahead)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.status)?;
        match (self.code.as_str(), self.message.as_str()) {
            ("", _) => Ok(()),
            (code, "") => write!(f, " {code}"),
            (code, message) => write!(f, " {code}: {message}"),
        }
    }
}

fn bounded(text: &str) -> String {
    let plain = text.trim().chars().filter(|c| !c.is_control());
    plain.take(MAX_WORD).collect()
}

/// The text of an answer, as far as is read of it.
pub(super) fn text(answer: &mut http::Response<Body>) -> std::io::Result<String> {
    let mut text = String::new();
    let body = answer.body_mut().as_reader();
    body.take(MAX_TEXT).read_to_string(&mut text)?;
    Ok(text)
}

/// A text as XML, if it is that and not too much of it.
pub(super) fn parsed(text: &str) -> Option<Document<'_>> {
    let options = ParsingOptions {
        nodes_limit: MAX_NODES,
        ..ParsingOptions::default()
    };
    // Some stores begin with an empty line, where a declaration must not be.
    Document::parse_with_options(text.trim_start(), options).ok()
}

/// The text of a child of this name.
pub(super) fn child<'a>(of: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let mut named = of.children().filter(|node| node.tag_name().name() == name);
    named.next().map(|node| node.text().unwrap_or(""))
}

/// All children of this name.
pub(super) fn children<'a, 'i: 'a>(
    of: Node<'a, 'i>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'i>> {
    of.children()
        .filter(move |node| node.tag_name().name() == name)
}

/// A time as HTTP writes it: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7).
fn parse_http_date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let mut words = text.split_once(", ")?.1.split_whitespace();
    let (day, month, year) = (words.next()?, words.next()?, words.next()?);
    let (time, zone) = (words.next()?, words.next()?);
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let text = format!("{year}-{month:02}-{day}T{time}Z");
    (zone == "GMT").then_some(())?;
    humantime::parse_rfc3339(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn nothing() -> Answer {
        Answer {
            status: 403,
            code: String::new(),
            message: String::new(),
            region: None,
            date: None,
        }
    }

    #[test]
    fn an_errors_words_are_those_of_its_xml() {
        let mut said = nothing();
        said.take(
            "\n<?xml version=\"1.0\"?><Error><Code>AuthorizationHeaderMalformed</Code>\
             <Message>the region is wrong\n</Message><Region>eu-west-1</Region></Error>",
        );
        assert_eq!(said.region.as_deref(), Some("eu-west-1"));
        assert_eq!(
            said.to_string(),
            "status 403 AuthorizationHeaderMalformed: the region is wrong"
        );
        let mut said = nothing();
        said.take("<Other><Code>No</Code></Other>");
        assert_eq!(said.to_string(), "status 403");
    }

    #[test]
    fn a_clock_that_is_off_shows_by_the_stores_word_or_by_its_date_alone() {
        let mut said = nothing();
        assert_eq!(said.skew(), None);
        let hour = Duration::from_secs(3600);
        said.date = Some(SystemTime::now() - hour);
        assert!(
            said.skew()
                .is_some_and(|ahead| (3598..3605).contains(&ahead))
        );
        said.code = "SignatureDoesNotMatch".into();
        assert_eq!(said.skew(), None, "the store says why");
        said.code = "RequestTimeTooSkewed".into();
        said.date = Some(SystemTime::now() + hour);
        assert!(said.skew().is_some_and(|ahead| ahead < -3595));
    }

    #[test]
    fn a_date_is_read_as_http_writes_it() {
        let date = parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").expect("a date");
        let since = date.duration_since(SystemTime::UNIX_EPOCH);
        assert_eq!(since.expect("later").as_secs(), 784_111_777);
        for bad in [
            "",
            "Sun",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 6 Foo 1994 1:2:3 GMT",
        ] {
            assert_eq!(parse_http_date(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_readers_panic(text in "\\PC{0,200}", tag in "[A-Z][a-z]{0,5}") {
            let mut said = nothing();
            said.take(&text);
            said.take(&format!("<Error><{tag}>{text}</{tag}></Error>"));
            let _ = (said.to_string(), parse_http_date(&text));
        }
    }
}
