//! A safetensors file of any bytes: refused, or a header that the safetensors crate accepts too and
//! whose tensors cover the data exactly once.
#![no_main]

use std::io::Cursor;

use crowfly_mover::checkpoint::header::{Header, HeaderReadError};
use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;

fuzz_target!(|file: &[u8]| {
    match Header::read_from(&mut Cursor::new(file)) {
        Ok(header) => {
            let theirs = SafeTensors::deserialize(file).expect("the crate refuses what we accept");
            assert_eq!(theirs.len(), header.len());
            let mut end = header.data().start;
            for (number, tensor) in header.tensors().enumerate() {
                assert_eq!(tensor.range.start, end);
                end = tensor.range.end;
                assert_eq!(header.find(tensor.name), Some(number));
                assert_eq!(tensor.dtype.bytes_of(tensor.shape), Ok(tensor.bytes()));
                let view = theirs
                    .tensor(tensor.name)
                    .expect("the crate lacks the tensor");
                assert_eq!(view.data().len() as u64, tensor.bytes());
            }
            assert_eq!(end, file.len() as u64);
        }
        Err(HeaderReadError::Invalid(error)) => {
            assert!(!error.code().is_empty() && !error.to_string().contains('\u{1b}'));
        }
        Err(error) => panic!("a file in memory cannot fail to be read: {error}"),
    }
});
