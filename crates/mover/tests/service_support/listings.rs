//! What the store of the tests says of what it has.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::wire::{Answer, Request};
use super::{Mood, State, id};

impl State {
    pub(super) fn parts(&self, request: &Request) -> Answer {
        let Some(begun) = self.uploads.get(&id(request.parameter("uploadId"))) else {
            return Answer::error("404 Not Found", "NoSuchUpload", "");
        };
        let after = request.parameter("part-number-marker");
        let after: u64 = after.and_then(|after| after.parse().ok()).unwrap_or(0);
        let mut text = String::from("<ListPartsResult>");
        if begun.checked {
            text.push_str("<ChecksumAlgorithm>CRC32C</ChecksumAlgorithm>");
        }
        let mut left = begun.parts.range(after + 1..);
        let mut last = after;
        for (number, part) in left.by_ref().take(self.page) {
            let crc = part
                .crc
                .as_ref()
                .map(|crc| format!("<ChecksumCRC32C>{crc}</ChecksumCRC32C>"));
            text.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag><Size>{}</Size>{}</Part>",
                part.tag.replace('"', "&quot;"),
                part.bytes.len(),
                crc.unwrap_or_default()
            ));
            last = *number;
        }
        text.push_str(&format!(
            "<NextPartNumberMarker>{last}</NextPartNumberMarker>"
        ));
        let more = left.next().is_some();
        text.push_str(&format!(
            "<IsTruncated>{more}</IsTruncated></ListPartsResult>"
        ));
        Answer::xml("200 OK", &text)
    }

    pub(super) fn uploads(&self, request: &Request, bucket: &str) -> Answer {
        let prefix = request.parameter("prefix").unwrap_or_default();
        let mut text = String::from("<ListMultipartUploadsResult>");
        for (id, begun) in &self.uploads {
            let key = begun.name.strip_prefix(bucket).expect("of the bucket");
            let key = key.trim_start_matches('/');
            if key.starts_with(&prefix) {
                text.push_str(&format!(
                    "<Upload><Key>{key}</Key><UploadId>{id}</UploadId>\
                     <Initiated>2026-01-01T00:00:{id:02}.000Z</Initiated></Upload>"
                ));
            }
        }
        text.push_str("<IsTruncated>false</IsTruncated></ListMultipartUploadsResult>");
        Answer::xml("200 OK", &text)
    }

    pub(super) fn list(&self, request: &Request, bucket: &str) -> Answer {
        let prefix = request.parameter("prefix").unwrap_or_default();
        let after = request.parameter("continuation-token").unwrap_or_default();
        let after = String::from_utf8(STANDARD.decode(after).expect("a token")).expect("text");
        let root = format!("{bucket}/");
        let all = self.objects.iter().filter_map(|(name, object)| {
            let key = name.strip_prefix(&root)?;
            (key.starts_with(&prefix) && key > after.as_str()).then_some((key, object))
        });
        let mut left = all.peekable();
        let mut text = String::from("<ListBucketResult><EncodingType>url</EncodingType>");
        let mut last = "";
        for (key, object) in left.by_ref().take(self.page) {
            let escaped = key
                .replace('%', "%25")
                .replace('+', "%2B")
                .replace('&', "%26");
            let escaped = escaped.replace('<', "%3C").replace(' ', "+");
            text.push_str(&format!(
                "<Contents><Key>{escaped}</Key><Size>{}</Size></Contents>",
                object.bytes.len()
            ));
            last = key;
        }
        match (self.mood, left.peek()) {
            (Mood::Endless, _) => text.push_str(
                "<IsTruncated>true</IsTruncated>\
                 <NextContinuationToken>AAAA</NextContinuationToken>",
            ),
            (_, Some(_)) => text.push_str(&format!(
                "<IsTruncated>true</IsTruncated>\
                 <NextContinuationToken>{}</NextContinuationToken>",
                STANDARD.encode(last)
            )),
            _ => text.push_str("<IsTruncated>false</IsTruncated>"),
        }
        Answer::xml("200 OK", &format!("{text}</ListBucketResult>"))
    }
}
