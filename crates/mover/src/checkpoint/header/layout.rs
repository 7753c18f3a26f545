//! Whether the tensors together cover the data exactly once.

use super::Record;
use super::error::HeaderError;
use crate::checkpoint::names::NameTable;

/// The order of the records in the file: by begin, then by end, then by place in the header.
/// `None` when they stand in that order already, as the usual writers put them.
pub(super) fn file_order(records: &[Record]) -> Option<Vec<u32>> {
    let key = |record: &Record| (record.begin, record.end);
    if records.is_sorted_by_key(key) {
        return None;
    }
    let mut order: Vec<u32> = (0..).take(records.len()).collect();
    order.sort_by_key(|&number| records.get(number as usize).map(key));
    Some(order)
}

/// Checks records in file order: each must begin where the one before it ended, and the last must
/// end where the data does.
pub(super) fn check(
    records: &[Record],
    names: &NameTable,
    data_len: u64,
) -> Result<(), HeaderError> {
    let mut expected = 0;
    // The last record with bytes: an empty tensor cannot be overlapped.
    let mut before: Option<(usize, &Record)> = None;
    for (number, record) in records.iter().enumerate() {
        let tensor = || names.get(number).into();
        if record.begin > expected {
            return Err(HeaderError::Hole {
                tensor: tensor(),
                begin: record.begin,
                expected,
            });
        }
        if record.begin < expected {
            let (other, other_end, same) = before.map_or(("".into(), 0, false), |(n, r)| {
                let same = (r.begin, r.end) == (record.begin, record.end);
                (names.get(n).into(), r.end, same)
            });
            return Err(if same {
                HeaderError::Alias {
                    tensor: tensor(),
                    other,
                    begin: record.begin,
                    end: record.end,
                }
            } else {
                HeaderError::Overlap {
                    tensor: tensor(),
                    begin: record.begin,
                    other,
                    other_end,
                }
            });
        }
        if record.end > record.begin {
            expected = record.end;
            before = Some((number, record));
        }
    }
    if expected < data_len {
        return Err(HeaderError::TrailingBytes {
            data_end: expected,
            data_len,
        });
    }
    Ok(())
}
