//! Pieces of HTML. Text from outside goes through [`text`], and nothing else makes text.

use std::fmt::Write;

use crowfly_doctor::{Severity, Verdict};

use crate::render::svg::escape;
use crate::render::text::harmless;

/// Nothing may be loaded, run or sent: what is pasted into a report stays text.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
const STYLE: &str = include_str!("style.css");

/// A page that needs nothing but itself; `style` comes after the style of all reports.
pub fn document(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"generator\" content=\"crowfly {version}\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n\
         <body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        version = env!("CARGO_PKG_VERSION"),
        title = text(title),
    )
}

/// Anybody's text, as text.
pub fn text(text: &str) -> String {
    escape(&harmless(text))
}

/// A verdict as a coloured chip.
pub fn chip(verdict: Verdict) -> String {
    let class = match verdict {
        Verdict::Direct => "is-good",
        Verdict::DirectButSlow | Verdict::Staged | Verdict::InsufficientEvidence => "is-warn",
        Verdict::Socket | Verdict::Broken => "is-bad",
    };
    let words = crate::render::diagnosis::words(verdict);
    format!("<span class=\"chip {class}\">{words}</span>")
}

/// The codes of findings, each a link to where it is told.
pub fn code_links(codes: &[&'static str]) -> String {
    let link = |code: &&str| format!("<a href=\"#{0}\">{0}</a>", text(code));
    codes.iter().map(link).collect::<Vec<_>>().join(" ")
}

/// The class that tells how much a finding matters.
pub const fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Broken | Severity::Fault => "is-bad",
        Severity::Warning => "is-warn",
        Severity::Note => "is-faint",
    }
}

/// A section with its heading; nothing where there is nothing in it.
pub fn section(heading: &str, inside: &str) -> String {
    match inside.is_empty() {
        true => String::new(),
        false => format!(
            "<section>\n<h2>{}</h2>\n{inside}</section>\n",
            text(heading)
        ),
    }
}

/// A table that scrolls sideways where the screen is narrow. Cells are HTML.
pub fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr>");
    for title in titles {
        let _ = write!(html, "<th>{}</th>", text(title));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td>{cell}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

/// Something to unfold; `open` from the start or not.
pub fn unfold(title: &str, open: bool, inside: &str) -> String {
    let open = if open { " open" } else { "" };
    format!(
        "<details{open}><summary>{}</summary>\n{inside}</details>\n",
        text(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_text_opens_no_tag_and_reorders_nothing() {
        assert_eq!(
            text("<b onclick=\"x\">\u{202e}\u{1b}[2J"),
            "&lt;b onclick=&quot;x&quot;&gt;\\u{202e}\\u{1b}[2J"
        );
    }
}
