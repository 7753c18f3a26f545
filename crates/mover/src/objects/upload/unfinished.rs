//! What an earlier upload of the same object left at the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ureq::http;

use super::sums::{Sums, md5_in, md5_of};
use super::{MAX_PARTS, MAX_TOKEN};
use crate::objects::answer::{child, children, parsed, text};
use crate::objects::store::{Ask, Doing, Store};
use crate::objects::{ObjectError, ObjectUrl};

/// The most answers of one listing: parts come a thousand at a time, uploads of one name are few.
const MAX_PAGES: usize = 64;

/// A part that is at the store.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub tag: String,
    size: u64,
    crc: Option<String>,
}

impl Found {
    /// Its length in bytes.
    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// Whether it is these bytes, as far as a checksum can tell. Without one that is known it is not.
    pub(super) fn holds(&self, bytes: &[u8], sums: &Sums) -> bool {
        if self.size != bytes.len() as u64 {
            return false;
        }
        match (&self.crc, sums.crc_text()) {
            (Some(there), Some(here)) => *there == here,
            _ => md5_in(&self.tag).is_some_and(|md5| md5.eq_ignore_ascii_case(&md5_of(bytes))),
        }
    }
}

/// An upload that was not finished.
pub(super) struct Earlier {
    pub id: String,
    /// Whether its parts say what checksum they have.
    pub checked: bool,
    pub parts: BTreeMap<u64, Found>,
}

/// The last of those that were begun for this object.
///
/// # Errors
/// When the store does not tell.
pub(super) fn find(
    store: &Arc<Store>,
    url: &ObjectUrl,
    until: Instant,
) -> Result<Option<Earlier>, ObjectError> {
    let odd = |what| store.odd(url, what);
    let mut ids: Vec<(String, String)> = Vec::new();
    let mut marks: Option<(String, String)> = None;
    for _ in 0..MAX_PAGES {
        let mut query = vec![("uploads", ""), ("prefix", url.key())];
        if let Some((key, id)) = &marks {
            query.extend([("key-marker", key.as_str()), ("upload-id-marker", id)]);
        }
        let text = ask(store, url, true, &query, until)?;
        let (more, next) = uploads(&text, url.key()).map_err(odd)?;
        ids.extend(more);
        marks = next;
        if marks.is_none() {
            break;
        }
    }
    // The time stands first, in a form that sorts as it passes.
    ids.sort();
    while let Some((_, id)) = ids.pop() {
        if let Some(earlier) = parts(store, url, id, until)? {
            return Ok(Some(earlier));
        }
    }
    Ok(None)
}

fn ask(
    store: &Store,
    url: &ObjectUrl,
    to_bucket: bool,
    query: &[(&str, &str)],
    until: Instant,
) -> Result<String, ObjectError> {
    let mut ask = Ask::new(Doing::Writing, "GET", url, until);
    (ask.to_bucket, ask.query) = (to_bucket, query);
    let (body, _) = store.again((until, None), |_| {
        let mut answer = store.ask(&ask)?;
        match answer.status() {
            http::StatusCode::OK => text(&mut answer).map_err(|error| store.broken(url, error)),
            _ => Err(store.refused(&ask, &mut answer)),
        }
    })?;
    Ok(body)
}

type Uploads = (Vec<(String, String)>, Option<(String, String)>);

/// The times and names of the uploads of this key on a page, and where the next page begins.
fn uploads(text: &str, key: &str) -> Result<Uploads, &'static str> {
    let document = parsed(text).ok_or("a listing that is no XML")?;
    let root = document.root_element();
    let mut found = Vec::new();
    for upload in children(root, "Upload") {
        let id = child(upload, "UploadId").unwrap_or_default();
        if child(upload, "Key") == Some(key) && !id.is_empty() && id.len() <= MAX_TOKEN {
            let begun = child(upload, "Initiated").unwrap_or_default();
            found.push((begun.to_owned(), id.to_owned()));
        }
    }
    let next = |name| child(root, name).map(str::to_owned);
    let marks = next("NextKeyMarker").zip(next("NextUploadIdMarker"));
    let more = child(root, "IsTruncated").map(str::trim) == Some("true");
    Ok((found, marks.filter(|_| more)))
}

/// The parts of an upload; `None` when it is gone, or has checksums of another kind.
fn parts(
    store: &Store,
    url: &ObjectUrl,
    id: String,
    until: Instant,
) -> Result<Option<Earlier>, ObjectError> {
    let mut earlier = Earlier {
        id,
        checked: false,
        parts: BTreeMap::new(),
    };
    let mut after = 0;
    for _ in 0..MAX_PAGES {
        let marker = after.to_string();
        let query = [
            ("uploadId", earlier.id.as_str()),
            ("part-number-marker", marker.as_str()),
        ];
        let text = match ask(store, url, false, &query, until) {
            Err(ObjectError::UploadGone { .. } | ObjectError::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        let page = listed(&text).map_err(|why| store.odd(url, why))?;
        match page.algorithm.as_deref() {
            None => {}
            Some("CRC32C") => earlier.checked = true,
            Some(_) => return Ok(None),
        }
        earlier.parts.extend(page.parts);
        match page.next {
            Some(next) if next > after => after = next,
            _ => break,
        }
    }
    Ok(Some(earlier))
}

/// One answer of a listing of parts.
struct Page {
    /// The kind of checksum that every part has.
    algorithm: Option<String>,
    parts: Vec<(u64, Found)>,
    next: Option<u64>,
}

fn listed(text: &str) -> Result<Page, &'static str> {
    let document = parsed(text).ok_or("a listing that is no XML")?;
    let root = document.root_element();
    let word = |name| child(root, name).map(|word| word.trim().to_owned());
    let whole = word("ChecksumType").is_some_and(|kind| kind != "COMPOSITE");
    let algorithm = word("ChecksumAlgorithm").filter(|name| !name.is_empty());
    let mut parts = Vec::new();
    for part in children(root, "Part") {
        let number = |name| child(part, name).and_then(|word| word.trim().parse::<u64>().ok());
        let at = number("PartNumber").filter(|at| (1..=MAX_PARTS).contains(at));
        let tag = child(part, "ETag").filter(|tag| tag.len() <= MAX_TOKEN);
        let found = Found {
            tag: tag.ok_or("a part without a tag")?.to_owned(),
            size: number("Size").ok_or("a part without a length")?,
            crc: child(part, "ChecksumCRC32C").map(str::to_owned),
        };
        parts.push((at.ok_or("a part without a number")?, found));
    }
    let more = word("IsTruncated").as_deref() == Some("true");
    let next = word("NextPartNumberMarker").and_then(|next| next.parse().ok());
    Ok(Page {
        // Of one checksum for all of it nothing is known here.
        algorithm: if whole {
            Some("another".into())
        } else {
            algorithm
        },
        parts,
        next: next.filter(|_| more),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(number: &str, tag: &str, crc: &str) -> String {
        format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag><Size>3</Size>{crc}</Part>"
        )
    }

    #[test]
    fn uploads_of_other_keys_are_not_gone_on_with() {
        let upload = |key: &str, id: &str| {
            format!(
                "<Upload><Key>{key}</Key><UploadId>{id}</UploadId>\
                 <Initiated>2026-01-0{id}T00:00:00Z</Initiated></Upload>"
            )
        };
        let text = format!(
            "<R>{}{}<IsTruncated>false</IsTruncated><NextKeyMarker>a</NextKeyMarker></R>",
            upload("a/b", "1"),
            upload("a/bc", "2")
        );
        let (found, next) = uploads(&text, "a/b").expect("a listing");
        assert_eq!(found, [("2026-01-01T00:00:00Z".to_owned(), "1".to_owned())]);
        assert_eq!(next, None);
    }

    #[test]
    fn a_part_is_there_when_its_length_and_its_checksum_are_those_of_the_bytes() {
        let crc = Sums::of(b"abc", true);
        let text = format!(
            "<ChecksumCRC32C>{}</ChecksumCRC32C>",
            crc.crc_text().expect("made")
        );
        let page = |inside: &str| {
            listed(&format!(
                "<R><ChecksumAlgorithm>CRC32C</ChecksumAlgorithm>{inside}</R>"
            ))
        };
        let found = page(&part("1", "t", &text)).expect("a listing").parts;
        let (_, found) = &found[0];
        assert!(found.holds(b"abc", &crc));
        assert!(!found.holds(b"abd", &Sums::of(b"abd", true)));
        assert!(!found.holds(b"abcd", &crc), "another length");
        assert!(
            !found.holds(b"abc", &Sums::of(b"abc", false)),
            "nothing to tell by"
        );
        let tag = format!("\"{}\"", md5_of(b"abc").to_uppercase());
        let found = page(&part("1", &tag, "")).expect("a listing").parts;
        let (_, found) = &found[0];
        assert!(found.holds(b"abc", &crc) && !found.holds(b"abd", &crc));
        for bad in [
            part("0", "t", ""),
            part("10001", "t", ""),
            part("x", "t", ""),
        ] {
            assert!(page(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn checksums_of_all_of_an_object_are_not_gone_on_with() {
        let text = "<R><ChecksumAlgorithm>CRC32C</ChecksumAlgorithm>\
                    <ChecksumType>FULL_OBJECT</ChecksumType></R>";
        let page = listed(text).expect("a listing");
        assert_eq!(page.algorithm.as_deref(), Some("another"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_readers_panic(text in "[<>/A-Za-z0-9]{0,120}") {
            let _ = (listed(&text), uploads(&text, "k"));
            let _ = listed(&format!("<R><Part>{text}</Part></R>"));
        }
    }
}
