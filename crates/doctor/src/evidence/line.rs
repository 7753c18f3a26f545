//! One line, without the decoration of whatever launched, printed, quoted or pasted it.
//!
//! Stripped from the front, in any order and number: mail quotes (`> `), task numbers of `srun -l`
//! (` 7: `), tags of mpirun (`[1,0]<stdout>:`), torchrun (`[rank0]:`), MPICH (`[0] `), kubectl
//! (`[pod/name/container] `), docker compose (`name | `) and Ray (`(Worker pid=1, ip=…) `), ISO time
//! stamps, and docker's JSON around a line. Removed anywhere: ANSI escapes, with or without their escape character, and the
//! entities that a browser leaves behind.

use std::borrow::Cow;

use super::cite::{Cite, LineNumber, SourceName};

/// Most decorations stripped from one line; nobody stacks more.
const MAX_DECORATIONS: usize = 6;
/// Most white space before a decoration; deeper text is indented on purpose.
const MAX_LEAD: usize = 6;

/// Longest text that most readers see of a line. Documents in XML and JSON can be one line.
pub(crate) const MAX_TEXT_BYTES: usize = 8 << 10;
/// Longest piece of free text that is kept of a line.
const MAX_EXCERPT_BYTES: usize = 512;

/// A cleaned line. Leading white space is kept, trailing white space is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) source: &'a SourceName,
    pub(crate) number: LineNumber,
    /// At most [`MAX_TEXT_BYTES`] of the line.
    pub(crate) text: &'a str,
    /// All of the line.
    pub(crate) full: &'a str,
    /// The task that a launcher's tag names.
    pub(crate) task: Option<u32>,
    /// The line ended with a line feed and was not too long: the tail of `text` is really its tail.
    pub(crate) whole: bool,
}

impl<'a> Line<'a> {
    /// A line whose end came (`ended`), or not.
    pub(crate) fn new(
        source: &'a SourceName,
        number: LineNumber,
        full: &'a str,
        task: Option<u32>,
        ended: bool,
    ) -> Self {
        let text = &full[..full.floor_char_boundary(MAX_TEXT_BYTES)];
        Self {
            source,
            number,
            text,
            full,
            task,
            whole: ended && text.len() == full.len(),
        }
    }

    pub(crate) fn cite(&self) -> Cite {
        Cite::new(self.source.clone(), self.number, self.text)
    }

    pub(crate) fn trimmed(&self) -> &'a str {
        self.text.trim_start()
    }
}

/// A piece of free text, short enough to keep thousands of.
pub(crate) fn excerpt(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_EXCERPT_BYTES)].to_owned()
}

/// Removes escapes and entities; borrows when there is nothing to remove.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    if memchr::memchr(0x1b, text.as_bytes()).is_some() {
        text = Cow::Owned(without_escapes(&text));
    }
    if text.ends_with("[0m") || orphan_escape(text.trim_start()).is_some() {
        text = Cow::Owned(without_orphans(&text));
    }
    if let Some(logged) = docker_json(&text) {
        text = Cow::Owned(logged);
    }
    if memchr::memchr(b'&', text.as_bytes()).is_some() && !text.trim_start().starts_with('<') {
        text = Cow::Owned(
            text.replace("&gt;", ">")
                .replace("&lt;", "<")
                .replace("&quot;", "\"")
                .replace("&amp;", "&"),
        );
    }
    text
}

/// The text of `{"log":"text\\n","stream":"stdout","time":"…"}`, as docker keeps it.
fn docker_json(text: &str) -> Option<String> {
    let inside = text.trim_start().strip_prefix("{\"log\":\"")?;
    let end = inside.find("\",\"stream\":")?;
    let logged = inside[..end]
        .trim_end_matches("\\n")
        .trim_end_matches("\\r");
    Some(
        logged
            .replace("\\u003e", ">")
            .replace("\\u003c", "<")
            .replace("\\u0026", "&")
            .replace("\\t", "\t")
            .replace("\\\"", "\""),
    )
}

fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\x1b' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('[') => while rest.next().is_some_and(|c| !('\x40'..='\x7e').contains(&c)) {},
            Some(']') => while rest.next().is_some_and(|c| c != '\x07' && c != '\x1b') {},
            _ => {}
        }
    }
    out
}

/// The length of `[4m` or `[1;31m` at the start of a text.
fn orphan_escape(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('[')?;
    let end = inside.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    (end > 0 && end <= 8 && inside[end..].starts_with('m')).then_some(end + 2)
}

fn without_orphans(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('[') {
        let (before, bracket) = rest.split_at(at);
        out.push_str(before);
        let skip = orphan_escape(bracket).unwrap_or_else(|| {
            out.push('[');
            1
        });
        rest = &bracket[skip..];
    }
    out.push_str(rest);
    out
}

/// Strips decorations from the front; the task is that of the innermost tag that names one.
pub(crate) fn undecorated(text: &str) -> (&str, Option<u32>) {
    let (mut text, mut task) = (text, None);
    for _ in 0..MAX_DECORATIONS {
        let Some((rest, named)) = decoration(text) else {
            break;
        };
        text = rest;
        task = named.or(task);
    }
    (text, task)
}

fn decoration(text: &str) -> Option<(&str, Option<u32>)> {
    let inner = text.trim_start_matches([' ', '\t']);
    if text.len() - inner.len() > MAX_LEAD {
        return None;
    }
    match inner.bytes().next()? {
        b'>' => {
            let rest = &inner[1..];
            Some((rest.strip_prefix(' ').unwrap_or(rest), None))
        }
        b'0'..=b'9' => iso_stamp(inner)
            .map(|rest| (rest, None))
            .or_else(|| srun_task(inner)),
        b'[' => bracketed(inner),
        b'(' => ray(inner),
        first if first.is_ascii_alphabetic() && text.len() == inner.len() => compose(inner),
        _ => None,
    }
}

/// `7: text`, as `srun -l` prints it.
fn srun_task(text: &str) -> Option<(&str, Option<u32>)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = text[digits..].strip_prefix(':')?;
    if digits > 6 || !(rest.is_empty() || rest.starts_with(' ')) {
        return None;
    }
    Some((
        rest.strip_prefix(' ').unwrap_or(rest),
        text[..digits].parse().ok(),
    ))
}

/// `2025-01-21T04:41:44.285Z text` and `2025-01-21 04:41:44,285 text`.
fn iso_stamp(text: &str) -> Option<&str> {
    let b = text.as_bytes();
    let shape = b.len() > 19
        && b.get(..19)?.iter().enumerate().all(|(at, c)| match at {
            4 | 7 => *c == b'-',
            10 => matches!(c, b'T' | b' '),
            13 | 16 => *c == b':',
            _ => c.is_ascii_digit(),
        });
    if !shape {
        return None;
    }
    let tail = &text[19..];
    let end = tail
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',' | 'Z' | '+' | '-' | ':'))?;
    let rest = tail[end..].strip_prefix([' ', '\t'])?;
    // Container runtimes name the stream, and whether the line is full or partial.
    let streams = ["stdout F ", "stderr F ", "stdout P ", "stderr P "];
    let stream = streams.iter().find_map(|stream| rest.strip_prefix(stream));
    Some(stream.unwrap_or(rest))
}

fn bracketed(text: &str) -> Option<(&str, Option<u32>)> {
    let close = text.find(']').filter(|at| *at < 96)?;
    let (inside, rest) = (&text[1..close], &text[close + 1..]);
    if rest.starts_with("<std") {
        let (_, after) = rest.split_once('>')?;
        // `1,0`, and `1,mpirank:0,algo-1` of SageMaker.
        let task = inside
            .split(',')
            .skip(1)
            .find_map(|part| part.rsplit(':').next()?.parse().ok());
        return Some((after.strip_prefix(':').unwrap_or(after), task));
    }
    for word in ["rank", "default", "trainer"] {
        if let Some(number) = inside.strip_prefix(word) {
            return Some((rest.strip_prefix(':')?, Some(number.parse().ok()?)));
        }
    }
    let rest = rest.strip_prefix(' ');
    if inside.starts_with("pod/") || is_time(inside) {
        return Some((rest?, None));
    }
    let plain_number =
        !inside.is_empty() && inside.len() <= 6 && inside.bytes().all(|b| b.is_ascii_digit());
    // `[0] NCCL INFO` is the end of NCCL's own prefix, cut off in front.
    if plain_number && !rest?.starts_with("NCCL") {
        return Some((rest?, inside.parse().ok()));
    }
    None
}

fn is_time(text: &str) -> bool {
    text.bytes().filter(|b| *b == b':').count() >= 2
        && text.bytes().all(|b| {
            b.is_ascii_digit()
                || matches!(
                    b,
                    b'-' | b':' | b'.' | b',' | b'T' | b'Z' | b'+' | b' ' | b'/'
                )
        })
}

/// `(RayWorkerWrapper pid=123, ip=10.0.0.1) text`.
fn ray(text: &str) -> Option<(&str, Option<u32>)> {
    let close = text.find(')').filter(|at| *at < 96)?;
    text[1..close].contains("pid=").then_some(())?;
    Some((text[close + 1..].strip_prefix(' ')?, None))
}

/// `worker-1  | text`, as docker compose prints it.
fn compose(text: &str) -> Option<(&str, Option<u32>)> {
    let name = text
        .bytes()
        .take(64)
        .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        .count();
    let rest = text[name..].trim_start_matches(' ');
    (rest.len() < text.len() - name).then_some(())?;
    Some((rest.strip_prefix("| ")?, None))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn launchers_quotes_and_time_stamps_come_off() {
        for (raw, text, task) in [
            ("> > NVMe : Supported", "NVMe : Supported", None),
            (
                " 7: n1:1:1 [3] NCCL INFO x",
                "n1:1:1 [3] NCCL INFO x",
                Some(7),
            ),
            ("12:  indented", " indented", Some(12)),
            ("[1,0]<stdout>:#  size", "#  size", Some(0)),
            ("[prterun-n1-77@1,13]<stderr>: x", " x", Some(13)),
            ("[1,mpirank:5,algo-2]<stderr>:x", "x", Some(5)),
            ("2025-06-01T10:00:00.123456789Z stdout F x", "x", None),
            ("[rank3]: Traceback", " Traceback", Some(3)),
            ("[4] x", "x", Some(4)),
            ("[2025-01-01 12:08:32] n1:1:1 [0] x", "n1:1:1 [0] x", None),
            (
                "2025-01-21T04:41:44,285060+00:00 kernel: x",
                "kernel: x",
                None,
            ),
            (
                "[pod/job-0/main] 2025-01-21T04:41:44.1Z [1,2]<stdout>:x",
                "x",
                Some(2),
            ),
            (
                "(RayWorker pid=12, ip=10.0.0.1) n1:1:1 [0] x",
                "n1:1:1 [0] x",
                None,
            ),
            ("worker-1   | x", "x", None),
        ] {
            assert_eq!(undecorated(raw), (text, task), "{raw}");
        }
    }

    #[test]
    fn text_that_only_looks_decorated_stays() {
        for text in [
            "[0] NCCL INFO Channel 00 : 0 -> 1 via SHM",
            "01:00.0 3D controller: NVIDIA",
            "hca_id: mlx5_0",
            "[   12.345678] NVRM: Xid",
            "[1675858273.443234] [n1:1:0] ucp_worker.c:1 UCX  INFO x",
            " |           +-01.1-[01]--+-00.0  NVIDIA",
            "                0: too deep",
            "2025-01-21 is a date",
            "NIC0: mlx5_0",
        ] {
            assert_eq!(undecorated(text), (text, None), "{text}");
        }
    }

    #[test]
    fn escapes_and_entities_disappear() {
        assert_eq!(plain("\x1b[4mGPU0\tNIC0\x1b[0m"), "GPU0\tNIC0");
        assert_eq!(plain("[4mGPU0\tNIC0[0m"), "GPU0\tNIC0");
        assert_eq!(plain("\x1b]0;title\x07text"), "text");
        assert_eq!(plain("0 -&gt; 1"), "0 -> 1");
        assert_eq!(
            plain(r#"{"log":"0 -\u003e 1 \"a\"\n","stream":"stderr","time":"2025"}"#),
            "0 -> 1 \"a\""
        );
        assert_eq!(
            plain("<info value=\"a &lt; b\"/>"),
            "<info value=\"a &lt; b\"/>"
        );
        assert_eq!(plain("3[8a000] -> 0[1a000]"), "3[8a000] -> 0[1a000]");
    }

    proptest! {
        #[test]
        fn cleaning_is_total(text in "\\PC{0,80}", junk in "[\\[\\]<>|(): 0-9a-z,\u{1b};m-]{0,60}") {
            for t in [text.as_str(), junk.as_str()] {
                let cleaned = plain(t);
                let (rest, _) = undecorated(&cleaned);
                prop_assert!(cleaned.ends_with(rest));
            }
        }
    }
}
