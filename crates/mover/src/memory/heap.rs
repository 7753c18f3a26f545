//! Memory of the allocator's whose size a user or a file decides: where there is none, that is an error like
//! any other, and not the end of the process.

use std::io;

use super::MemoryError;

/// So many zeros.
///
/// # Errors
/// [`MemoryError::Host`].
pub(crate) fn zeros<T: Clone + Default>(len: usize) -> Result<Vec<T>, MemoryError> {
    let mut all = Vec::new();
    fill_up(&mut all, len)?;
    Ok(all)
}

/// Makes a vector so long: what is new is zero.
///
/// # Errors
/// [`MemoryError::Host`]; the vector is as it was.
pub(crate) fn fill_up<T: Clone + Default>(all: &mut Vec<T>, len: usize) -> Result<(), MemoryError> {
    make_room(all, len)?;
    all.resize(len, T::default());
    Ok(())
}

/// Has a vector hold these bytes and no others.
///
/// # Errors
/// [`MemoryError::Host`]; the vector is empty then.
pub(crate) fn copy_into(all: &mut Vec<u8>, bytes: &[u8]) -> Result<(), MemoryError> {
    all.clear();
    make_room(all, bytes.len())?;
    all.extend_from_slice(bytes);
    Ok(())
}

fn make_room<T>(all: &mut Vec<T>, len: usize) -> Result<(), MemoryError> {
    let more = len.saturating_sub(all.len());
    all.try_reserve_exact(more).map_err(|_| MemoryError::Host {
        bytes: len.saturating_mul(size_of::<T>()),
        source: io::ErrorKind::OutOfMemory.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_there_is_zero_and_grows_and_shrinks() {
        assert_eq!(zeros::<f32>(3).expect("memory"), [0.0; 3]);
        let mut all = vec![7, 8];
        fill_up(&mut all, 4).expect("memory");
        assert_eq!(all, [7, 8, 0, 0]);
        fill_up(&mut all, 1).expect("memory");
        assert_eq!(all, [7]);
        copy_into(&mut all, &[1, 2, 3]).expect("memory");
        assert_eq!(all, [1, 2, 3]);
    }

    #[test]
    fn memory_that_no_process_has_is_refused_with_its_size() {
        let too_much = usize::MAX / 8;
        let error = zeros::<f32>(too_much).expect_err("no such memory");
        assert_eq!(error.code(), "no-host-memory");
        assert_eq!(
            error.to_string(),
            format!(
                "cannot map {} bytes of host memory: out of memory",
                4 * too_much
            )
        );
        let mut all = vec![7u8];
        assert!(fill_up(&mut all, usize::MAX).is_err());
        assert_eq!(all, [7]);
    }
}
