//! The objects below a prefix.

use std::sync::Arc;
use std::time::Instant;

use ureq::http;

use super::answer::{child, children, parsed, text};
use super::store::{Ask, Doing, Store};
use super::{ObjectError, ObjectUrl};

/// An object below a prefix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// What its key has behind the prefix.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
}

/// One answer of a listing.
struct Page {
    objects: Vec<Listed>,
    /// What to ask for the next one with.
    next: Option<String>,
}

/// All objects below `url`, a page at a time; `None` when there are more than `most`.
///
/// # Errors
/// When the store does not list them.
pub(crate) fn list(
    store: &Arc<Store>,
    url: &ObjectUrl,
    most: usize,
    until: &dyn Fn() -> Instant,
) -> Result<Option<Vec<Listed>>, ObjectError> {
    let folder = url.as_folder();
    let mut all = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let until = until();
        let (page, _) = store.again((until, None), |_| {
            page(store, &folder, next.as_deref(), until)
        })?;
        let none = page.objects.is_empty();
        all.extend(page.objects);
        if all.len() > most {
            return Ok(None);
        }
        match page.next {
            None => return Ok(Some(all)),
            Some(token) if none || Some(&token) == next.as_ref() => {
                return Err(store.odd(&folder, format!("a listing that does not end ({token})")));
            }
            Some(token) => next = Some(token),
        }
    }
}

fn page(
    store: &Store,
    folder: &ObjectUrl,
    after: Option<&str>,
    until: Instant,
) -> Result<Page, ObjectError> {
    let mut query = vec![
        ("list-type", "2"),
        ("encoding-type", "url"),
        ("prefix", folder.key()),
    ];
    query.extend(after.map(|token| ("continuation-token", token)));
    let mut ask = Ask::new(Doing::Listing, "GET", folder, until);
    (ask.to_bucket, ask.query) = (true, &query);
    let mut answer = store.ask(&ask)?;
    if answer.status() != http::StatusCode::OK {
        return Err(store.refused(&ask, &mut answer));
    }
    let text = text(&mut answer).map_err(|error| store.broken(folder, error))?;
    read(&text, folder.key()).map_err(|why| store.odd(folder, why))
}

/// Reads one page of a listing below `prefix`.
fn read(text: &str, prefix: &str) -> Result<Page, &'static str> {
    let document = parsed(text).ok_or("a listing that is no XML")?;
    let root = document.root_element();
    if root.tag_name().name() != "ListBucketResult" {
        return Err("something else than a listing");
    }
    let encoded = child(root, "EncodingType") == Some("url");
    let mut objects = Vec::new();
    for object in children(root, "Contents") {
        let key = child(object, "Key").ok_or("an object without a key")?;
        let key = match encoded {
            true => unescaped(key).ok_or("a key that is no text")?,
            false => key.to_owned(),
        };
        let size = child(object, "Size").and_then(|size| size.trim().parse().ok());
        objects.push(Listed {
            path: key
                .strip_prefix(prefix)
                .ok_or("an object that is not below the prefix")?
                .to_owned(),
            size: size.ok_or("an object without a length")?,
        });
    }
    let next = match child(root, "IsTruncated").map(str::trim) {
        Some("true") => {
            let token = child(root, "NextContinuationToken");
            Some(
                token
                    .ok_or("a listing without its continuation")?
                    .to_owned(),
            )
        }
        _ => None,
    };
    Ok(Page { objects, next })
}

/// A key as it stands in a listing, where `%XX` is a byte and `+` a space.
fn unescaped(text: &str) -> Option<String> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let [high, low, behind @ ..] = rest else {
                    return None;
                };
                let (high, low) = digit(high).zip(digit(low))?;
                bytes.push(u8::try_from(high * 16 + low).ok()?);
                rest = behind;
            }
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(key: &str, size: &str) -> String {
        format!("<Contents><Key>{key}</Key><Size>{size}</Size></Contents>")
    }

    fn listing(inside: &str) -> String {
        format!("<ListBucketResult xmlns=\"urn:x\">{inside}</ListBucketResult>")
    }

    #[test]
    fn a_page_names_objects_by_what_is_behind_the_prefix_and_what_comes_next() {
        let text = listing(&format!(
            "<EncodingType>url</EncodingType>{}{}<IsTruncated>true</IsTruncated>\
             <NextContinuationToken>t=</NextContinuationToken>",
            object("p/a+b%2Bc", "5"),
            object("p/d/%C3%BC", "0")
        ));
        let page = read(&text, "p/").expect("a page");
        let named = page.objects.iter().map(|one| (one.path.as_str(), one.size));
        assert_eq!(named.collect::<Vec<_>>(), [("a b+c", 5), ("d/ü", 0)]);
        assert_eq!(page.next.as_deref(), Some("t="));
        let plain = read(&listing(&object("p/a+b", "1")), "p/").expect("a page");
        assert_eq!((plain.objects[0].path.as_str(), plain.next), ("a+b", None));
    }

    #[test]
    fn what_is_no_listing_of_the_prefix_says_why() {
        let why = |text: &str| read(text, "p/").map(drop).expect_err("no page");
        assert!(why("none").contains("no XML"));
        assert!(why("<Error/>").contains("something else"));
        assert!(why(&listing(&object("q/a", "1"))).contains("not below"));
        assert!(why(&listing(&object("p/a", "-1"))).contains("length"));
        assert!(why(&listing("<Contents/>")).contains("key"));
        assert!(why(&listing("<IsTruncated>true</IsTruncated>")).contains("continuation"));
        let bad = "<EncodingType>url</EncodingType>".to_owned() + &object("p/%FF", "1");
        assert!(why(&listing(&bad)).contains("no text"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[<>A-Za-z/%+ 0-9]{0,120}") {
            let _ = read(&text, "");
            let _ = read(&listing(&text), "a");
            let _ = unescaped(&text);
        }
    }
}
