//! The header's parser under arbitrary input, and beside the safetensors crate.

use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::header::{Header, HeaderError, LENGTH_BYTES, encode};
use proptest::prelude::*;
use safetensors::SafeTensors;

/// Refusals of ours that the crate (0.8) lets pass. All else must be refused by both.
const CLOSED: [&str; 12] = [
    "duplicate-tensor",
    "duplicate-metadata-key",
    "null-metadata",
    "unknown-field",
    "leading-white-space",
    "empty-name",
    "nul-in-name",
    "path-like-name",
    "shape-overflow",
    // The crate reads a tensor's entry from an array too.
    "wrong-type",
    "too-many-dimensions",
    "too-many-tensors",
];

#[derive(Clone, Debug)]
struct Named {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
}

fn dtype() -> impl Strategy<Value = Dtype> {
    proptest::sample::select(Dtype::ALL.to_vec())
}

/// A tensor whose size is a whole number of bytes.
fn tensor() -> impl Strategy<Value = (Dtype, Vec<u64>)> {
    (dtype(), proptest::collection::vec(0..4_u64, 0..4)).prop_map(|(dtype, mut shape)| {
        if dtype.bits() < 8 {
            shape.push(4);
        }
        (dtype, shape)
    })
}

fn checkpoint() -> impl Strategy<Value = Vec<Named>> {
    proptest::collection::btree_map("[a-z.\"\\\\é\u{1}]{1,8}", tensor(), 0..8).prop_map(|tensors| {
        tensors
            .into_iter()
            .filter(|(name, _)| !name.contains("..") && !name.starts_with('\\'))
            .map(|(name, (dtype, shape))| Named { name, dtype, shape })
            .collect()
    })
}

/// A whole file with zeros for data.
fn file(tensors: &[Named]) -> (Vec<u8>, Header) {
    let entries = tensors
        .iter()
        .map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice()));
    let (mut bytes, header) = encode(&[("format", "pt")], entries).unwrap();
    bytes.resize(header.data().end as usize, 0);
    (bytes, header)
}

fn parse_file(bytes: &[u8]) -> Result<Header, HeaderError> {
    Header::read_from(&mut std::io::Cursor::new(bytes)).map_err(|error| match error {
        crowfly_mover::checkpoint::header::HeaderReadError::Invalid(error) => error,
        other => panic!("a file in memory cannot fail to be read: {other}"),
    })
}

/// Fragments from which headers are built that are nearly right.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (
            "[ab]|a/b|[.]{2}/x||__metadata__",
            proptest::sample::select(vec!["U8", "F4", "F6_E3M2", "BF16", "I64", "F33"]),
            proptest::sample::select(vec![
                "[]", "[1]", "[2,2]", "[0]", "[-1]", "[1.5]", "[9223372036854775808,2,0]", "3",
                "[4294967296,4294967296]",
            ]),
            0..6_u64,
            0..6_u64,
        ).prop_map(|(name, dtype, shape, begin, end)| format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#
        )),
        1 => Just(r#""__metadata__":{"k":"v"}"#.to_owned()),
        1 => Just(r#""__metadata__":null"#.to_owned()),
        1 => Just(r#""c":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1}"#.to_owned()),
        1 => Just(r#""d":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}"#.to_owned()),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_parsed_back_unchanged(tensors in checkpoint()) {
        let (bytes, encoded) = file(&tensors);
        let parsed = parse_file(&bytes).unwrap();
        prop_assert_eq!(parsed.len(), tensors.len());
        let mut end = parsed.data().start;
        for (number, wanted) in tensors.iter().enumerate() {
            let found = parsed.get(&wanted.name).unwrap();
            prop_assert_eq!(found.dtype, wanted.dtype);
            prop_assert_eq!(found.shape, wanted.shape.as_slice());
            prop_assert_eq!(found.bytes(), wanted.dtype.bytes_of(&wanted.shape).unwrap());
            prop_assert_eq!(encoded.get(&wanted.name), Some(found));
            let in_file_order = parsed.tensor(number).unwrap();
            prop_assert_eq!(in_file_order.range.start, end);
            end = in_file_order.range.end;
        }
        prop_assert_eq!(end, bytes.len() as u64);
    }

    #[test]
    fn the_crate_reads_the_same_tensors_from_what_is_encoded(tensors in checkpoint()) {
        let (bytes, header) = file(&tensors);
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(theirs.len(), header.len());
        for tensor in header.tensors() {
            let view = theirs.tensor(tensor.name).unwrap();
            prop_assert_eq!(view.dtype().to_string(), tensor.dtype.name());
            prop_assert_eq!(
                view.shape().iter().map(|&dim| dim as u64).collect::<Vec<_>>(),
                tensor.shape
            );
            let start = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            if !view.data().is_empty() {
                prop_assert_eq!(start as u64, tensor.range.start);
            }
            prop_assert_eq!(view.data().len() as u64, tensor.bytes());
        }
    }

    #[test]
    fn nearly_right_headers_are_judged_as_the_crate_does_but_for_the_closed_gaps(
        entries in proptest::collection::vec(fragment(), 0..4),
        leading in proptest::sample::select(vec!["", "", "", " "]),
        trailing in proptest::sample::select(vec!["", "  ", "\n", "x"]),
        data_len in 0..8_usize,
    ) {
        let json = format!("{leading}{{{}}}{trailing}", entries.join(","));
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.resize(bytes.len() + data_len, 0);
        let theirs = SafeTensors::deserialize(&bytes);
        match (parse_file(&bytes), &theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours.len(), theirs.len()),
            (Err(error), Ok(_)) => prop_assert!(CLOSED.contains(&error.code()), "{}: {}", json, error),
            (Ok(_), Err(error)) => prop_assert!(false, "accepted {}: {}", json, error),
            (Err(_), Err(_)) => {}
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_parsed_but_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        file_len in any::<u64>(),
    ) {
        let _ = Header::parse(&bytes, file_len);
        let _ = parse_file(&bytes);
    }

    #[test]
    fn a_changed_byte_is_refused_or_leaves_a_consistent_header(
        tensors in checkpoint(),
        at in any::<proptest::sample::Index>(),
        value in any::<u8>(),
    ) {
        let (mut bytes, header) = file(&tensors);
        let at = at.index(header.data().start as usize);
        bytes[at] = value;
        match parse_file(&bytes) {
            Ok(parsed) => {
                let sum: u64 = parsed.tensors().map(|t| t.bytes()).sum();
                prop_assert_eq!(sum, parsed.data().end - parsed.data().start);
                prop_assert_eq!(parsed.data().end, bytes.len() as u64);
            }
            Err(error) => prop_assert!(!error.code().is_empty()),
        }
    }

    #[test]
    fn every_truncation_is_refused(tensors in checkpoint(), at in any::<proptest::sample::Index>()) {
        let (bytes, header) = file(&tensors);
        let cut = at.index(bytes.len());
        let expected = if (cut as u64) < LENGTH_BYTES {
            "too-short"
        } else if (cut as u64) < header.data().start {
            "header-past-end"
        } else {
            "data-past-end"
        };
        prop_assert_eq!(parse_file(&bytes[..cut]).unwrap_err().code(), expected);
    }
}
