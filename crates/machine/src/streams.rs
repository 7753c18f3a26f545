//! The standard streams as the process was started with them.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, fcntl_getfd};

/// Whether descriptor 1 was closed when the process began.
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Run by the loader before `main`: the standard library puts `/dev/null` in the place of a standard
/// stream that is closed, and from then on it cannot be told from one that the caller chose.
// SAFETY: the section holds pointers to functions, which the loader calls with arguments that this
// one may leave alone. It neither allocates, nor panics, nor uses anything that the standard library
// would have to prepare: one system call, and one store.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: no other thread runs yet that could close the descriptor; it is asked for its flags and
    // nothing else, and that it is closed is one of the answers.
    let stdout = unsafe { rustix::fd::BorrowedFd::borrow_raw(1) };
    let closed = fcntl_getfd(stdout) == Err(Errno::BADF);
    STDOUT_CLOSED.store(closed, Ordering::Relaxed);
}

/// Whether the process was started without a standard output (`>&-`): what is written to it is lost,
/// though no write fails.
pub fn stdout_was_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}
