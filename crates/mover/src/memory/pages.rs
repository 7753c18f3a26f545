//! Of which size the pages are that a memory gets next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The size of the pages that come next, which several threads may change while others take pages.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Whether they are to be small, whatever the memory's kind says.
    small: Mutex<bool>,
    changes: AtomicU64,
}

/// How often the size had changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changes(u64);

impl Pages {
    /// Has them come in a size, by `advise` where it is another one than before. When this returns they do,
    /// whoever changed it; [`Pages::changes`] is the same for as long as that holds.
    pub(crate) fn take(&self, small: bool, advise: impl FnOnce()) -> Changes {
        let mut known = self.small.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != small {
            // Before the first page of the new size can come.
            self.changes.fetch_add(1, Ordering::SeqCst);
            advise();
            *known = small;
        }
        self.changes()
    }

    pub(crate) fn changes(&self) -> Changes {
        Changes(self.changes.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    #[test]
    fn whoever_wants_another_size_waits_until_it_is_that_whoever_changes_it() {
        let (pages, advised) = (Pages::default(), AtomicBool::new(false));
        let before = pages.take(false, || panic!("it is that already"));
        let (begun, first) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| {
                pages.take(true, || {
                    begun.send(()).expect("it is waited for");
                    std::thread::sleep(Duration::from_millis(50));
                    advised.store(true, Ordering::SeqCst);
                })
            });
            first.recv().expect("it begins");
            assert_ne!(pages.changes(), before, "some may have come already");
            let after = pages.take(true, || panic!("somebody else does"));
            assert!(advised.load(Ordering::SeqCst), "it was not yet so");
            assert_eq!(changing.join().expect("no panic"), after);
        });
    }
}
