//! What the store of the tests copies by itself.

use md5::{Digest, Md5};

use super::signature::hex;
use super::wire::{Answer, Request, unescaped};
use super::{Mood, State, Store, Stored, id};

/// The headers of a request that are kept with an object.
pub(super) fn besides(request: &Request) -> Vec<(&'static str, String)> {
    let kept = ["content-type", "x-amz-meta-job"];
    let value = |name| Some((name, request.headers.get(name)?.clone()));
    kept.into_iter().filter_map(value).collect()
}

impl Store {
    /// Puts an object there as if it had been written in parts of so many bytes, or by one request, with
    /// the tag that follows from its bytes.
    pub fn put_written(&self, name: &str, bytes: &[u8], unit: Option<usize>) {
        self.put(name, bytes, "");
        let mut state = self.state();
        let object = state.objects.get_mut(name).expect("put");
        let sum = |bytes: &[u8]| Md5::digest(bytes).to_vec();
        object.tag = match unit {
            None => format!("\"{}\"", hex(&sum(bytes))),
            Some(unit) => {
                let sums: Vec<u8> = bytes.chunks(unit).flat_map(sum).collect();
                let parts = bytes.len().div_ceil(unit);
                format!("\"{}-{parts}\"", hex(&sum(&sums)))
            }
        };
        object.first = unit.map(|unit| unit.min(bytes.len()));
        let besides = [("content-type", "a/b"), ("x-amz-meta-job", "7  of 9")];
        object.besides = besides.map(|(name, value)| (name, value.to_owned())).into();
    }

    /// What is kept beside the bytes of an object.
    pub fn besides(&self, name: &str) -> Vec<String> {
        let state = self.state();
        let object = state.objects.get(name).expect("there");
        let besides = object.besides.iter().map(|(_, value)| value.clone());
        besides.collect()
    }

    /// The tag of an object.
    pub fn tag(&self, name: &str) -> Option<String> {
        let state = self.state();
        state.objects.get(name).map(|object| object.tag.clone())
    }
}

impl State {
    pub(super) fn duplicate(&mut self, request: &Request, name: String) -> Answer {
        match self.mood {
            Mood::Lazy => return Answer::error("501 Not Implemented", "NotImplemented", ""),
            Mood::Worn(0) => return Answer::error("503 Slow Down", "SlowDown", ""),
            Mood::Worn(left) => self.mood = Mood::Worn(left - 1),
            _ => {}
        }
        assert!(request.body.is_empty(), "no bytes come from outside");
        let header = |name: &str| request.headers.get(name).map(String::as_str);
        let source = unescaped(header("x-amz-copy-source").unwrap_or_default());
        let Some(source) = self.objects.get(source.trim_start_matches('/')) else {
            return Answer::error("404 Not Found", "NoSuchKey", "");
        };
        if header("x-amz-copy-source-if-match") != Some(&source.tag) {
            return Answer::error("412 Precondition Failed", "PreconditionFailed", "");
        }
        let range = header("x-amz-copy-source-range").map(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            source.bytes.get(first..=last)
        });
        let mut bytes = match range {
            None => source.bytes.clone(),
            Some(Some(bytes)) => bytes.to_vec(),
            Some(None) => return Answer::error("400 Bad Request", "InvalidRange", ""),
        };
        if self.mood == Mood::Flips {
            bytes[0] ^= 1;
        }
        let copy = Stored {
            tag: format!("\"{}\"", hex(Md5::digest(&bytes).as_slice())),
            crc: None,
            first: None,
            besides: source.besides.clone(),
            bytes,
        };
        let tag = copy.tag.replace('"', "&quot;");
        let part = request.parameter("partNumber");
        let number = part.and_then(|number| number.parse().ok());
        match (request.parameter("uploadId"), number) {
            (None, _) => {
                self.objects.insert(name, copy);
            }
            (upload, Some(number)) => match self.uploads.get_mut(&id(upload)) {
                Some(begun) => {
                    begun.parts.insert(number, copy);
                }
                None => return Answer::error("404 Not Found", "NoSuchUpload", ""),
            },
            _ => return Answer::error("400 Bad Request", "InvalidRequest", ""),
        }
        let text = format!("<CopyResult><ETag>{tag}</ETag></CopyResult>");
        Answer::xml("200 OK", &text)
    }
}
