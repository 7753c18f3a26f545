//! Looks and records in one step, within a budget.

use std::time::SystemTime;

use crowfly_route::snapshot::{MAX_OBSERVATIONS, Observation, Snapshot, Value};

use super::Options;
use crate::root::Root;

/// The most bytes of JSON a capture may come to, well below what a reader of snapshots accepts.
pub const MAX_CAPTURE_BYTES: usize = 48 << 20;
/// The largest text that is kept unless its look says otherwise; a sysfs attribute has one page.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;
/// The key at which a capture that was cut short says so.
pub const TRUNCATED: &str = "capture:truncated";
/// The JSON around one observation: quotes, colon, indentation, tag.
const FRAME_BYTES: usize = 32;

/// Looks at a root and records what it sees.
pub(super) struct Recorder<'r> {
    root: &'r Root,
    snapshot: Snapshot,
    bytes: usize,
    config_space: bool,
}

impl<'r> Recorder<'r> {
    pub fn new(root: &'r Root, options: &Options) -> Self {
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        Self {
            root,
            snapshot: Snapshot::new(options.tool.clone(), now.to_string()),
            bytes: 0,
            config_space: options.config_space,
        }
    }

    pub fn root(&self) -> &'r Root {
        self.root
    }

    /// Whether the configuration space of PCI functions is wanted.
    pub fn config_space(&self) -> bool {
        self.config_space
    }

    pub fn into_snapshot(self) -> Snapshot {
        self.snapshot
    }

    /// Records what was seen, as long as the snapshot stays one that can be read back.
    pub fn record(&mut self, key: impl Into<String>, seen: Observation) {
        let key = key.into();
        let cost = FRAME_BYTES + json_bytes(&key) + cost(&seen);
        if self.snapshot.len() + 1 >= MAX_OBSERVATIONS || self.bytes + cost > MAX_CAPTURE_BYTES {
            let full = format!(
                "the capture is full at {MAX_OBSERVATIONS} observations or {MAX_CAPTURE_BYTES} bytes; \
                 `{}` and what followed was left out",
                key.chars().take(256).collect::<String>()
            );
            self.cut_short(full);
            // Nothing smaller may slip in later: what is missing is all after one point.
            self.bytes = MAX_CAPTURE_BYTES;
            return;
        }
        self.bytes += cost;
        self.snapshot.record(key, seen);
    }

    /// Records that the capture is not whole, and why; the first reason stays.
    pub fn cut_short(&mut self, why: String) {
        if self.snapshot.get(TRUNCATED).is_none() {
            self.snapshot.record(TRUNCATED, Observation::Error(why));
        }
    }

    /// Records a file's text.
    pub fn text(&mut self, path: impl Into<String>) {
        self.text_up_to(path, MAX_TEXT_BYTES);
    }

    /// Records a file's text of at most `limit` bytes.
    pub fn text_up_to(&mut self, path: impl Into<String>, limit: usize) {
        let path = path.into();
        let seen = self.root.text(&path, limit);
        self.record(path, seen);
    }

    /// Records the texts of several files of one directory.
    pub fn texts(&mut self, directory: &str, names: &[&str]) {
        for name in names {
            self.text(format!("{directory}/{name}"));
        }
    }

    /// Records where a symbolic link points.
    pub fn link(&mut self, path: impl Into<String>) {
        let path = path.into();
        let seen = self.root.link(&path);
        self.record(path, seen);
    }

    /// Records a directory's entries and returns them; none when it could not be listed.
    pub fn list(&mut self, path: impl Into<String>) -> Vec<String> {
        let path = path.into();
        let seen = self.root.list(&path);
        let names = names(&seen);
        self.record(path, seen);
        names
    }

    /// A directory's entries, to find what to look at, without recording them.
    pub fn peek(&self, path: &str) -> Vec<String> {
        names(&self.root.list(path))
    }

    /// Records what kind of thing is at a path, without opening it.
    pub fn kind(&mut self, path: impl Into<String>) {
        let path = path.into();
        let seen = self.root.kind(&path);
        self.record(path, seen);
    }

    /// The entries recorded at a key; none when it was not a directory that could be listed.
    pub fn seen_list(&self, key: &str) -> &[String] {
        self.snapshot.list(key)
    }

    /// The text recorded at a key.
    pub fn seen(&self, key: &str) -> Option<&str> {
        self.snapshot.text(key)
    }

    /// Whether a listed device can be entered. One that cannot, such as a device removed while
    /// the kernel still lists it, gets an error at `attribute` in place of all its attributes.
    pub fn enter(&mut self, directory: &str, attribute: &str) -> bool {
        let why = match self.root.kind(directory) {
            Observation::Value(Value::Text(kind)) if kind == "directory" => return true,
            seen => seen.shows(),
        };
        let what =
            format!("`{directory}` is listed but is not a directory that can be entered: {why}");
        self.record(format!("{directory}/{attribute}"), Observation::Error(what));
        false
    }
}

fn names(seen: &Observation) -> Vec<String> {
    match seen {
        Observation::Value(Value::List(names)) => names.clone(),
        _ => Vec::new(),
    }
}

fn cost(seen: &Observation) -> usize {
    match seen {
        Observation::Value(Value::Text(text) | Value::Link(text)) | Observation::Error(text) => {
            json_bytes(text)
        }
        Observation::Value(Value::List(names)) => {
            names.iter().map(|n| FRAME_BYTES + json_bytes(n)).sum()
        }
        Observation::Value(Value::Bytes(bytes)) => bytes.len() * 2,
        Observation::Absent | Observation::Denied => 0,
    }
}

/// The bytes of a text in JSON: control characters are written as six.
fn json_bytes(text: &str) -> usize {
    text.bytes()
        .map(|byte| match byte {
            0..=0x1f => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        })
        .sum()
}
