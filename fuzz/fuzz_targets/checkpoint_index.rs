//! The index of a sharded model from any bytes: refused, or one that names plain files only.
#![no_main]

use std::path::{Component, Path};

use crowfly_mover::checkpoint::index::Index;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    match Index::parse(text) {
        Ok(index) => {
            for shard in index.shards() {
                let parts: Vec<_> = Path::new(shard).components().collect();
                assert!(matches!(parts.as_slice(), [Component::Normal(name)] if *name == shard));
            }
            let shards = index.shards().len();
            let mut tensors = 0;
            for (tensor, shard) in index.tensors() {
                assert!(shard < shards);
                assert_eq!(index.shard_of(tensor), Some(shard));
                tensors += 1;
            }
            assert!(tensors > 0);
        }
        Err(error) => assert!(!error.code().is_empty() && !error.to_string().contains('\u{1b}')),
    }
});
