//! What a safetensors header is accepted and refused for, each fault under its own code.

use std::io::Cursor;

use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::header::{
    Header, HeaderError, HeaderReadError, LENGTH_BYTES, MAX_DIMENSIONS, MAX_HEADER_BYTES,
    MAX_METADATA_PAIRS, MAX_TENSORS, encode,
};

/// Parses `json` as the header of a file with `data_len` bytes of data.
fn parse(json: &str, data_len: u64) -> Result<Header, HeaderError> {
    Header::parse(json.as_bytes(), LENGTH_BYTES + json.len() as u64 + data_len)
}

#[track_caller]
fn refused(json: &str, data_len: u64) -> HeaderError {
    parse(json, data_len).expect_err("the header must be refused")
}

#[track_caller]
fn assert_refused(code: &str, json: &str, data_len: u64, message: &str) {
    let error = refused(json, data_len);
    assert_eq!((error.code(), error.to_string().as_str()), (code, message));
}

/// One entry of a header.
fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn object(entries: &[String]) -> String {
    format!("{{{}}}", entries.join(","))
}

fn one(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    object(&[entry("w", dtype, shape, begin, end)])
}

// ---- accepted ------------------------------------------------------------------------------

#[test]
fn tensors_are_found_by_name_and_listed_in_file_order_with_absolute_ranges() {
    let json = object(&[
        r#""__metadata__":{"format":"pt","note":"a\"b"}"#.to_owned(),
        entry("late", "F32", "[2,3]", 8, 32),
        entry("early", "BF16", "[4]", 0, 8),
        entry("scalar", "U8", "[]", 32, 33),
    ]);
    let header = parse(&json, 33).unwrap();
    let start = 8 + json.len() as u64;

    let names: Vec<_> = header.tensors().map(|t| t.name.to_owned()).collect();
    assert_eq!(names, ["early", "late", "scalar"]);
    let late = header.get("late").unwrap();
    assert_eq!((late.dtype, late.shape), (Dtype::F32, [2, 3].as_slice()));
    assert_eq!(late.range, start + 8..start + 32);
    assert_eq!(late.bytes(), 24);
    assert_eq!(header.find("late"), Some(1));
    assert_eq!(header.tensor(1), Some(late));
    assert_eq!(header.tensor(3), None);
    assert_eq!(header.get("absent"), None);
    assert_eq!(header.data(), start..start + 33);
    assert_eq!(
        header.metadata().collect::<Vec<_>>(),
        [("format", "pt"), ("note", "a\"b")]
    );
}

#[test]
fn a_file_without_tensors_is_valid() {
    let header = parse("{}", 0).unwrap();
    assert!(header.is_empty());
    assert_eq!(header.len(), 0);
}

#[test]
fn empty_tensors_may_share_an_offset_with_each_other_and_with_a_full_one() {
    let json = object(&[
        entry("a", "F32", "[0]", 0, 0),
        entry("b", "F32", "[2,0,3]", 0, 0),
        entry("c", "U8", "[4]", 0, 4),
        entry("d", "I64", "[0]", 4, 4),
    ]);
    let header = parse(&json, 4).unwrap();
    let names: Vec<_> = header.tensors().map(|t| t.name.to_owned()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
}

#[test]
fn every_dtype_is_read_with_its_width() {
    for &dtype in Dtype::ALL {
        let bytes = dtype.bits();
        let header = parse(&one(dtype.name(), "[8]", 0, bytes), bytes).unwrap();
        assert_eq!(header.get("w").unwrap().dtype, dtype);
    }
}

#[test]
fn names_and_fields_may_be_written_with_escapes() {
    let json = r#"{"w":{"\u0064type":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    assert_eq!(parse(json, 1).unwrap().get("w").unwrap().bytes(), 1);
}

#[test]
fn white_space_after_the_object_is_padding() {
    assert!(parse("{}      ", 0).is_ok());
}

// ---- the file's frame ----------------------------------------------------------------------

fn file(header_len: u64, rest: &[u8]) -> Cursor<Vec<u8>> {
    let mut bytes = header_len.to_le_bytes().to_vec();
    bytes.extend_from_slice(rest);
    Cursor::new(bytes)
}

#[track_caller]
fn assert_file_refused(code: &str, mut file: Cursor<Vec<u8>>) {
    let error = Header::read_from(&mut file).expect_err("the file must be refused");
    assert_eq!(error.code(), code, "{error}");
}

#[test]
fn a_header_is_read_without_the_data_behind_it() {
    let (mut bytes, header) = encode(&[], [("w", Dtype::U8, [5_u64].as_slice())]).unwrap();
    let data_start = bytes.len() as u64;
    bytes.extend_from_slice(b"12345");
    let mut file = Cursor::new(bytes);
    let read = Header::read_from(&mut file).unwrap();
    assert_eq!(file.position(), data_start);
    assert_eq!(read.get("w"), header.get("w"));
    assert_eq!(read.get("w").unwrap().range, data_start..data_start + 5);
}

#[test]
fn a_file_shorter_than_the_length_field_is_too_short() {
    assert_file_refused("too-short", Cursor::new(vec![]));
    assert_file_refused("too-short", Cursor::new(vec![2, 0, 0, 0, 0, 0, 0]));
    assert_eq!(
        Header::parse(b"{}", 7).unwrap_err(),
        HeaderError::TooShort { file_len: 7 }
    );
}

#[test]
fn a_header_of_no_bytes_is_empty() {
    assert_file_refused("empty-header", file(0, b""));
}

#[test]
fn a_header_over_the_limit_is_refused_before_it_is_allocated() {
    assert_file_refused("header-too-long", file(MAX_HEADER_BYTES + 1, b"{}"));
    assert_file_refused("header-too-long", file(u64::MAX, b"{}"));
}

#[test]
fn a_header_that_reaches_past_the_end_of_the_file_is_refused() {
    assert_file_refused("header-past-end", file(MAX_HEADER_BYTES, b"{}"));
    assert_file_refused("header-past-end", file(3, b"{}"));
}

/// Claims to be 1000 bytes long and delivers fewer, as a file truncated between two calls would.
struct Shrinking(Cursor<Vec<u8>>);

impl std::io::Read for Shrinking {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(out)
    }
}

impl std::io::Seek for Shrinking {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        match to {
            std::io::SeekFrom::End(_) => Ok(1000),
            other => self.0.seek(other),
        }
    }
}

#[test]
fn a_file_that_shrinks_while_its_header_is_read_says_so() {
    for held in [file(100, b"{}"), Cursor::new(vec![0; 4])] {
        let error = Header::read_from(&mut Shrinking(held)).unwrap_err();
        assert!(matches!(error, HeaderReadError::Shrank { file_len: 1000 }));
        assert_eq!(error.code(), "file-shrank");
    }
}

// ---- the text ------------------------------------------------------------------------------

#[test]
fn text_that_is_not_utf8_names_the_first_bad_byte() {
    let error = Header::parse(b"{\"a\xff\":1}", 8 + 8).unwrap_err();
    assert_eq!(error, HeaderError::NotUtf8 { at: 3 });
    assert_eq!(error.code(), "not-utf8");
}

#[test]
fn a_byte_order_mark_is_refused() {
    assert_eq!(refused("\u{feff}{}", 0).code(), "byte-order-mark");
}

#[test]
fn leading_white_space_is_refused() {
    for text in [" {}", "\n{}", "\t{}", "\r{}", "   "] {
        assert_eq!(refused(text, 0).code(), "leading-white-space", "{text:?}");
    }
}

#[test]
fn anything_but_an_object_is_refused() {
    for text in ["[]", "null", "3", "\"x\"", "version 1", "\0\0"] {
        assert_eq!(refused(text, 0).code(), "not-an-object", "{text:?}");
    }
}

#[test]
fn broken_json_is_refused_with_its_position() {
    let error = refused("{\"a\":\n  {,}}", 0);
    assert!(
        matches!(
            error,
            HeaderError::InvalidJson {
                line: 2,
                column: 4,
                ..
            }
        ),
        "{error}"
    );
    for text in [
        "{",
        "{\"a\"}",
        "{}x",
        "{}{}",
        "{},",
        "{}\0",
        "{\"a\":{\"dtype\":\"U8\"",
    ] {
        assert_eq!(refused(text, 0).code(), "invalid-json", "{text:?}");
    }
}

#[test]
fn values_of_the_wrong_type_are_refused_where_they_stand() {
    let cases = [
        (r#"{"w":3}"#, "tensor \"w\""),
        (r#"{"w":["U8",[1],[0,1]]}"#, "tensor \"w\""),
        (
            r#"{"w":{"dtype":1,"shape":[1],"data_offsets":[0,1]}}"#,
            "tensor \"w\", `dtype`",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":1,"data_offsets":[0,1]}}"#,
            "tensor \"w\", `shape`",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}"#,
            "tensor \"w\", `shape`",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":{"0":1}}}"#,
            "tensor \"w\", `data_offsets`",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[null,1]}}"#,
            "tensor \"w\", `data_offsets`",
        ),
    ];
    for (json, place) in cases {
        let error = refused(json, 1);
        let HeaderError::WrongType { place: found, .. } = &error else {
            panic!("{json}: {error}");
        };
        assert_eq!(found.to_string(), place, "{json}");
        assert_eq!(error.code(), "wrong-type");
    }
}

// ---- metadata ------------------------------------------------------------------------------

#[test]
fn metadata_must_stand_once_and_hold_strings() {
    let cases = [
        (
            "duplicate-metadata",
            r#"{"__metadata__":{},"__metadata__":{}}"#,
        ),
        ("null-metadata", r#"{"__metadata__":null}"#),
        ("metadata-not-strings", r#"{"__metadata__":{"a":1}}"#),
        ("metadata-not-strings", r#"{"__metadata__":{"a":null}}"#),
        (
            "metadata-not-strings",
            r#"{"__metadata__":{"a":{"b":"c"}}}"#,
        ),
        ("metadata-not-strings", r#"{"__metadata__":"text"}"#),
        ("metadata-not-strings", r#"{"__metadata__":[]}"#),
        ("metadata-not-strings", r#"{"__metadata__":7}"#),
        (
            "duplicate-metadata-key",
            r#"{"__metadata__":{"a":"1","a":"1"}}"#,
        ),
    ];
    for (code, json) in cases {
        assert_eq!(refused(json, 0).code(), code, "{json}");
    }
}

#[test]
fn metadata_is_bounded() {
    let pairs = |count: usize| {
        let pairs: Vec<_> = (0..count).map(|n| format!("\"{n}\":\"\"")).collect();
        format!("{{\"__metadata__\":{{{}}}}}", pairs.join(","))
    };
    assert!(parse(&pairs(MAX_METADATA_PAIRS), 0).is_ok());
    let error = refused(&pairs(MAX_METADATA_PAIRS + 1), 0);
    assert_eq!(error.code(), "too-many-metadata-pairs");
}

// ---- names ---------------------------------------------------------------------------------

#[test]
fn two_tensors_of_one_name_are_refused_however_the_name_is_written() {
    let twice = object(&[
        entry("w", "U8", "[1]", 0, 1),
        entry("\\u0077", "U8", "[1]", 1, 2),
    ]);
    assert_refused(
        "duplicate-tensor",
        &twice,
        2,
        r#"two tensors are named "w""#,
    );
}

#[test]
fn empty_names_nul_and_paths_are_refused() {
    let named = |name: &str| object(&[entry(name, "U8", "[1]", 0, 1)]);
    assert_refused("empty-name", &named(""), 1, "a tensor's name is empty");
    assert_refused(
        "nul-in-name",
        &named("a\\u0000b"),
        1,
        r#"the name "a\0b" contains a NUL character"#,
    );
    for name in ["../x", "/etc/passwd", "a/../../b", "C:/x"] {
        assert_refused(
            "path-like-name",
            &named(name),
            1,
            &format!(r#"the name "{name}" is written like a path that leaves its folder"#),
        );
    }
}

#[test]
fn more_tensors_than_the_limit_are_refused() {
    use std::fmt::Write;
    let mut json = String::from("{");
    for number in 0..=MAX_TENSORS {
        let comma = if number == 0 { "" } else { "," };
        let _ = write!(
            json,
            r#"{comma}"{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#
        );
    }
    json.push('}');
    assert_eq!(refused(&json, 0).code(), "too-many-tensors");
}

// ---- one tensor's entry --------------------------------------------------------------------

#[test]
fn an_entry_has_exactly_its_three_fields() {
    let cases = [
        (
            "unknown-field",
            r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]}}"#,
            r#"tensor "w": unknown field "stride""#,
        ),
        (
            "missing-field",
            r#"{"w":{"shape":[1],"data_offsets":[0,1]}}"#,
            r#"tensor "w": the field `dtype` is missing"#,
        ),
        (
            "missing-field",
            r#"{"w":{"dtype":"U8","data_offsets":[0,1]}}"#,
            r#"tensor "w": the field `shape` is missing"#,
        ),
        (
            "missing-field",
            r#"{"w":{"dtype":"U8","shape":[1]}}"#,
            r#"tensor "w": the field `data_offsets` is missing"#,
        ),
        (
            "duplicate-field",
            r#"{"w":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}"#,
            r#"tensor "w": the field `shape` stands twice"#,
        ),
    ];
    for (code, json, message) in cases {
        assert_refused(code, json, 1, message);
    }
}

#[test]
fn an_unknown_dtype_is_refused_and_the_nearest_known_one_named() {
    assert_refused(
        "unknown-dtype",
        &one("float32", "[1]", 0, 4),
        4,
        r#"tensor "w": unknown dtype "float32" (the nearest is F32)"#,
    );
    assert_refused(
        "unknown-dtype",
        &one("Q4_K_M_block", "[1]", 0, 4),
        4,
        r#"tensor "w": unknown dtype "Q4_K_M_block""#,
    );
}

#[test]
fn numbers_must_be_unsigned_64_bit_integers() {
    let with = |shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"U8","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    assert_refused(
        "negative-number",
        &with("[-1]", "[0,1]"),
        1,
        r#"tensor "w": `shape` holds the negative number -1"#,
    );
    assert_refused(
        "negative-number",
        &with("[1]", "[-8,1]"),
        1,
        r#"tensor "w": `data_offsets` holds the negative number -8"#,
    );
    assert_refused(
        "not-an-integer",
        &with("[1]", "[0,1.0]"),
        1,
        r#"tensor "w": `data_offsets` holds 1.0, which is not an unsigned 64-bit integer"#,
    );
    // 2^64, one more than fits.
    assert_refused(
        "not-an-integer",
        &with("[18446744073709551616]", "[0,1]"),
        1,
        r#"tensor "w": `shape` holds 1.8446744073709552e19, which is not an unsigned 64-bit integer"#,
    );
}

#[test]
fn offsets_are_a_pair() {
    for (offsets, count) in [("[]", "0"), ("[0]", "1"), ("[0,1,1]", "more")] {
        let json = format!(r#"{{"w":{{"dtype":"U8","shape":[1],"data_offsets":{offsets}}}}}"#);
        assert_refused(
            "offset-count",
            &json,
            1,
            &format!(
                r#"tensor "w": `data_offsets` must hold two numbers, begin and end, not {count}"#
            ),
        );
    }
}

#[test]
fn dimensions_are_bounded() {
    let ones = |count: usize| format!("[{}]", vec!["1"; count].join(","));
    assert!(parse(&one("U8", &ones(MAX_DIMENSIONS), 0, 1), 1).is_ok());
    assert_refused(
        "too-many-dimensions",
        &one("U8", &ones(MAX_DIMENSIONS + 1), 0, 1),
        1,
        r#"tensor "w": the shape has more than 64 dimensions"#,
    );
}

#[test]
fn a_size_that_contradicts_the_offsets_is_refused() {
    assert_refused(
        "size-mismatch",
        &one("F32", "[2,2]", 0, 15),
        15,
        r#"tensor "w": F32 [2, 2] needs 16 bytes, but its data_offsets span 15"#,
    );
    assert_refused(
        "size-mismatch",
        &one("F32", "[0]", 0, 4),
        4,
        r#"tensor "w": F32 [0] needs 0 bytes, but its data_offsets span 4"#,
    );
}

#[test]
fn a_shape_that_overflows_is_refused_even_beside_a_zero() {
    for shape in [
        "[4294967296,4294967296]",
        "[4294967296,4294967296,0]",
        "[0,4294967296,4294967296]",
        "[18446744073709551615,2,0]",
    ] {
        assert_eq!(
            refused(&one("F32", shape, 0, 0), 0).code(),
            "shape-overflow",
            "{shape}"
        );
    }
}

#[test]
fn a_sub_byte_tensor_must_end_on_a_byte() {
    assert_refused(
        "sub-byte-misaligned",
        &one("F4", "[3]", 0, 2),
        2,
        r#"tensor "w": F4 [3] is 12 bits, which is not a whole number of bytes"#,
    );
    assert_eq!(
        refused(&one("F6_E2M3", "[5]", 0, 4), 4).code(),
        "sub-byte-misaligned"
    );
}

// ---- all tensors together ------------------------------------------------------------------

#[test]
fn data_that_ends_before_it_begins_is_refused() {
    assert_refused(
        "reversed-offsets",
        &one("U8", "[1]", 2, 1),
        2,
        r#"tensor "w": the data begins at 2, after its end at 1"#,
    );
}

#[test]
fn data_past_the_end_of_the_file_is_refused() {
    assert_refused(
        "data-past-end",
        &one("U8", "[9]", 0, 9),
        8,
        r#"tensor "w": the data ends at 9, but the file holds only 8 bytes of data"#,
    );
}

#[test]
fn two_tensors_over_the_same_bytes_are_an_alias() {
    let json = object(&[entry("a", "U8", "[4]", 0, 4), entry("b", "I8", "[4]", 0, 4)]);
    assert_refused(
        "alias",
        &json,
        4,
        r#"tensors "b" and "a" share the same data, bytes 0 to 4"#,
    );
}

#[test]
fn tensors_that_overlap_in_part_are_refused() {
    let json = object(&[entry("b", "U8", "[4]", 2, 6), entry("a", "U8", "[4]", 0, 4)]);
    assert_refused(
        "overlap",
        &json,
        6,
        r#"tensor "b" begins at 2, inside tensor "a", which ends at 4"#,
    );
    let empty_inside = object(&[entry("a", "U8", "[4]", 0, 4), entry("z", "U8", "[0]", 2, 2)]);
    assert_eq!(refused(&empty_inside, 4).code(), "overlap");
}

#[test]
fn a_hole_before_or_between_tensors_is_refused() {
    assert_refused(
        "hole",
        &one("U8", "[4]", 4, 8),
        8,
        r#"tensor "w" begins at 4, leaving a hole of 4 bytes from 0 on"#,
    );
    let json = object(&[entry("a", "U8", "[4]", 0, 4), entry("b", "U8", "[4]", 5, 9)]);
    assert_refused(
        "hole",
        &json,
        9,
        r#"tensor "b" begins at 5, leaving a hole of 1 bytes from 4 on"#,
    );
}

#[test]
fn bytes_after_the_last_tensor_are_refused() {
    assert_refused(
        "trailing-bytes",
        &one("U8", "[4]", 0, 4),
        7,
        "the tensors end at byte 4 of the data, but the file goes on for 3 more",
    );
    assert_eq!(refused("{}", 1).code(), "trailing-bytes");
}
