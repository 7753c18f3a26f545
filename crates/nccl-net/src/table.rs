//! The objects that NCCL holds: it is given numbers for them instead of their addresses, so a number
//! that is stale, of another kind or made up is found out and touches no memory.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::NetError;

/// Numbers of objects are never used twice, whatever the kind. The first are left out: NCCL gives
/// small numbers a meaning of their own.
static NEXT: AtomicUsize = AtomicUsize::new(0x100);

/// All objects of one kind.
pub(crate) struct Table<T> {
    kind: &'static str,
    known: LazyLock<RwLock<HashMap<usize, Arc<T>>>>,
}

impl<T> Table<T> {
    pub(crate) const fn of(kind: &'static str) -> Self {
        Self {
            kind,
            known: LazyLock::new(RwLock::default),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<usize, Arc<T>>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<usize, Arc<T>>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an object; the number that it is known by.
    pub(crate) fn keep(&self, object: Arc<T>) -> usize {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.write().insert(number, object);
        number
    }

    pub(crate) fn get(&self, number: usize) -> Result<Arc<T>, NetError> {
        let known = self.read().get(&number).cloned();
        known.ok_or(NetError::Unknown(self.kind))
    }

    /// The object that NCCL names by a pointer.
    pub(crate) fn named(&self, pointer: *mut c_void) -> Result<Arc<T>, NetError> {
        self.get(pointer.addr())
    }

    /// Forgets an object.
    pub(crate) fn take(&self, number: usize) -> Result<Arc<T>, NetError> {
        let known = self.write().remove(&number);
        known.ok_or(NetError::Unknown(self.kind))
    }

    /// All objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.read().values().cloned().collect()
    }
}

/// A number as the pointer that NCCL keeps; nothing is ever read there.
pub(crate) const fn pointer(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_known_by_its_number_until_it_is_taken_and_never_again() {
        static TABLE: Table<u8> = Table::of("thing");
        let number = TABLE.keep(Arc::new(7));
        assert_eq!(TABLE.named(pointer(number)).ok().as_deref(), Some(&7));
        assert_eq!(TABLE.all().len(), 1);
        assert_eq!(TABLE.take(number).ok().as_deref(), Some(&7));
        for stale in [number, 0, 1, number + 1] {
            let error = TABLE.get(stale).expect_err("nothing is there");
            assert_eq!(error.code(), "unknown-object");
        }
        assert_ne!(TABLE.keep(Arc::new(7)), number);
    }
}
