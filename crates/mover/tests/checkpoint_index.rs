//! What the index of a sharded model is accepted and refused for.

use crowfly_mover::checkpoint::index::{Index, IndexError, MAX_SHARDS, TotalSize};
use proptest::prelude::*;

#[track_caller]
fn assert_refused(code: &str, text: &str, message: &str) {
    let error = Index::parse(text.as_bytes()).expect_err("the index must be refused");
    assert_eq!((error.code(), error.to_string().as_str()), (code, message));
}

fn total_size(written: &str) -> Option<TotalSize> {
    let text = format!(
        r#"{{"metadata":{{"total_size":{written}}},"weight_map":{{"w":"a.safetensors"}}}}"#
    );
    Index::parse(text.as_bytes()).unwrap().total_size().cloned()
}

#[test]
fn tensors_are_placed_in_the_files_in_the_order_of_the_index() {
    let text = r#"{
        "metadata": {"total_size": 12, "made_by": {"tool": "x"}},
        "weight_map": {"b": "2.safetensors", "a": "1.safetensors", "c": "2.safetensors"},
        "other": [1, 2]
    }"#;
    let index = Index::parse(text.as_bytes()).unwrap();
    assert_eq!(
        index.shards().collect::<Vec<_>>(),
        ["2.safetensors", "1.safetensors"]
    );
    assert_eq!(
        index.tensors().collect::<Vec<_>>(),
        [("b", 0), ("a", 1), ("c", 0)]
    );
    assert_eq!(index.shard_of("c"), Some(0));
    assert_eq!(index.shard_of("d"), None);
    assert_eq!(index.total_size(), Some(&TotalSize::Bytes(12)));
}

#[test]
fn the_total_may_be_absent_or_unusable_without_harm() {
    let without = r#"{"weight_map":{"w":"a.safetensors"}}"#;
    assert_eq!(Index::parse(without.as_bytes()).unwrap().total_size(), None);
    let null = r#"{"metadata":null,"weight_map":{"w":"a.safetensors"}}"#;
    assert_eq!(Index::parse(null.as_bytes()).unwrap().total_size(), None);

    assert_eq!(total_size("4.0"), Some(TotalSize::Bytes(4)));
    for (written, shown) in [
        ("-1", "-1"),
        ("1.5", "1.5"),
        ("1e300", "1e300"),
        ("\"9 GB\"", "9 GB"),
        ("true", "true"),
        ("null", "null"),
        ("[1,[2]]", "an array"),
        ("{\"a\":{}}", "an object"),
    ] {
        assert_eq!(
            total_size(written),
            Some(TotalSize::Unusable(shown.into())),
            "{written}"
        );
    }
}

#[test]
fn files_must_lie_beside_the_index() {
    for path in [
        "../x.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "..\\\\x.safetensors",
        "..",
        ".",
    ] {
        let text = format!(r#"{{"weight_map":{{"w":"{path}"}}}}"#);
        let shown = format!("{:?}", path.replace("\\\\", "\\"));
        assert_refused(
            "index-shard-is-path",
            &text,
            &format!(
                r#"the index places tensor "w" in {shown}, which is a path and not a file name"#
            ),
        );
    }
}

#[test]
fn files_must_be_named_as_safetensors() {
    let long = format!("{}.safetensors", "x".repeat(244));
    for name in ["", "model.bin", "a\\u0000.safetensors", long.as_str()] {
        let text = format!(r#"{{"weight_map":{{"w":"{name}"}}}}"#);
        let error = Index::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.code(), "index-bad-shard-name", "{name}");
    }
}

#[test]
fn a_tensor_or_a_field_listed_twice_is_refused() {
    assert_refused(
        "index-duplicate-tensor",
        r#"{"weight_map":{"w":"a.safetensors","\u0077":"a.safetensors"}}"#,
        r#"the index's weight_map lists tensor "w" twice"#,
    );
    assert_refused(
        "index-duplicate-field",
        r#"{"weight_map":{"w":"a.safetensors"},"weight_map":{}}"#,
        "the index has the field `weight_map` twice",
    );
    assert_refused(
        "index-duplicate-field",
        r#"{"metadata":{"total_size":1,"total_size":1},"weight_map":{}}"#,
        "the index has the field `total_size` twice",
    );
}

#[test]
fn an_index_without_tensors_is_refused() {
    assert_refused("index-no-weight-map", "{}", "the index has no weight_map");
    assert_refused(
        "index-empty-weight-map",
        r#"{"weight_map":{}}"#,
        "the index's weight_map is empty",
    );
}

#[test]
fn text_that_is_no_index_is_refused() {
    let code = |bytes: &[u8]| Index::parse(bytes).unwrap_err().code();
    assert_eq!(code(b"\xff"), "index-not-utf8");
    assert_eq!(code("\u{feff}{}".as_bytes()), "index-byte-order-mark");
    let trailing = r#"{"weight_map":{"w":"a.safetensors"}}x"#;
    for text in ["", "{", trailing, "version 1"] {
        assert_eq!(code(text.as_bytes()), "index-invalid-json", "{text}");
    }
    for text in [
        "[]",
        "3",
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":null}"#,
        r#"{"weight_map":{"w":1}}"#,
        r#"{"metadata":3}"#,
    ] {
        assert_eq!(code(text.as_bytes()), "index-wrong-type", "{text}");
    }
    let deep = format!("{{\"x\":{}", "[".repeat(100_000));
    assert_eq!(code(deep.as_bytes()), "index-invalid-json");
}

#[test]
fn the_number_of_files_is_bounded() {
    let map: Vec<_> = (0..=MAX_SHARDS)
        .map(|n| format!("\"w{n}\":\"{n}.safetensors\""))
        .collect();
    let of = |map: &[String]| {
        Index::parse(format!("{{\"weight_map\":{{{}}}}}", map.join(",")).as_bytes()).map(|_| ())
    };
    assert_eq!(of(&map), Err(IndexError::TooManyShards));
    assert_eq!(of(&map[1..]), Ok(()));
}

proptest! {
    #[test]
    fn arbitrary_text_is_refused_or_names_only_plain_files(
        parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"weight_map\"", "\"metadata\"", "\"total_size\"",
                "\"w\"", "\"a.safetensors\"", "\"../a.safetensors\"", "1", "1.5", "null", " ",
            ]),
            0..24,
        )
    ) {
        if let Ok(index) = Index::parse(parts.concat().as_bytes()) {
            for shard in index.shards() {
                prop_assert!(shard.ends_with(".safetensors") && !shard.contains('/'));
            }
            prop_assert!(index.tensors().count() > 0);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = Index::parse(&bytes);
    }
}
