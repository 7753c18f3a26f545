//! Writing a header.

use super::{Header, HeaderError, LENGTH_BYTES};
use crate::checkpoint::dtype::{Dtype, SizeFault};

/// Writers pad the header with spaces so that the data begins on a multiple of this, in bytes.
const DATA_ALIGNMENT: usize = 8;

/// The bytes before the data of a safetensors file (the length and the padded JSON) for tensors
/// whose data follow each other in the order given, and the header that a reader will see.
///
/// # Errors
/// Whatever a reader would refuse: nothing is written that [`Header::parse`] does not accept.
pub fn encode<'a>(
    metadata: &[(&str, &str)],
    tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a [u64])>,
) -> Result<(Vec<u8>, Header), HeaderError> {
    let mut entries = Vec::new();
    if !metadata.is_empty() {
        let pairs: Vec<String> = metadata
            .iter()
            .map(|(key, value)| format!("{}:{}", json_string(key), json_string(value)))
            .collect();
        entries.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
    }
    let mut end: u64 = 0;
    for (name, dtype, shape) in tensors {
        let begin = end;
        let overflow = || HeaderError::ShapeOverflow {
            tensor: name.into(),
            dtype,
            shape: shape.into(),
        };
        let bytes = dtype.bytes_of(shape).map_err(|fault| match fault {
            SizeFault::Overflow => overflow(),
            SizeFault::Misaligned { bits } => HeaderError::SubByteMisaligned {
                tensor: name.into(),
                dtype,
                shape: shape.into(),
                bits,
            },
        })?;
        end = begin.checked_add(bytes).ok_or_else(overflow)?;
        entries.push(format!(
            "{}:{{\"dtype\":\"{dtype}\",\"shape\":{},\"data_offsets\":[{begin},{end}]}}",
            json_string(name),
            json_numbers(shape),
        ));
    }
    let mut json = format!("{{{}}}", entries.join(","));
    let padding = json.len().next_multiple_of(DATA_ALIGNMENT) - json.len();
    json.extend(std::iter::repeat_n(' ', padding));

    let header_len = json.len() as u64;
    // Where the sum does not fit, the parser finds that the data ends past the end of the file.
    let file_len = (LENGTH_BYTES + header_len).saturating_add(end);
    let header = Header::parse(json.as_bytes(), file_len)?;
    let mut bytes = header_len.to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    Ok((bytes, header))
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn json_numbers(numbers: &[u64]) -> String {
    let written: Vec<String> = numbers.iter().map(u64::to_string).collect();
    format!("[{}]", written.join(","))
}
