//! What a container or a careful administrator takes away: each loss is named in the receipt, and
//! the bytes arrive all the same.
//!
//! A process of its own, because limits and filters belong to processes and threads.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crowfly_mover::{Destination, Engine, Loaded, Piece, Request, Source, Verify};
use crowfly_route::obstacle::Code;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};
use crowfly_waive::waived;

const LENGTH: usize = 9 << 20;

/// A cold file on a real disk; `None` where it cannot be read directly.
fn cold_file() -> Option<(tempfile::NamedTempFile, Arc<Source>)> {
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    let bytes: Vec<u8> = (0..LENGTH).map(|i| ((i * 7) >> 5) as u8).collect();
    file.write_all(&bytes).expect("written");
    file.as_file().sync_all().expect("on disk");
    let source = Source::open(file.path()).expect("readable");
    source.drop_cache().expect("advice");
    let direct = source.direct_obstacle().is_none();
    direct.then(|| (file, Arc::new(source)))
}

fn load(source: Arc<Source>, destination: Destination, policy: Policy) -> Loaded {
    let mut request = Request::to_host(Place::File("cold".into()), vec![Piece::whole(source)]);
    request.destination = destination;
    request.policy = policy;
    request.verify = Verify::Compare;
    let transfer = Engine::default().load(request).expect("sets up");
    transfer.wait().expect("loads")
}

/// Runs `body` on a thread of its own, so that what it takes away is taken from it alone.
fn apart<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    std::thread::spawn(body).join().expect("no panic")
}

/// Has the kernel answer EPERM to io_uring_setup on this thread and those it starts, as the
/// default seccomp profiles of container runtimes do.
fn forbid_io_uring() -> bool {
    const fn statement(code: u32, k: u32) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: 0,
            k,
        }
    }
    let equal = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: libc::SYS_io_uring_setup as u32,
    };
    let mut filter = [
        // The first field of `seccomp_data` is the number of the call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        equal,
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both calls only restrict this thread; the program outlives the call that copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    }
}

#[test]
fn given_a_seccomp_filter_against_io_uring_threads_read_directly_and_the_receipt_says_why() {
    let Some((_file, source)) = cold_file() else {
        waived!("no O_DIRECT here");
    };
    let loaded = apart(move || {
        forbid_io_uring().then(|| load(source, Destination::Host(None), Policy::Require))
    });
    let Some(loaded) = loaded else {
        waived!("no seccomp filters here");
    };
    let receipt = loaded.receipt;
    assert_eq!(
        (receipt.shares.len(), receipt.shares[0].path),
        (1, Path::Threads)
    );
    let named = receipt.obstacles.iter().find(|o| o.code == Code::NoIoUring);
    assert!(
        named.is_some_and(|o| !o.evidence.is_empty() && !o.fix.is_empty()),
        "{:?}",
        receipt.obstacles
    );
    assert!(matches!(receipt.verification, Verification::Matched { .. }));
}

/// Loads as a user who may lock `limit` bytes; `None` where the right to lock more stays.
fn load_with_memlock(source: Arc<Source>, limit: u64) -> Option<Loaded> {
    let resource = rustix::process::Resource::Memlock;
    let lowered = rustix::process::Rlimit {
        current: Some(limit),
        ..rustix::process::getrlimit(resource)
    };
    rustix::process::setrlimit(resource, lowered).ok()?;
    apart(move || {
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: changes the user of this thread alone (the bare call, not the library's wrapper,
        // which changes all): it then has no right to lock more than the limit.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) } == 0;
        let ordinary = dropped || !rustix::process::geteuid().is_root();
        ordinary.then(|| load(source, Destination::Transit(None), Policy::Prefer))
    })
}

#[test]
fn given_a_small_memlock_limit_the_bytes_arrive_and_the_receipt_names_the_limit() {
    // Room for one ring at most; room for all rings, none for 64 MiB of registered buffers.
    for (limit, allowed) in [
        (16 << 10, &[Path::Threads, Path::Direct][..]),
        (1 << 20, &[Path::Direct][..]),
    ] {
        let Some((_file, source)) = cold_file() else {
            waived!("no O_DIRECT here");
        };
        let Some(loaded) = load_with_memlock(source, limit) else {
            waived!("the right to lock memory cannot be dropped here");
        };
        let receipt = loaded.receipt;
        assert!(receipt.is_whole() && receipt.bounced.0 == 0, "{limit}");
        let kept = receipt.shares.iter().all(|s| allowed.contains(&s.path));
        assert!(kept, "{limit}: {:?}", receipt.shares);
        let named = receipt
            .obstacles
            .iter()
            .find(|o| o.code == Code::MemlockTooSmall);
        assert!(
            named.is_some_and(|o| !o.evidence.is_empty()),
            "{limit}: {:?}",
            receipt.obstacles
        );
        assert!(matches!(receipt.verification, Verification::Matched { .. }));
    }
}

#[test]
fn an_open_source_does_not_keep_the_caller_from_closing_descriptors() {
    let Some((file, source)) = cold_file() else {
        waived!("no O_DIRECT here");
    };
    let descriptor = file.as_file().as_raw_fd();
    drop(file);
    // The source reads its own descriptors, also when the name and the caller's are gone.
    let loaded = load(source, Destination::Host(None), Policy::Require);
    assert!(descriptor >= 0 && loaded.receipt.is_whole());
}
