//! The manifest of a checkpoint from any bytes: refused, or one whose parts lie where it says.
#![no_main]

use crowfly_mover::ckpt::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    match Manifest::parse(text) {
        Ok(manifest) => {
            assert_eq!(manifest.files.len(), manifest.world as usize);
            for tensor in manifest.tensors.values() {
                for part in &tensor.parts {
                    assert!(part.extent().fits(&tensor.shape));
                    assert!(part.begin <= part.end);
                    assert!(part.end <= manifest.files[part.file as usize].bytes);
                }
            }
        }
        Err(error) => assert!(!error.code().is_empty() && !error.to_string().contains('\u{1b}')),
    }
});
